#!/usr/bin/env bash
# Trains what a lane of the page's race trains, on this machine, and prints the hash of the weights
# that the page shows beside the command: the same source, the same bits.
#
#     scripts/web_hash.sh UPDATES FLAGS...
usage() { echo "usage: scripts/web_hash.sh UPDATES FLAGS...; lab/page.html shows both" >&2; exit 1; }
case ${1:-} in "" | *[!0-9]*) usage ;; esac
cd "$(dirname "$0")/.." || exit 1
program=$(mktemp "${TMPDIR:-/tmp}/web.XXXXXX") || exit 1
trap 'rm -f "$program"' EXIT
# As dev/web/build.sh compiles it; here for this processor.
"${CC:-cc}" -std=gnu11 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -Wno-unknown-pragmas \
    dev/web/web.c $(ls dev/{base,cpu,data,files,model,plan,ranks,train}/*.c) -o "$program" -lm || exit 1
"$program" "$@"
