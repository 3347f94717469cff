#!/usr/bin/env bash
# Many ranks on CPUs, under mpirun: that they train what one rank trains, what each of them keeps
# and sends, and how they stop, are killed, go on and refuse; and the same of ranks that share each
# layer. One thread a rank, tiny models.
#
#     RANK_KILLS=100 tests/test_ranks.sh    more random moments than the default 4
#     FAULTS=1 tests/test_ranks.sh          all rows of the tables, those with a `+` too
#
# TRAIN_MPI names another binary built with MPI=1; TRAIN, PREPARE and COMPARE as elsewhere.
. "$(dirname "$0")/tools.sh"
. tests/ranks.sh
kills=${RANK_KILLS:-4}
absolute train prepare compare
tests="ranks_train_what_one_rank_trains averages_and_sgd_on_any_ranks
    each_rank_keeps_and_sends_what_the_formula_says
    workers_stop_at_the_end_of_a_round told_to_stop_all_ranks_stop ranks_refuse_in_one_line
    help_and_plan_come_once killed_ranks_end_the_run_and_it_goes_on
    evaluations_and_samples_do_not_depend_on_ranks
    rank_0_alone_writes
    ranks_that_share_layers_train_what_one_rank_trains
    tensor_parallel_refuses_in_one_line
    tensor_parallel_in_bf16 a_changed_block_is_changed_on_all_ranks
    collectives_between_1_2_3_and_4_ranks collectives_between_machines"
needs mpicc mpirun
[ -x "$mpi_train" ] || skip_all "there is no $mpi_train: make test-all builds it where mpicc is"
trap 'leave_nobody; rm -rf "$dir"' EXIT

# ---- tools ----

# begun DIR: how often a run in DIR has begun, or gone on, and made an update since.
begun() {
    awk '/^{"event":"(start|resume)"/ { waits = 1 } /^{"event":"step"/ { n += waits; waits = 0 }
         END { print n + 0 }' "$1/log.jsonl" 2> /dev/null || echo 0
}
began_again() { [ "$(begun "$1")" -gt "$2" ]; }
begin() {                                   # begin N NAME ARGS...: as $job; returns when it trains
    before=$(begun "$dir/$2")
    mpirun -n "$1" "$program" --threads 1 "${@:3}" --out "$dir/$2" \
        > "$dir/stdout" 2> "$dir/stderr" < /dev/null &
    job=$!
    wait_for began_again "$dir/$2" "$before"
}
job_ended() { ! kill -0 $job 2> /dev/null; }
ended() {                                   # $job ends by itself, with all its ranks; status
    wait_for job_ended
    kill -9 $job 2> /dev/null
    wait $job 2> /dev/null
    status=$?
    nobody_is_left
}

program=$dir/train_gpt2
cp "$mpi_train" "$program" || exit 1
"$prepare" tales --out "$dir/tales" --tokens 60000 --seed 5 > "$dir/stdout" || exit 1
base=$tiny
good 1 $tiny --steps 1 --out "$dir/first"
[ "$(last start precision first)" = '"fp32"' ] || skip_all "its limits are those of fp32"

# ---- one sum, however it is shared out ----

