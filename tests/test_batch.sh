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

program=$train base=$model
update() { values step "$1" "$dir/$2"; }     # update KEY RUN: of each update, one a line

# ---- the noise scale from micro-batches, from ranks, at each stage of ZeRO ----

base+=" --lr 1e-3 --batch-tokens 256 --steps 6"
noise="--micro-batch 4 --noise-scale"
rows << ROWS
quiet       1  -      -     --micro-batch 4
four        1  quiet  1e-6  $noise
four_exact  1  four   1e-6  $noise --exact-sum
sixteen     1  -      -     --micro-batch 1 --noise-scale
adam        1  -      -     $noise --steps 24
adam_exact  1  adam   1e-4  $noise --steps 24 --exact-sum
ROWS
same "small gradients" "$(update noise_smalls four | sort -u)" 4
same "their tokens" "$(update noise_small_batch four | sort -u)" 64
near "the first noise scale" "$(update noise_scale four | head -n 1)" "$(awk \
    -v s="$(update noise_s four | head -n 1)" -v g="$(update noise_g2 four | head -n 1)" \
    'BEGIN { printf "%.9g", s / g }')" 1e-5
same "updates in Adam's metric" "$(update noise_scale_adam adam | wc -l | tr -d ' ')" 4
if [ -x "$mpi_train" ] && command -v mpirun > /dev/null; then
    program=$mpi_train
    rows << ROWS
loud        4  -        -     --micro-batch 4
of_ranks    4  loud     bits  $noise
of_ranks0   4  four     1e-5  $noise --zero 0
sharded     4  four     1e-5  $noise --micro-batch 2 --zero 1
of_both     2  four     1e-5  $noise --zero 2
of_three    2  sixteen  1e-5  $noise --micro-batch 1 --zero 3
of_exact    2  four     1e-5  $noise --exact-sum
adam_ranks  4  adam     1e-4  $noise --steps 24 --zero 0
adam_zero   2  -        -     $noise --steps 24 --zero 2
ROWS
    same "Adam's metric with ZeRO" "$(update noise_s_adam adam_zero)" ""
    end noise_is_the_same_however_a_batch_is_cut
else
    skip noise_is_the_same_however_a_batch_is_cut "MPI"
fi

# ---- schedules ----

# The batches a linear ramp must have, with everything counted in tokens.
program=$train base="$model --lr 1e-3 --micro-batch 2"
row linear 1 - - --batch-tokens 512 --batch-schedule linear:64,4000 --tokens 6000 \
    --lr-schedule constant --batch-lr sqrt
expected=$(awk 'BEGIN { for (t = 0; t < 6000; t += b) {
    b = t < 4000 ? int((64 + 448*t/4000) / 32 + 0.5) * 32 : 512; print b } }')
same "linear batches" "$(update batch_tokens linear | xargs)" "$(echo "$expected" | xargs)"
same "their rates" "$(update lr linear | awk '{ printf "%.6g ", $1 }')" \
    "$(echo "$expected" | awk '{ printf "%.6g ", 1e-3 * sqrt($1 / 512) }')"
same "tokens seen" "$(update tokens linear | tail -n 1)" \
    "$(echo "$expected" | awk '{ n += $1 } END { print n }')"
row stages 1 - - --batch-tokens 64 --batch-schedule stages:200=128,1000=256 --steps 12
same "stages" "$(update batch_tokens stages | xargs)" "64 64 64 64 128 128 128 128 128 128 256 256"
# --steps are that many updates of the ramp: the cosine ends with them.
near "where the rate ends" "$(last step lr stages)" 1e-4 1e-6
grep -q "128 from 200 tokens on, 256 from 1.00k" "$dir/stdout" || note "the schedule is not shown"
row adaptive 1 - - --lr 3e-3 --batch-schedule adaptive:0.5,64,2048 --tokens 40000 \
    --warmup-tokens 1300
