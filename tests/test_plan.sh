#!/usr/bin/env bash
# --plan against the facts, and against what real runs allocate and send; against the memory that a
# system counts: test_lab_tiny.py. TRAIN, PREPARE, TRAIN_MPI and TRAIN_GPU name other binaries.
. "$(dirname "$0")/tools.sh"
. tests/ranks.sh
gpu_train=${TRAIN_GPU:-./train_gpt2cu-emulated}
absolute train prepare mpi_train gpu_train

# ---- tools ----

# plan ARGS...: a plan that is made without a word on stderr; its text, at most 80 columns wide, and
# its lines of the log.
plan() {
    rm -f "$dir/plan.jsonl"
    works "${planner:-$train}" --plan "$@" --log "$dir/plan.jsonl"
    silent "$dir/stderr"
    mv "$dir/stdout" "$dir/plan"
    odd=$(grep -m 1 -e nan -e inf "$dir/plan") && note "'--plan $*' prints $odd"
    odd=$(awk 'length > 80' "$dir/plan" | head -n 1); same "a line over 80 columns" "$odd" ""
}
of() { logged plan "$1" "$dir/plan.jsonl"; }
logged() { sed -n "s/^{\"event\":\"$1\".*\"$2\":\"*\([^,}\"]*\).*/\1/p" "$3"; }

data=$dir/tales
"$prepare" tales --out "$data" --tokens 20000 --seed 5 > "$dir/stdout" || exit 1
gpt3=(--layers 96 --heads 96 --channels 12288 --seq-len 2048 --micro-batch 1 --tokens 300e9)
tiny=(--data "$data" --layers 4 --heads 4 --channels 64 --seq-len 32 --micro-batch 2 --threads 1
      --eval-tokens 64)

# ---- from facts alone ----

# 175 billion parameters are 174.6 here; test_plan.c has the formulas.
plan "${gpt3[@]}" --recompute block --plan-gpu a100@140,1024
near "days on 1,024 A100s" "$(of days_rule)" 34 0.0065
same "whether it fits" "$(of fits)" false
end plan_reproduces_narayanan

# The table on dev/cuda's page is what the recipes' dry runs plan, and llm.c's second stands beside.
while IFS=' |' read -r _ model gpus steps tokens micro gigabytes update _ _ _ _ hours _; do
    planned=$(scripts/train.sh $model --gpus $gpus --dry-run --log "$dir/$model$gpus")
    while read -r key said off; do
        near "$key of $model on $gpus" "$(logged plan $key "$dir/$model$gpus")" $said $off
    done << END
