#!/usr/bin/env bash
# Many ranks on CPUs, under mpirun: that they train what one rank trains, what each of them keeps
# and sends, and how they stop, are killed, go on and refuse. One thread a rank, tiny models.
#
#     RANK_KILLS=100 tests/test_ranks.sh    more random moments than the default 8
#
# TRAIN_MPI names another binary built with MPI=1; TRAIN, PREPARE and COMPARE as elsewhere.
. "$(dirname "$0")/tools.sh"
. tests/ranks.sh
kills=${RANK_KILLS:-8}
absolute train prepare compare
tests="micro_batches_over_ranks micro_batches_of_any_size exact_sum_has_the_bits_of_one_rank
    zero_trains_what_one_rank_trains
    several_ranks_share_the_moments each_rank_keeps_what_the_formula_says
    each_rank_sends_what_the_formula_says
    bf16_halves_what_is_sent resumed_on_other_ranks workers_go_on_with_their_own_moments
    a_shrinking_shard_ends_all_ranks
    workers_stop_at_the_end_of_a_round told_to_stop_all_ranks_stop ranks_refuse_in_one_line
    help_and_plan_come_once killed_ranks_end_the_run_and_it_goes_on a_stopped_rank_ends_the_run
    evaluations_and_samples_do_not_depend_on_ranks averages_and_sgd_on_any_ranks
    rank_0_alone_writes collectives_between_1_2_3_and_4_ranks collectives_between_machines"
needs mpicc mpirun
[ -x "$mpi_train" ] || skip_all "there is no $mpi_train: make test-all builds it where mpicc is"
trap 'leave_nobody; rm -rf "$dir"' EXIT

# ---- tools ----

end() {                                     # end NAME: prints the verdict on the test
    nobody_is_left
    if [ -z "$why" ]; then echo "ok $1"; else echo "FAIL $1: $why"; failed=1; fi
    why=
}
total() { values step "$1" "$2" | awk '{ sum += $1 } END { printf "%.0f\n", sum }'; }
compared() {                                # compared DIR DIR LIMIT: weights; the words in apart
    "$compare" "$1" "$2" "$3" > "$dir/apart" || note "${1##*/} and ${2##*/}: $(cat "$dir/apart")"
}

ranks_here() {                              # the processes of $program: PID RANK
    ps -A -o pid= -o command= | awk -v at="$dir/" 'index($2, at) == 1 { print $1 }' |
        while read -r pid; do
            echo "$pid $(tr '\0' '\n' < "/proc/$pid/environ" 2> /dev/null |
                sed -n 's/^\(OMPI_COMM_WORLD_RANK\|PMI_RANK\)=//p' | head -n 1)"
        done
}
pid_of() { ranks_here | awk -v rank="$1" '$2 == rank { print $1 }'; }
nobody_is_left() {
    for _ in $(seq 200); do [ -z "$(ranks_here)" ] && return; sleep 0.1; done
    note "processes are left: $(ranks_here | xargs)"
    leave_nobody
}
leave_nobody() { ranks_here | while read -r pid _; do kill -9 "$pid" 2> /dev/null; done; }
# begun DIR: how often a run in DIR has begun, or gone on, and made an update since.
begun() {
    awk '/^{"event":"(start|resume)"/ { waits = 1 } /^{"event":"step"/ { n += waits; waits = 0 }
         END { print n + 0 }' "$1/log.jsonl" 2> /dev/null || echo 0
}
began_again() { [ "$(begun "$1")" -gt "$2" ]; }
steps_made() { [ "$(values step step "$1" | wc -l)" -ge "$2" ]; }
begin() {                                   # begin N NAME ARGS...: as $job; returns when it trains
    before=$(begun "$dir/$2")
    mpirun -n "$1" "$program" --threads 1 "${@:3}" --out "$dir/$2" \
        > "$dir/stdout" 2> "$dir/stderr" < /dev/null &
    job=$!
    wait_for began_again "$dir/$2" "$before"
}
job_ended() { ! kill -0 $job 2> /dev/null; }
ended() {                                   # $job ends by itself; status
    wait_for job_ended
    kill -9 $job 2> /dev/null
    wait $job 2> /dev/null
    status=$?
}

