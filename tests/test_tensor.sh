#!/usr/bin/env bash
# Tensor parallel on CPUs, under mpirun: that ranks which share every layer train what one rank
# trains, with what each sends, keeps, saves and refuses. One thread a rank, tiny models.
#
# TRAIN_MPI names another binary built with MPI=1; PREPARE and COMPARE as elsewhere. FAULTS=1 plants
# all faults, not one in six.
. "$(dirname "$0")/tools.sh"
. tests/ranks.sh
tests="tensor_parallel_trains_what_one_rank_trains tensor_parallel_has_the_same_bits_again
    groups_are_data_parallel tensor_parallel_counts_norms_once tensor_parallel_looks_and_writes
    tensor_parallel_sends_what_the_formula_says a_rank_keeps_its_share
    a_shared_run_goes_on_on_any_ranks tensor_parallel_refuses_in_one_line
    tensor_parallel_in_bf16 planted_faults_are_found"
needs mpicc mpirun
[ -x "$mpi_train" ] || skip_all "there is no $mpi_train: make test-all builds it where mpicc is"

# ---- tools ----

# worst DIR DIR: the weights of one tensor that are furthest apart, by its norm; K's bias excluded.
worst() { "$compare" "$1" "$2" | sed 's/.*the most, \([^,]*\),.*/\1/'; }
refuses() {                                 # refuses WORDS N ARGS...: as N ranks
    refused "$1" mpirun -n "$2" "$program" --threads 1 "${@:3}"
}
# tokens VOCABULARY COUNT: a shard of that many tokens, each the last one's square plus its place.
tokens() {
    awk -v V="$1" -v n="$2" 'BEGIN {
        split("20240520 1 " n " " V, header, " ")
        for (i = 1; i <= 256; i++)
            for (k = 0; k < 4; k++) {
                printf "\\%03o", header[i] % 256
                header[i] = int(header[i] / 256)
            }
        for (t = 0; t < n; t++) {
            x = (x*x + t) % V
            printf "\\%03o\\%03o", x % 256, int(x / 256)
        } }'
}
small() {                                   # small VOCABULARY: data of its own
    mkdir -p "$dir/words$1"
    printf "$(tokens "$1" 3000)" > "$dir/words$1/words_train.bin"
    printf "$(tokens "$1" 400)" > "$dir/words$1/words_val.bin"
}

program=$dir/train_gpt2
cp "$mpi_train" "$program" || exit 1
"$prepare" tales --out "$dir/tales" --tokens 60000 --seed 5 > "$dir/stdout" || exit 1
small 37
small 5
common="--micro-batch 2 --lr 6e-4 --eval-every 0 --eval-tokens 64 --layers 2 --heads 4
        --channels 32"
tiny="--data $dir/tales --seq-len 16 $common"       # a vocabulary of 257
good 1 $tiny --steps 1 --out "$dir/first"
[ "$(values start precision "$dir/first")" = '"fp32"' ] || skip_all "its limits are those of fp32"

# ---- the same numbers ----

# The gradient: with --lr 100 and no decay one update of SGD leaves 100 times the gradient, beside
# which the initial weights are small.
gradient="--optimizer sgd --lr 100 --lr-schedule constant --weight-decay 0 --clip 0 --steps 1"
for shape in "tales 16" "tales 7" "words37 16" "words5 7"; do
    read -r data T <<< "$shape"
    flags="--data $dir/$data --seq-len $T $common"
    for ranks in 1 2 4; do
        good $ranks $flags --tensor-parallel $ranks --steps 50 --out "$dir/$data$T-$ranks"
        good $ranks $flags --tensor-parallel $ranks $gradient --out "$dir/g-$data$T-$ranks"
    done
    for ranks in 2 4; do
        one=$dir/$data$T-1 run=$dir/$data$T-$ranks
        within "losses of $shape on $ranks ranks" "$(apart loss "$one" "$run")" 2e-6
        within "norms of $shape on $ranks ranks" "$(apart grad_norm "$one" "$run")" 1e-5
        within "weights of $shape on $ranks ranks" "$(worst "$one" "$run")" 1e-5
        within "gradient of $shape on $ranks ranks" \
            "$(worst "$dir/g-$data$T-1" "$dir/g-$data$T-$ranks")" 2e-6
        echo "    $shape on $ranks ranks: losses apart by $(apart loss "$one" "$run"), norms by" \
            "$(apart grad_norm "$one" "$run"), weights $(worst "$one" "$run"), the first gradient" \
            "$(worst "$dir/g-$data$T-1" "$dir/g-$data$T-$ranks")"
    done
