#!/usr/bin/env bash
# The trainer's batch: that --noise-scale measures the same however a batch is cut up; how a schedule
# grows the batch, and that a run goes on in the middle of one; what is refused or warned of.
# TRAIN, TRAIN_MPI and PREPARE name other binaries.
. "$(dirname "$0")/tools.sh"
. tests/ranks.sh
set -u

"$prepare" tales --out "$dir/tales" --tokens 60000 > "$dir/stdout" || exit 1
model="--data $dir/tales --layers 2 --heads 2 --channels 16 --seq-len 16 --eval-every 0
       --eval-tokens 64 --threads 1"

fit() {                                     # fit NAME ARGS...: a run that ends well, logged as NAME
    local name=$1
    shift
    "$train" $model --log "$dir/$name" "$@" > "$dir/stdout" 2> "$dir/stderr" \
        || note "$name: $(cat "$dir/stderr")"
}
ranks() {                                   # ranks N NAME ARGS...
    local n=$1 name=$2
    shift 2
    mpirun -n "$n" "$mpi_train" $model --log "$dir/$name" "$@" > "$dir/stdout" 2> "$dir/stderr" \
        < /dev/null || note "$name: $(cat "$dir/stderr")"
}
field() { values step "$1" "$dir/$2"; }      # field KEY NAME: of each update, one a line
# near WHAT A B TOLERANCE: two columns of numbers, relative to the larger of each row
near() {
    local worst
    worst=$(paste -d' ' <(echo "$2") <(echo "$3") | awk '
        NF != 2 || $1 == "null" || $2 == "null" { bad = 1 }
        { a = $1 < 0 ? -$1 : $1; b = $2 < 0 ? -$2 : $2; d = $1 - $2; if (d < 0) d = -d
          m = a > b ? a : b; if (m > 0 && d / m > worst) worst = d / m }
        END { print bad || NR == 0 ? "missing" : worst + 0 }')
    [ "$worst" != missing ] && awk -v w="$worst" -v t="$4" 'BEGIN { exit !(w <= t) }' \
        || note "$1: apart by $worst, more than $4"
}

# ---- the noise scale from micro-batches, from ranks, at each stage of ZeRO ----

batch="--lr 1e-3 --batch-tokens 256 --steps 6 --noise-scale"
fit four --micro-batch 4 $batch
fit four_exact --micro-batch 4 $batch --exact-sum
near "exact sums" "$(field noise_s four)" "$(field noise_s four_exact)" 1e-5
same "small gradients" "$(field noise_smalls four | sort -u)" 4
same "their tokens" "$(field noise_small_batch four | sort -u)" 64
near "the first noise scale" "$(field noise_scale four | head -n 1)" "$(awk -v s="$(field noise_s four |
    head -n 1)" -v g="$(field noise_g2 four | head -n 1)" 'BEGIN { printf "%.9g", s / g }')" 1e-5
fit quiet --micro-batch 4 --lr 1e-3 --batch-tokens 256 --steps 6
adam="--micro-batch 4 $batch --steps 24"    # from update 21 on
fit adam $adam
fit adam_exact $adam --exact-sum
near "exact sums in Adam's metric" "$(field noise_s_adam adam)" "$(field noise_s_adam adam_exact)" 1e-3
same "updates in Adam's metric" "$(field noise_scale_adam adam | wc -l | tr -d ' ')" 4
near "losses beside those of a run without" "$(field loss four)" "$(field loss quiet)" 1e-6
fit sixteen --micro-batch 1 $batch
if [ -x "$mpi_train" ] && command -v mpirun > /dev/null; then
    ranks 4 of_ranks --micro-batch 4 $batch
    ranks 4 of_ranks_sharded --micro-batch 2 $batch --zero 1
    ranks 2 of_both --micro-batch 4 $batch --zero 2
    ranks 2 of_three --micro-batch 1 $batch --zero 3
    ranks 2 of_exact --micro-batch 4 $batch --exact-sum
    for name in of_ranks of_ranks_sharded of_both of_exact; do
        near "$name, S" "$(field noise_s four)" "$(field noise_s $name)" 1e-4
        near "$name, the scale" "$(field noise_scale four)" "$(field noise_scale $name)" 1e-3
    done
    ranks 4 adam_ranks $adam --zero 0
    ranks 2 adam_zero $adam --zero 2
    near "ranks, S in Adam's metric" "$(field noise_s_adam adam)" "$(field noise_s_adam adam_ranks)" 1e-3
    same "Adam's metric with ZeRO" "$(field noise_s_adam adam_zero)" ""
    near "stage 3, S" "$(field noise_s sixteen)" "$(field noise_s of_three)" 1e-4
    ranks 4 loud --micro-batch 4 --lr 1e-3 --batch-tokens 256 --steps 6
    same "losses of ranks that measure" "$(field loss of_ranks)" "$(field loss loud)"
    end noise_is_the_same_however_a_batch_is_cut
else
    skip noise_is_the_same_however_a_batch_is_cut "MPI"
fi

# ---- schedules ----

# The batches a linear ramp must have, with everything counted in tokens.
fit linear --micro-batch 2 --lr 1e-3 --batch-tokens 512 --batch-schedule linear:64,4000 \
    --tokens 6000 --lr-schedule constant --batch-lr sqrt
expected=$(awk 'BEGIN { for (t = 0; t < 6000; t += b) {
    b = t < 4000 ? int((64 + 448*t/4000) / 32 + 0.5) * 32 : 512; print b } }')
