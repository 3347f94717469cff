#!/usr/bin/env bash
# The fuzzers build, and find nothing among the seeds and a few thousand inputs. `make test
# PART=fuzz` goes on for as long as one likes; see tests/fuzz/run.sh.
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

exit $failed
