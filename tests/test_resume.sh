#!/usr/bin/env bash
# A run that is interrupted, killed or out of disk goes on as if nothing had happened: the weights and
# AdamW's moments at the end have the bits of the run that was never stopped.
#
#     KILLS=200 tests/test_resume.sh       more random moments than the default 5
#     BITS=1 tests/test_resume.sh          old runs to the bit, see below
. "$(dirname "$0")/tools.sh"
. tests/ranks.sh
set -u
KILLS=${KILLS:-5}
trap 'mountpoint -q "$dir/small" 2>/dev/null && umount "$dir/small"; rm -rf "$dir"' EXIT

evals() { grep -o '"val_loss.*' "$1/log.jsonl" | tail -n 1; }
refused() {     # refused PATTERN COMMAND...: in one line that fits the pattern
    one_line "" "${@:2}"
    grep -q -e "$1" "$dir/stderr" || note "'${*:2}' says '$(cat "$dir/stderr")', not '$1'"
}

$prepare tales --out "$dir/tales" --tokens 30000 >/dev/null || exit 1
small="--data $dir/tales --layers 1 --heads 2 --channels 16 --seq-len 16 --micro-batch 4
       --batch-tokens 128 --eval-every 0 --eval-tokens 64 --lr 1e-2 --clip 0.5"
$train $small --steps 300 --out "$dir/whole" >/dev/null || note "the run to compare with"

# ---- Ctrl-C and SIGTERM save before leaving; the next sitting may have other threads. DiLoCo's
# rounds come to their end first
$train $small --steps 300 --outer-every 7 --out "$dir/rounds" >/dev/null || note "the run with rounds"
for whole in whole rounds; do
    flags="$small --steps 300 $([ $whole = whole ] || echo --outer-every 7)"
    rm -rf "$dir/cut"
    $train $flags --out "$dir/cut" --threads 1 >/dev/null 2>&1 &
    for sitting in 1 2 3; do
        sleep 0.0$((RANDOM % 9 + 1))
        [ $sitting = 2 ] && kill -TERM $! || kill -INT $!
        wait $!
        [ -e "$dir/cut/latest" ] || rm -rf "$dir/cut"  # stopped before the first update
        [ -e "$dir/cut" ] && resume=--resume || resume=$flags
        $train $resume --out "$dir/cut" --threads $sitting >/dev/null 2>&1 &
    done
    wait
    same_files $whole cut
done
$train $small --batch-tokens 20480 --outer-every 200 --steps 250 --out "$dir/told" >"$dir/out" 2>&1 &
wait_for grep -qs '"event":"step"' "$dir/told/log.jsonl"
kill -TERM $!
wait_for grep -qs "stopping after this round's update 200; again ends at once" "$dir/out"
kill -9 $!; wait $! 2>/dev/null
end interrupted_runs_go_on_to_the_bit

# ---- a signal in the last update, a long one: the evaluation comes with --resume, and is saved
last="$small --batch-schedule stages:128=200000 --steps 2 --eval-every 1"
$train $last --out "$dir/unseen" >/dev/null &
wait_for grep -qs '"event":"step"' "$dir/unseen/log.jsonl"
kill -TERM $!; wait $!
$train --resume --out "$dir/unseen" >/dev/null || note "resuming after the last update"
same "validation loss" "$(sed -n 's/.*"val_loss": \(.*\),/\1/p' "$dir/unseen/latest/state.json" | cut -c 1-9)" \
    "$(evals "$dir/unseen" | sed 's/.*"val_loss"://' | cut -c 1-9)"
end the_loss_of_the_last_update_is_saved

