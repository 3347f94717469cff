#!/usr/bin/env bash
# Windows, from here: both programs, compiled by MinGW-w64, and run by wine beside those of Linux.
#
#     LONG=1 tests/test_windows.sh     runs them, too, and kills one at every moment of a save;
#                                      make test PART=windows
. "$(dirname "$0")/tools.sh"
unset CFLAGS SANITIZE OPENMP PRECISION PLAIN MPI
tests="windows_builds ${LONG:+windows_prepares windows_trains windows_runs_go_on_on_linux
       windows_generates windows_refuses windows_kills windows_full_disk}"
mingw=$(command -v x86_64-w64-mingw32-gcc) ||
    skip_all "needs x86_64-w64-mingw32-gcc (apt install gcc-mingw-w64-x86-64)"

# ---- the programs ----

built() {                                   # built CFLAGS TARGET...: in a copy of the tree
    make -s -C "$dir/tree" CC="$mingw" CFLAGS="$1 -Werror" "${@:2}" > "$dir/said" 2>&1 ||
        note "make ${*:2}: $(grep -m 1 -E 'error|Error' "$dir/said")"
    [ ! -s "$dir/said" ] || note "make ${*:2}: $(head -n 1 "$dir/said")"
}
mkdir "$dir/tree"
cp -r Makefile train_gpt2.c dataloader.h dev tests "$dir/tree"
posix=dev/base/windows/posix.h optimized=-O${LONG:+3}      # compiled once: all files include it
(cd "$dir/tree" && $(make -n CC="$mingw" CFLAGS="$optimized -Werror" build/objects/base/log.o |
    sed -n "s|-include $posix||; s| -MMD .*||p") -w -c -x c-header $posix -o $posix.gch)
built "$optimized" all
wide='[%][yz]mm'                            # no aligned move: the stack has 16 bytes (gcc 54412)
x86_64-w64-mingw32-objdump -d "$dir/tree/train_gpt2.exe" > "$dir/code"
grep -qE "vmov(aps|apd|dqa[0-9]*) .*($wide.*\(|\(.*$wide)" "$dir/code" &&
    note "a vector must be aligned: $(grep -m 1 -E "vmov(aps|apd|dqa).*$wide" "$dir/code")"
for program in train_gpt2 prepare; do       # no library of MinGW's is needed
    x86_64-w64-mingw32-objdump -p "$dir/tree/$program.exe" | sed -n 's/.*DLL Name: //p' |
        grep -viE 'kernel32|msvcrt|api-ms|ucrt|shell32|user32' > "$dir/dlls"
    [ ! -s "$dir/dlls" ] || note "$program.exe needs $(xargs < "$dir/dlls")"
done
make -s -C "$dir/tree" CC="$mingw" MPI=1 > "$dir/said" 2>&1
has "$dir/said" "MPI=1: on Windows, several ranks need WSL 2"
end windows_builds

