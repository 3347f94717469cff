#!/usr/bin/env bash
# The ladders of dev/cpu, matmul.c and attention.c: rungs agree whatever the number of threads, a
# table has a figure for each, and what is no size is refused.
. "$(dirname "$0")/tools.sh"

for ladder in ladder attention-cpu; do
    for threads in 1 2 3; do
        OMP_NUM_THREADS=$threads build/$ladder check > "$dir/out" 2>&1 ||
            note "$threads threads: $(tail -n 1 "$dir/out")"
        grep -q '^[0-9]* rungs agree' "$dir/out" || note "no verdict with $threads threads"
    done
    end ${ladder}_rungs_agree
done

# A shape too small for a time that means anything: a line for each rung, its numbers all above 0.
for ladder in ladder attention-cpu; do
    build/$ladder 67 13 37 > "$dir/out" 2>&1 || note "$(tail -n 1 "$dir/out")"
    rungs=$(sed -n 's/^\([0-9]*\) rungs agree.*/\1/p' "$dir/out")
    lines=$(sed '1,/^rung /d' "$dir/out" | grep -cE '[a-z0-9]  .*[0-9]\.[0-9]')
    [ "$lines" = "$rungs" ] || note "$lines lines for ${rungs:-no} rungs"
    grep -qiE 'nan|inf' "$dir/out" && note "$(grep -iE -m 1 'nan|inf' "$dir/out")"
    [ "$(grep -cE '^[0-9]+\. [^:]+: ' "$dir/out")" = "$rungs" ] || note "not an idea for each rung"
    grep -qE '^(% of peak) .*registers' "$dir/out" || note "% of peak is not explained"
    tail -n 1 "$dir/out" | grep -qE '^Next: lesson [0-9]+.*`make ladder OP=' || note "no Next:"
    end ${ladder}_prints_a_table
done

# More threads than cores: they cannot get the time they ask for.
for ladder in ladder attention-cpu; do
    OMP_NUM_THREADS=$((4 * $(getconf _NPROCESSORS_ONLN))) build/$ladder 67 13 37 > "$dir/out" 2>&1
    grep -qE '^BUSY: [0-9]+ threads got [0-9]+% of the time' "$dir/out" || note "$(tail -n 4 "$dir/out")"
    end ${ladder}_says_that_it_is_busy
done

refused() {                                 # refused ARGS...: in one line of its own
    one_line "$ladder: " build/$ladder "$@"
    grep -q "^$ladder: " "$dir/stderr" || note "$ladder $*: the line does not begin with its name"
}
for ladder in ladder attention-cpu; do
    refused chek
    refused 8 8
    refused 8 8 8x
    end ${ladder}_refuses
done

exit $failed