done
same "losses of a run" "$(values step loss "$dir/tales16-1" | sort -u | wc -l | tr -d ' ')" 50
end tensor_parallel_trains_what_one_rank_trains

# Without the flag no sum is taken: the bits of one rank.
good 1 $tiny --steps 50 --out "$dir/without"
same_files "$dir/without" "$dir/tales16-1" model.safetensors optimizer.safetensors
good 4 $tiny --tensor-parallel 4 --steps 50 --out "$dir/again"
same_files "$dir/tales16-4" "$dir/again" model.safetensors optimizer.safetensors
end tensor_parallel_has_the_same_bits_again

# ---- beside data parallelism ----

four="$tiny --batch-tokens 128 --steps 50"           # 4 micro-batches: 2 on each of 2 groups
good 1 $four --out "$dir/four"
for stage in 0 1 2 3; do
    good 4 $four --tensor-parallel 2 --zero $stage --out "$dir/four$stage"
    within "losses at stage $stage" "$(apart loss "$dir/four" "$dir/four$stage")" 2e-6
    within "norms at stage $stage" "$(apart grad_norm "$dir/four" "$dir/four$stage")" 1e-5
    within "weights at stage $stage" "$(worst "$dir/four" "$dir/four$stage")" 1e-5
    echo "    2 groups of 2 ranks, stage $stage: losses apart by" \
        "$(apart loss "$dir/four" "$dir/four$stage"), weights" \
        "$(worst "$dir/four" "$dir/four$stage")"
done
rounds="$four --outer-every 5 --save-every 25 --keep 0"
good 2 $rounds --out "$dir/rounds"
good 4 $rounds --tensor-parallel 2 --out "$dir/rounds2"
within "losses of DiLoCo" "$(apart loss "$dir/rounds" "$dir/rounds2")" 2e-6
within "weights of DiLoCo" "$(worst "$dir/rounds" "$dir/rounds2")" 1e-5
cut_at 25 "$dir/rounds2"                             # each worker gets its own moments back
good 4 --resume --out "$dir/cut"
same_files "$dir/rounds2" "$dir/cut" model.safetensors optimizer.safetensors outer.safetensors \
    workers.safetensors
end groups_are_data_parallel

# Noise scale, plain and in Adam's metric, from ranks' gradients or micro-batches', the averaged
# weights: each counts what is cut once, and what all ranks have once.
noise="$tiny --batch-tokens 128 --steps 30 --noise-scale --average-tokens 500"
good 2 $noise --zero 0 --out "$dir/noise"
good 1 $noise --out "$dir/noise_micro"
good 4 $noise --zero 0 --tensor-parallel 2 --out "$dir/noise2"
good 4 $noise --tensor-parallel 4 --out "$dir/noise_micro4"
for pair in "noise noise2" "noise_micro noise_micro4"; do
    read -r one shared <<< "$pair"
    for key in noise_scale noise_g2 noise_s noise_scale_adam; do
        near "$key of $shared" "$(values step $key "$dir/$shared" | tail -n 1)" \
            "$(values step $key "$dir/$one" | tail -n 1)" 1e-4
    done
    near "averaged weights of $shared" \
        "$(values eval val_loss_average "$dir/$shared" | tail -n 1)" \
        "$(values eval val_loss_average "$dir/$one" | tail -n 1)" 1e-6