rows < <(sums)
told '2 workers.*mean' "4 ranks do not say that they take a mean of 2 workers' moments"
same "losses of a run" "$(values step loss "$dir/one" | sort -u | wc -l | tr -d ' ')" 4
# bf16 rounds each gradient by at most 1/256 of itself, up or down as it comes: a direction off by
# some 0.2%.
rows << 'ROWS'
exact8 8  exact1 bits        --exact-sum --micro-batch 1
half0  4  four0  3e-4,other  --zero 0 --comm-dtype bf16
half2  2  zero2  3e-4,other  --zero 2 --comm-dtype bf16
ROWS
# A checkpoint does not show how many wrote it.
same "files" "$(ls "$dir/four3/latest")" "$(ls "$dir/one/latest")"
for file in "$dir/one/latest"/*; do
    [ "${file##*/}" = state.json ] ||
        same "size of ${file##*/}" "$(wc -c < "$dir/four3/latest/${file##*/}")" "$(wc -c < "$file")"
done
end ranks_train_what_one_rank_trains

# Each rank averages the masters it updates; SGD has no moments to shard.
averages="--average-tokens 50 --eval-train"
rows << ROWS
average   1  -          -      $averages
+average0 2  average    2e-7   $averages --zero 0
average3  2  average    2e-7   $averages --zero 3
average1  4  average3@2 -      --zero 1
sgd       1  -          -      --optimizer sgd
+sgd1     2  sgd        2e-7   --optimizer sgd
sgd3      4  sgd        2e-7   --optimizer sgd --zero 3
rounds    2  -          -      --optimizer sgd --outer-every 2
sgd_apart 2  rounds@2   bits
ROWS
near "an average that goes on" "$(last eval val_loss_average average1)" \
    "$(last eval val_loss_average average)" 2e-7
[ ! -e "$dir/sgd_apart/latest/workers.safetensors" ] || note "SGD's workers save moments"
end averages_and_sgd_on_any_ranks

# ---- memory and traffic ----

bytes_p=4 words=257
while read -r stage ranks micro_batches type; do
    keeps_and_sends "$stage" "$ranks" "$micro_batches" "$type"
done << 'SHAPES'
0 2 2 fp32
1 4 1 fp32
2 2 3 bf16
3 3 2 fp32
SHAPES
# A round of 6 updates sends what one update of data parallel does.
sent() { values step bytes_sent "$dir/$1" | awk '{ sum += $1 } END { print sum }'; }
good 2 $middle --batch-tokens 32 --steps 6 --zero 0 --out "$dir/often"
good 2 $middle --batch-tokens 32 --steps 6 --outer-every 6 --out "$dir/rarely"
near "traffic of 6 updates a round" "$(sent rarely)" $(($(sent often) / 6)) 0.02

end each_rank_keeps_and_sends_what_the_formula_says

# ---- stopping ----

# A signal to all ranks, as mpirun passes it on, in the middle of a round; or to one that is not
# rank 0. All ranks end with its status, where all have the same weights.
stopped() {                                 # stopped NAME WHO RANKS FLAGS...
    good "$3" $tiny --save-every 0 "${@:4}" --out "$dir/$1-whole"
    begin "$3" "$1" $tiny --save-every 0 "${@:4}"
    if [ "$2" = all ]; then kill -USR1 $job; else kill -USR1 "$(pid_of "$2")"; fi
    ended
    same "why it ended" "$(last end reason "$1")" '"interrupted"'
    at=$(last end step "$1")
    same "its last checkpoint" "$(readlink "$dir/$1/latest")" "step_$(printf %08d "${at:-1}")"
    same "the status" $status $((128 + $(kill -l USR1)))
    good "$3" --resume --out "$dir/$1"
    same_files "$1-whole" "$1"
}
stopped in_round all 2 --outer-every 50 --steps 600
same "its last update, within a round" $((${at:-1} % 50)) 0
end workers_stop_at_the_end_of_a_round
stopped one_told 2 3 --batch-tokens 48 --steps 400 --zero 2
end told_to_stop_all_ranks_stop

# ---- bad input ----

mkdir "$dir/here" "$dir/there" "$dir/nowhere"
ln -s "$dir/tales" "$dir/here/tales"
cp -r "$dir/tales" "$dir/there"                      # but for one token
printf '\001' | dd of="$dir/there/tales/tales_train_000000.bin" bs=1 seek=2000 conv=notrunc \
    2> "$dir/stderr" || note "dd: $(head -n 1 "$dir/stderr")"
cp "$program" "$dir/other" && printf x >> "$dir/other"
beside="${tiny/$dir\/tales/tales} --threads 1"       # data by a relative path
refuses "nearest is 48" 3 $tiny
refuses "give one of them" 2 $tiny --zero 1 --outer-every 5
refuses "power of two" 2 $tiny --batch-tokens 48 --micro-batch 1 --exact-sum
refuses "start it alone" 2 --generate Once --resume
# Before the first exchange, whose size a flag may decide.
refused 'rank 1 has "channels":32, rank 0 has "channels":24' mpirun \
    -n 1 "$program" $tiny --threads 1 --out "$dir/no" : \
    -n 1 "$program" $tiny --threads 1 --channels 32
refused "rank 1 has other data" mpirun \
    -n 1 --wdir "$dir/here" "$program" $beside --out "$dir/no" : \
    -n 1 --wdir "$dir/there" "$program" $beside
refused "rank 1 has another build" mpirun \
    -n 1 "$program" $tiny --threads 1 --out "$dir/no" : -n 1 "$dir/other" $tiny --threads 1
refused "rank 1: --data: tales" mpirun \
    -n 1 --wdir "$dir/here" "$program" $beside --out "$dir/no" : \
    -n 1 --wdir "$dir/nowhere" "$program" $beside
refused "make MPI=1" env WORLD_SIZE=2 RANK=0 "$train" $tiny
refused "not all 2 have started MPI within 2 s" mpirun \
    -n 1 "$program" $tiny --timeout 2 --out "$dir/no" : -n 1 "$program" $tiny --plan
end ranks_refuse_in_one_line

good 2 --help
same "times that help is printed" "$(shown | grep -c '^usage: ')" 1
good 2 $tiny --batch-tokens 32 --plan
same "times that the plan is printed" "$(shown | grep -c '2 workers x 1 x 2 sequences')" 1
end help_and_plan_come_once

# ---- ranks that die ----

# kill -9 of any of three ranks at any moment, in a run that saves all the time. Whichever it was,
# the others end as well, a line says who is gone, and the run goes on from its last checkpoint to
# the bits of one that was never killed.
stage=$((RANDOM % 4)) survived=0
fragile="$tiny --batch-tokens 48 --steps $((kills * 150)) --zero $stage --timeout 10 --keep 2"
good 3 $fragile --save-every 0 --out "$dir/unkilled"
for kill in $(seq "$kills"); do
    if [ -e "$dir/killed/latest" ]; then flags=--resume; else flags="$fragile --overwrite"; fi
    begin 3 killed $flags --save-every 1
    sleep "0.$(printf %03d $((RANDOM % 400)))"
    rank=$((RANDOM % 3))
    pid=$(pid_of $rank)
    [ -n "$pid" ] && kill -9 "$pid" 2> /dev/null && survived=$((survived + 1))
    ended
    [ $status != 0 ] || break                        # it came too late: the run was over
    grep -q "^train_gpt2: rank $rank (on .*--resume" "$dir/stderr" ||
        note "kill $kill, of rank $rank: $(grep -m 1 . "$dir/stderr")"
    [ -e "$dir/killed/latest" ] || continue
    "$train" --init "$dir/killed" --generate Once --max-new 2 > "$dir/stdout" 2>&1 ||
        note "after kill $kill latest does not load: $(tail -n 1 "$dir/stdout")"
done
good 3 --resume --save-every 0 --out "$dir/killed"
same_files unkilled killed
[ $((2 * survived)) -ge "$kills" ] || note "killed only $survived times, the run is too short"
echo "    a rank of three killed at $survived random moments, at ZeRO's stage $stage"
end killed_ranks_end_the_run_and_it_goes_on

# ---- evaluations, samples, files ----

evaluated() {                               # evaluated RUN
    for key in val_loss whole_loss; do last eval $key "$1"; done
    for key in examples acc acc_norm; do last hellaswag $key "$1"; done
}
written() { shown | sed -n '/^--- the model writes/,/^---$/p'; }
wide="--data $dir/tales --seq-len 256 --micro-batch 2 --layers 2 --channels 20 --heads 2 --steps 2"
# Before the first text nothing has been evaluated, so nothing else has gathered the new weights.
look="$wide --batch-tokens 3072 --eval-tokens 5000 --sample-every 1 --max-new 300 --lr 1e-3
      --hellaswag tests/fixtures/hellaswag.jsonl"             # tales lie whole in 256 tokens
good 1 $look --out "$dir/look"
written > "$dir/text"
evaluated look > "$dir/evaluated"
same "numbers of an evaluation" "$(grep -c '[0-9]' "$dir/evaluated")" 5
same "texts" "$(grep -c '^--- the model writes' "$dir/text")" 2
for shape in "2 --zero 0" "3 --zero 3" "4 --tensor-parallel 2"; do
    read -r ranks flags <<< "$shape"
    good $ranks $look $flags --out "$dir/look$ranks"
    written | cmp -s "$dir/text" || note "$ranks ranks, $flags: another text"
    paste "$dir/evaluated" <(evaluated look$ranks) > "$dir/both"
    while read -r alone shared; do
        near "evaluated on $ranks ranks, $flags" "$shared" "$alone" 2e-6
    done < "$dir/both"
done
end evaluations_and_samples_do_not_depend_on_ranks

mkdir "$dir/empty" "$dir/places"
here=$PWD
cd "$dir/empty" || note "no empty directory"
good 2 $tiny --steps 3 --save-every 2 --zero 3 --out "$dir/places/run"
cd "$here" || exit 1
same "files in the working directory" "$(ls -A "$dir/empty")" ""
same "what --out holds" "$(cd "$dir/places" && find . | sort | grep -v '/step_.*/' | xargs)" \
    ". ./run ./run/best ./run/latest ./run/log.jsonl ./run/step_00000002 ./run/step_00000003"
same "lines told twice" "$(shown | sort | uniq -d)" ""
for line in model data loss batch ranks memory "step     1" "saved in"; do
    same "lines with $line" "$(shown | grep -c "^$line")" 1
done
sed 's/^{"event":"\([a-z]*\)".*/\1/' "$dir/places/run/log.jsonl" > "$dir/events"
same "events of the log" "$(xargs < "$dir/events")" "start step step save step eval save end"
end rank_0_alone_writes

# ---- ranks that share each layer ----

base=$layers
few_words
rows < <(shares)
row without 1 whole bits --tensor-parallel 1         # no sum is taken
# Here each micro-batch's gradient has a buffer of its own, measured before it is added.
row small2 2 whole 2e-6 --noise-scale --tensor-parallel 2
same "files" "$(ls "$dir/share4/latest")" "$(ls "$dir/whole/latest")"
good 1 --resume --generate Once --out "$dir/share4" --max-new 20
end ranks_that_share_layers_train_what_one_rank_trains

refuses "2 ranks cannot share 3 heads" 2 $layers --heads 3 --channels 24 --tensor-parallel 2
refuses "3 does not divide 4 ranks" 4 $layers --tensor-parallel 3
mpi 1 --resume --out "$dir/share2"
grep -q "^train_gpt2: --tensor-parallel: 2 does not divide 1 rank" "$dir/stderr" ||
    note "one rank alone goes on with 2 ranks a model: $(head -n 1 "$dir/stderr")"
end tensor_parallel_refuses_in_one_line

# build_with COMPILER'S ARGUMENTS...: as $program; what they lack is in make's library
build_with() {
    mpicc -DWITH_MPI -pthread -std=gnu11 -O0 -w -fopenmp "$@" "$build/mpi/library.a" \
        -o "$dir/other" -lm 2> "$dir/stderr" ||
        { note "mpicc: $(head -n 1 "$dir/stderr")"; return 1; }
    program=$dir/other
}

# In bf16 products round their operands to 8 bits. The ranks' sums stay fp32, so only an operand
# whose last bit in fp32 differs can round the other way, by 1/256. Measured: 2.5e-7.
build_with -DPRECISION_BF16 train_gpt2.c dev/cpu/*.c
row bf16 1 slope other $gradient
row bf16-4 4 bf16 - $gradient --tensor-parallel 4
within "gradient in bf16 on 4 ranks" "$(worst bf16 bf16-4)" 0.02
[[ $(last start precision bf16-4) == '"bf16'* ]] || note "precision"
end tensor_parallel_in_bf16

# There is one block: another activation, in block_forward and block_backward alone, is trained by
# one rank and by two that share each layer alike.
sed 's/gelu_forward(a.gelu, a.fc, \(.*\));/memcpy(a.gelu, a.fc, \1 * sizeof(float));/
     s/gelu_backward(dfc, dgelu, a.fc, N.*//' train_gpt2.c > "$dir/linear.c"
build_with -iquote . "$dir/linear.c"
good 1 $layers --out "$dir/linear"
good 2 $layers --tensor-parallel 2 --out "$dir/linear2"
within "losses of another block on 2 ranks" "$(apart loss linear linear2)" 2e-6
[[ $(apart loss whole linear) = [0-9].[0-9]e-0[1-3] ]] || note "another block learns the same"
end a_changed_block_is_changed_on_all_ranks

# ---- what all this is made of ----

mpicc -DWITH_MPI -pthread -std=gnu11 -O1 -fopenmp tests/ranks_comm.c "$build/mpi/library.a" \
    -o "$dir/ranks_comm" -lm 2> "$dir/stderr" || note "mpicc: $(head -n 1 "$dir/stderr")"
collectives() {                             # collectives RANKS [NEAR]
    timeout -k 5 300 mpirun -n "$1" "$dir/ranks_comm" ${2:-} > "$dir/stdout" 2>&1 < /dev/null
    same "status on $1 ranks ${BATCHWISE_HOSTS:-}" $? 0
    grep -v '^ok ' "$dir/stdout" > "$dir/other" && note "$1 ranks: $(head -n 1 "$dir/other")"
    same "tests passed on $1 ranks ${BATCHWISE_HOSTS:-}" "$(grep -c '^ok ' "$dir/stdout")" \
        $(($1 * 18))
}
for ranks in 1 2 3 4; do collectives $ranks; done
end collectives_between_1_2_3_and_4_ranks

# Ranks on several machines, by name; and how many make up the first of two levels. Where ranks do
# not follow one another, or machines have 3 or unequally many, there is one level. In each case
# every sum has the bits of one tree.
for shape in "a,a,b,b,c,c 2" "a,b,a,b 4" "a,a,a,b,b,b 6" "a,a,b 3" \
        ${FAULTS:+"a,a,a,a,b,b,b,b 4"}; do
    read -r hosts near <<< "$shape"
    BATCHWISE_HOSTS=$hosts collectives $(tr , '\n' <<< "$hosts" | wc -l) $near
done
nobody_is_left
end collectives_between_machines

exit $failed
