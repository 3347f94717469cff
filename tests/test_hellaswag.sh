#!/usr/bin/env bash
# --hellaswag as a user runs it: when it is answered, what is printed and logged, how it stops, what
# it refuses; and that the CUDA trainer, emulated, gives the same answers. That these do not depend
# on the batches: test_hellaswag.py. TRAIN, PREPARE and EMULATED name other binaries.
. "$(dirname "$0")/tools.sh"
examples=tests/fixtures/hellaswag.jsonl

events() { sed -n 's/^{"event":"\([a-z]*\)".*/\1/p' "$1" | xargs; }
value() { values hellaswag "$1" "$2"; }      # value KEY LOG
shown() { grep '^hellaswag ' "$dir/stdout"; }

"$prepare" tales --out "$dir/tales" --tokens 100000 > /dev/null || note "prepare"
model="--layers 2 --heads 2 --channels 32 --seq-len 128 --micro-batch 4 --lr 1e-2"
small="--data $dir/tales --eval-tokens 256 $model"

# ---- at the end of a run, once ----

good "$train" $small --steps 200 --eval-every 50 --out "$dir/run" --hellaswag $examples
log=$dir/run/log.jsonl
same events "$(events "$log" | sed 's/step //g')" "start eval eval eval eval save hellaswag end"
for pair in step:200 tokens:102400 examples:12; do
    same "${pair%:*}" "$(value "${pair%:*}" "$log")" "${pair#*:}"
done
line=$(printf 'hellaswag  acc_norm %.4f of 12 examples (0:SS)' "$(value acc_norm "$log")")
same "the line" "$(shown | sed 's/(0:[0-5][0-9])$/(0:SS)/')" "$line"
same "the line before it" "$(grep -B 1 '^hellaswag ' "$dir/stdout" | head -n 1 | cut -c 1-15)" \
    "eval   200/200 "
value seconds "$log" | grep -qE '^[0-9.e-]+$' || note "no seconds in the log"
end hellaswag_at_the_end_of_a_run

# ---- at each checkpoint, after resuming too ----

good "$train" $small --lr-schedule constant --steps 23 --eval-every 0 --out "$dir/every" \
    --hellaswag $examples --save-every 5
log=$dir/every/log.jsonl
same "steps" "$(value step "$log" | xargs)" "5 10 15 20 23"
good "$train" --resume --steps 30 --out "$dir/every"
same "steps, resumed" "$(value step "$log" | xargs)" "5 10 15 20 23 25 30"
good "$train" $small --lr-schedule constant --steps 30 --eval-every 0 --out "$dir/once" \
    --hellaswag $examples
same "acc_norm at the end" "$(value acc_norm "$log" | tail -n 1)" \
    "$(value acc_norm "$dir/once/log.jsonl")"
for file in model optimizer; do
    cmp -s "$dir/every/latest/$file.safetensors" "$dir/once/latest/$file.safetensors" ||
        note "measuring changes the bits of $file"
done
end hellaswag_at_each_checkpoint

# ---- how much of a text is read ----

good "$train" $small --steps 0 --seq-len 80 --hellaswag $examples --log "$dir/log" --overwrite
cut=$(value cut "$dir/log")
[ "$cut" -ge 1 ] && [ "$cut" -le 12 ] || note "$cut examples cut at 80 bytes"
grep -q "^note *$cut of 12 HellaSwag examples are longer than 80 tokens" "$dir/stdout" ||
    note "does not say that $cut texts are cut"
end hellaswag_says_what_is_cut

# ---- stopped ----

for _ in $(seq 200); do cat $examples; done > "$dir/many"
"$train" $small --steps 3 --micro-batch 1 --out "$dir/stopped" --hellaswag "$dir/many" \
    > "$dir/stdout" 2> "$dir/stderr" < /dev/null &
child=$!
for _ in $(seq 600); do grep -qs '"save"' "$dir/stopped/log.jsonl" && break; sleep 0.05; done
sleep 0.2
kill -TERM $child
wait $child
same "status of a stopped run" $? 143
same events "$(events "$dir/stopped/log.jsonl")" "start step step step eval save end"
shown | grep -qE '^hellaswag  stopped after [1-9][0-9]* of 2400 examples$' ||
    note "does not say that it was stopped: $(shown)"
grep -q '"reason":"interrupted"' "$dir/stopped/log.jsonl" || note "the log says it was done"
[ -f "$dir/stopped/latest/model.safetensors" ] || note "the model is lost"
end hellaswag_stopped

# ---- refused ----

{ head -n 3 $examples; echo "not JSON"; } > "$dir/bad"
one_line "$dir/bad: line 4: byte" "$train" $small --out "$dir/no" --hellaswag "$dir/bad"
mkdir "$dir/tokens" && mv "$dir/tales/"*.bin "$dir/tokens"
one_line "--hellaswag: needs a tokenizer" "$train" $small --data "$dir/tokens" --out "$dir/no" \
    --hellaswag $examples
[ ! -e "$dir/no" ] || note "a run that is refused leaves something behind"
mv "$dir/tokens/"*.bin "$dir/tales"
end hellaswag_refuses

# ---- the other twin ----

if [ -x "$emulated" ]; then
    arguments=${small/--layers 2 --heads 2 --channels 32/}
    for program in "$train" "$emulated"; do     # at a length where bf16 rounds no answer to another
        good "$program" $arguments --seq-len 24 --init "$dir/run" --steps 0 --eval-tokens 1 \
            --hellaswag $examples --log "$dir/${program##*/}.log"
        shown | sed 's/ (.*//' > "$dir/${program##*/}.shown"
    done
    for key in step examples cut acc acc_norm; do
        same "$key" "$(value $key "$dir/${emulated##*/}.log")" "$(value $key "$dir/${train##*/}.log")"
    done
    same "the line" "$(cat "$dir/${emulated##*/}.shown")" "$(cat "$dir/${train##*/}.shown")"
    end hellaswag_of_the_twins
else
    skip hellaswag_of_the_twins "needs train_gpt2cu-emulated (make emulate)"
fi
exit $failed
