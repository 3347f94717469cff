#!/usr/bin/env bash
# The tuner from outside, on the emulator, whose algorithms differ in time and in rounding
# (dev/emulator/include/cublasLt.h): choices are made, kept, taken by a resumed run, shared through a
# file; and what cannot be taken is measured again, in words.
. "$(dirname "$0")/tools.sh"
set -u
export EMULATOR_ALGORITHMS=6
unset EMULATOR_EPILOGUES

trains() { works "$emulated" "$@"; }
says() {
    grep -qE -- "$1" "$dir/stdout" "$dir/stderr" ||
        note "'$1' is not in: $(grep tune "$dir/stdout")"
}
weights() { cmp -s "$dir/$1/latest/model.safetensors" "$dir/$2/latest/model.safetensors"; }
alike() { weights "$1" "$2" || note "$1 and $2 have other bits"; }
other() { ! weights "$1" "$2" || note "$1 and $2 have the same bits"; }

if [ ! -x "$emulated" ]; then
    skip the_fastest_algorithms_are_taken "needs $emulated (make emulate)"
    exit $failed
fi
"$prepare" tales --out "$dir/tales" --tokens 30000 > "$dir/stdout" || note "prepare failed"
small="--data $dir/tales --layers 2 --heads 2 --channels 16 --seq-len 16 --micro-batch 4
       --batch-tokens 128 --eval-every 0 --eval-tokens 64 --lr 1e-2 --lr-schedule constant"

trains $small --steps 4 --tune on --out "$dir/straight"
says '^tune    22 products(, attention 0 0)? in .* s: a micro-batch takes 3.058 ms, and 4.357 with cuBLASLt'
grep -q '"event":"tune".*"micro_batch_ms":.*"products":\[{"product":.*"tflops":' \
    "$dir/straight/log.jsonl" || note "no tune event in the log"
trains $small --steps 4 --tune off --out "$dir/off"
grep -q '^tune ' "$dir/stdout" && note "--tune off tunes"
[ -e "$dir/off/latest/tune.json" ] && note "--tune off keeps choices"
EMULATOR_ALGORITHMS=1 trains $small --steps 4 --out "$dir/plain"
alike off plain
other off straight
end the_fastest_algorithms_are_taken

# Resumed where the heuristic offers the first algorithm alone: the choices come from the checkpoint.
trains $small --steps 2 --tune on --out "$dir/cut"
EMULATOR_ALGORITHMS=1 trains --resume --steps 4 --out "$dir/cut"
says '^tune    15 products(, attention 0 0)? in .* s, 15 of them as in .*/step_00000002/tune.json: a micro-batch'
alike straight cut
end a_resumed_run_takes_the_choices_of_its_checkpoint

trains $small --steps 1 --tune "$dir/choices.json" --out "$dir/one"
says '^tune    22 products(, attention 0 0)? in .* first choices$'
cp "$dir/choices.json" "$dir/before"
EMULATOR_ALGORITHMS=1 trains $small --steps 4 --tune "$dir/choices.json" --out "$dir/two"
says '^tune    15 products(, attention 0 0)? in .* 15 of them as in .*/choices.json: '
alike straight two
cmp -s "$dir/choices.json" "$dir/before" || note "--tune FILE changed a file that it only read"
end a_file_shares_choices

# Variants of attention: heads of 64 channels have some. In the emulator those with most shared
# memory are the fastest.
wide="$small --layers 1 --heads 1 --channels 64 --seq-len 32 --micro-batch 1 --batch-tokens 32"
if grep -q ': bf16;' "$dir/stdout"; then
    trains $wide --steps 2 --tune on --out "$dir/variants"
    says '^tune    [0-9]* products, attention 4 1 in '
    grep -q '"product":"attention backward B=1 T=32 NH=1 HS=64 variants [0-9]*","variant":1,"ms"' \
        "$dir/variants/latest/tune.json" || note "no variant is kept"
    sed -i 's/"variant":4/"variant":3/; s/"variant":1/"variant":99/' "$dir/variants/latest/tune.json"
    trains --resume --steps 4 --out "$dir/variants"
    says '^tune    [0-9]* products, attention 3 0 in .* of them as in '
    says '^note    1 variants of attention in .*tune.json are unknown here: the defaults run instead'
    trains --resume --steps 5 --out "$dir/variants"
    says '^tune    [0-9]* products, attention 3 0 in '
fi
end variants_of_attention_are_kept

sed -i 's/cuBLASLt 130000/cuBLASLt 120000/' "$dir/before"
trains $small --steps 1 --tune "$dir/before" --out "$dir/moved"
says '^note    .*/before was tuned on another machine .*; products are measured again'
says '^tune    22 products(, attention 0 0)? in .* first choices$'
grep -q 'cuBLASLt 130000' "$dir/before" || note "the file was not written anew"
sed -i 's/"algo":"01/"algo":"99/' "$dir/cut/latest/tune.json"
trains --resume --steps 5 --out "$dir/cut"
says '^note    [0-9]* algorithms in .* do not run here, and were measured again'
echo '{' > "$dir/cut/latest/tune.json"
trains --resume --steps 6 --out "$dir/cut"
says 'tune.json: .*; products are measured again'
end choices_that_cannot_be_taken_are_measured_again

echo "a letter" > "$dir/letter.txt"
"$emulated" $small --steps 4 --tune "$dir/letter.txt" > "$dir/stdout" 2> "$dir/stderr" &&
    note "a letter was taken for choices"
says ': --tune: .*letter.txt: '
[ "$(cat "$dir/letter.txt")" = "a letter" ] || note "the letter is gone"
end files_that_hold_no_choices_are_refused

# A candidate that faults while it runs: the error names the product, and what does without.
export EMULATOR_FAULT=5
one_line "--tune off does without" "$emulated" $small --steps 1 --tune on
says ': tune: [0-9]+x[0-9]+x[0-9]+ a .*, while it was measured: an illegal memory access'
trains $small --steps 1 --tune off --out "$dir/untuned"
end a_candidate_that_faults_is_named
exit $failed