header() {                                  # of a file of safetensors
    head -c $((8 + $(od -A n -t u8 -N 8 "$1"))) "$1"
}

program=$dir/train_gpt2
cp "$mpi_train" "$program" || exit 1
"$prepare" tales --out "$dir/tales" --tokens 60000 --seed 5 > "$dir/stdout" || exit 1
# At a higher learning rate, or without the warm-up, what two runs differ by grows from update to
# update, whatever the first difference was.
common="--data $dir/tales --seq-len 16 --micro-batch 1 --lr 1e-3 --warmup-tokens 2000 --eval-every 0
        --eval-tokens 64"
tiny="$common --layers 3 --heads 2 --channels 20"    # slices not alike, the last ones cut short
dozen="$tiny --batch-tokens 192"                     # 12 sequences: over 1, 2, 3, 4 and 6 ranks
middle="$common --warmup-tokens 0 --layers 4 --heads 4 --channels 64"    # slices alike, nearly
good 1 $tiny --warmup-tokens 0 --steps 1 --out "$dir/first"
[ "$(values start precision "$dir/first")" = '"fp32"' ] || skip_all "its limits are those of fp32"

# ---- one sum, however it is shared out ----

for ranks in 1 2 4 8; do
    good $ranks $tiny --batch-tokens 128 --steps 20 --out "$dir/plain$ranks"
    compared "$dir/plain1" "$dir/plain$ranks" 1e-6
    [ $ranks = 1 ] || echo "    $ranks x $((8 / ranks)) micro-batches: $(cat "$dir/apart")"
done
end micro_batches_over_ranks

for size in 2 4 8; do                       # sequences of a micro-batch, on one rank
    good 1 $tiny --micro-batch $size --batch-tokens 128 --steps 20 --out "$dir/size$size"
    compared "$dir/plain1" "$dir/size$size" 1e-6
done
good 1 $tiny --batch-tokens 128 --steps 20 --seed 2 --out "$dir/other_seed"
"$compare" "$dir/plain1" "$dir/other_seed" 1e-1 > "$dir/apart" &&
    note "another seed is hardly farther: $(cat "$dir/apart")"
end micro_batches_of_any_size

for ranks in 1 2 4 8; do
    good $ranks $tiny --batch-tokens 128 --steps 20 --exact-sum --out "$dir/exact$ranks"
    same_files "$dir/exact1" "$dir/exact$ranks" model.safetensors optimizer.safetensors
    # Without it these differ, or the test would show nothing.
    [ $ranks = 1 ] || ! cmp -s "$dir/plain1/latest/model.safetensors" \
        "$dir/plain$ranks/latest/model.safetensors" || note "any sum on $ranks ranks has these bits"
done
compared "$dir/plain1" "$dir/exact1" 1e-6
end exact_sum_has_the_bits_of_one_rank

# ---- ZeRO ----

good 1 $dozen --steps 50 --save-every 25 --keep 0 --out "$dir/one"
for ranks in 2 3 4; do
    losses= norms=
    for stage in 0 1 2 3; do
        out=$dir/zero$stage-$ranks
        good $ranks $dozen --steps 50 --save-every 25 --keep 0 --zero $stage --out "$out"
        losses="$losses $(apart loss "$dir/one" "$out")"
        norms="$norms $(apart grad_norm "$dir/one" "$out")"
        within "loss of stage $stage on $ranks ranks" "$(apart loss "$dir/one" "$out")" 1e-5
        within "norm of stage $stage on $ranks ranks" "$(apart grad_norm "$dir/one" "$out")" 1e-4
    done
    echo "    $ranks ranks, stages 0 1 2 3: losses apart by$losses, norms by$norms"
done
for stage in 1 3; do                        # travelling beside the computation, or in turn with it
    good 2 $dozen --steps 25 --save-every 0 --zero $stage --no-overlap --lr-schedule constant \
        --out "$dir/in_turn$stage"
    good 2 $dozen --steps 25 --save-every 0 --zero $stage --lr-schedule constant \
        --out "$dir/beside$stage"
    same_files "$dir/beside$stage" "$dir/in_turn$stage" model.safetensors optimizer.safetensors
