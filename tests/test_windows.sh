#!/usr/bin/env bash
# Windows, from here: both programs, compiled by MinGW-w64 and run by wine, against those of Linux.
#
#     LONG=1 tests/test_windows.sh         100 updates of Tiny Shakespeare (BATCHWISE_DATA), and a
#                                          kill before every call of a save: make test-windows
. "$(dirname "$0")/tools.sh"
unset CFLAGS SANITIZE OPENMP PRECISION PLAIN MPI
tests="windows_builds windows_prepares windows_trains windows_runs_go_on_on_linux windows_generates
       windows_exports windows_refuses windows_kills windows_full_disk"

mingw=$(command -v x86_64-w64-mingw32-gcc) || skip_all "needs x86_64-w64-mingw32-gcc (apt install gcc-mingw-w64-x86-64)"
wine=$(command -v wine64 || ls /usr/lib/wine/wine64 2> /dev/null) || skip_all "needs wine64 (apt install wine64)"
export WINEPREFIX=$dir/wine WINEDEBUG=-all WINEDLLOVERRIDES="mscoree,mshtml,winemenubuilder.exe="
trap 'for server in wineserver /usr/lib/wine/wineserver64; do $server -k 2> /dev/null && break; done
      rm -rf "$dir"' EXIT
"$wine" wineboot -i > "$dir/wineboot" 2>&1 &       # takes as long as the compiler

# ---- the programs; and the trainer with mishaps, see windows_moments.h ----

built() {                                   # built FLAGS TARGET...: in a copy of the tree
    make -s -C "$dir/tree" CC="$mingw" CFLAGS="$1 -Werror" "${@:2}" > "$dir/said" 2>&1 ||
        note "make ${*:2}: $(grep -m 1 -E 'error|Error' "$dir/said")"
    [ ! -s "$dir/said" ] || note "make ${*:2}: $(head -n 1 "$dir/said")"
}
mkdir "$dir/tree"
cp -r Makefile train_gpt2.c dataloader.h dev scripts tests "$dir/tree"
built "-O1 -include tests/windows_moments.h" BUILD=moments train_gpt2.exe
mv "$dir/tree/train_gpt2.exe" "$dir/moments.exe" || exit 1
built -O3 all
x86_64-w64-mingw32-objdump -d "$dir/tree/train_gpt2.exe" > "$dir/code"
grep -q 'vmovups' "$dir/code" || note "no AVX"
grep -qE 'vmov(ap[sd]|dqa[0-9]*) .*[yz]mm.*\(' "$dir/code" && note "a vector must be aligned on the stack"
for program in train_gpt2 prepare; do
    x86_64-w64-mingw32-objdump -p "$dir/tree/$program.exe" | grep 'DLL Name' |
        grep -viE 'kernel32|msvcrt|api-ms|ucrt|shell32|user32' > "$dir/dlls"
    [ ! -s "$dir/dlls" ] || note "$program.exe needs $(xargs < "$dir/dlls")"
done
make -s -C "$dir/tree" CC="$mingw" MPI=1 > "$dir/said" 2>&1
has "$dir/said" "MPI=1: on Windows, several ranks need WSL 2"
end windows_builds
wait

windows() { "$wine" "$dir/tree/train_gpt2.exe" "$@"; }
windows_prepare() { "$wine" "$dir/tree/prepare.exe" "$@"; }
latest() { echo "$1/$(cat "$1/latest")"; }         # of a run on Windows: a file that names it

# ---- prepare: the same bytes, from files and through pipes; names in any script ----

