#!/bin/sh
# Compiles the trainer for the browser: dev/web/train_gpt2.wasm, which is kept in the repository, so
# that whoever makes the page needs no compiler for it.
#
#     dev/web/build.sh [FILE]            on Debian: apt install clang lld wasi-libc
#     CLANG=clang-19 dev/web/build.sh    another clang  libclang-rt-dev-wasm32
#     dev/web/build.sh --hash UPDATES FLAGS...
#
# Sums keep their order: no fused multiply-add, and OpenMP's pragmas are ignored. So the bits are
# those of a native build, whatever its -O. --hash trains what a lane of the page's race trains,
# on this machine, and prints the hash of the weights that the page shows beside the command.
cd "$(dirname "$0")/../.." || exit 1
flags="-std=gnu11 -ffp-contract=off -fno-math-errno -fno-trapping-math -Wno-unknown-pragmas"
sources="dev/web/web.c $(echo dev/base/*.c dev/cpu/*.c dev/data/*.c dev/files/*.c dev/model/*.c \
    dev/plan/*.c dev/ranks/*.c dev/train/*.c)"
if [ "${1:-}" = --hash ]; then
    shift
    case ${1:-} in "" | *[!0-9]*)
        echo "usage: dev/web/build.sh --hash UPDATES FLAGS...; lab/page.html shows both" >&2
        exit 1 ;;
    esac
    program=$(mktemp "${TMPDIR:-/tmp}/web.XXXXXX") || exit 1
    trap 'rm -f "$program"' EXIT
    "${CC:-cc}" -O1 $flags $sources -o "$program" -lm && "$program" "$@"
    exit
fi
out=${1:-dev/web/train_gpt2.wasm} clang=${CLANG:-clang}
lacks() { echo "dev/web/build.sh: $1; on Debian: apt install clang lld wasi-libc libclang-rt-dev-wasm32" >&2; exit 1; }
command -v "$clang" > /dev/null || lacks "there is no $clang here"
echo 'int main(void) { return 0; }' | "$clang" --target=wasm32-wasi -xc - -o "$out.part" 2> /dev/null ||
    lacks "$clang cannot build a program for wasm32-wasi here"
"$clang" --target=wasm32-wasi -O3 $flags -msimd128 -include dev/web/wasi.h -D_WASI_EMULATED_SIGNAL \
    -D_WASI_EMULATED_MMAN -D_WASI_EMULATED_PROCESS_CLOCKS -mexec-model=reactor $sources -o "$out.part" \
    -lwasi-emulated-signal -lwasi-emulated-mman -lwasi-emulated-process-clocks -lm -Wl,-z,stack-size=1048576 -Wl,--strip-all || exit 1
chmod -x "$out.part" && mv "$out.part" "$out" && echo "$out: $(wc -c < "$out" | tr -d ' ') bytes"