done
same "losses of a run" "$(values step loss "$dir/one" | sort -u | wc -l | tr -d ' ')" 50
end zero_trains_what_one_rank_trains

# ---- the stage that is taken where none is given ----

stage_named() { sed 's/ZeRO stage /zero/; s/data parallel/zero0/' "$dir/stdout"; }
while read -r stage flags; do
    good 2 $tiny --warmup-tokens 0 --steps 1 $flags --out "$dir/stage" --overwrite
    stage_named | grep -q "^ranks .*: $stage" ||
        note "'$flags' is not $stage: $(grep "^ranks" "$dir/stdout")"
    plan=$("$train" --plan --plan-gpu here@1,2 $tiny $flags |
        sed -n 's/.*, ZeRO \([0-9]\).*/zero\1/p')
    [ "$stage" = DiLoCo ] || same "the plan's stage with '$flags'" "$plan" "$stage"
done << 'STAGES'
zero1
zero0 --zero 0
zero3 --zero 3
zero0 --comm-dtype bf16
zero0 --exact-sum
DiLoCo --outer-every 1
STAGES
# A resumed run that was given no stage decides anew; one that was given a stage keeps it.
while read -r stage flags; do
    good 2 $tiny --warmup-tokens 0 --steps 1 --out "$dir/stage" --overwrite
    good 2 --resume --steps 2 --out "$dir/stage" $flags
    stage_named | grep -q "^ranks .*: $stage" ||
        note "resumed with '$flags', not $stage: $(grep "^ranks" "$dir/stdout")"
done << 'STAGES'
zero1
zero2 --zero 2
zero0 --comm-dtype bf16
zero0 --exact-sum
DiLoCo --outer-every 1
STAGES
good 2 $tiny --warmup-tokens 0 --steps 1 --out "$dir/stage" --overwrite
good 1 --resume --steps 2 --out "$dir/stage"
! grep -q -- "--zero" "$dir/stdout" || note "one rank alone: $(grep -e --zero "$dir/stdout")"
good 1 $tiny --warmup-tokens 0 --batch-tokens 32 --steps 1 --out "$dir/stage" --overwrite
good 2 --resume --steps 2 --out "$dir/stage"
grep -q "^ranks .*ZeRO stage 1" "$dir/stdout" || note "two ranks go on with one rank's stage"
end several_ranks_share_the_moments

# ---- memory ----

# kept DIR: bytes a parameter that a rank keeps.
kept() {
    echo "$(values start bytes_params "$1") $(values start bytes_grads "$1") \
          $(values start bytes_moments "$1") $(values start parameters "$1")" |
        awk '{ print ($1 + $2 + $3) / $4 }'
}
for ranks in 2 4; do
    for stage in 0 1 2 3; do
        good $ranks $middle --steps 1 --zero $stage --out "$dir/kept$stage-$ranks"
        formula=$(awk -v n=$ranks -v stage=$stage 'BEGIN {
            split("16 " 8 + 8/n " " 4 + 12/n " " 16/n, bytes, " "); print bytes[stage + 1] }')
        near "bytes a parameter at stage $stage on $ranks ranks" \
            "$(kept "$dir/kept$stage-$ranks")" "$formula" 0.05
        # What passes through, beside the slices under way: the embeddings, the final norm and two
        # blocks; of gradients at stages 2 and 3, of parameters at stage 3.
        passing=$(values start bytes_passing "$dir/kept$stage-$ranks")
        same "bytes that pass through at stage $stage" \
            $((passing - $(values start bytes_passing "$dir/kept0-$ranks"))) \
            $((4 * (stage > 1 ? stage - 1 : 0) * (273*64 + 2*64 + 2 * (12*64*64 + 13*64))))
    done
done

