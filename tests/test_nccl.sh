#!/usr/bin/env bash
# NCCL on the emulator: tests/test_nccl.cu by 1 to 4 ranks, in every order of the streams; and what
# ranks do wrong together must be reported, with who and which call.
. "$(dirname "$0")/tools.sh"
. tests/ranks.sh
set -u
export OMPI_CXX=$cxx MPICH_CXX=$cxx NCCL_COMM_ID=127.0.0.1:29400
unset EMULATOR_STREAMS

# build PROGRAM COMPILER FLAGS...
build() {
    local program=$1
    shift
    "$@" -std=c++17 -Wall -Wextra -Werror -Wno-unknown-pragmas -Idev/emulator/include -I. \
        "$dir/test.cpp" -o "$program" -lm > "$dir/said" 2>&1
}
wrong() { grep -m 1 -vE '^ok|^skip|^$' "$dir/said"; }
# ranks N PROGRAM ARGS...: with a GPU each. Open MPI and MPICH differ in what must be allowed.
many=$(mpirun --version 2> /dev/null | grep -q 'Open MPI' && echo --oversubscribe)
ranks() {
    local n=$1
    shift
    EMULATOR_DEVICES=$n timeout 60 mpirun $many -n "$n" "$@" 2>&1 < /dev/null
}
# passes N PROGRAM: all tests, by N ranks; every rank must come to the end.
passes() {
    ranks "$1" "$2" > "$dir/said"
    local status=$?
    [ $status -eq 0 ] || note "$1 ranks: status $status: $(wrong)"
    [ "$(grep -c '^ok arguments_that_are_refused' "$dir/said")" -eq "$1" ] ||
        note "$1 ranks: not all ran: $(head -n 1 "$dir/said")"
}

"$cc" -O1 dev/emulator/rewrite.c -o "$dir/rewrite" &&
    "$dir/rewrite" tests/test_nccl.cu > "$dir/test.cpp" || exit 1

# ---- without MPI there is one rank

if build "$dir/alone" "$cxx" -O1; then
    "$dir/alone" > "$dir/said" 2>&1 || note "$(wrong)"
    WORLD_SIZE=2 RANK=0 "$dir/alone" init_alone > "$dir/said" 2>&1 && note "two ranks without MPI"
    grep -q 'unhandled system error: ncclCommInitRank: 2 ranks, but.*without MPI' "$dir/said" ||
        note "two ranks without MPI: $(head -n 1 "$dir/said")"
else
    note "$(grep -m 1 -E 'error|warning' "$dir/said")"
fi
end nccl_alone_without_mpi

rest="nccl_of_many_ranks nccl_in_any_order_of_streams nccl_sanitized nccl_misuse_is_reported"
lacks=
echo 'int main() { return 0; }' > "$dir/empty.cpp"
command -v mpirun > /dev/null || lacks=mpirun
mpicxx "$dir/empty.cpp" -o "$dir/empty" > /dev/null 2>&1 || lacks=mpicxx
if [ "$lacks" ]; then
    for name in $rest; do skip "$name" "needs $lacks"; done
    exit $failed
fi

# ---- with MPI

build "$dir/test" mpicxx -O1 -DEMULATOR_MPI || note "$(grep -m 1 -E 'error|warning' "$dir/said")"
for n in 1 2 4; do passes $n "$dir/test"; done
"$dir/test" > "$dir/said" 2>&1 || note "without mpirun: $(head -n 1 "$dir/said")"
end nccl_of_many_ranks

for streams in late random; do EMULATOR_STREAMS=$streams passes 3 "$dir/test"; done
end nccl_in_any_order_of_streams

if build "$dir/sanitized" mpicxx -O1 -g -DEMULATOR_MPI -fsanitize=address,undefined \
        -fno-sanitize-recover=all; then
    export ASAN_OPTIONS=detect_leaks=0      # MPI leaves memory behind
    EMULATOR_STREAMS=late passes 2 "$dir/sanitized"
    unset ASAN_OPTIONS
    end nccl_sanitized
else
    skip nccl_sanitized "needs AddressSanitizer: $(head -n 1 "$dir/said")"
fi

# ---- what ranks do wrong together: each line is a misuse, and words of the report

# misuse NAME WORDS: says what is wrong
misuse() {
    local said=$dir/$1$2 status try
    for try in 1 2 3; do
        EMULATOR_STREAMS=$2 EMULATOR_TIMEOUT=2 ranks 2 "$dir/test" "$1" > "$said"
        status=$?
        grep -qE 'nccl|^after|Exit code' "$said" && break
        echo "    $1: mpirun alone spoke: $(grep -m 3 '[a-z]' "$said" | tr '\n' ' ')" >&2
    done
    echo "$1" >> "$dir/tried"
    [ $status -ne 0 ] || echo "$1 ends well"
    [ $status -ne 124 ] || echo "$1 does not end"
    grep -q '^after' "$said" && echo "$1 goes on"
    grep -qF -- "$3" "$said" || echo "$1 does not say '$3': $(grep -m 1 . "$said")"
}
send='ncclSend(4 bytes, to rank 1), call 1'
while IFS='|' read -r name words; do
    misuse "$name" "" "$words" >> "$dir/wrong" &
    while [ "$(jobs -rp | wc -l)" -ge 8 ]; do wait -n; done
done << MISUSE
send_count|rank 1: ncclRecv(5 bytes, from rank 0), call 1, but rank 0 called $send
send_alone|rank 1: ncclCommDestroy, but rank 0 called $send
both_send|$send, has waited 2 s for rank 1; a GPU would wait forever
asleep|rank 0: $send, has waited 2 s for rank 1; a GPU would wait forever
left|Exit code:    7
init_device|invalid usage: Duplicate GPU detected: ranks 0 and 1 both on device 0
init_size|invalid usage: ncclCommInitRank: rank 0 of 3, but MPI says rank 0 of 2
MISUSE
wait
[ "$(wc -l < "$dir/tried")" -eq 7 ] || note "not all were tried: $(wc -l < "$dir/tried")"
misuse both_send late "$send" >> "$dir/wrong"
[ ! -s "$dir/wrong" ] || note "$(head -n 1 "$dir/wrong")"
for id in NCCL_HOSTID NCCL_MULTI_RANK_GPU_ENABLE; do     # how NCCL allows two ranks on a device
    [ $id = NCCL_HOSTID ] && set='export NCCL_HOSTID=host$OMPI_COMM_WORLD_RANK$PMI_RANK' ||
        set='export NCCL_MULTI_RANK_GPU_ENABLE=1'
    ranks 2 env EMULATOR_DEVICES=1 sh -c "$set; exec '$dir/test'" > "$dir/said" ||
        note "$id: $(wrong)"
done
end nccl_misuse_is_reported
exit $failed