# ---- averaged weights and SGD go on to the bit; SGD keeps no moments
program=$train base="$small --steps 60 --save-every 23 --keep 0 --eval-every 10"
rows << 'ROWS'
average   1  -           -     --average-tokens 2000
average_  1  average@23  bits
sgd       1  -           -     --optimizer sgd --average-tokens 900
again     1  sgd@23      bits
ROWS
for pair in average:average_ sgd:again; do
    same "losses of ${pair#*:}" "$(evals "$dir/${pair#*:}")" "$(evals "$dir/${pair%:*}")"
    evals "$dir/${pair#*:}" | grep -q '"val_loss_average":[0-9]' || note "no loss of the average"
done
[ ! -e "$dir/again/latest/optimizer.safetensors" ] || note "SGD saves moments"
refused "the run began with sgd" $train --resume --optimizer adamw --out "$dir/again"
refused "the run began with adamw" $train --resume --optimizer sgd --out "$dir/whole"
refused "optimizer sgd has no moments" $train --resume --beta1 0.5 --out "$dir/again"
rm "$dir/again/latest/average.safetensors"
refused "average.safetensors" $train --resume --steps 70 --out "$dir/again"
$train --resume --average-tokens 0 --steps 70 --out "$dir/again" >/dev/null || note "without the average"
$train --resume --average-tokens 500 --steps 80 --out "$dir/again" >/dev/null || note "a new average"
[ -e "$dir/again/latest/average.safetensors" ] || note "the new average is not saved"
end averages_and_sgd_go_on_to_the_bit

# ---- Ctrl-C is answered at once, again ends at once, and ends an evaluation or a sample
slow="--data $dir/tales --layers 4 --heads 4 --channels 256 --seq-len 64 --micro-batch 8"
appears() { wait_for grep -qs -- "$1" "$2"; }    # a text in a file
interrupt() {  # interrupt PID STATUS: one Ctrl-C, which must be answered before the run ends
    kill -INT "$1"
    appears "stopping after this update; again ends at once" "$dir/out"
    [ -z "$3" ] || kill -INT "$1"
    wait "$1"
    [ $? -eq "$2" ] || note "exit status is not $2"
}
rm -f "$dir/out"    # of the run before
$train $slow --batch-tokens 1999872 --steps 9 --eval-every 0 --out "$dir/long" >"$dir/out" 2>&1 &
appears '"event":"start"' "$dir/long/log.jsonl"         # written once signals are caught
has "$dir/out" "model "                     # what is about to happen is told before it happens
interrupt $! 130 again
[ ! -e "$dir/long/latest" ] || note "the second Ctrl-C waited for the update"
rm -f "$dir/out"
$train $slow --steps 9 --eval-every 1 --eval-tokens 0 --sample-every 1 --out "$dir/eval" >"$dir/out" 2>&1 &
appears "^step" "$dir/out"
interrupt $! 130 ""
[ "$(grep -o '"event":"[a-z]*"' "$dir/eval/log.jsonl" | xargs)" = "event:start event:step event:save event:end" ] \
    || note "in an evaluation: $(cut -c 1-40 "$dir/eval/log.jsonl" | xargs)"
rm -f "$dir/out"
(trap '' HUP; exec $train $slow --steps 9 --out "$dir/nohup") >"$dir/out" 2>&1 &
appears "^step" "$dir/out"
kill -HUP $!; sleep 0.2; ! grep -q stopping "$dir/out" || note "SIGHUP stops a run under nohup"
interrupt $! 130 ""
rm -f "$dir/out"    # timeout sends a signal to its child, and without --foreground again to its group
timeout --foreground -s KILL 60 $train $slow --steps 9 --eval-every 0 --sample-every 1 --max-new 1000000 --temperature 0 \
    --out "$dir/sample" >"$dir/out" 2>&1 &       # the likeliest byte, again and again, for ever
appears "the model writes" "$dir/out"
interrupt $! 130 ""
[ "$(readlink "$dir/sample/latest")" = step_00000001 ] || note "in a sample: latest is $(readlink "$dir/sample/latest")"
end an_interrupted_run_answers_at_once

# ---- kill -9 while it saves all the time
mkdir "$dir/killed"
survived=0 long=$((KILLS * 25))          # updates; enough that the last kill finds a run
$train $small --steps $long --out "$dir/unkilled" >/dev/null || note "the run to compare with"
for i in $(seq "$KILLS"); do
    if [ -e "$dir/killed/latest" ]; then flags="--resume"; else flags="$small --steps $long --overwrite"; fi
    $train $flags --save-every 1 --keep 2 --out "$dir/killed" >/dev/null 2>"$dir/err" &
    pid=$!
    sleep "0.$(printf %03d $((RANDOM % 250)))"
    [ $i != "$KILLS" ] || wait_for test -e "$dir/killed/latest"      # however busy the machine is
    kill -9 $pid 2>/dev/null && survived=$((survived + 1))
    wait $pid 2>/dev/null
    [ -s "$dir/err" ] && note "kill $i: $(cat "$dir/err")"
    [ -e "$dir/killed/latest" ] || continue
    $train --init "$dir/killed" --generate "Once" --max-new 2 >/dev/null 2>"$dir/err" \
        || note "after kill $i latest does not load: $(cat "$dir/err")"
done
[ -e "$dir/killed/latest" ] || note "no checkpoint was ever saved"
$train --resume --out "$dir/killed" >/dev/null 2>"$dir/err" || note "$(cat "$dir/err")"
same_files unkilled killed
ls -A "$dir/killed" | grep -q tmp && note "temporaries stay"
[ "$(ls -d "$dir"/killed/step_* | wc -l)" -le 2 ] || note "--keep 2 kept $(ls "$dir/killed")"
echo "    killed $survived times at random moments"
end killed_runs_go_on_to_the_bit

# ---- a longer run
$train $small --steps 20 --lr-schedule constant --out "$dir/one" >/dev/null
$train --resume --steps 40 --out "$dir/one" >/dev/null
$train $small --steps 40 --lr-schedule constant --out "$dir/two" >/dev/null
same_files two one                       # a constant rate: raising --steps equals a longer run
same "losses" "$(values step loss "$dir/one")" "$(values step loss "$dir/two")"
end more_steps_on_resuming_are_a_longer_run

# ---- what a resumed run takes over, and where a target loss ends it
$train $small --steps 5 --threads 1 --out "$dir/flags" >/dev/null
$train --resume --steps 6 --out "$dir/flags" >/dev/null 2>"$dir/err" || note "$(cat "$dir/err")"
grep '"resume"' "$dir/flags/log.jsonl" | grep -q '"threads_used":1' || note "--threads is not taken over"
$train --resume --steps 7 --train "$dir/tales/*train*.bin" --val "$dir/tales/*val*.bin" \
    --out "$dir/flags" >/dev/null 2>"$dir/err" || note "$(cat "$dir/err")"
$train $small --steps 7 --seed 1337 --out "$dir/flags" --resume >"$dir/out" 2>"$dir/err" || note "the same command with --resume: $(cat "$dir/err")"
grep -q "already done; raise --steps" "$dir/out" || note "a finished run resumed does not say so: $(cat "$dir/out")"
$train $small --steps 8 --out "$dir/flags" --resume >/dev/null 2>"$dir/err" || note "and again: $(cat "$dir/err")"
refused "leave it out" $train $small --channels 32 --steps 9 --out "$dir/flags" --resume
refused "leave it out" $train --init d4 --steps 9 --out "$dir/flags" --resume
target="$small --lr-schedule constant --eval-every 5 --target-loss 4 --steps 300"
$train $target --out "$dir/target" >/dev/null
ended=$(readlink "$dir/target/latest")
$train --resume --out "$dir/target" >/dev/null
[ "$(readlink "$dir/target/latest")" = "$ended" ] || note "trained on past its target, $ended"
[ "$ended" != step_00000300 ] || note "the target was not reached: this test shows nothing"
end a_resumed_run_takes_over_its_flags

# ---- one run at a time in a directory; a reader of stdout that goes; things that are not ours
$train $small --steps 100000000 --out "$dir/busy" --save-every 0 >/dev/null 2>&1 &
wait_for grep -qs '"event":"step"' "$dir/busy/log.jsonl"
refused "another run" $train --resume --out "$dir/busy"
refused "another run" $train $small --out "$dir/busy"
refused "another run" $train $small --overwrite --out "$dir/busy"
kill -TERM $!; wait $! 2>/dev/null
$train $small --steps 60 --sample-every 1 --max-new 20 --out "$dir/piped" 2>"$dir/err" | head -1 >/dev/null
[ -e "$dir/piped/latest" ] || note "a closed pipe ends the run with nothing saved"
mkdir -p "$dir/mine/latest"; echo x >"$dir/mine/latest/thesis.txt"
refused "not a link of a run" $train $small --steps 2 --overwrite --out "$dir/mine"
[ -e "$dir/mine/latest/thesis.txt" ] || note "--overwrite removed a file that is not its own"
mkdir "$dir/early"; echo >"$dir/early/log.jsonl"
refused "before its first save" $train $small --steps 2 --out "$dir/early"
end a_run_keeps_to_itself

# ---- a run that diverges: after ten updates its rate is so high that soon no gradient is finite
$train $small --steps 10 --eval-every 5 --save-every 5 --keep 1 --lr-schedule constant --out "$dir/wild" >/dev/null
$train --resume --steps 100 --lr 30 --clip 1e6 --out "$dir/wild" >/dev/null 2>"$dir/err"
[ $? -eq 1 ] || note "a run that has diverged ends with status 0"
grep -q '"event":"skip"' "$dir/wild/log.jsonl" || note "no update was skipped: this test shows nothing"
grep -q '"val_loss"' <(grep '"event":"eval","step":100,' "$dir/wild/log.jsonl") || note "no loss at the end"
same "saves while updates are skipped" "$(sed -En 's/^[{]"event":"(step|skip|save)".*/\1/p' \
    "$dir/wild/log.jsonl" | awk '$1 == "save" { n += was == "skip"; next } { was = $1 } END { print n + 0 }')" 0
same "how it ended" "$(values end reason "$dir/wild" | tail -n 1)" '"diverged"'
same "skips counted at its end" "$(values end skipped "$dir/wild" | tail -n 1)" \
    "$(values skip step "$dir/wild" | wc -l | tr -d ' ')"
last=$(printf step_%08d "$(values save step "$dir/wild" | tail -n 1)")
same "what is kept" "$(ls "$dir/wild" | grep step_ | xargs)" \
    "$(printf '%s\n' step_00000010 "$last" | sort -u | xargs)"
advice=$(sed -n 's/.*a lower rate: //p' "$dir/err")
(train=$(realpath "$train"); cd "$dir" && eval "${advice/.\/train_gpt2/\"$train\"}" --clip 1 --steps 60) \
    >"$dir/out" 2>"$dir/err" || note "the advice does not work: $advice: $(cat "$dir/err")"
grep -q "resumed after step 10," "$dir/out" || note "not from the best checkpoint: $(grep resumed "$dir/out")"
[ "$(readlink "$dir/wild/latest")" = step_00000060 ] || note "latest is $(readlink "$dir/wild/latest")"
$train $small --steps 20 --optimizer sgd --lr 100 --clip 0 --lr-schedule constant --save-every 0 \
    --out "$dir/never" >/dev/null 2>"$dir/err" && note "a run without one finite gradient ends with status 0"
end a_diverged_run_leaves_its_good_checkpoints

# ---- a fresh run from a checkpoint, and a run that replaces another
$train --data "$dir/tales" --init "$dir/whole" --seq-len 8 --steps 3 --eval-tokens 64 \
    --out "$dir/tuned" >/dev/null 2>"$dir/err" || note "$(cat "$dir/err")"
cmp -s "$dir/whole/latest/config.json" "$dir/tuned/latest/config.json" || note "the model changed its sizes"
$train $small --steps 5 --save-every 1 --keep 0 --out "$dir/over" >/dev/null
$train $small --steps 2 --overwrite --out "$dir/over" >/dev/null
[ "$(readlink "$dir/over/latest")" = step_00000002 ] || note "latest is $(readlink "$dir/over/latest")"
[ "$(ls -d "$dir"/over/step_* | wc -l)" -eq 1 ] || note "--overwrite left $(ls "$dir/over")"
refused "there are: 2" $train --out "$dir/over" --resume=1
$train $small --steps 4 --save-every 2 --lr-schedule constant --out "$dir/back" >/dev/null
cp -a "$dir/back" "$dir/forth"
$train --out "$dir/back" --resume=2 --steps 2 >/dev/null 2>"$dir/err" || note "$(cat "$dir/err")"
[ "$(readlink "$dir/back/latest")" = step_00000002 ] || note "--resume=2 leaves latest at $(readlink "$dir/back/latest")"
$train --resume --out "$dir/back" --steps 4 >/dev/null 2>"$dir/err" || note "$(cat "$dir/err")"
same_files forth back
mv "$dir/forth/step_00000004" "$dir/forth/step_00000004.1"
sed 's/"val_loss": .*,/"val_loss": 0.5,/' "$dir/back/latest/state.json" > "$dir/forth/step_00000004.1/state.json"
$train --out "$dir/forth" --resume=2 --keep 1 >/dev/null 2>"$dir/err" || note "$(cat "$dir/err")"
same_files back forth
rm -r "$dir/back/step_00000004"
$train --out "$dir/back" --resume --steps 0 >/dev/null 2>"$dir/err" || note "$(cat "$dir/err")"
$train --out "$dir/back" --resume >/dev/null 2>"$dir/err" || note "$(cat "$dir/err")"
same_files forth back                    # of the same length
end checkpoints_begin_and_replace_runs

# ---- what cannot be resumed
before=$(cksum <"$dir/whole/log.jsonl")
refused "holds a run already" $train $small --steps 5 --out "$dir/whole"
same "the log of a refused run" "$(cksum <"$dir/whole/log.jsonl")" "$before"
refused "neither config.json nor latest" $train --resume --out "$dir/tales"
refused "--resume" $train --resume
refused "--resume" $train --resume --overwrite --out "$dir/whole"
refused "--seed" $train --resume --out "$dir/whole" --seed 5
flock=$(command -v flock)                # none on macOS
${flock:+flock "$dir/whole"} $train --resume --out "$dir/whole" --generate "Once" --seed 5 --seq-len 8 \
    >/dev/null 2>"$dir/err" || note "reading beside a run: $(cat "$dir/err")"
absolute train
cp -r "$dir/whole" "$dir/d4" && cd "$dir" || exit 1
refused "./d4 is the run" $train --init d4 --generate "Once"
cd - >/dev/null || exit 1
refused "holds a config.json" $train --data "$dir/tales" --init "$dir/d4/latest" --out "$dir/d4/latest"
refused "fetch.sh fetches" $train --data "$dir/tales" --init gpt2
$prepare tales --out "$dir/other" --tokens 20000 >/dev/null
if [ -f "${BATCHWISE_DATA:-../shared/data}/gpt2.tiktoken" ]; then
    refused "token 0 is" $train $small --steps 2 --sample-every 1 \
        --tokenizer "${BATCHWISE_DATA:-../shared/data}/gpt2.tiktoken"
fi
refused "data must be the same" $train --resume --out "$dir/whole" --data "$dir/other" --steps 400
cp -r "$dir/whole" "$dir/torn" && $train --resume --steps 305 --out "$dir/torn" >/dev/null
: >"$dir/torn/latest/model.safetensors"
$train --resume=300 --out "$dir/torn" >/dev/null || note "--resume=300 does not go back"
mv "$dir/torn/latest/tokenizer.json" "$dir/kept" && head -c 100 "$dir/kept" >"$dir/torn/latest/tokenizer.json"
refused "tokenizer.json: .*; name another one with --tokenizer FILE" $train --resume --steps 306 --out "$dir/torn"
$train --resume --steps 306 --tokenizer "$dir/tales/tokenizer.json" --out "$dir/torn" >/dev/null ||
    note "--tokenizer does not help"
$train $small --average-tokens 500 --steps 30 --save-every 10 --keep 0 --out "$dir/three" >/dev/null
: >"$dir/three/step_00000030/model.safetensors"
refused "model.safetensors: .*; --resume=20 continues from the checkpoint before" \
    $train --resume --steps 40 --out "$dir/three"
rm "$dir/three/step_00000020/average.safetensors"
refused "; --resume=10 continues" $train --resume --steps 40 --out "$dir/three"
refused "no checkpoint of step 15; there are: 10$" $train --resume=15 --out "$dir/three"
: >"$dir/three/step_00000010/config.json"
refused "model.safetensors" $train --resume --steps 40 --out "$dir/three"
grep -q -- --resume= "$dir/stderr" && note "it names a checkpoint that does not load: $(cat "$dir/err")"
refused "cannot open" $train --init "$dir/whole" --generate "Once" --tokenizer "$dir/nowhere.json"
end what_cannot_be_resumed_says_so

# ---- a directory that cannot be written any more, though its log can
if [ "$(id -u)" != 0 ] || command -v setpriv >/dev/null; then
    somebody=""                                 # root may write everywhere
    $train $small --steps 2 --out "$dir/shut" >/dev/null || note "the run to resume"
    cp "$dir/shut/log.jsonl" "$dir/before"
    [ "$(id -u)" != 0 ] || somebody="setpriv --reuid 65534 --regid 65534 --clear-groups"
    [ -z "$somebody" ] || chown -R 65534:65534 "$dir/shut"
    cp "$train" "$dir/program"; chmod 755 "$dir"; chmod -R a+rX "$dir/tales"; chmod 555 "$dir/shut"
    refused "shut.*Permission denied" $somebody "$dir/program" --resume --steps 40 --out "$dir/shut"
    cmp -s "$dir/before" "$dir/shut/log.jsonl" || note "it trains, then refuses"
    chmod 755 "$dir/shut"
    $somebody "$dir/program" --resume --steps 4 --out "$dir/shut" >/dev/null 2>"$dir/err" || note "$(cat "$dir/err")"
    [ "$(readlink "$dir/shut/latest")" = step_00000004 ] || note "latest is $(readlink "$dir/shut/latest")"
    ls -A "$dir/shut" | grep -q tmp && note "a temporary stays"
    end a_read_only_run_is_refused_at_once
else
    skip a_read_only_run_is_refused_at_once "needs a user that is not root, or setpriv"
fi

# ---- other data of the same length
cp -r "$dir/tales" "$dir/changed"
$train $small --steps 3 --out "$dir/hashed" >/dev/null || note "the run to resume"
for split in train:training val:validation; do
    shard=$dir/changed/tales_${split%:*}_000000.bin
    printf '\001' | dd of="$shard" bs=1 seek=20000 conv=notrunc 2>/dev/null
    refused "the ${split#*:} data is not" $train --resume --out "$dir/hashed" --steps 5 --data "$dir/changed"
    cp "$dir/tales/"*.bin "$dir/changed"
done
$train --resume --out "$dir/hashed" --steps 5 --data "$dir/changed" >/dev/null 2>"$dir/err" \
    || note "the same data elsewhere: $(cat "$dir/err")"
end other_data_of_the_same_length_is_refused

# ---- a shard that shrinks under a run; test_dataloader has one that another program writes to
$train $small --data "$dir/changed" --steps 1000000 --save-every 50 --out "$dir/spoiled" \
    >/dev/null 2>"$dir/err" &
wait_for test -e "$dir/spoiled/latest"
: > "$dir/changed/tales_train_000000.bin"
for try in $(seq 200); do kill -0 $! 2>/dev/null || break; sleep 0.1; done
kill -9 $! 2>/dev/null && note "it goes on"
wait $! 2>/dev/null
same "exit status" $? 1
same "lines on stderr" "$(lines "$dir/err")" 1
has "$dir/err" "the file shrank"
cp "$dir/tales/"*.bin "$dir/changed"
step=$(readlink "$dir/spoiled/latest"); step=$((10#${step#step_} + 1))
works $train --resume --steps $step --out "$dir/spoiled"
end a_shrunk_shard_leaves_the_last_checkpoint

# ---- a disk that fills up
if [ "$(id -u)" -eq 0 ] && mkdir "$dir/small" && mount -t tmpfs -o size=600k tmpfs "$dir/small" 2>/dev/null; then
    $train $small --steps 2 --keep 1 --out "$dir/small/run" >/dev/null 2>"$dir/err" || note "$(cat "$dir/err")"
    dd if=/dev/zero of="$dir/small/filler" bs=1k 2>/dev/null
    refused "No space left" $train --resume --steps 40 --save-every 20 --out "$dir/small/run"
    $train --init "$dir/small/run" --generate "Once" --max-new 2 >/dev/null 2>"$dir/err" || note "$(cat "$dir/err")"
    [ "$(readlink "$dir/small/run/latest")" = step_00000002 ] || note "latest moved"
    ls -A "$dir/small/run" | grep -q tmp && note "a temporary stays"
    rm "$dir/small/filler"
    $train --resume --steps 40 --out "$dir/small/run" >/dev/null 2>"$dir/err" || note "$(cat "$dir/err")"
    $train $small --steps 2 --out "$dir/forty" >/dev/null; $train --resume --steps 40 --out "$dir/forty" >/dev/null
    same_files forty small/run
    end a_full_disk_leaves_the_last_checkpoint
else
    skip a_full_disk_leaves_the_last_checkpoint "needs root, to mount a small tmpfs"
fi

# ---- old runs ----

# Runs that an earlier program (8860b8f) began are continued as it would have continued them. Each
# in tests/fixtures/old_runs.tar.gz was saved at update 4 of 8; `expected` has the weights of the run
# that was not stopped, by gcc 12 for x86-64-v3. BITS=1: equal to the bit (for a build with that
# compiler and NATIVE=-march=x86-64-v3); else to rounding, which other vectors and compilers change.
tar -xzf tests/fixtures/old_runs.tar.gz -C "$dir"
runs=$dir/runs
$prepare tales --out "$dir/data" --tokens 20000 --seed 3 > /dev/null

for run in plain averages sgd batch zero3 diloco; do
    case $run in
        zero3 | diloco) program=$mpi_train ranks=2 ;;
        *) program=$train ranks=1 ;;
    esac
    [ -x "$program" ] || { skip old_run_$run "$program"; continue; }
    cut_at 4 runs/$run $run
    mpi $ranks --resume --out "$dir/$run" --data "$dir/data"
    same "status: $(head -n 2 "$dir/stderr")" $status 0
    same "last checkpoint" "$(readlink "$dir/$run/latest")" step_00000008
    if [ "${BITS:-}" = 1 ]; then
        cmp -s $runs/$run/expected/model.safetensors "$dir/$run/latest/model.safetensors" ||
            note "other bits than the run that was not stopped"
    else
        $compare $runs/$run/expected "$dir/$run" 1e-5 > "$dir/apart" 2>&1 || note "$(cat "$dir/apart")"
    fi
    end old_run_$run
done
exit $failed