same "linear batches" "$(field batch_tokens linear | xargs)" "$(echo "$expected" | xargs)"
near "their rates" "$(field lr linear)" \
    "$(echo "$expected" | awk '{ printf "%.9g\n", 1e-3 * sqrt($1 / 512) }')" 1e-6
same "tokens seen" "$(field tokens linear | tail -n 1)" \
    "$(echo "$expected" | awk '{ n += $1 } END { print n }')"
fit stages --micro-batch 2 --lr 1e-3 --batch-tokens 64 --batch-schedule stages:200=128,1000=256 \
    --steps 12
same "stages" "$(field batch_tokens stages | xargs)" "64 64 64 64 128 128 128 128 128 128 256 256"
# --steps are that many updates of the ramp: the cosine ends with them.
near "where the rate ends" "$(field lr stages | tail -n 1)" 1e-4 1e-6
grep -q "128 from 200 tokens on, 256 from 1.00k" "$dir/stdout" || note "the schedule is not shown"
fit adaptive --micro-batch 2 --lr 3e-3 --batch-schedule adaptive:0.5,64,2048 --tokens 40000 \
    --warmup-tokens 1300
field batch_tokens adaptive | awk 'NR > 1 && $1 < last { exit 1 } { last = $1 }' ||
    note "a batch shrank"
# Each follows from the noise scale: 50 updates after the warm-up or the last raise, at most doubled.
expected=$(paste -d' ' <(field batch_tokens adaptive) <(field noise_scale adaptive) \
        <(field tokens adaptive) | awk '
    NR == 1 { b = $1 }
    { print b; waited = $3 < 1300 ? 0 : waited + 1
      w = $2 == "null" ? 2 * b : $2 / 0.25; if (w > 2 * b) w = 2 * b
      u = int(w / 32); if (u * 32 < w) u++
      if (waited >= 50 && u * 32 > b && b < 2048) { b = u * 32; waited = 0 }
      if (b > 2048) b = 2048 }')
same "adaptive batches" "$(field batch_tokens adaptive | xargs)" "$(echo "$expected" | xargs)"
[ "$(field batch_tokens adaptive | sort -u | wc -l)" -ge 4 ] || note "the adaptive batch hardly grew"
end schedules_take_the_batches_they_say

# ---- in the middle of a schedule, a run goes on to the bit ----

goes_on() {                                 # goes_on NAME CUT STEPS FLAGS...: to CUT, then to STEPS
    local name=$1 cut=$2 steps=$3
    shift 3
    fit "$name.whole.jsonl" "$@" --steps $steps --out "$dir/$name.whole"
    fit "$name.cut.jsonl" "$@" --steps $cut --out "$dir/$name.cut"
    [ "$(field batch_tokens "$name.cut.jsonl" | tail -n 1)" -gt 64 ] ||
        note "$name: has not grown yet"
    "$train" --resume --steps $steps --out "$dir/$name.cut" > "$dir/stdout" 2> "$dir/stderr" \
        || note "$name: $(cat "$dir/stderr")"
    for part in model optimizer; do
        cmp -s "$dir/$name.whole/latest/$part.safetensors" \
            "$dir/$name.cut/latest/$part.safetensors" || note "$name: other $part"
    done
    for key in batch_tokens noise_scale noise_scale_adam lr; do
        same "$name: $key" "$(field $key "$name.cut.jsonl" | tail -n $((steps - cut)) | xargs)" \
            "$(field $key "$name.whole.jsonl" | tail -n $((steps - cut)) | xargs)"
    done
}
constant="--lr-schedule constant --lr 2e-3 --micro-batch 2"
goes_on adapts 77 130 $constant --batch-schedule adaptive:0.3,64,1024 --noise-scale
[ "$(field batch_tokens adapts.cut.jsonl | tail -n 53 | sort -u | wc -l)" -ge 2 ] ||
    note "adapts: no growth after resuming"
goes_on grows 17 40 $constant --batch-schedule linear:64,9000 --batch-tokens 512
end a_schedule_goes_on_to_the_bit

# Resumed with another schedule: the rate decays over what is still to come, an adaptive batch goes on
# from the last one, and by other micro-batches if need be.
goes_on_as() {                              # goes_on_as NAME FLAGS...: to 20 updates
    local name=$1
    shift
    "$train" --resume --steps 20 --out "$dir/$name" "$@" > "$dir/stdout" 2> "$dir/stderr" ||
        note "$name: $(cat "$dir/stderr")"
}
fit large.jsonl --micro-batch 1 --batch-tokens 1024 --steps 10 --out "$dir/large"
goes_on_as large --batch-schedule stages:0=256
near "the first rate after resuming" "$(field lr large.jsonl | sed -n 11p)" \
    "$(awk 'BEGIN { p = (10240 + 256) / (10240 + 2560)
                    printf "%.9g", 6e-5 + 5.4e-4 * (1 + cos(3.14159265358979 * p)) / 2 }')" 1e-6