# And what the system says: private memory of each rank, in the middle of a run. All that does not
# depend on the stage drops out of differences. A model's memory comes in pages of 2 MB, so the model
# is large enough for a page to be a twentieth of the smallest difference.
resident() {                                # resident STAGE: kB, of the larger of two ranks
    out=$dir/large$1
    begin 2 "large$1" $tiny --layers 44 --heads 4 --channels 240 --zero "$1" --steps 100000
    wait_for steps_made "$out" 3
    for pid in $(pid_of 0) $(pid_of 1); do
        sed -n 's/^RssAnon:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$pid/status"
    done | sort -n | tail -n 1 > "$dir/resident$1"
    leave_nobody
    wait $job 2> /dev/null
    echo "$(values start bytes_params "$out") $(values start bytes_grads "$out") \
          $(values start bytes_moments "$out") $(values start bytes_passing "$out")" |
        awk '{ print ($1 + $2 + $3 + $4) / 1024 }' > "$dir/told$1"
}
if grep -q RssAnon /proc/self/status 2> /dev/null; then
    for stage in 0 1 2 3; do resident $stage; done
    for stage in 1 2 3; do
        less=$(($(cat "$dir/resident$((stage - 1))") - $(cat "$dir/resident$stage")))
        told=$(paste "$dir/told$((stage - 1))" "$dir/told$stage" | awk '{ printf "%.0f", $1 - $2 }')
        near "kB that stage $stage saves" "$less" "$told" 0.1
        echo "    stage $stage on 2 ranks keeps $less kB less than stage $((stage - 1)), says $told"
    done
fi
end each_rank_keeps_what_the_formula_says

# ---- traffic ----

# Numbers sent for one update, as bytes in fp32, on n ranks with A micro-batches and L layers:
#     stages 0, 1   2 Psi (n-1)/n         gradients there, sums (0) or parameters (1) back
#     stage 2       (A+1) Psi (n-1)/n     gradients in every micro-batch
#     stage 3       gradients as in 2, and parameters gathered: embeddings and final norm once an
#                   update, since they stay; of the blocks the last two are still there for the way
#                   back, and the first two for the next micro-batch: 2 + 2A(L-2) blocks in all
# In bf16 gradients take half, and so do their sums at stage 0; parameters do not. At stages 1 and 2
# parameters may still be under way when an update's row is written: --no-overlap waits for them.
sends() {                                   # sends STAGE RANKS A BYTES_OF_A_GRADIENT
    awk -v stage="$1" -v n="$2" -v A="$3" -v g="$4" 'BEGIN {
        L = 4; C = 64; ends = 273*C + 2*C; block = 12*C*C + 13*C; psi = ends + L*block
        gathered = stage == 0 ? g*psi : stage < 3 ? 4*psi : 4*(ends + (2 + 2*A*(L - 2))*block)
        printf "%.0f", (n - 1)/n * (g*psi*(stage < 2 ? 1 : A) + gathered) }'
}
for shape in "0 2 2" "0 4 1" "1 2 2" "1 4 1" "2 2 3" "2 4 1" "3 2 3" "3 4 1" "3 3 2"; do
    read -r stage ranks micro_batches <<< "$shape"
    for dtype in fp32 bf16; do
        good $ranks $middle --batch-tokens $((16 * ranks * micro_batches)) --steps 3 --zero $stage \
            --comm-dtype $dtype $([ $((stage % 3)) = 0 ] || echo --no-overlap) \
            --out "$dir/sent-$dtype" --overwrite
        near "bytes sent at stage $stage, $ranks ranks x $micro_batches micro-batches, $dtype" \
            "$(values step bytes_sent "$dir/sent-$dtype" | tail -n 1)" \
            "$(sends $stage $ranks $micro_batches $([ $dtype = fp32 ] && echo 4 || echo 2))" 0.01
    done
    [ $stage != 0 ] || near "bf16 halves it at stage 0" "$(total bytes_sent "$dir/sent-bf16")" \
        $(($(total bytes_sent "$dir/sent-fp32") / 2)) 0.01
done
end each_rank_sends_what_the_formula_says