done
end tensor_parallel_counts_norms_once

# ---- evaluations, samples ----

look="--data $dir/tales --seq-len 256 --micro-batch 2 --layers 2 --heads 4 --channels 32 --steps 3
      --sample-every 3 --max-new 300 --eval-tokens 3000 --lr 6e-4
      --hellaswag tests/fixtures/hellaswag.jsonl"
good 1 $look --batch-tokens 1024 --out "$dir/look"
shown | sed -n '/^--- the model writes/,/^---$/p' > "$dir/text"
for shape in "2 2" "4 2" "4 4"; do
    read -r ranks cut <<< "$shape"
    good $ranks $look --batch-tokens 1024 --tensor-parallel $cut --out "$dir/look$ranks$cut"
    shown | sed -n '/^--- the model writes/,/^---$/p' | cmp -s "$dir/text" ||
        note "$ranks ranks, $cut a model, write another text"
    near "validation loss" "$(values eval val_loss "$dir/look$ranks$cut")" \
        "$(values eval val_loss "$dir/look")" 2e-6
    same "HellaSwag" "$(values hellaswag acc_norm "$dir/look$ranks$cut")" \
        "$(values hellaswag acc_norm "$dir/look")"
done
[ "$(wc -c < "$dir/text")" -gt 100 ] || note "the model writes nothing"
good 2 $tiny --tensor-parallel 2 --steps 100 --eval-every 5 --target-loss 5.5 --out "$dir/target"
[ "$(values end step "$dir/target")" -lt 100 ] || note "the target loss does not end the run"
end tensor_parallel_looks_and_writes

# ---- traffic and memory ----

# Numbers of a micro-batch: (4L+2) B T C summed, of which a rank sends 2(n-1)/n, and 3 B T
# collected, which go to n-1 ranks. The norm's totals are the rest. Data parallel adds
# 2 Psi (n-1)/n for a share of the model. Overlapped, the last messages of an update may count in
# the next one.
large="--data $dir/tales --seq-len 32 --micro-batch 2 --layers 3 --heads 4 --channels 128 --steps 3"
for shape in "2 2 1" "4 4 2" "4 2 1"; do
    read -r ranks cut micro_batches <<< "$shape"
    good $ranks $large --tensor-parallel $cut --batch-tokens $((64 * ranks / cut * micro_batches)) \
        --warmup-tokens 0 --no-overlap --out "$dir/sent$ranks$cut"
    sent=$(awk -v n=$cut -v D=$((ranks / cut)) -v A=$micro_batches 'BEGIN {
        L = 3; C = 128; BT = 64; V = int((257 + n - 1) / n)
        block = 12*C*C/n + (3 + 4)*C/n + 6*C; share = (V + 32)*C + L*block + 2*C
        sums = 2*(n - 1)/n * (4*L + 2)*BT*C + (n - 1) * 3*BT
        printf "%.0f", 4*(A*sums + 2*(D - 1)/D * share) }')
    near "bytes sent by one of $ranks ranks, $cut a model" \
        "$(values step bytes_sent "$dir/sent$ranks$cut" | tail -n 1)" "$sent" 0.01
    echo "    $ranks ranks, $cut a model: $(values step bytes_sent "$dir/sent$ranks$cut" |
        tail -n 1) bytes an update, by formula $sent"
done
end tensor_parallel_sends_what_the_formula_says

