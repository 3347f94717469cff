#!/bin/sh
# Compiles the trainer for the browser: dev/web/train_gpt2.wasm, which is kept in the repository, so
# that whoever makes the page needs no compiler for it.
#
#     dev/web/build.sh [FILE]            on Debian: apt install clang lld wasi-libc
#     CLANG=clang-19 dev/web/build.sh    another clang  libclang-rt-dev-wasm32
#
# Sums keep their order: no fused multiply-add, and OpenMP's pragmas are ignored. So the bits are
# those of a native build with the same flags (scripts/web_hash.sh).
cd "$(dirname "$0")/../.." || exit 1
out=${1:-dev/web/train_gpt2.wasm} clang=${CLANG:-clang}
lacks() { echo "dev/web/build.sh: $1; on Debian: apt install clang lld wasi-libc libclang-rt-dev-wasm32" >&2; exit 1; }
command -v "$clang" > /dev/null || lacks "there is no $clang here"
echo 'int main(void) { return 0; }' | "$clang" --target=wasm32-wasi -xc - -o "$out.part" 2> /dev/null ||
    lacks "$clang cannot build a program for wasm32-wasi here"
sources=$(ls dev/base/*.c dev/cpu/*.c dev/data/*.c dev/files/*.c dev/model/*.c dev/plan/*.c dev/ranks/*.c \
    dev/train/*.c)
"$clang" --target=wasm32-wasi -std=gnu11 -O3 -msimd128 -ffp-contract=off -fno-math-errno \
    -fno-trapping-math -Wno-unknown-pragmas -include dev/web/wasi.h -D_WASI_EMULATED_SIGNAL \
    -D_WASI_EMULATED_MMAN -D_WASI_EMULATED_PROCESS_CLOCKS -mexec-model=reactor \
    dev/web/web.c $sources -o "$out.part" -lwasi-emulated-signal -lwasi-emulated-mman \
    -lwasi-emulated-process-clocks -lm -Wl,-z,stack-size=1048576 -Wl,--strip-all || exit 1
chmod -x "$out.part" && mv "$out.part" "$out" && echo "$out: $(wc -c < "$out" | tr -d ' ') bytes"
