#!/usr/bin/env bash
# make profile: the counters against counts by hand, some counters broken, and the tables of a tiny
# model.
#
#     FAULTS=1 tests/test_profile.sh     breaks each counter once, not one in six
. "$(dirname "$0")/tools.sh"
unset MODEL MICRO_BATCH GPU KERNEL PRECISION

says() { grep -qE -e "$1" "$dir/said" || note "does not say '$1': $(head -n 3 "$dir/said")"; }

if ! command -v g++ > /dev/null || ! command -v addr2line > /dev/null; then
    skip profile "needs g++ and addr2line"
    exit $failed
fi

# ---- counts by hand ----

make -s build/test_profile build/profile > "$dir/said" 2>&1 ||
    { echo "FAIL profile_builds: $(tail -n 3 "$dir/said")"; exit 1; }
build/test_profile || failed=1

# breaks TEST FROM TO: with FROM changed to TO in the counters, TEST fails.
breaks=0 count="g++ -std=c++17 -O0 -no-pie -DEMULATOR_COUNT -fopenmp -Idev/emulator/include -iquote ."
breaks() {
    sed "s|$2|$3|" dev/emulator/count.cpp > "$dir/count.cpp"
    cmp -s "$dir/count.cpp" dev/emulator/count.cpp && note "no '$2' to break"
    breaks=$((breaks + 1))
    has_its_turn $breaks "${FAULTS:-6}" || return
    $count -c "$dir/count.cpp" -o "$dir/count.o" > "$dir/said" 2>&1 &&
        $count build/test_profile.o "$dir/count.o" -o "$dir/test" >> "$dir/said" 2>&1 ||
        note "$2: $(tail -n 1 "$dir/said")"
    "$dir/test" > "$dir/said" 2>&1 && note "$3 goes unnoticed"
    says "^FAIL $1:"
}
breaks copy 'SECTOR = 32' 'SECTOR = 64'
breaks copy 'lanes \* r.bytes' 'lanes * 4'
breaks packs_in_shared_memory '(128 / bytes)' '(256 / bytes)'
breaks strided 'sectors++;' 'sectors += s % 4 == 0;'
breaks misaligned 'ideal += (bytes' 'ideal += sectors + 0 * (bytes'
breaks broadcast 'end = std::max(end, to)' 'end = 0'
breaks broadcast 's <= last' 's < last'
breaks transpose 'BANKS = 32' 'BANKS = 33'
breaks packs_in_shared_memory 't->passes += most' 't->passes++'
breaks reduction 'i < instructions' 'i < 2 * instructions'
breaks divergent_branch 'r->lanes .= 1u << lane' 'r->lanes = ~0u'
breaks reduction 's->seen\[lane\]++' '0'
breaks tensor_core_operands 'if (read > 0) note' 'note'
end profile_counters_are_tested

# ---- the tables ----

make -s profile MODEL=1,1,64,300,64 MICRO_BATCH=1 > "$dir/said" 2>&1 ||
    note "$(tail -n 1 "$dir/said")"
says 'One update of L=1, NH=1, C=64, V=300, T=64, B=1 in bf16'
says 'on one h100, by its data sheet: 3350 GB/s, 132 multiprocessors at 1.83 GHz, 989 TFLOP/s'
says '^layernorm_forward<4> +3 +0.051 '        # 3 x (2 x 64 x 64 x 2 + 2 x 64 x 4 + 2 x 128 bytes)
says '^cuBLASLt +[0-9]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ [a-z]+$'          # nothing below L2 and lanes
awk '$NF ~ /^(memory|L1|shuffle|tensor)$/ { if (n++ && $(NF - 1) > last) exit 1; last = $(NF - 1) }
    END { exit n < 15 }' "$dir/said" || note "the longest is not first"
end profile_table

# The rows of counted.md that lesson 18 reads, and what that lesson computes by formula.
OMP_NUM_THREADS=1 build/profile > "$dir/said" 2>&1 || note "$(tail -n 1 "$dir/said")"
for kernel in adamw cuBLASLt xent norm layernorm_forward; do
    memory=$(sed -n "s/^| \`$kernel\` | [0-9]* | [0-9.]* | \([0-9.]*\) |.*/\1/p" dev/cuda/counted.md)
    says "^$kernel(<[0-9]+>)? +[0-9]+ +${memory:-a row of counted.md} "
done
says '^cuBLASLt .* 11274\.[0-9] +29\.97. memory'
says '^adamw .* 33\.5[12]. memory'
end profile_counts_what_lesson_18_says

run() { build/profile 1,1,64,300,64 1 "$@" > "$dir/said" 2>&1; }
run a100 layernorm_forward || note "$(tail -n 1 "$dir/said")"
says '2039 GB/s'
says '^layernorm_forward_kernel<4>: 3 launches, 24 blocks, 192 warps'
line=$(grep -n 'if (lane() == 0) mean\[n\] = m;' train_gpt2.cu | cut -d: -f1)
says "^$line +store +192 +1.0 +4.0 +1.0/1.0 +if \(lane\(\) == 0\) mean"
run a1 && note "takes GPU=a1"
says 'GPU=a1: its data sheet is not known here; known are v100, .*h100'
end profile_lines

exit $failed
