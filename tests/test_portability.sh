#!/usr/bin/env bash
# Other machines, from this one: what an older processor is told, and the Python scripts in the
# grammar of an old Python.
#
#     LONG=1 tests/test_portability.sh     also both programs linked for macOS and for Linux with
#                                          musl by PyPI's ziglang; AArch64 under qemu
. "$(dirname "$0")/tools.sh"
unset CFLAGS SANITIZE OPENMP PRECISION PLAIN MPI

zig=
for python in "${PYTHON:-python3}" python3 /usr/bin/python3; do
    "$python" -m ziglang version > /dev/null 2>&1 && zig="$python -m ziglang cc" && break
done
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static)

mkdir "$dir/tree" && cp -r Makefile train_gpt2.c dataloader.h dev "$dir/tree" || exit 1

# build TARGET ARGS...: make with the compiler for that system; it may say only that OpenMP lacks.
build() {
    local target=$1; shift
    rm -rf "$dir/build"
    make -s CC="$zig -target $target" NATIVE= BUILD="$dir/build" "$@" > "$dir/said" 2>&1 ||
        note "$target: $(grep -m 1 -E 'error|Error' "$dir/said")"
    grep -v '^note: .*no OpenMP' "$dir/said" | grep -q . && note "$target: $(head -n 3 "$dir/said")"
}

# linked NAME TARGET WORDS: both programs, and what file says of them.
linked() {
    [ -n "$zig" ] || { skip "$1" "needs ziglang (pip install ziglang)"; return; }
    # Whether it links is all that is asked; without -O zig would add its sanitizer.
    rm -f "$dir/tree/train_gpt2" "$dir/tree/prepare"
    build "$2" CFLAGS="-O0 -fno-sanitize=undefined" -C "$dir/tree" train_gpt2 prepare
    for program in train_gpt2 prepare; do
        od -An -N 4 -tx1 "$dir/tree/$program" 2> /dev/null | grep -q "$3" ||
            note "$program is no program for $2"
    done
    end "$1"
}
if [ -n "${LONG:-}" ]; then
    linked links_for_macos_on_arm aarch64-macos 'cf fa ed fe'          # Mach-O, 64 bits
    linked links_for_macos_on_intel x86_64-macos 'cf fa ed fe'
    linked links_for_linux_with_musl x86_64-linux-musl '7f 45 4c 46'   # ELF
fi

# on_aarch64 NAME: whether that test can run here.
on_aarch64() {
    [ -n "$zig" ] || { skip "$1" "needs ziglang (pip install ziglang)"; return 1; }
    [ -n "$qemu" ] || { skip "$1" "needs qemu-aarch64 (apt install qemu-user)"; return 1; }
}
# aarch64 PRECISION TEST...: each test in that precision, as its own line; one make builds them all.
aarch64() {
    local precision=$1 test; shift
    build aarch64-linux-musl -k PRECISION=$precision $(printf "$dir/build/test_%s " "$@")
    for test in "$@"; do
        "$qemu" "$dir/build/test_$test" > "$dir/said" 2>&1 ||
            note "status $?: $(grep -m 1 FAIL "$dir/said")"
        grep -q '^ok ' "$dir/said" || note "no test ran"
        end aarch64_${precision}_$test
    done
}
if [ -n "${LONG:-}" ] && on_aarch64 aarch64_tests; then
    aarch64 fp32 layers model dataloader json formats tokenizer options schedule base
    aarch64 bf16 layers model
fi

# refused NAME MARCH WORDS: what a binary for that processor says on an older one.
refused() {
    local emulator=$(command -v qemu-x86_64 || command -v qemu-x86_64-static)
    [ "$(uname -m)" = x86_64 ] && [ -n "$emulator" ] ||
        { skip "$1" "needs qemu-x86_64 (apt install qemu-user), on x86-64"; return; }
    library "$dir/$1.a" $cc -std=gnu11 -O0 -march=$2 2> "$dir/said" &&
        $cc -std=gnu11 -O0 -march=$2 tests/test_json.c "$dir/$1.a" -o "$dir/json" -lm 2> "$dir/said" ||
        note "$(head -n 1 "$dir/said")"
    run "$emulator" -cpu Nehalem "$dir/json"
    same "status" $status 1
    same "what it says" "$(cat "$dir/stdout" "$dir/stderr")" \
        "batchwise: this binary was built for $3: make clean && make"
    end "$1"
}
refused older_than_avx512 x86-64-v4 "a processor with AVX-512, and this one has none"
refused older_than_avx sandybridge "another processor, and this one lacks an instruction"

# README names the oldest Python; vermin finds what each script's grammar and modules need.
oldest=$(sed -n 's/.*Python \(3\.[0-9]*\) or newer.*/\1/p' README.md | head -n 1)
[ -n "$oldest" ] || note "README names no oldest Python"
vermin=
for python in "${PYTHON:-python3}" python3; do
    "$python" -c "import vermin" > /dev/null 2>&1 && vermin=$python && break
done
if [ -z "$vermin" ]; then
    skip scripts_need_no_newer_python "needs vermin (pip install vermin)"
else
    "$vermin" -c 'import vermin; vermin.main()' --no-tips --violations -t="$oldest-" \
        scripts dev tests > "$dir/said" 2>&1 || note "$(grep -m 1 "py:" "$dir/said")"
    grep -q '^Minimum required versions: 3' "$dir/said" || note "$(tail -n 1 "$dir/said")"
    end scripts_need_no_newer_python
fi
exit $failed