# bf16 rounds each gradient by at most 1/256 of itself, up or down as it comes: a direction off
# by some 0.2%. The loss falls by about a nat in these 50 updates; were all of it off by as much,
# always to one side, that would be 4e-4 of it. Measured: 8e-6.
for stage in 0 2; do
    good 3 $dozen --steps 50 --zero $stage --comm-dtype bf16 --out "$dir/bf16-$stage"
    worst=$(apart loss "$dir/one" "$dir/bf16-$stage")
    within "bf16 at stage $stage" "$worst" 1e-4
    awk -v d="$worst" 'BEGIN { exit !(d > 1e-7) }' || note "bf16 changes nothing at stage $stage"
    echo "    gradients in bf16, stage $stage on 3 ranks: losses apart by $worst"
done
end bf16_halves_what_is_sent

# ---- resuming ----

worst=0
for shape in "1 0" "3 0" "4 0" "4 1" "3 2" "3 3" "2 3"; do
    read -r ranks stage <<< "$shape"
    cut_at 25 "$dir/zero0-2"
    good $ranks --resume --zero $stage --out "$dir/cut"
    losses=$(apart loss "$dir/zero0-2" "$dir/cut" 26)
    within "losses of a run of 2 on $ranks ranks, stage $stage" "$losses" 1e-5
    same "samples of $ranks ranks" "$(values step samples "$dir/cut" | xargs)" \
        "$(seq -s ' ' 312 12 600)"
    worst=$(awk -v a="$losses" -v b=$worst 'BEGIN { print (a > b ? a : b) }')
done
for stage in 0 1 2 3; do                    # a resumed run keeps its stage
    cut_at 25 "$dir/zero$stage-2"
    good 2 --resume --out "$dir/cut"
    told=$([ $stage = 0 ] && echo ": data parallel;" || echo ": ZeRO stage $stage;")
    grep -q "^ranks .*$told" "$dir/stdout" || note "resumed at another stage than $stage"
    same_files "$dir/zero$stage-2" "$dir/cut" model.safetensors optimizer.safetensors
done
cut_at 25 "$dir/zero3-3"
good 1 --resume --out "$dir/cut"
within "losses of stage 3's run on 1 rank" "$(apart loss "$dir/zero3-3" "$dir/cut" 26)" 1e-5
echo "    saved on 2 ranks, resumed on 1, 2, 3 and 4: losses apart by $worst"
# A checkpoint does not show how many wrote it.
for out in "$dir/zero3-3" "$dir/zero3-4"; do
    same "files" "$(ls "$out/latest")" "$(ls "$dir/one/latest")"
    same_files "$dir/one" "$out" config.json tokenizer.json tokenizer_config.json
    for file in model.safetensors optimizer.safetensors; do
        same "size of $file" "$(wc -c < "$out/latest/$file")" "$(wc -c < "$dir/one/latest/$file")"
        cmp -s <(header "$out/latest/$file") <(header "$dir/one/latest/$file") ||
            note "the header of $file is another one"
    done
    compared "$dir/one" "$out" 1e-5
done
end resumed_on_other_ranks

# ---- workers that rarely talk ----

# Against plain averaging, and Nesterov's rule by hand: tests/ranks_comm.c, below.
apart_flags="$dozen --outer-every 5 --steps 20 --save-every 10 --keep 0"
good 3 $apart_flags --out "$dir/workers"
cut_at 10 "$dir/workers"
good 3 --resume --out "$dir/cut"
same_files "$dir/workers" "$dir/cut" model.safetensors optimizer.safetensors outer.safetensors \
    workers.safetensors
for ranks in 1 2; do
    cut_at 10 "$dir/workers"
    good $ranks --resume --out "$dir/cut"
    grep -q '3 workers.*mean' "$dir/stdout" || note "$ranks ranks do not say that they take a mean"
    same "last step on $ranks ranks" "$(values end step "$dir/cut")" 20
    same "samples on $ranks ranks" "$(values step samples "$dir/cut" | xargs)" \
        "$(seq -s ' ' 132 12 240)"
done
# Few words: a round of 20 updates sends what one update of data parallel does.
good 2 $middle --batch-tokens 32 --steps 20 --zero 0 --out "$dir/often"
good 2 $middle --batch-tokens 32 --steps 20 --outer-every 20 --out "$dir/rarely"
near "traffic of 20 updates a round" "$(total bytes_sent "$dir/rarely")" \
    $(($(total bytes_sent "$dir/often") / 20)) 0.01