steps ${steps//,/} 0
batch_tokens ${tokens//,/} 0
micro_batch $micro 0
bytes_total ${gigabytes}e9 0.01
seconds_per_step $update 0.04
device_hours $hours 0.02
END
done < <(grep '^| d[0-9]' dev/cuda/README.md)
grep -q "2.8 s per update, 49% of the peak: 24.9 hours" <<< "$planned" || note "no word of llm.c"
end plan_of_the_recipes

mkdir "$dir/empty"
(cd "$dir/empty" && "$train" --plan --init d12 --plan-gpu h100,8 > "$dir/plan" 2> "$dir/stderr") ||
    note "a plan without data fails: $(cat "$dir/stderr")"
has "$dir/plan" "vocabulary 50257"
has "$dir/plan" "missing   LINK of"
has "$dir/plan" "--tokens N: how many days"
same "what it writes" "$(ls -A "$dir/empty")" ""
plan "${tiny[@]}" --plan-gpu h100,8
same "vocabulary of the data" "$(of vocab)" 257
plan --tokenizer "$data/tokenizer.json" --plan-gpu h100,8
same "vocabulary of the tokenizer" "$(of vocab)" 257
end plan_needs_no_data

# --plan-search: a line of the log for each data x tensor x pipeline.
plan --plan-search --init d48 --seq-len 1024 --tokens 30e9 --batch-tokens 1048576 \
    --plan-gpu h100,16,450GB/s:8+50GB/s,2.5
has "$dir/plan" "16 x 1 x 1 "
has "$dir/plan" "30.0B tokens, 1.05M per update"
has "$dir/plan" "* modelled"
has "$dir/plan" "16 ranks cannot share 25 heads evenly"
same "rows of the log" "$(grep -c plan_search "$dir/plan.jsonl")" 5
bytes=$(logged plan_search bytes_total "$dir/plan.jsonl" | head -n 1)
plan --init d48 --seq-len 1024 --micro-batch 16 --zero 1 --plan-gpu h100,16
near "bytes, and --plan's" "$bytes" "$(of bytes_total)" 0.01
plan --plan-search "${gpt3[@]}" --batch-tokens 2097152 --plan-gpu a100,8,300GB/s
has "$dir/plan" "nothing fits; the smallest misses by"
end plan_search_shows_the_fastest

# A finished run stays as it is.
mkdir "$dir/run"
echo '{"event":"end"}' > "$dir/run/log.jsonl"
before=$(cksum "$dir/run/log.jsonl")
plan "${tiny[@]}" --out "$dir/run" --plan-gpu h100,8
same "the critical batch" "$(of b_crit_measured)" null
plan "${tiny[@]}" --tokens 524288 --plan-gpu here@1,2
near "the critical batch" "$(of b_crit_measured)" 4813.34 1e-6
near "workers" "$(of workers_measured)" "$(awk 'BEGIN { print 4813.34 / 64 }')" 1e-5
same "the run's log" "$(cksum "$dir/run/log.jsonl")" "$before"
same "the run's files" "$(ls -A "$dir/run")" log.jsonl
end plan_leaves_a_run_alone

refused() {                                 # refused WORDS ARGS...: and prints nothing else
    one_line "$1" "$train" "${@:2}"
    silent "$dir/stdout"
}
refused "8 ranks cannot share 4 heads" --plan --tensor-parallel 8 --plan-gpu h100,8
search=(--plan-search --tokens 1e9 --batch-tokens 8192)
refused "\"x100\" is not one of them" "${search[@]}" --plan-gpu x100@90,8,450GB/s
refused "needs --tokens" --plan-search --plan-gpu h100,8,450GB/s
refused "needs --batch-tokens" --plan-search --tokens 1e9 --plan-gpu h100,8,450GB/s
refused "needs the links" "${search[@]}" --plan-gpu h100,8
refused "12 GPUs do not fill machines of 8; use 8 or 16" "${search[@]}" \
    --plan-gpu h100,12,450GB/s:8+50GB/s
refused "32 sequences divide into no micro-batches for 7 GPUs" "${search[@]}" \
    --plan-gpu h100,7,450GB/s
refused "no whole sequences of 256; use 7936" "${search[@]}" --batch-tokens 8000 \
    --plan-gpu h100,8,450GB/s
refused "needs a GPU" --plan --recompute block
end plan_refuses_in_one_line

# ---- against real runs of one rank ----

# counted ARGS...: what the plan counts is what the run's log says, to the byte.
counted() {
    for class in params grads moments passing; do
        same "bytes_$class of '$*'" "$(of bytes_$class)" "$(logged start bytes_$class "$dir/log")"
    done
}
for flags in "" "--noise-scale --batch-tokens 256" "--exact-sum --batch-tokens 512" \
             "--outer-every 5" "--micro-batch 4 --zero 3" "--optimizer sgd" \
             "--average-tokens 1000 --optimizer sgd"; do
    plan "${tiny[@]}" $flags --plan-gpu here@1,1
    "$train" "${tiny[@]}" $flags --steps 1 --log "$dir/log" --overwrite > "$dir/stdout" || note "a run fails"
    counted $flags
done
has "$dir/plan" "optimizer: SGD, averaged weights"
end plan_counts_what_one_rank_keeps

# The time of whole steps, from about a second's measurement. Machines that run tests are busy with
# other things: only a mistake in the units is found.
model=(--data "$data" --layers 4 --heads 4 --channels 128 --seq-len 64 --micro-batch 12 --threads 1
       --eval-tokens 64)
plan "${model[@]}"
same "where the speed is from" "$(of speed_from)" measured
"$train" "${model[@]}" --steps 20 --log "$dir/log" --overwrite > "$dir/stdout" || note "a run fails"
real=$(logged step seconds "$dir/log" | sort -g | sed -n 5p)
awk -v a="$(of seconds_per_step)" -v b="$real" 'BEGIN { exit !(a > 0.01*b && a < 100*b) }' ||
    note "$(of seconds_per_step) seconds a step, not $real"
end plan_measures_the_speed

# ---- of two ranks ----

if ! command -v mpirun > /dev/null || [ ! -x "$mpi_train" ]; then
    skip plan_counts_what_each_rank_keeps_and_sends "needs MPI"
else
    for flags in "" "--zero 1" "--zero 2" "--zero 3" "--comm-dtype bf16" "--exact-sum" \
                 "--outer-every 1" "--tensor-parallel 2"; do
        planner=$train plan "${tiny[@]}" $flags --batch-tokens 256 --plan-gpu here@1,2
        mpirun -n 2 "$mpi_train" "${tiny[@]}" $flags --batch-tokens 256 --steps 3 --no-overlap \
            --log "$dir/log" --overwrite > "$dir/stdout" 2> "$dir/stderr" < /dev/null ||
            note "'$flags': $(cat "$dir/stderr")"
        case $flags in
            *exact*) ;;                     # its numbers of ranks and levels are checked below
            *) counted $flags ;;
        esac
        near "sent with '$flags'" "$(of traffic_bytes)" \
            "$(logged step bytes_sent "$dir/log" | sed -n 3p)" 0.01
    done
    end plan_counts_what_each_rank_keeps_and_sends