for cut in 2 4; do
    good $cut $large --tensor-parallel $cut --out "$dir/kept$cut" --steps 1
    share=$(awk -v n=$cut 'BEGIN { L = 3; C = 128; V = int((257 + n - 1) / n)
        print 4*((V + 32)*C + L*(12*C*C/n + 7*C/n + 6*C) + 2*C) }')
    near "parameters with $cut ranks a model" "$(values start bytes_params "$dir/kept$cut")" \
        "$share" 0.001
    near "moments with $cut ranks a model" "$(values start bytes_moments "$dir/kept$cut")" \
        $((2 * share)) 0.001
    # --plan counts the same bytes, kept and sent; what it allocates: tests/test_model.c.
    mkdir "$dir/plan$cut"
    "$program" --plan --plan-gpu here@1,$cut --tensor-parallel $cut $large \
        --log "$dir/plan$cut/log.jsonl" > "$dir/stdout" || note "no plan for $cut ranks"
    for key in bytes_params bytes_grads bytes_moments bytes_passing; do
        same "the plan's $key" "$(values plan $key "$dir/plan$cut")" \
            "$(values start $key "$dir/kept$cut")"
    done
    near "the plan's traffic" "$(values plan traffic_bytes "$dir/plan$cut")" \
        "$(values step bytes_sent "$dir/kept$cut" | tail -n 1)" 0.01
done
end a_rank_keeps_its_share

# ---- checkpoints ----

# 50 updates on 2 ranks, and from the checkpoint of update 25 on any others: files of the whole
# model, the same bits where the ranks are the same.
good 2 $four --tensor-parallel 2 --save-every 25 --keep 0 --out "$dir/saved"
for shape in "2 2" "1 1" "4 4" "4 2" "2 1"; do
    read -r ranks cut <<< "$shape"
    cut_at 25 "$dir/saved"
    good $ranks --resume --tensor-parallel $cut --out "$dir/cut"
    within "losses on $ranks ranks, $cut a model" "$(apart loss "$dir/saved" "$dir/cut" 26)" 2e-6
    within "weights on $ranks ranks, $cut a model" "$(worst "$dir/saved" "$dir/cut")" 1e-5
    [ "$shape" != "2 2" ] ||
        same_files "$dir/saved" "$dir/cut" model.safetensors optimizer.safetensors
done
good 1 $four --save-every 25 --keep 0 --out "$dir/alone"
same "files" "$(ls "$dir/saved/latest")" "$(ls "$dir/alone/latest")"
for file in model.safetensors optimizer.safetensors; do
    same "size of $file" "$(wc -c < "$dir/saved/latest/$file")" \
        "$(wc -c < "$dir/alone/latest/$file")"
done
good 1 --resume --generate Once --out "$dir/saved" --max-new 20

# A killed rank ends the run, and it goes on with the other ranks there are.
mpirun -n 2 "$program" --threads 1 $four --steps 100000 --lr-schedule constant --tensor-parallel 2 \
    --save-every 20 --timeout 5 --out "$dir/killed" > "$dir/stdout" 2> "$dir/stderr" < /dev/null &