end workers_go_on_with_their_own_moments

# ---- stopping ----

# SIGUSR1 to all ranks, as mpirun passes it on, in the middle of a round.
good 2 $dozen --outer-every 50 --steps 1000 --out "$dir/rounds-whole"
begin 2 rounds $dozen --outer-every 50 --steps 1000
kill -USR1 $job
ended
same "why it ended" "$(values end reason "$dir/rounds")" '"interrupted"'
last=$(values end step "$dir/rounds")
same "its last update, within a round" $((${last:-1} % 50)) 0
same "its last checkpoint" "$(readlink "$dir/rounds/latest")" "step_$(printf %08d "${last:-1}")"
same "the status" $status $((128 + $(kill -l USR1)))
good 2 --resume --out "$dir/rounds"
same_files "$dir/rounds-whole" "$dir/rounds" model.safetensors workers.safetensors
end workers_stop_at_the_end_of_a_round

# A signal to one rank, and not to rank 0: all ranks end with its status.
good 3 $dozen --steps 400 --zero 2 --out "$dir/unstopped"
begin 3 stopped $dozen --steps 400 --zero 2
kill -USR1 "$(pid_of 2)"
ended
same "why it ended" "$(values end reason "$dir/stopped")" '"interrupted"'
last=$(values end step "$dir/stopped")
[ "${last:-400}" -lt 400 ] || note "it was over before it was stopped"
same "the status" $status $((128 + $(kill -l USR1)))
good 3 --resume --out "$dir/stopped"
same_files "$dir/unstopped" "$dir/stopped" model.safetensors optimizer.safetensors
end told_to_stop_all_ranks_stop

# ---- bad input ----

cp -r "$dir/tales" "$dir/shrinking"
begin 3 shrunk $tiny --data "$dir/shrinking" --steps 100000 --save-every 50 --threads 1
wait_for test -e "$dir/shrunk/latest"
: > "$dir/shrinking/tales_train_000000.bin"
ended
same "status" $status 1
same "lines of ours" "$(grep -c '^train_gpt2: ' "$dir/stderr")" 1
has "$dir/stderr" "tales_train_000000.bin: the file shrank"
nobody_is_left
[ -s "$dir/shrunk/latest/model.safetensors" ] || note "the checkpoint is gone"
end a_shrinking_shard_ends_all_ranks

mkdir "$dir/here" "$dir/there" "$dir/nowhere"
ln -s "$dir/tales" "$dir/here/tales"
cp -r "$dir/tales" "$dir/there"                      # but for one token
printf '\001' | dd of="$dir/there/tales/tales_train_000000.bin" bs=1 seek=2000 conv=notrunc \
    2> "$dir/stderr" || note "dd: $(head -n 1 "$dir/stderr")"
cp "$program" "$dir/other" && printf x >> "$dir/other"
beside="${tiny/$dir\/tales/tales} --threads 1"       # data by a relative path
two="mpirun -n 2 $program --threads 1 $tiny"
refused "nearest is 192" mpirun -n 3 "$program" --threads 1 $tiny --batch-tokens 176
refused "give one of them" $two --zero 1 --outer-every 5
refused "power of two" mpirun -n 3 "$program" --threads 1 $dozen --exact-sum
refused "power of two" mpirun -n 2 "$program" --threads 1 $dozen --exact-sum
refused "give one of them" $two --exact-sum --zero 2
refused "give one of them" $two --exact-sum --comm-dtype bf16
refused "--timeout: " $two --timeout 0
refused "--zero: " $two --zero 4
refused "start it alone" mpirun -n 2 "$program" --generate Once --resume
# Before the first exchange, whose size a flag may decide.
refused 'rank 1 has "channels":24, rank 0 has "channels":20' mpirun \
    -n 1 "$program" $tiny --threads 1 --out "$dir/no" : \
    -n 1 "$program" $tiny --threads 1 --channels 24
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
cp -r "$dir/stage" "$dir/timed"                      # a saved wait that no clock can hold
sed 's/"timeout":[^,]*/"timeout":1e300/' "$dir/stage/latest/state.json" \
    > "$dir/timed/latest/state.json"
