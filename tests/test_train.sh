#!/usr/bin/env bash
# train_gpt2 as a user runs it: what it prints, logs and writes, how it stops, and how it refuses.
# TRAIN and PREPARE name other binaries.
. "$(dirname "$0")/tools.sh"
absolute train
export ASAN_OPTIONS=allocator_may_return_null=1:$ASAN_OPTIONS

# ---- tools ----

# A tiny model on the small corpus, unless "$@" names others.
with_defaults() {
    arguments=(--seq-len 32 --micro-batch 2 --threads 1 --eval-tokens 256)
    case " $* " in *" --train "*) ;; *) arguments+=(--data "$data") ;; esac
    case " $* " in *" --init "*) ;; *) arguments+=(--layers 1 --heads 2 --channels 16) ;; esac
    arguments+=("$@")
}
run() {                                     # run ARGS...: stdout, stderr, status
    with_defaults "$@"
    "$train" "${arguments[@]}" > "$dir/stdout" 2> "$dir/said" < /dev/null
    status=$?                               # AddressSanitizer has a word on huge allocations
    grep -v "WARNING: AddressSanitizer failed to allocate" "$dir/said" > "$dir/stderr"
}
# refused WORDS ARGS...: one line on stderr that holds the words, status 1, nothing done.
refused() {
    one_line "$1" --out "$dir/no" "${@:2}"
    grep -q '^train_gpt2: ' "$dir/stderr" || note "'$*' does not name the program"
    silent "$dir/stdout"
    [ ! -e "$dir/no" ] || note "'$*' leaves $(find "$dir/no" | xargs) behind"
    rm -rf "$dir/no"
}

corpus() {                                  # a copy of the small corpus to damage
    rm -rf "$dir/bad"
    cp -r "$data" "$dir/bad"
}

data=$dir/tales
"$prepare" tales --out "$data" --tokens 20000 --seed 5 > "$dir/stdout" || exit 1

# ---- a good run ----

good --steps 300 --lr 2e-2 --eval-every 100 --out "$dir/out" --sample-every 200 --max-new 20
log=$dir/out/log.jsonl
first=$(values step loss | head -n 1)
last=$(values step loss | tail -n 1)
near "the first loss is that of a uniform guess over 257" "$first" 5.549 0.02
awk -v a="$first" -v b="$last" 'BEGIN { exit !(b < 0.7 * a) }' || note "loss from $first to $last"
same "step events" "$(values step step | tr '\n' ' ')" "$(seq 300 | tr '\n' ' ')"
same "eval events" "$(values eval step | tr '\n' ' ')" "100 200 300 "
same "events of the log" "$(sed 's/^{"event":"\([a-z]*\)".*/\1/' "$log" | sort | uniq -c | xargs)" \
    "1 end 3 eval 1 sample 1 save 1 start 300 step"
same "its last line" "$(tail -n 1 "$log" | cut -c 1-16)" '{"event":"end","'
same "how it ended" "$(values end reason)$(values end step)" '"done"300'
near "val_loss" "$(values eval val_loss | tail -n 1)" "$last" 0.2
end train_learns

for key in step tokens samples loss lr grad_norm batch_tokens seconds seconds_data seconds_compute \
           seconds_comm seconds_optimizer tok_per_s mfu; do
    same "lines with $key" "$(values step $key | grep -c '^[0-9]')" 300
done
same "steps with a data sheet" "$(grep -c '"mfu_datasheet":null' "$log")" 300
for key in parameters floor seed lr layers micro_batch data; do
    [ -n "$(values start $key)" ] || note "the start event lacks $key"
done
same parameters "$(values start parameters)" $((257*16 + 32*16 + 12*16*16 + 13*16 + 2*16))
same "tokens and samples" "$(values step tokens | tail -n 1) $(values step samples | tail -n 1)" \
    "19200 600"
digits=$(values step loss | tr -d . | awk '{ if (length($0) > n) n = length($0) } END { print n }')
same "digits of a loss" "$digits" 9
end train_log_fields

