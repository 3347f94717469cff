#!/usr/bin/env bash
# A soak: for an hour, runs of a tiny model, each with other flags, are stopped, killed, lose ranks
# and run out of disk at random moments, and are resumed until they are done: on as many ranks, or
# with --exact-sum on 1, 2 or 4. Each must end with the bits of a run that nothing disturbed. Needs
# MPI.
#
#     MINUTES=5 SEED=7 tests/soak.sh       shorter than the default 60, with another's mishaps
#     RUNS=100 RANKS=1 tests/soak.sh       so many runs, on one rank alone; or RANKS=2
#
# Ends at the first difference or unexpected message, with status 1, and keeps that run's directory.
cd "$(dirname "$0")/.." || exit 1
mpi_train=${TRAIN_MPI:-build/train_gpt2-mpi} prepare=${PREPARE:-./prepare}
minutes=${MINUTES:-60} most=${RUNS:-1000000} only=${RANKS:-} seed=${SEED:-$((RANDOM * 32768 + RANDOM))}
command -v mpirun > /dev/null && [ -x "$mpi_train" ] ||
    { echo "soak: needs mpirun and $mpi_train: install Open MPI; make test PART=soak" >&2; exit 1; }
dir=$(mktemp -d "${TMPDIR:-/tmp}/batchwise-soak.XXXXXX") || exit 1
trap 'leave_nobody; [ -n "$keep" ] || rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
train=$dir/train_gpt2 run=$dir/run keep=
cp "$mpi_train" "$train" || exit 1                # no other process has this path
renice -n 10 $$ > /dev/null
taskset -cp 0 $$ > /dev/null 2>&1                 # all of it on one core
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_mpi_yield_when_idle=1 OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE PMI_RANK PMI_SIZE OMPI_COMM_WORLD_RANK