run timeout -k 5 60 mpirun -n 2 "$program" --resume --out "$dir/timed"
same "lines about a saved --timeout" "$(grep '^train_gpt2: ' "$dir/stderr")" \
    "train_gpt2: --resume: state.json: --timeout is not a number from 1 to 86400"
end ranks_refuse_in_one_line

good 2 --help
same "times that help is printed" "$(shown | grep -c '^usage: ')" 1
good 2 $tiny --plan
same "times that the plan is printed" "$(shown | grep -c '^model ')" 1
end help_and_plan_come_once

# ---- ranks that die ----

# kill -9 of any of three ranks at any moment, in a run that saves all the time. Whichever it was,
# the others end as well, a line says who is gone, and the run goes on from its last checkpoint to
# the bits of one that was never killed.
stage=$((RANDOM % 4)) long=$((kills * 150)) survived=0
fragile="$dozen --steps $long --zero $stage --timeout 10"
good 3 $fragile --out "$dir/unkilled"
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
    nobody_is_left
    [ -e "$dir/killed/latest" ] || continue
    "$train" --init "$dir/killed" --generate Once --max-new 2 > "$dir/stdout" 2>&1 ||
        note "after kill $kill latest does not load: $(tail -n 1 "$dir/stdout")"
done
good 3 --resume --save-every 0 --out "$dir/killed"
same_files "$dir/unkilled" "$dir/killed" model.safetensors optimizer.safetensors
[ $((2 * survived)) -ge "$kills" ] || note "killed only $survived times, the run is too short"
echo "    a rank of three killed at $survived random moments, at ZeRO's stage $stage"
end killed_ranks_end_the_run_and_it_goes_on

# One that is stopped says nothing, and its connection stays open.
for rank in 0 1; do
    begin 2 "silent$rank" $dozen --steps 100000 --timeout 3 --save-every 10
    kill -STOP "$(pid_of $rank)"
    ended
    [ $status != 0 ] || note "the run ends well without rank $rank"
    grep -q "^train_gpt2: rank $rank (on .*has not answered for 3 s" "$dir/stderr" ||
        note "rank $rank was stopped: $(grep -m 1 . "$dir/stderr")"
    nobody_is_left
done
end a_stopped_rank_ends_the_run

# ---- evaluations, samples, files ----

evaluated() {
    for key in val_loss whole_loss; do values eval $key "$1" | tail -n 1; done
    for key in examples acc acc_norm; do values hellaswag $key "$1"; done
}
wide="--data $dir/tales --seq-len 256 --lr 1e-3 --micro-batch 2"   # tales lie whole in 256 tokens
good 1 $wide --layers 2 --heads 2 --channels 20 --steps 5 --eval-tokens 256 --out "$dir/seen"
look="$wide --init $dir/seen --steps 0 --eval-tokens 5000"
look="$look --hellaswag tests/fixtures/hellaswag.jsonl"
good 1 $look --out "$dir/look"
evaluated "$dir/look" > "$dir/evaluated"
same "numbers of an evaluation" "$(grep -c '[0-9]' "$dir/evaluated")" 5
for shape in "2 0" "3 0" "2 1" "3 2" "2 3" "3 3"; do
    read -r ranks stage <<< "$shape"
    good $ranks $look --zero $stage --out "$dir/look$ranks$stage"
    paste "$dir/evaluated" <(evaluated "$dir/look$ranks$stage") > "$dir/both"
    while read -r alone shared; do
        near "evaluated on $ranks ranks, stage $stage" "$shared" "$alone" 1e-9
    done < "$dir/both"
done
written() { shown | sed -n '/^--- the model writes/,/^---$/p'; }
for shape in "1 0" "3 0" "3 3"; do
    read -r ranks stage <<< "$shape"
    good $ranks $dozen --steps 30 --sample-every 10 --max-new 40 --zero $stage
    written > "$dir/text$ranks$stage"
    same "lines of text" "$(grep -c '^--- the model writes' "$dir/text$ranks$stage")" 3
    cmp -s "$dir/text10" "$dir/text$ranks$stage" || note "$ranks ranks, stage $stage: another text"
