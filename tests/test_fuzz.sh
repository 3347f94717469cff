#!/usr/bin/env bash
# The fuzzers build, find nothing among the seeds and a few thousand inputs, and do find a bug that
# was put there. `make test PART=fuzz` goes on for as long as one likes; see tests/fuzz/run.sh.
. "$(dirname "$0")/tools.sh"
export PREPARE=${PREPARE:-$PWD/prepare} TRAIN=${TRAIN:-$PWD/train_gpt2}

export OPTIMIZED=-O0                        # compiling takes longer than so few inputs
RUNS=2000 FUZZ_DIR=$dir/fuzz tests/fuzz/run.sh > "$dir/out"
status=$?
if [ $status = 2 ]; then
    if grep -q 'needs clang with libFuzzer' "$dir/out"; then
        skip fuzz "needs clang with libFuzzer"
        exit $failed
    fi
    echo "FAIL fuzz: $(head -1 "$dir/out")"
    exit 1
fi
while IFS= read -r line; do
    case $line in
        *", nothing found") echo "ok fuzz_${line%%:*}" ;;
        *) echo "FAIL fuzz_$line"; failed=1 ;;
    esac
done < "$dir/out"
[ "$(wc -l < "$dir/out")" -eq "$(ls tests/fuzz/fuzz_*.c | wc -l)" ] ||
    { echo "FAIL fuzz_targets: run.sh leaves some out"; failed=1; }

# ---- shards whose length nobody compares with the header's count of tokens ----

mkdir -p "$dir/tree/tests"
cp -r dev "$dir/tree" && cp -r tests/fuzz tests/fixtures "$dir/tree/tests"
sed -e 's/(size_t)header\[2\] > room/0/' -e 's/2 \* (size_t)header\[2\] != data_bytes/0/' \
    dataloader.h > "$dir/tree/dataloader.h"
cmp -s dataloader.h "$dir/tree/dataloader.h" && note "the check to remove is no longer there"
RUNS=100000 LIBRARY=$dir/fuzz/library.a FUZZ_DIR=$dir/planted \
    "$dir/tree/tests/fuzz/run.sh" shard > "$dir/out"
status=$?
[ $status = 1 ] || note "exit status $status: $(cat "$dir/out")"
grep -q '^shard: [1-9][0-9]* executions, 1 found' "$dir/out" || note "$(cat "$dir/out")"
ls "$dir"/planted/findings/shard-* > /dev/null 2>&1 || note "the input was not kept"
end fuzz_finds_a_planted_bug
exit $failed