runs=0 starts=0 resumes=0 stops=0 kills=0 losses=0 full=0 late=0 equal=0 hung=0
counts() {
    printf '%d runs, %d starts, %d resumes; %d stops, %d kill -9, %d lost ranks, %d full disks, ' \
        $runs $starts $resumes $stops $kills $losses $full
    printf '%d too late, %d times mpirun hung; ' $late $hung
    printf '%d ends equal, %d unequal\n' $equal "${1:-0}"
}
fail() {                                    # fail UNEQUAL WHY: keeps everything
    keep=yes
    echo "FAIL: $2 (seed $seed, $drawn on ${ranks[*]} ranks, what is left: $dir)"
    sed 's/^/    /' "$dir/stderr"
    counts "$1"
    exit 1
}
pids() {
    ps -A -o pid= -o stat= -o command= |
        awk -v at="$dir/" '$2 !~ /^Z/ && index($3, at) == 1 { print $1 }'
}
leave_nobody() { pids | xargs -r kill -9 2> /dev/null; }
gone() { for _ in $(seq 100); do [ -n "$(pids)" ] || return 0; sleep 0.1; done; return 1; }
rank_of() {
    tr '\0' '\n' < "/proc/$1/environ" | sed -n 's/^\(OMPI_COMM_WORLD_RANK\|PMI_RANK\)=//p'
}
any() { [ $# = 0 ] || shift $((RANDOM % $#)); picked=$1; }     # any THING...: one, in $picked
nap() { sleep "$((RANDOM % 2)).$(printf %03d $((RANDOM % 1000)))"; }

# A configuration: the flags in $drawn, and the numbers of ranks that give the same bits.
draw() {
    any ${only:-1 2 exact}
    case $picked in
        1) ranks=(1); any '' '--noise-scale' '--outer-every 3' '--outer-every 7' ;;
        2) ranks=(2); any '--zero 0' '--zero 1' '--zero 2' '--zero 3' '--comm-dtype bf16' \
            '--outer-every 3' '--outer-every 7 --comm-dtype bf16' '--tensor-parallel 2' ;;
        exact) ranks=(1 2 4) picked=--exact-sum ;;
    esac
    drawn=$picked
    case $drawn in *outer*) picked= ;; *) any '' '--average-tokens 900 --eval-every 30' ;; esac
    drawn+=" $picked"
    [ ${#ranks[*]} = 1 ] || return 0       # an exact sum needs a constant batch
    any '' '' '--optimizer sgd' '--batch-schedule linear:32,20000' '--batch-schedule stages:9000=64'
    drawn+=" $picked"
}

# ours WORDS: on stderr no line of the trainer but such. mpirun's own lines do not count.
ours() {
    local other
    other=$(grep '^train_gpt2: ' "$dir/stderr" | grep -m 1 -vE "$1") && fail 0 "it says '$other'"
}

again() {                                   # the flags in $how: to begin the run, or to resume it
    starts=$((starts + 1))
    any "${ranks[@]}"
    how=("${flags[@]}" --overwrite)
    [ ! -e "$run/latest" ] || { resumes=$((resumes + 1)); how=(--resume); }
    how+=(--threads 1 --save-every 1 --keep 2)
}
launch() {                                  # in the background, as $job
    local mpirun=
    again
    [ "$picked" = 1 ] || mpirun="mpirun -n $picked"
    $mpirun "$train" "${how[@]}" --timeout 20 --out "$run" \
        > "$dir/stdout" 2> "$dir/stderr" < /dev/null &
    job=$!
}

# Waits for the job. Open MPI's mpirun sometimes hangs when a rank is killed while the ranks
# connect: after 10 seconds without a rank it is killed.
finish() {
    local idle=0
    while kill -0 $job 2> /dev/null && [ $idle -lt 20 ]; do
        sleep 0.5
        [ -z "$(pids)" ] && idle=$((idle + 1)) || idle=0
    done
    [ $idle -lt 20 ] || { hung=$((hung + 1)); kill -9 $job 2> /dev/null; }
    wait $job; status=$?
} 2> /dev/null                              # "Killed", says bash

# Each leaves the exit status in $status, 0 if the run was done before the mishap.
stopped() {                                 # TERM or INT to all ranks, which save
    any TERM:143 INT:130
    local signal=$picked
    launch
    nap
    pids | xargs -r kill -"${signal%:*}" 2> /dev/null
    finish
    ours '^train_gpt2: rank [0-3] \('           # one that had not begun to catch signals
    [ $status != 139 ] || fail 0 "SIGSEGV after SIG${signal%:*}"
    [ $status != "${signal#*:}" ] || stops=$((stops + 1))
} 2> /dev/null
killed() {                                  # kill -9 of all ranks
    launch
    nap
    pids | xargs -r kill -9 2> /dev/null
    finish
    ours '^train_gpt2: rank [0-3] \('
    [ $status = 0 ] || kills=$((kills + 1))
} 2> /dev/null
lost() {                                    # kill -9 of one rank; the others say so and end
    local pid rank
    [ "${ranks[*]}" != 1 ] || { killed; return; }
    launch
    nap
    any $(pids); pid=$picked rank=$([ -n "$pid" ] && rank_of "$pid" 2> /dev/null)
    [ -n "$pid" ] && kill -9 "$pid" 2> /dev/null
    finish
    ours "^train_gpt2: rank ${rank:-none} \\("
    [ $status = 0 ] || losses=$((losses + 1))
}
disk() {                                    # no file grows past a few KB: without mpirun's own
    [ "${ranks[0]}" = 1 ] || { killed; return; }
    again
    any 4 8 16 32
    (
        trap '' XFSZ
        ulimit -f "$picked"
        exec "$train" "${how[@]}" --out "$run"
    ) > "$dir/stdout" 2> "$dir/stderr" < /dev/null
    status=$?
    ours 'File too large'
    [ $status = 0 ] || full=$((full + 1))
}
calm() {
    launch
    finish
    ours none
    [ $status = 0 ] || fail 0 "status $status of a run that nothing disturbed"
}

echo "soak: $minutes minutes, seed $seed"
RANDOM=$seed
"$prepare" tales --out "$dir/tales" --tokens 30000 > /dev/null || exit 1
deadline=$((SECONDS + 60 * minutes)) shown=$SECONDS
while [ $SECONDS -lt $deadline ] && [ $runs -lt $most ]; do
    draw
    rm -rf "$run" "$dir/whole"
    flags=(--data "$dir/tales" --layers 1 --heads 2 --channels 16 --seq-len 16 --micro-batch 1
        --batch-tokens 128 --eval-every 0 --eval-tokens 64 --lr 1e-2 --steps 400
        --seed $RANDOM $drawn)
    [ "${ranks[0]}" = 1 ] && first= || first="mpirun -n ${ranks[0]}"
    $first "$train" "${flags[@]}" --threads 1 --out "$dir/whole" \
        > "$dir/stdout" 2> "$dir/stderr" < /dev/null ||
        fail 0 "the run to compare with"
    status=1
    while [ $status != 0 ]; do
        any stopped stopped stopped killed killed lost lost lost disk calm
        mishap=$picked
        $mishap
        gone || fail 0 "processes stay after $mishap"
        [ $status = 0 ] && [ $mishap != calm ] && late=$((late + 1))
        if [ -e "$run/latest" ]; then
            "$train" --init "$run" --generate Once --max-new 2 \
                > "$dir/stdout" 2> "$dir/stderr" < /dev/null ||
                fail 0 "after $mishap latest does not load"
        fi
        [ $((SECONDS - shown)) -lt 60 ] || { counts; shown=$SECONDS; }
        [ $SECONDS -lt $((deadline + 60)) ] || break
    done
    [ $status = 0 ] || break
    runs=$((runs + 1))
    for file in "$dir/whole/latest/"*.safetensors; do
        cmp -s "$file" "$run/latest/${file##*/}" ||
            fail 1 "${file##*/} differs from an undisturbed run's"
    done
    [ -z "$(find "$run" -name '.tmp-*')" ] || fail 0 "temporaries stay: $(ls -A "$run")"
    equal=$((equal + 1))
done
counts