done
end evaluations_and_samples_do_not_depend_on_ranks

# Each rank averages the masters it updates. Stage 0's gradient is whole on each rank, so the noise
# in Adam's metric is there, too; SGD has no moments to shard.
averaged="$dozen --average-tokens 300 --eval-train"
good 1 $averaged --steps 12 --out "$dir/average-1"
for stage in 0 1 2 3; do
    good 2 $averaged --zero $stage --steps 12 --out "$dir/average-$stage" --overwrite
    for key in val_loss val_loss_average train_eval_loss; do
        near "$key at stage $stage" "$(values eval $key "$dir/average-$stage" | tail -n 1)" \
            "$(values eval $key "$dir/average-1" | tail -n 1)" 1e-5
    done
done
good 2 $averaged --zero 1 --steps 5 --lr-schedule constant --out "$dir/average-cut"
good 3 --resume --zero 3 --steps 12 --out "$dir/average-cut"
good 1 $averaged --steps 12 --lr-schedule constant --out "$dir/average-whole"
near "an average that goes on" "$(values eval val_loss_average "$dir/average-cut" | tail -n 1)" \
    "$(values eval val_loss_average "$dir/average-whole" | tail -n 1)" 1e-5
good 1 $dozen --optimizer sgd --steps 12 --out "$dir/sgd-1"
for stage in 1 3; do
    good 2 $dozen --optimizer sgd --zero $stage --steps 12 --out "$dir/sgd-2" --overwrite
    compared "$dir/sgd-1" "$dir/sgd-2" 1e-5
done
good 2 $dozen --warmup-tokens 0 --optimizer sgd --outer-every 3 --steps 6 --out "$dir/sgd-apart"
good 2 --resume --steps 9 --out "$dir/sgd-apart"
[ ! -e "$dir/sgd-apart/latest/workers.safetensors" ] || note "SGD's workers save moments"
end averages_and_sgd_on_any_ranks

mkdir "$dir/empty" "$dir/places"
here=$PWD
cd "$dir/empty" || note "no empty directory"
good 3 $dozen --warmup-tokens 0 --steps 3 --save-every 2 --zero 3 --out "$dir/places/run"
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

# ---- what all this is made of ----

mpicc -DWITH_MPI -pthread -std=gnu11 -O2 tests/ranks_comm.c -o "$dir/ranks_comm" -lm \
    2> "$dir/stderr" || note "mpicc: $(head -n 1 "$dir/stderr")"
for ranks in 1 2 3 4; do
    timeout -k 5 60 mpirun -n $ranks "$dir/ranks_comm" > "$dir/stdout" 2>&1 < /dev/null
    same "status on $ranks ranks" $? 0
    grep -v '^ok ' "$dir/stdout" > "$dir/other" && note "$ranks ranks: $(head -n 1 "$dir/other")"
    same "tests passed on $ranks ranks" "$(grep -c '^ok ' "$dir/stdout")" $((ranks * 14))
done
end collectives_between_1_2_3_and_4_ranks

# Ranks on several machines, by name; and how many make up the first of two levels. Where ranks do
# not follow one another, or machines have 3 or unequally many, there is one level. In each case
# every sum has the bits of one tree.
for shape in "a,a,b,b 2" "a,a,a,a,b,b,b,b 4" "a,a,b,b,c,c 2" "a,b,a,b 4" "a,a,a,b,b,b 6" "a,a,b 3"; do
    read -r hosts near <<< "$shape"
    ranks=$(tr , '\n' <<< "$hosts" | wc -l)
    BATCHWISE_HOSTS=$hosts timeout -k 5 60 mpirun -n "$ranks" "$dir/ranks_comm" "$near" \
        > "$dir/stdout" 2>&1 < /dev/null
    same "status on $hosts" $? 0
    grep -v '^ok ' "$dir/stdout" > "$dir/other" && note "$hosts: $(head -n 1 "$dir/other")"
    same "tests passed on $hosts" "$(grep -c '^ok ' "$dir/stdout")" $((ranks * 14))
done
end collectives_between_machines

exit $failed