[ -n "$LONG" ] || exit $failed
tests=${tests#windows_builds}
wine=$(command -v wine64 || ls /usr/lib/wine/wine64 2> /dev/null) &&
    server=$(command -v wineserver64 || ls /usr/lib/wine/wineserver64 2> /dev/null) ||
    skip_all "needs wine64 (apt install wine64)"
export WINEPREFIX=$dir/wine WINEDEBUG=-all WINEDLLOVERRIDES="mscoree,mshtml,winemenubuilder.exe="
mkdir "$dir/wine"
"$server" -p                                # until -k: it does not leave between two programs
trap '"$server" -k; rm -rf "$dir"' EXIT
"$wine" wineboot -i > "$dir/wineboot" 2>&1
text=$BATCHWISE_DATA/tinyshakespeare.txt steps=100
[ -f "$text" ] || text=README.md
windows=("$wine" "$dir/tree/train_gpt2.exe")
windows_prepare=("$wine" "$dir/tree/prepare.exe")

# ---- prepare: the same bytes, from files and through pipes; names in any script ----

strange="$dir/Čapek 書/text"
mkdir -p "$strange"
cp "$text" "$strange/für Zoë.txt"
good $prepare text "$text" --out "$dir/text"
good "${windows_prepare[@]}" text "$strange/für Zoë.txt" --out "$strange/out"
diff -r "$dir/text" "$strange/out" > /dev/null || note "other shards: $(ls "$strange/out")"
"${windows_prepare[@]}" text - --out "$dir/piped" < "$text" > /dev/null 2>&1
diff -r "$dir/text" "$dir/piped" > /dev/null || note "through a pipe: $(ls "$dir/piped")"
one_line "--overwrite replaces them" "${windows_prepare[@]}" text "$text" --out "$dir/piped"
good $prepare tales --out "$dir/tales" --tokens 30000
good "${windows_prepare[@]}" tales --out "$dir/tales-windows" --tokens 30000
diff -r "$dir/tales" "$dir/tales-windows" > /dev/null || note "other tales"
printf 'a\r\nb\032\0c\n' > "$dir/bytes"
"${windows_prepare[@]}" encode < "$dir/bytes" | "${windows_prepare[@]}" decode |
    cmp -s - "$dir/bytes" || note "standard input or output is not binary"
end windows_prepares

# ---- the losses of Linux: logf alone differs, in its last bit ----

losses_agree() {                            # losses_agree RUN RUN UPDATES
    paste <(values step loss "$1") <(values step loss "$2") | awk -v updates="$3" '
        NF == 2 { n++; d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d }
        END { print n == updates && NR == updates ? most + 0 : "nothing" }' > "$dir/apart"
    within "losses of $3 updates" "$(cat "$dir/apart")" 1e-6
}
nano="--layers 4 --heads 4 --channels 128 --seq-len 64 --micro-batch 12 --threads 2 --lr 1e-3
      --steps $steps --eval-every 0 --eval-tokens 6400"
small="--data $dir/tales --layers 1 --heads 2 --channels 16 --seq-len 16 --micro-batch 4
       --eval-every 0 --eval-tokens 64 --lr-schedule constant"
works $train $nano --data "$dir/text" --out "$dir/linux"
works "${windows[@]}" $nano --data "$strange/out" --out "$strange/run"
losses_agree "$dir/linux" "$strange/run" $steps
echo "    $steps updates: losses apart by at most $(cat "$dir/apart")"
works "${windows[@]}" $small --data "${strange//\//\\}\\out" --steps 1   # as cmd.exe completes it
end windows_trains

# ---- checkpoints travel both ways; `latest` takes the form of the system ----

works $train $small --steps 30 --out "$dir/whole"
works $train $small --steps 10 --out "$dir/run"
one_line "latest: not a link of a run; move it away" \
    "${windows[@]}" --resume --out "$dir/run" --steps 20         # wine alone shows Linux's links
rm "$dir/run/latest"
good "${windows[@]}" --resume --out "$dir/run" --steps 20
same "latest on Windows" "$(cat "$dir/run/latest")" step_00000020
good $train --resume --out "$dir/run" --steps 30
same "latest on Linux" "$(readlink "$dir/run/latest")" step_00000030
losses_agree "$dir/whole" "$dir/run" 30
works $train --init "$dir/run" --export "$dir/linux.gguf"
works "${windows[@]}" --init "$dir/run" --export "$dir/windows.gguf"
cmp -s "$dir/linux.gguf" "$dir/windows.gguf" || note "--export writes other bytes"
same "files" "$(ls "$dir/run/latest/" | xargs)" "$(ls "$dir/whole/latest/" | xargs)"
end windows_runs_go_on_on_linux

# ---- generation: the prompt comes through, and the same text goes on ----

for prompt in 'Once upon a time' 'Zoë \n 書'; do
    sampled=(--generate "$prompt" --temperature 0 --max-new 40)
    works $train --init "$strange/run/latest" "${sampled[@]}"
    cp "$dir/stdout" "$dir/linux-wrote"
    works "${windows[@]}" --init "$strange/run/latest" "${sampled[@]}"
    cmp -s "$dir/linux-wrote" "$dir/stdout" || note "another text: $(cat "$dir/stdout")"
    grep -qF -e "$prompt" "$dir/stdout" || note "the prompt came as $(head -c 60 "$dir/stdout")"
done
end windows_generates

# ---- what is refused, in one line ----

one_line "the nearest is --layers" "${windows[@]}" --layerz 2
one_line "nowhere: cannot open the directory: No such file" "${windows[@]}" --data "$dir/nowhere"
one_line "no checkpoint" "${windows[@]}" --init "$dir/text" --generate x
one_line "holds a run already" "${windows[@]}" $small --out "$dir/run"
one_line "on Windows, several ranks need WSL 2" env RANK=0 WORLD_SIZE=2 "${windows[@]}" $small
one_line "on Windows, several ranks need WSL 2" env MSYSTEM=UCRT64 scripts/launch.sh -n 2 true
one_line "/dev/full: the log cannot be written: No space left on device" \
    "${windows[@]}" $small --steps 1 --log /dev/full
"${windows[@]}" $small --steps 1e6 --out "$dir/locked" > "$dir/long" 2>&1 &
wait_for test -s "$dir/locked/log.jsonl"
one_line "another run is writing to" "${windows[@]}" $small --overwrite --out "$dir/locked"
kill -9 $!
wait 2> /dev/null
good "${windows[@]}" $small --steps 1 --overwrite --out "$dir/locked"
end windows_refuses

# ---- a kill before a call of a save that changes the disk; a disk that is full from a call on ----

works "${windows[@]}" $small --steps 1 --out "$dir/killed"
built "-O1 -include tests/windows_moments.h" BUILD=moments train_gpt2.exe
mv "$dir/tree/train_gpt2.exe" "$dir/moments.exe" || exit 1
goes_on() {                                 # goes_on MOMENT: one update more, and a save
    before=$now
    for try in $(seq 50); do                # a killed program's lock goes a moment after it, here
        MOMENT=$1 "$wine" "$dir/moments.exe" --resume --steps $((now + 1)) --keep 1 \
            --out "$dir/killed" > "$dir/stdout" 2> "$dir/stderr"
        status=$?
        grep -q "another run is writing" "$dir/stderr" || break
    done
    now=$(sed -n 's/^  "step": \([0-9]*\),$/\1/p' \
        "$dir/killed/$(cat "$dir/killed/latest")/state.json")
    [ "$now" = "$before" ] || [ "$now" = $((before + 1)) ] || note "moment $1: step '$now'"
}
now=1 kills=0 full=0
goes_on 0
moments=$(sed -n 's/ moments$//p' "$dir/stderr")
[ "${moments:-0}" -gt 40 ] || note "a save has only '$moments' moments: $(cat "$dir/stderr")"
for moment in $(seq "${moments:-0}"); do
    goes_on $moment
    same "status of a run killed at moment $moment, $(head -n 1 "$dir/stderr")" $status 9
    kills=$((kills + 1))
    $train --init "$dir/killed" --generate O --max-new 1 > /dev/null 2> "$dir/stderr" ||
        note "killed at moment $moment, latest does not load: $(cat "$dir/stderr")"
done
[ $kills -ge 20 ] || note "only $kills kills"
goes_on 0
same "status of the run after all kills" $status 0
same "what is left" "$(ls -A "$dir/killed" | xargs)" "best latest log.jsonl step_$(printf %08d $now)"
echo "    killed at $kills of $moments moments"
end windows_kills

for moment in $(seq 1 3 "${moments:-0}"); do
    goes_on -$moment
    [ $status != 0 ] || continue            # from then on the run writes nothing more
    full=$((full + 1))
    same "status on a disk that is full from moment $moment on" $status 1
    same "lines" "$(lines "$dir/stderr")" 1
    has "$dir/stderr" "No space left on device"
done
[ $full -ge 5 ] || note "only $full saves failed"
end windows_full_disk
exit $failed