# Each follows from the noise scale: 50 updates after the warm-up or the last raise, at most doubled.
expected=$(paste -d' ' <(update batch_tokens adaptive) <(update noise_scale adaptive) \
        <(update tokens adaptive) | awk '
    NR == 1 { b = $1 }
    { print b; waited = $3 < 1300 ? 0 : waited + 1
      w = $2 == "null" ? 2 * b : $2 / 0.25; if (w > 2 * b) w = 2 * b
      u = int(w / 32); if (u * 32 < w) u++
      if (waited >= 50 && u * 32 > b && b < 2048) { b = u * 32; waited = 0 }
      if (b > 2048) b = 2048 }')
same "adaptive batches" "$(update batch_tokens adaptive | xargs)" "$(echo "$expected" | xargs)"
[ "$(update batch_tokens adaptive | sort -u | wc -l)" -ge 4 ] || note "it hardly grew"
end schedules_take_the_batches_they_say

# ---- in the middle of a schedule, a run goes on to the bit ----

base="$model --lr-schedule constant --lr 2e-3 --micro-batch 2 --keep 0"
adapts="--batch-schedule adaptive:0.3,64,1024 --noise-scale"
grows="--batch-schedule linear:64,9000 --batch-tokens 512"
rows << ROWS
adapts   1  -          -     $adapts --save-every 77 --steps 130
adapts_  1  adapts@77  bits
grows    1  -          -     $grows --save-every 17 --steps 40
grows_   1  grows@17   bits
ROWS
for run in adapts grows; do
    [ "$(update batch_tokens ${run}_ | head -n 1)" -gt 64 ] || note "$run: has not grown yet"
    for key in batch_tokens noise_scale noise_scale_adam lr; do
        same "$run: $key" "$(update $key ${run}_ | xargs)" \
            "$(update $key $run | tail -n $(update step ${run}_ | wc -l) | xargs)"
    done
done
[ "$(update batch_tokens adapts_ | sort -u | wc -l)" -ge 2 ] || note "no growth after resuming"
end a_schedule_goes_on_to_the_bit

# Resumed with another schedule: the rate decays over what is still to come, an adaptive batch goes on
# from the last one, and by other micro-batches if need be.
base="$model --micro-batch 2 --steps 10"
row large 1 - - --micro-batch 1 --batch-tokens 1024
good 1 --resume --steps 20 --out "$dir/large" --batch-schedule stages:0=256
near "the first rate after resuming" "$(update lr large | sed -n 11p)" \
    "$(awk 'BEGIN { p = (10240 + 256) / (10240 + 2560)
                    printf "%.9g", 6e-5 + 5.4e-4 * (1 + cos(3.14159265358979 * p)) / 2 }')" 1e-6
near "the last rate" "$(last step lr large)" 6e-5 1e-6
base+=" --lr-schedule constant --lr 2e-3"
row ramp 1 - - --batch-tokens 4096 --batch-schedule linear:64,1e6
good 1 --resume --steps 20 --out "$dir/ramp" --batch-schedule adaptive:1000,64,8192
same "batches from a ramp to the norm test" "$(update batch_tokens ramp | sort -u | xargs)" 64
row odd 1 - - --batch-schedule adaptive:1000,96,2048
good 1 --resume --steps 20 --out "$dir/odd" --micro-batch 4
same "a batch of 96 in micro-batches of 64" "$(last step batch_tokens odd)" 128
end a_run_goes_on_with_another_schedule

# --plan counts the tokens of a schedule's updates.
good 1 --plan --plan-gpu h100@400,8 --init d4 --seq-len 256 --micro-batch 1 --batch-tokens 2048 \
    --batch-schedule stages:20480=4096 --steps 20 --log "$dir/plan"
same "tokens of the plan" "$(values plan tokens "$dir/plan")" 61440
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

base="$model --micro-batch 1 --steps 1 --lr 4e-3 --batch-tokens 1024"
mpi 1 $base --batch-tokens=64
has "$dir/stderr" "16 times less than the recipe's, 1,024, for which --lr 0.004 was chosen:"
has "$dir/stderr" "try --lr 0.001"
good 1 $base --batch-tokens 64 --lr 1e-3
good 1 $base --batch-tokens 256
row less 1 - -
mpi 1 --resume --out "$dir/less" --steps 2 --batch-tokens 64
has "$dir/stderr" "16 times less than the recipe's"
end a_shrunk_batch_is_warned_of
exit $failed
