#!/usr/bin/env bash
# Counts the instructions of a training step, in total and by function. Load on the machine changes
# times but not this count, so the count shows what a change of the code costs. The model is that of
# scripts/shakespeare.sh with two sequences, built for x86-64-v3 without OpenMP: valgrind does the
# counting, does not support AVX-512, and is slow.
#
#     scripts/count_instructions.sh           compares with dev/results/instructions.json
#     scripts/count_instructions.sh --keep    stores the counts there
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/bench_lib.sh
kept=dev/results/instructions.json
dir=$build/instructions

skip() { echo "instructions: not counted: $1"; exit 0; }
case ${1:-} in
    "" | --keep) ;;
    *) echo "count_instructions.sh: '$1': expected --keep or nothing" >&2; exit 1 ;;
esac
for tool in valgrind callgrind_annotate; do
    command -v $tool > /dev/null || skip "needs $tool"
done
case $(uname -m) in x86_64) ;; *) skip "needs an x86-64 processor" ;; esac

# The last -march wins.
make -s BUILD="$dir" OPENMP=0 PRECISION=fp32 CFLAGS="-O3 -march=x86-64-v3" "$dir/bench" || exit 1
if ! echo | valgrind --tool=callgrind --callgrind-out-file="$dir/callgrind" --collect-atstart=no \
        --toggle-collect='bench_step*' "$dir/bench" --rounds 1 counted > "$dir/log" 2>&1; then
    tail -n 3 "$dir/log" >&2
    exit 1
fi

# Lines of the report: `1,234 (5.67%)  FILE:FUNCTION [OBJECT]`, and one for PROGRAM TOTALS. A clone
# that the compiler made (NAME.constprop.0) counts as its function.
callgrind_annotate --threshold=100 "$dir/callgrind" | awk '
    $1 ~ /^[0-9,]+$/ && /%\)/ {
        count = $1; gsub(",", "", count)
        name = $0; sub(/^.*%\) */, "", name); sub(/ \[.*/, "", name)
        sub(/^.*:/, "", name); sub(/[.@].*/, "", name)
        print count, name == "PROGRAM TOTALS" ? "total" : name
    }' > "$dir/report"
awk '{ sum[$2] += $1 } END { for (name in sum) printf "%.0f %s\n", sum[name], name }' \
    "$dir/report" | sort -rn | head -n 13 > "$dir/counts"

# As JSON, one function a line, so that diffs are readable.
compiler=$(sed -n '1s/ .*//p' "$dir/flags")
{
    echo "{\"name\":\"instructions of a step\","
    echo "\"model\":\"4 layers, 4 heads, C=128, V=257, B=2, T=64\","
    echo "\"target\":\"x86-64-v3\",\"compiler\":\"$("$compiler" --version | head -n 1)\","
    awk '$2 == "total" { printf "\"total\":%d,\n\"functions\":{", $1; next }
         { printf "%s\n\"%s\":%d", comma, $2, $1; comma = "," } END { print "}}" }' "$dir/counts"
} > "$dir/instructions.json"
put_result "$(tr -d '\n' < "$dir/instructions.json")"

# kept NAME: the committed count of a function, or of the total.
kept() { sed -n "s/^\"$1\":\([0-9]*\).*/\1/p" "$kept" 2> /dev/null; }
made_by() { sed -n 's/.*"compiler":"\([^"]*\)".*/\1/p' "$1"; }
echo
echo "instructions of a training step, in millions (character model, B=2, x86-64-v3, one thread)"
while read -r count name; do
    then=$(kept "$name")
    awk -v name="$name" -v count="$count" -v kept="${then:-0}" 'BEGIN {
        printf "  %-28s %10.2f", name, count / 1e6
        if (kept > 0) printf "   %6.3f times the %.2f kept", count / kept, kept / 1e6
        print "" }'
done < "$dir/counts"
if [ "${1:-}" = --keep ]; then
    mkdir -p "$(dirname "$kept")"
    cp "$dir/instructions.json" "$kept"
    echo "  kept in $kept"
elif [ -f "$kept" ] && [ "$(made_by "$kept")" != "$(made_by "$dir/instructions.json")" ]; then
    echo "  (the kept counts are of $(made_by "$kept"): do not compare across compilers)"
fi
write_bench_json