text=${LONG:+${BATCHWISE_DATA:-}/tinyshakespeare.txt}
[ -f "$text" ] || text=README.md
strange="$dir/Čapek 書/text"
mkdir -p "$strange"
cp "$text" "$strange/für Zoë.txt"
good $prepare text "$text" --out "$dir/text"
good windows_prepare text "$strange/für Zoë.txt" --out "$strange/out"
diff -r "$dir/text" "$strange/out" > /dev/null || note "other shards: $(ls "$strange/out")"
windows_prepare text - --out "$dir/piped" < "$text" > /dev/null 2>&1
diff -r "$dir/text" "$dir/piped" > /dev/null || note "through a pipe: $(ls "$dir/piped")"
one_line "--overwrite replaces them" windows_prepare text "$text" --out "$dir/piped"
good $prepare tales --out "$dir/tales" --tokens 30000
good windows_prepare tales --out "$dir/tales-windows" --tokens 30000
diff -r "$dir/tales" "$dir/tales-windows" > /dev/null || note "other tales"
printf 'a\r\nb\032\0c\n' > "$dir/bytes"
windows_prepare encode < "$dir/bytes" | windows_prepare decode | cmp -s - "$dir/bytes" ||
    note "standard input or output is not binary"
end windows_prepares

# ---- the losses of Linux: only logf differs, in its last bit ----