fi

# ---- against the GPU's trainer, which counts its own memory ----

if [ ! -x "$gpu_train" ]; then
    skip plan_of_a_gpu_is_the_gpu_trainers "needs train_gpt2cu-emulated"
else
    while read -r flags; do
        plan $flags
        cp "$dir/plan.jsonl" "$dir/formula.jsonl"
        planner=$gpu_train plan $flags
        for class in params grads moments passing activations logits total; do
            near "bytes_$class of '$flags'" "$(logged plan bytes_$class "$dir/formula.jsonl")" \
                "$(of bytes_$class)" 0.005
        done
        for key in seconds_per_step days_rule traffic_bytes seconds_exposed flops_per_token_done; do
            same "$key of '$flags'" "$(logged plan $key "$dir/formula.jsonl")" "$(of $key)"
        done
    done << 'END'
--init d12 --seq-len 1024 --micro-batch 16 --plan-gpu h100,1
--init d12 --seq-len 1024 --micro-batch 16 --zero 1 --plan-gpu h100,8,450GB/s --tokens 10e9
--init d24 --seq-len 1024 --micro-batch 4 --batch-tokens 131072 --zero 2 --plan-gpu a100,16,100Gb/s
--init d48 --seq-len 1024 --micro-batch 8 --zero 3 --recompute block --plan-gpu a100,3
--init d4 --outer-every 20 --plan-gpu l4,2
--init d12 --seq-len 1024 --tensor-parallel 2 --micro-batch 16 --plan-gpu h100,8,450GB/s
--init d36 --seq-len 1024 --tensor-parallel 4 --micro-batch 4 --recompute block --plan-gpu h100,4
END
    # And what it counts is what it allocates.
    run=("${tiny[@]}" --steps 1)
    planner=$gpu_train plan "${tiny[@]}" --plan-gpu here@1,1
    "$gpu_train" "${run[@]}" --log "$dir/log" --overwrite > "$dir/stdout" || note "the GPU's trainer fails"
    counted "the GPU's trainer"
    whole=$(sed -n 's/^memory *\([0-9.]*\) MB on the GPU.*/\1e6/p' "$dir/stdout")
    near "the GPU's memory" "$(($(of bytes_total) - (144 << 20)))" "$whole" 0.011   # 0.1 MB of 4.6
    end plan_of_a_gpu_is_the_gpu_trainers
fi

exit $failed