near "the last rate" "$(field lr large.jsonl | tail -n 1)" 6e-5 1e-6
fit ramp.jsonl $constant --batch-tokens 4096 --batch-schedule linear:64,1e6 --steps 10 \
    --out "$dir/ramp"
goes_on_as ramp --batch-schedule adaptive:1000,64,8192
same "batches from a ramp to the norm test" "$(field batch_tokens ramp.jsonl | sort -u | xargs)" 64
fit odd.jsonl $constant --batch-schedule adaptive:1000,96,2048 --steps 10 --out "$dir/odd"
goes_on_as odd --micro-batch 4
same "a batch of 96 in micro-batches of 64" "$(field batch_tokens odd.jsonl | tail -n 1)" 128
end a_run_goes_on_with_another_schedule

# --plan counts the tokens of a schedule's updates.
"$train" --plan --plan-gpu h100@400,8 --init d4 --seq-len 256 --micro-batch 1 --batch-tokens 2048 \
    --batch-schedule stages:20480=4096 --steps 20 --log "$dir/plan" > "$dir/stdout" \
    2> "$dir/stderr" || note "$(cat "$dir/stderr")"
grep -q '"tokens":61440,' "$dir/plan" || note "not 61,440 tokens: $(cat "$dir/plan")"
end a_plan_knows_the_schedule

# ---- what is refused, and warned of ----

refused() { one_line "$1" "$train" $model "${@:2}"; }     # refused WORDS ARGS...
refused "--micro-batch 4 splits it" --noise-scale --micro-batch 8 --steps 1
refused "use 32 tokens" --noise-scale --micro-batch 1 --steps 1
refused "--micro-batch 1 splits it" --micro-batch 2 --batch-schedule adaptive:1,32,64 \
    --lr-schedule constant
refused "add --tokens N" --micro-batch 1 --batch-schedule adaptive:1,64,128 --steps 5
refused "100 is not a multiple of 32" --micro-batch 2 --batch-schedule stages:0=100
refused "linear grows the batch up to --batch-tokens" --batch-schedule linear:64,1000
refused "needs a batch that changes" --batch-lr sqrt
refused "needs a constant batch" --exact-sum --batch-schedule linear:64,1000 \
    --batch-tokens 128
refused "with --outer-every each rank has its own" --outer-every 5 --noise-scale
end bad_batches_are_refused

warned() {                                  # warned WORDS ARGS...: nothing, when WORDS is empty
    local words=$1
    shift
    "$train" $model --micro-batch 1 --steps 1 "$@" > "$dir/stdout" 2> "$dir/stderr" ||
        note "'$*' fails"
    if [ -z "$words" ]; then
        [ ! -s "$dir/stderr" ] || note "'$*' warns: $(cat "$dir/stderr")"
    else
        grep -qF -e "$words" "$dir/stderr" ||
            note "'$*' does not say '$words': $(cat "$dir/stderr")"
    fi
}
warned "16 times less than the recipe's, 1,024, for which --lr 0.004 was chosen: try --lr 0.001" \
    --lr 4e-3 --batch-tokens 1024 --batch-tokens=64
warned "" --lr 4e-3 --batch-tokens 1024 --batch-tokens 64 --lr 1e-3
warned "" --lr 4e-3 --batch-tokens 1024 --batch-tokens 256
fit less.jsonl --micro-batch 1 --batch-tokens 1024 --steps 1 --out "$dir/less"
"$train" --resume --out "$dir/less" --steps 2 --batch-tokens 64 > "$dir/stdout" 2> "$dir/stderr"
grep -q "16 times less than the recipe's" "$dir/stderr" || note "no warning on resuming with less"
end a_shrunk_batch_is_warned_of
exit $failed