has "$dir/stdout" "loss"
has "$dir/stdout" "floor"
has "$dir/stdout" "tok/s"
same "evaluations shown" "$(grep -c '^eval .*validation loss' "$dir/stdout")" 3
same "samples shown" "$(grep -c '^--- the model writes' "$dir/stdout")" 1
sample=$(sed -n 's/^{"event":"sample","step":200,.*"text":"\(.*\)"}$/\1/p' "$dir/out/log.jsonl")
same "the sample in the log" "$(printf %b "${sample//\\\"/\"}")" \
    "$(sed -n '/^--- the model writes/,/^---$/p' "$dir/stdout" | sed '1d;$d')"
grep -q "$(printf '[\r\033]')" "$dir/stdout" && note "control characters in a file"
[ "$(grep -c '^step' "$dir/stdout")" -le 5 ] || note "$(grep -c '^step' "$dir/stdout") step lines"
grep -q '^step *300/300 ' "$dir/stdout" || note "the last update is not shown"
end train_stdout_in_a_file

# ---- the length of a run, and what is watched ----

good --steps 0 --out "$dir/out" --overwrite
same "step events" "$(values step step)" ""
same "evaluations" "$(values eval step) $(values eval tokens)" "0 0"
good --tokens 600 --out "$dir/out" --overwrite
same "--tokens 600 of 64 per update" "$(values step tokens | tail -n 1)" 640
same "the last update is evaluated" "$(values eval step)" 10
good --target-loss 4.5 --steps 2000 --lr 2e-2 --eval-every 20 --out "$dir/out" --overwrite
same "evaluations at the target or below" "$(values eval val_loss | awk '$1 <= 4.5' | xargs)" \
    "$(values eval val_loss | tail -n 1)"
same "how it ended" "$(values end reason)" '"done"'
end train_length

good --steps 2 --log "$dir/elsewhere.jsonl" --out "$dir/out2"
same "--log" "$(values step step "$dir/elsewhere.jsonl" | xargs)" "1 2"
[ ! -e "$dir/out2/log.jsonl" ] || note "--log leaves a second log in --out"
end train_log_elsewhere

for name in "a b" "[x]" "star*" "what?" 'back\slash' "-dash" "it's" '$(echo x)'; do
    cp -r "$data" "$dir/$name"
    good --data "$dir/$name" --steps 1 --out "$dir/$name/out"
    hint=$(sed -n 's/^  .* --init \(.*\) --generate .*/\1/p' "$dir/stdout")
    same "the directory of the hint" "$(eval "printf %s $hint")" "$dir/$name/out"
done
(cd "$dir" && "$train" --data=-dash --layers 1 --heads 2 --channels 16 --steps 1 --out=-out) \
    > "$dir/stdout" 2>&1 || note "a relative path: $(tail -n 1 "$dir/stdout")"
has "$dir/stdout" "--init ./-out --generate"
end train_odd_paths

# ---- what changes nothing ----

trained() { good --steps 10 --lr 3e-3 --log "$dir/$1" "${@:2}"; }        # trained RUN ARGS...
trained seed1; trained again; trained other --seed 2
trained watched --eval-every 3 --sample-every 2 --max-new 40
for key in loss grad_norm; do
    within "$key of two runs of one seed" "$(apart $key seed1 again)" 0
    [ "$(apart $key seed1 other)" != 0.0e+00 ] || note "--seed changes nothing"
    within "$key with evaluations and samples" "$(apart $key seed1 watched)" 0
done
end train_same_seed_same_run

# as_is ARGS...: without the defaults of `run`.
as_is() {
    "$train" "$@" > "$dir/stdout" 2> "$dir/stderr" < /dev/null
    same "status of '$*': $(cat "$dir/stderr")" $? 0
}
# A checkpoint has the loss of its own weights, or none.
good --steps 4 --eval-every 2 --save-every 3 --keep 0 --out "$dir/between"
same "losses saved" "$(grep -l '"val_loss": [0-9]' "$dir"/between/step_*/state.json)" \
    "$dir/between/step_00000004/state.json"

# A later end stretches the schedule, and a worse end leaves a better checkpoint: both are said.
good --steps 4 --lr 1e-3 --eval-every 4 --out "$dir/longer"
as_is --resume --out "$dir/longer" --steps 8 --max-new 1
has "$dir/stdout" "the learning rate was 0.0001 and is 0.000378 now"
as_is --resume --out "$dir/longer" --steps 16 --lr 1e-4 --lr-schedule constant
grep -q "learning rate was" "$dir/stdout" && note "a note on a rate that stays"
has "$dir/stdout" "--init $dir/longer --generate"
as_is --resume --out "$dir/longer" --steps 20 --lr 3
has "$dir/stdout" "best        validation loss $(printf %.4f "$(values eval val_loss "$dir/longer" |
    sort -n | head -n 1)") after step 16: $dir/longer/best"
has "$dir/stdout" "--init $dir/longer/best --generate"
as_is --init "$dir/longer/best" --generate x --max-new 1
"$prepare" text README.md --out "$dir/bpe" --tokenizer bpe:300 --val-fraction 0 > "$dir/stdout"
one_line 'token 256 is "' --init "$dir/longer/best" --data "$dir/bpe"
end train_longer_than_planned

# ---- on a terminal ----

if script --version 2> /dev/null | grep -q util-linux; then
    # script runs its command in $SHELL, which must understand what bash's printf %q quotes.
    with_defaults --steps 400 --lr 1e-2 --eval-every 200
    for columns in 80 40; do
        command="stty cols $columns rows 24; $(printf '%q ' "$train" "${arguments[@]}")"
        TERM=xterm SHELL=$BASH script -qec "$command" /dev/null > "$dir/tty" 2> /dev/null \
            < /dev/null
        tr '\r' '\n' < "$dir/tty" | sed "s/$(printf '\033')\[[0-9?]*[a-zA-Z]//g" > "$dir/shown"
        widest=$(awk '/^step/ && length($0) > n { n = length($0) } END { print n+0 }' "$dir/shown")
        [ "$widest" -lt $columns ] || note "a line of $widest on a terminal of $columns wraps"
        grep -q $'\rstep' "$dir/tty" || note "not renewed in place"
        [ "$(grep -c '^step' "$dir/shown")" -ge 2 ] || note "no progress on a terminal"
        [ "$(lines "$dir/tty")" -le 8 ] || note "$(lines "$dir/tty") lines: not renewed in place"
        grep -q '^eval *400/400 ' "$dir/shown" || note "no evaluation on a terminal"
        if grep '^step' "$dir/shown" | grep -qvE 'loss [0-9.]+ .*/s +[0-9:]+ left$'; then
            note "$columns columns lack the loss, speed or time: $(grep -m 1 ^step "$dir/shown")"
        fi
    done
    end train_on_a_terminal
else
    skip train_on_a_terminal "needs script, of util-linux"
fi

# ---- bad shards ----

corpus; rm "$dir/bad/tales_train_000000.bin"
refused "no such" --data "$dir/bad"
mkdir "$dir/texts" && echo text > "$dir/texts/a.txt"
refused "a.txt: cannot open the directory: Not a directory; \`./prepare text" --data "$dir/texts/a.txt"
refused "holds texts, expected shards; \`./prepare text" --data "$dir/texts"
end train_missing_shards

# Whole words of a name choose its split; no file serves both.
mkdir "$dir/words"
cp "$data/tales_train_000000.bin" "$dir/words/carnival_train_0.bin"
refused "has the word val" --data "$dir/words"
cp "$data/tales_val_000000.bin" "$dir/words/val.bin"
good --data "$dir/words" --steps 1
ln "$dir/words/val.bin" "$dir/words/val_and_train.bin"
refused "val_and_train.bin: is in both splits" --data "$dir/words"
end train_splits_share_no_file

# A shard by somebody else says nothing of its vocabulary: then it is GPT-2's.
corpus; rm "$dir/bad/tokenizer.json"
for shard in "$dir/bad/"*.bin; do
    dd if=/dev/zero of="$shard" bs=4 seek=3 count=2 conv=notrunc 2> "$dir/stderr"
done
good --data "$dir/bad" --steps 2 --log "$dir/log" --overwrite
same "its vocabulary" "$(values start vocab "$dir/log")" 50257
end train_shards_of_unknown_vocabulary

"$prepare" text README.md --out "$dir/few" > "$dir/stdout" || note "no small corpus"
there=$((($(wc -c < "$dir/few"/*val*.bin) - 1026) / 2 / 32 * 32))    # in whole windows
good --data "$dir/few" --eval-tokens 100000 --steps 1 --log "$dir/log" --overwrite
has "$dir/stdout" "asks for 100000"
same "what is there is used" "$(values eval eval_tokens "$dir/log")" $there
good --data "$dir/few" --eval-tokens 0 --steps 1 --log "$dir/log" --overwrite
same "--eval-tokens 0 is all" "$(values eval eval_tokens "$dir/log")" $there
grep -q "asks for" "$dir/stdout" && note "a note without need"
end train_short_validation

# The training loss at the evaluations: of a copy of the validation split it is the same; of as many
# tokens of a longer split it is that of the same windows each time, from its whole length.
cp "$data"/*val*.bin "$dir/copy_train.bin"
good --train "$dir/copy_train.bin" --val "$data/*val*.bin" --eval-tokens 0 --eval-train --steps 4 \
    --eval-every 2 --log "$dir/log" --overwrite
same "losses of the same tokens" "$(values eval train_eval_loss "$dir/log" | xargs)" \
    "$(values eval val_loss "$dir/log" | xargs)"
good --eval-train --lr 1e-12 --steps 4 --eval-every 2 --seed 3 --log "$dir/log" --overwrite
same "training losses at rest" "$(values eval train_eval_loss "$dir/log" | cut -c 1-7 | sort -u | wc -l)" 1
[ "$(values eval train_eval_loss "$dir/log" | head -n 1)" != \
  "$(values eval val_loss "$dir/log" | head -n 1)" ] || note "the training loss is of other tokens"
has "$dir/stdout" ", training loss "
end train_loss_beside_validation

corpus; rm "$dir/bad/tokenizer.json"
good --data "$dir/bad" --steps 1 --out "$dir/ids"
as_is --init "$dir/ids" --generate "1, 20 3" --max-new 4
grep -qE '^1, 20 3( [0-9]+){4}$' "$dir/stdout" || note "no ids: $(cat "$dir/stdout")"
"$train" --init "$dir/ids" --generate "1 257" 2> "$dir/stderr" && note "a 257 is accepted"
has "$dir/stderr" "as ids from 0 to 256"
refused "name one with --tokenizer FILE" --data "$dir/bad" --steps 2 --sample-every 1
good --data "$dir/bad" --steps 1 --sample-every 1 --tokenizer "$data/tokenizer.json"
same "samples" "$(grep -c '^--- the model writes' "$dir/stdout")" 1
end train_samples_need_a_tokenizer

# ---- bad flags: test_options has all of them ----

refused "the nearest is 128" --batch-tokens 127
"$train" > "$dir/stdout" 2> "$dir/stderr"
same "status without arguments" $? 1
same "lines without arguments" "$(lines "$dir/stderr")" 1
has "$dir/stderr" "prepare tales"
end train_bad_flags

"$train" --help > "$dir/help" 2> "$dir/stderr"
same "status of --help" $? 0
[ ! -s "$dir/stderr" ] || note "--help writes to stderr"
"$train" -h | cmp -s - "$dir/help" || note "-h is not --help"
end train_help

# ---- what does not fit ----

refused "memory" --layers 1000 --channels 65536 --heads 1
refused "GB, and this machine has" --layers 1000 --channels 8192 --heads 64
good --steps 1 --out "$dir/fits"
cp "$dir/fits/log.jsonl" "$dir/before"
run --layers 1000 --channels 65536 --heads 1 --out "$dir/fits" --overwrite
cmp -s "$dir/before" "$dir/fits/log.jsonl" || note "a run that does not fit wiped the one before"
end train_too_large_for_memory

# ---- threads ----

good --threads 2 --steps 1 --log "$dir/log" --overwrite
if [ "$(values start threads_used "$dir/log")" = 2 ]; then
    OMP_NUM_THREADS=3 good --threads 0 --steps 2 --log "$dir/log" --overwrite
    same "threads of OMP_NUM_THREADS=3" "$(values start threads_used "$dir/log")" 3
    good --threads 1000 --steps 2 --log "$dir/log" --overwrite
    [ "$(values start threads_used "$dir/log")" = 1000 ] ||
        has "$dir/stdout" "1000 threads were asked for, but only 4 a core"
    end train_threads
else
    skip train_threads "needs a build with OpenMP"
fi

# ---- where it cannot write ----

echo "in the way" > "$dir/file"
refused "$dir/file" --out "$dir/file/below"
refused "log" --log "$dir"
mkdir "$dir/locked" && chmod 000 "$dir/locked"
[ -r "$dir/locked" ] ||                     # root reads every directory
    refused "cannot open the directory: Permission denied" --data "$dir/locked"
ln -s "$dir/nowhere" "$dir/dangling"
refused "dangling: a symbolic link whose target does not exist" --out "$dir/dangling/below"
same "what was in the way" "$(cat "$dir/file")" "in the way"
end train_out_in_the_way

# ---- generation ----

good --steps 200 --lr 2e-2 --out "$dir/model"
# written ARGS...: what the model writes, byte for byte, in $dir/text.
written() {
    "$train" --init "$dir/model" --max-new 100 --threads 1 "$@" > "$dir/text" 2> "$dir/stderr"
    same "status of '$*'" $? 0
    [ ! -s "$dir/stderr" ] || note "'$*' writes to stderr: $(head -n 1 "$dir/stderr")"
}
differs() { cmp -s "$dir/text" "$dir/$1" && note "$2"; }
agrees() { cmp -s "$dir/text" "$dir/$1" || note "$2"; }
written --generate "Once upon"
has "$dir/text" "Once upon"
cp "$dir/text" "$dir/sampled"
written --generate "Once upon";                     agrees sampled "a seed gives two texts"
written --generate "Once upon" --threads 2;         agrees sampled "threads change the text"
written --generate "Once upon" --seed 2;            differs sampled "--seed changes nothing"
written --generate "Once upon" --temperature 0;     differs sampled "--temperature changes nothing"
cp "$dir/text" "$dir/greedy"
written --generate "Once upon" --top-k 1;           agrees greedy "--top-k 1 is not the likeliest"
written --generate "Once upon" --max-new 7 --temperature 0
same "--max-new 7" "$(cat "$dir/text")" "$(head -c 16 "$dir/greedy")"
written --generate ""
[ -s "$dir/text" ] || note "an empty prompt begins no text"
as_is --init "$dir/model" --generate "$(head -c 3000 /dev/zero | tr '\0' a)" --max-new 5
has "$dir/stderr" "of the prompt's 3000 tokens, only the last are read"
cp "$dir/stdout" "$dir/text"
same "bytes after a long prompt" "$(head -c 3000 "$dir/text" | tr -d a | wc -c | tr -d ' ')" 0
[ "$(wc -c < "$dir/text")" -gt 3000 ] || note "nothing after a long prompt"
written --generate=--dashes --max-new 5;            has "$dir/text" "--dashes"
printf 'Once upon' > "$dir/prompt"
body=$(sed 's/Once upon//; q' "$dir/sampled") stop=${body:5:2}
written --generate "@$dir/prompt" --samples 2 --stop "$stop"
first="--- 1 of 2 ---
Once upon${body%%"$stop"*}
--- 2 of 2 ---
Once upon"
second=$(cat "$dir/text") second=${second#"$first"}
case $second in "--- 1"* | *"$stop"* | "${body%%"$stop"*}" | "")
    note "--samples, --stop: $(cat "$dir/text")" ;;
esac
end train_generates

written --generate x --seq-len 16 --max-new 40
"$train" --resume --out "$dir/model" --generate x > "$dir/stdout" 2>&1 || note "not from --out"
for init in "--init $dir/nowhere" ""; do
    "$train" --generate x $init > "$dir/stdout" 2> "$dir/stderr" < /dev/null
    same "status without a model, $init" $? 1
    same "lines without a model, $init" "$(lines "$dir/stderr")" 1
    silent "$dir/stdout"
done
end train_generate_without_a_model

exit $failed
