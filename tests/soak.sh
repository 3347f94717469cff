#!/usr/bin/env bash
# A soak: for an hour, runs of a tiny model, each with other flags, are stopped, killed, lose ranks
# and run out of disk at random moments, and are resumed until they are done: on as many ranks, or
# with --exact-sum on 1, 2 or 4. Each must end with the bits of a run that nothing disturbed. Needs
# MPI.
#
#     MINUTES=5 SEED=7 tests/soak.sh       shorter than the default 60, with another's mishaps
#
# Ends at the first difference or unexpected message, with status 1, and keeps that run's directory.
. "$(dirname "$0")/tools.sh"
. tests/ranks.sh
minutes=${MINUTES:-60} seed=${SEED:-$((RANDOM * 32768 + RANDOM))} keep=
command -v mpirun > /dev/null && [ -x "$mpi_train" ] ||
    { echo "soak: needs mpirun and $mpi_train: install Open MPI; make test PART=soak" >&2; exit 1; }
trap 'leave_nobody; [ -n "$keep" ] || rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
program=$dir/train_gpt2 run=$dir/run
cp "$mpi_train" "$program" || exit 1              # no other process has this path
renice -n 10 $$ > /dev/null
taskset -cp 0 $$ > /dev/null 2>&1                 # all of it on one core
export OMP_WAIT_POLICY=passive

fail() {                                    # fail WHY: keeps everything
    keep=yes
    echo "FAIL: $1 (seed $seed, $drawn on ${ranks[*]} ranks, what is left: $dir)"
    sed 's/^/    /' "$dir/stderr"
    exit 1
}
any() { [ $# = 0 ] || shift $((RANDOM % $#)); picked=$1; }     # any THING...: one, in $picked

# A configuration: the flags in $drawn, and the numbers of ranks that give the same bits.
draw() {
    any 1 2 exact
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

again() {                                   # the program in $how: it begins the run, or resumes it
    how=("$program" "${flags[@]}" --overwrite)
    [ ! -e "$run/latest" ] || how=("$program" --resume)
    how+=(--threads 1 --save-every 1 --keep 2 --timeout 20 --out "$run")
    starts=$((starts + 1))
}
launch() {                                  # in the background, as $job
    again
    any "${ranks[@]}"
    [ "$picked" = 1 ] || how=(mpirun -n "$picked" "${how[@]}")
    "${how[@]}" > "$dir/stdout" 2> "$dir/stderr" < /dev/null &
    job=$!
}
# Waits for the job. Open MPI's mpirun sometimes hangs when a rank is killed while the ranks
# connect: after 10 seconds without a rank it is killed.
finish() {
    local idle=0
    while kill -0 $job 2> /dev/null && [ $idle -lt 20 ]; do
        sleep 0.5
        [ -z "$(ranks_here)" ] && idle=$((idle + 1)) || idle=0
    done
    [ $idle -lt 20 ] || kill -9 $job 2> /dev/null
    wait $job; status=$?
} 2> /dev/null                              # "Killed", says bash

# Each leaves the exit status in $status, 0 if the run was done before the mishap; and in $words
# what a line of the trainer on stderr may say.
struck() {                                  # struck SIGNAL all|one: ranks of the run
    launch
    words='rank [0-3] \('            # one that had not begun to catch signals, or is lost
    sleep "$((RANDOM % 2)).$(printf %03d $((RANDOM % 1000)))"
    any $(ranks_here | cut -d ' ' -f 1)
    [ "$2" != all ] || picked=$(ranks_here | cut -d ' ' -f 1)
    [ -z "$picked" ] || kill -"$1" $picked
    finish
} 2> /dev/null
disk() {                                    # no file grows past a few KB
    [ "${ranks[0]}" = 1 ] || { struck KILL all; return; }      # not mpirun's own
    again
    any 4 8 16 32
    (trap '' XFSZ; ulimit -f "$picked"; exec "${how[@]}") \
        > "$dir/stdout" 2> "$dir/stderr" < /dev/null
    status=$? words='.*File too large'
}
calm() {
    launch
    finish
    words=none
    [ $status = 0 ] || fail "status $status of a run that nothing disturbed"
}

echo "soak: $minutes minutes, seed $seed"
RANDOM=$seed runs=0 starts=0
"$prepare" tales --out "$dir/tales" --tokens 30000 > /dev/null || exit 1
while [ $SECONDS -lt $((60 * minutes)) ]; do
    draw
    rm -rf "$run" "$dir/whole"
    flags=(--data "$dir/tales" --layers 1 --heads 2 --channels 16 --seq-len 16 --micro-batch 1
        --batch-tokens 128 --eval-every 0 --eval-tokens 64 --lr 1e-2 --steps 400
        --seed $RANDOM $drawn)
    mpi "${ranks[0]}" "${flags[@]}" --out "$dir/whole"
    [ $status = 0 ] || fail "the run to compare with"
    ended=1
    until [ $ended = 0 ]; do
        any "struck TERM all" "struck INT all" "struck TERM all" "struck KILL all" \
            "struck KILL all" "struck KILL one" "struck KILL one" "struck KILL one" disk calm
        mishap=$picked
        $mishap
        ended=$status
        grep '^train_gpt2: ' "$dir/stderr" | grep -qvE "^train_gpt2: $words" &&
            fail "after $mishap it says '$(grep -m 1 '^train_gpt2: ' "$dir/stderr")'"
        [ $status != 139 ] || fail "SIGSEGV after $mishap"
        nobody_is_left
        [ ! -e "$run/latest" ] || run "$program" --init "$run" --generate Once --max-new 2
        [ $status = 0 ] || [ ! -e "$run/latest" ] || note "latest does not load"
        [ -z "$why" ] || fail "after $mishap: $why"
    done
    same_files whole run
    [ -z "$(find "$run" -name '.tmp-*')" ] || note "temporaries stay: $(ls -A "$run")"
    [ -z "$why" ] || fail "$why"
    runs=$((runs + 1))
    echo "$runs runs, $starts starts: equal ($drawn)"
done