job=$!
for _ in $(seq 600); do [ -e "$dir/killed/latest" ] && break; sleep 0.1; done
kill -9 "$(ps -A -o pid= -o command= | awk -v at="$program" '$2 == at { print $1 }' | tail -n 1)"
wait $job && note "the run ends well without a rank"
at=$(readlink "$dir/killed/latest")
at=$((10#${at#step_}))
[ "$at" -ge 20 ] || note "nothing was saved before a rank was killed"
good 1 --resume --tensor-parallel 1 --steps $((at + 5)) --out "$dir/killed"
same "the first update after that" "$(values resume step "$dir/killed")" "$at"
same "updates after that" "$(values end step "$dir/killed")" $((at + 5))
mpi 1 --resume --out "$dir/saved"
grep -q "^train_gpt2: --tensor-parallel: 2 does not divide 1 rank" "$dir/stderr" ||
    note "one rank alone goes on with 2 ranks a model: $(head -n 1 "$dir/stderr")"
end a_shared_run_goes_on_on_any_ranks

# ---- bad input ----

three="--data $dir/tales --seq-len 16 --layers 2 --heads 3 --channels 24 --micro-batch 2"
refuses "2 ranks cannot share 3 heads" 2 $three --tensor-parallel 2
refuses "3 does not divide 4 ranks" 4 $tiny --tensor-parallel 3
refuses "2 does not divide 1 rank;" 1 $tiny --tensor-parallel 2
refuses "give one of them" 2 $tiny --tensor-parallel 2 --exact-sum
refuses "--tensor-parallel: " 2 $tiny --tensor-parallel 0
mpi 1 --generate Once --init d4 --tensor-parallel 2
grep -q "^train_gpt2: --tensor-parallel: is for training" "$dir/stderr" ||
    note "--generate takes it: $(head -n 1 "$dir/stderr")"
end tensor_parallel_refuses_in_one_line

# ---- other builds ----

# build_at TREE FLAGS...: as $program
build_at() {
    mpicc -DWITH_MPI -pthread -std=gnu11 -O1 -w "${@:2}" "$1/train_gpt2.c" -o "$dir/other" -lm \
        2> "$dir/stderr" || { note "mpicc: $(head -n 1 "$dir/stderr")"; return 1; }
    program=$dir/other
}

# In bf16 products round their operands to 8 bits. The ranks' sums stay fp32, so only an operand
# whose last bit in fp32 differs can round the other way, by 1/256. Measured: 2.5e-7.
build_at . -DPRECISION_BF16
for ranks in 1 2 4; do
    good $ranks $tiny --tensor-parallel $ranks $gradient --out "$dir/bf16-$ranks"
    within "gradient in bf16 on $ranks ranks" "$(worst "$dir/bf16-1" "$dir/bf16-$ranks")" 0.02
done
same "precision" "$(values start precision "$dir/bf16-4")" '"bf16"'
cmp -s "$dir/bf16-1/latest/model.safetensors" "$dir/g-tales16-1/latest/model.safetensors" &&
    note "bf16 has the gradient of fp32"
echo "    bf16: the first gradient on 2 ranks apart by $(worst "$dir/bf16-1" "$dir/bf16-2")," \
    "on 4 by $(worst "$dir/bf16-1" "$dir/bf16-4")"
end tensor_parallel_in_bf16

# Planted faults, FILE and an edit of it: a run with the fault differs from one rank's.
program=$dir/train_gpt2
plant() {                                   # plant NAME FILE SED
    rm -rf "$dir/tree"
    mkdir "$dir/tree"
    cp -r train_gpt2.c dataloader.h dev "$dir/tree"
    sed -i.before "$3" "$dir/tree/$2"
    ! cmp -s "$dir/tree/$2" "$2" || { note "$1: nothing to break"; return; }
    build_at "$dir/tree" || return
    good 2 $tiny --tensor-parallel 2 --steps 10 --out "$dir/fault" --overwrite
    awk -v loss="$(apart loss "$dir/ten" "$dir/fault")" \
        -v norm="$(apart grad_norm "$dir/ten" "$dir/fault")" \
        'BEGIN { exit !(loss == "nothing" || loss > 2e-6 || norm > 1e-5) }' ||
        note "$1 goes unnoticed"
    program=$dir/train_gpt2
}
good 1 $tiny --steps 10 --out "$dir/ten"
n=0
while IFS='|' read -r name file edit; do
    n=$((n + 1))
    ! has_its_turn $n "${FAULTS:-6}" || plant "$name" "$file" "$edit"
done << 'FAULTS'
no sum behind the layers by rows|dev/ranks/tensor.h|/void tp_sum_rows/,/^}/ s/tp_sum(g, out, .*;//
no sum behind the layers by columns|dev/ranks/tensor_model.h|s/    tp_sum(g, dln[12], N\*C);.*//
no sum behind the classifier|dev/ranks/tensor_model.h|s/    if (use == TRAIN) tp_sum(g, dx, N\*C);.*//
a bias added twice|dev/ranks/tensor.h|s/return g->size == 1 ? b : NULL;/return b;/
a maximum not shared|dev/ranks/tensor.h|s/part\[N\] \* expf(part\[0\] - hi)/part[N]/
a norm counted twice|dev/ranks/tensor.h|s/return g->index == 0 ||/return true ||/
FAULTS
echo "    one in ${FAULTS:-6} of $n"
end planted_faults_are_found

exit $failed
