#!/usr/bin/env bash
# NCCL on the emulator: tests/test_nccl.cu by 2 to 4 ranks, in every order of the streams; and what
# ranks do wrong together must be reported, with who and which call.
. "$(dirname "$0")/tools.sh"
. tests/ranks.sh
set -u
export OMPI_CXX=$cxx MPICH_CXX=$cxx
unset EMULATOR_STREAMS

# build PROGRAM COMPILER FLAGS...
build() {
    "${@:2}" -O1 -std=c++17 -Wall -Wextra -Werror -Wno-unknown-pragmas -Idev/emulator/include -I. \
        "$dir/test.cpp" -o "$1" -lm > "$dir/said" 2>&1 ||
        note "$(grep -m 1 -E 'error|warning' "$dir/said")"
}
# said WORDS STATUS WHAT
said() {
    [ "$2" -ne 0 ] && [ "$2" -ne 124 ] && ! grep -q '^after' "$dir/said" &&
        grep -qF -- "$1" "$dir/said" || note "$3, status $2: $(grep -m 1 . "$dir/said")"
}
# ranks N ARGS...: with a GPU each, unless DEVICES says how many there are
ranks() {
    EMULATOR_DEVICES=${DEVICES:-$1} timeout 60 mpirun -n "$1" "$dir/test" "${@:2}" \
        > "$dir/said" 2>&1 < /dev/null
}
# passes N: all tests, by N ranks; every rank must come to the end.
passes() {
    ranks "$1" || note "$1 ranks: status $?: $(grep -m 1 -vE '^ok|^$' "$dir/said")"
    same "of $1 ranks" "$(grep -c '^ok calls_that_are_refused' "$dir/said")" "$1"
}

"$cc" -O1 dev/emulator/rewrite.c -o "$dir/rewrite" &&
    "$dir/rewrite" tests/test_nccl.cu > "$dir/test.cpp" || exit 1
build "$dir/alone" "$cxx"
"$dir/alone" init 2 > "$dir/said" 2>&1
said 'unhandled system error: ncclCommInitRank: 2 ranks, but this' $? "two ranks without MPI"
end nccl_without_mpi

tests="nccl_of_many_ranks nccl_misuse_is_reported"
needs mpirun mpicxx
build "$dir/test" mpicxx -DEMULATOR_MPI
for n in 2 4; do passes $n; done
for streams in late random; do EMULATOR_STREAMS=$streams passes 3; done
end nccl_of_many_ranks

# misuse WORDS ARGS...: what two ranks do wrong, words of the report. Again if mpirun alone spoke.
misuse() {
    local words=$1 status try
    shift
    for try in 1 2 3; do
        EMULATOR_TIMEOUT=2 ranks 2 "$@"
        status=$?
        grep -qE 'nccl|^after|Exit code' "$dir/said" && break
    done
    said "$words" $status "$*"
}
send='rank 0: ncclSend(4 bytes, to rank 1), call 1'
misuse 'rank 1: ncclRecv(5 bytes, from rank 0), call 1, but rank 0 sent 4 bytes' sizes
misuse "$send, has waited 2 s for rank 1; a GPU would wait forever" asleep
EMULATOR_STREAMS=late misuse "$send" asleep
misuse 'Exit code:    7' left
misuse 'invalid usage: ncclCommInitRank: rank 0 of 3, but MPI says rank 0 of 2' init 3
DEVICES=1 misuse 'invalid usage: Duplicate GPU detected: ranks 0 and 1 both on device 0' init 2
end nccl_misuse_is_reported
exit $failed