model="--layers 4 --heads 4 --channels 128 --seq-len 64 --micro-batch 12 --threads 2"
small="--layers 1 --heads 2 --channels 16 --seq-len 16 --micro-batch 4 --eval-every 0 --eval-tokens 64"
steps=$((${LONG:+1}0 * 9 + 10))                    # 100, or 10
losses_agree() {                            # losses_agree RUN RUN UPDATES
    same "updates of $1" "$(values step loss "$1" | wc -l | tr -d ' ')" "$3"
    same "updates of $2" "$(values step loss "$2" | wc -l | tr -d ' ')" "$3"
    within "losses" "$(paste <(values step loss "$1") <(values step loss "$2") |
        awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d } END { print most + 0 }')" 1e-6
}
works $train $model --data "$dir/text" --steps $steps --eval-every 0 --lr 1e-3 --out "$dir/linux"
works windows $model --data "$strange/out" --steps $steps --eval-every 0 --lr 1e-3 --out "$strange/run"
losses_agree "$dir/linux" "$strange/run" $steps
same "status of a run whose data has a backslash" \
    "$(windows $small --data "${strange//\//\\}\\out" --steps 1 > /dev/null 2>&1; echo $?)" 0
end windows_trains

# ---- checkpoints travel both ways; `latest` takes the form of the system ----

works $train $small --data "$dir/tales" --steps 30 --save-every 10 --out "$dir/whole"
works $train $small --data "$dir/tales" --steps 10 --out "$dir/run"
one_line "latest: a link that this system cannot replace; remove it" \
    windows --resume --out "$dir/run" --steps 20       # wine alone shows Linux's links
rm "$dir/run/latest"
good windows --resume --out "$dir/run" --steps 20
same "latest on Windows" "$(cat "$dir/run/latest")" step_00000020
works $train --resume --out "$dir/run" --steps 30
same "latest on Linux" "$(readlink "$dir/run/latest")" step_00000030
losses_agree "$dir/whole" "$dir/run" 30
works windows --init "$dir/run" --generate "Once" --max-new 2
same "files" "$(ls "$dir/run/latest/" | xargs)" "$(ls "$dir/whole/latest/" | xargs)"
end windows_runs_go_on_on_linux

# ---- generation ----

for prompt in 'Once upon a time' 'Zoë \n 書'; do
    works $train --init "$dir/run" --generate "$prompt" --temperature 0 --max-new 40
    cp "$dir/stdout" "$dir/linux-wrote"
    works windows --init "$(latest "$strange/run" | sed "s/step_.*/latest/")" --generate "$prompt" --max-new 4
    grep -qF -e "$prompt" "$dir/stdout" || note "the prompt came as $(head -c 60 "$dir/stdout")"
    works windows --init "$dir/run" --generate "$prompt" --temperature 0 --max-new 40
    cmp -s "$dir/linux-wrote" "$dir/stdout" || note "another text: $(cat "$dir/stdout")"
done
end windows_generates

works $train --init "$dir/run" --export "$dir/linux.gguf"
echo older > "$dir/windows.gguf"
works windows --init "$dir/run" --export "$dir/windows.gguf"
works windows --init "$dir/windows.gguf" --export "$dir/again.gguf"
for file in windows again; do
    cmp -s "$dir/linux.gguf" "$dir/$file.gguf" || note "$file.gguf is not as on Linux"
done
end windows_exports

# ---- what is refused, in one line ----

one_line "the nearest is --layers" windows --layerz 2
one_line "--data: $dir/nowhere: cannot open the directory: No such file" windows --data "$dir/nowhere"
one_line "no checkpoint" windows --init "$dir/text" --generate x
one_line "holds a run already" windows $small --data "$dir/tales" --out "$dir/run"
one_line "on Windows, several ranks need WSL 2" env RANK=0 WORLD_SIZE=2 "$wine" "$dir/tree/train_gpt2.exe" \
    $small --data "$dir/tales"
one_line "on Windows, several ranks need WSL 2" env MSYSTEM=UCRT64 scripts/launch.sh -n 2 true
"$wine" "$dir/tree/train_gpt2.exe" $small --data "$dir/tales" --steps 1e6 --out "$dir/locked" > "$dir/long" 2>&1 &
wait_for test -s "$dir/locked/log.jsonl"
one_line "another run is writing to" windows $small --data "$dir/tales" --steps 1 --overwrite --out "$dir/locked"
kill -9 $!
wait 2> /dev/null
good windows $small --data "$dir/tales" --steps 1 --overwrite --out "$dir/locked"
one_line "/dev/full: the log cannot be written: No space left on device" \
    windows $small --data "$dir/tales" --steps 1 --log /dev/full
end windows_refuses

# ---- a kill before each call of a save that changes the disk, and a disk that is full from then on ----

with_mishap() {                             # with_mishap MOMENT STEP: resumes the run up to the step
    MOMENT=$1 "$wine" "$dir/moments.exe" --resume --steps $2 --keep 1 --out "$dir/killed" \
        > "$dir/stdout" 2> "$dir/stderr"
    status=$?
}
tiny="--data $dir/tales --layers 1 --heads 1 --channels 8 --seq-len 8 --micro-batch 1 --eval-every 0
      --eval-tokens 16"
step_of() { sed -n 's/.*"step": \([0-9]*\),.*/\1/p' "$(latest "$1")/state.json" | head -n 1; }
works windows $tiny --steps 1 --out "$dir/killed"
works windows $tiny --steps 400 --lr 1e-3 --out "$dir/unkilled"
with_mishap 0 2
moments=$(sed -n 's/ moments$//p' "$dir/stderr") now=2 kills=0
[ "${moments:-0}" -gt 40 ] || note "a save has only '$moments' moments: $(cat "$dir/stderr")"
for n in $(seq "${moments:-0}"); do
    [ -n "$LONG" ] || has_its_turn $n 2 || continue
    with_mishap $n $((now + 1))
    same "status of a run that is killed before call $n" $status 9
    kills=$((kills + 1)) before=$now now=$(step_of "$dir/killed")
    [ "$now" = $before ] || [ "$now" = $((before + 1)) ] || note "after a kill before call $n: step '$now'"
    $train --init "$dir/killed" --generate O --max-new 1 > /dev/null 2> "$dir/stderr" ||
        note "after a kill before call $n latest does not load: $(cat "$dir/stderr")"
done
[ $kills -ge 20 ] || note "only $kills kills"
with_mishap 0 $((now + 1))
same "status of the run after all kills" $status 0
same "what is left" "$(ls -A "$dir/killed" | xargs)" "latest log.jsonl step_$(printf %08d $((now + 1)))"
echo "    killed before $kills of $moments calls"
end windows_kills

now=$((now + 1)) full=0
for n in $(seq 1 3 "${moments:-0}"); do
    with_mishap -$n $((now + 1))
    [ $status != 0 ] || { now=$((now + 1)); continue; }
    full=$((full + 1)) before=$now now=$(step_of "$dir/killed")
    same "status on a disk that is full from call $n on" $status 1
    same "lines" "$(lines "$dir/stderr")" 1
    has "$dir/stderr" "No space left on device"
    [ "$now" = $before ] || [ "$now" = $((before + 1)) ] || note "full from call $n on: step '$now'"
done
[ $full -ge 10 ] || note "only $full saves failed"
end windows_full_disk
exit $failed
