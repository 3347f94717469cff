#!/usr/bin/env bash
# Fuzzes everything that reads files. Says, for each target, how many inputs were run and whether
# one of them was a finding: a crash, an overflow, a leak, a broken assertion, ten seconds or 2 GB.
#
#     tests/fuzz/run.sh [TARGET...]          all targets: json safetensors gguf ...
#
#     RUNS=100000         inputs a target
#     FUZZ_DIR=build/fuzz where programs, corpora, logs and findings are kept
#     FUZZ_CC=clang       a clang that has libFuzzer
#     SANITIZERS=address,undefined
#
# build/fuzz/fuzz_json build/fuzz/findings/json-crash-... runs a finding once more. The first one
# ends a target. What led somewhere new stays in build/fuzz/corpus; the next run goes on from there.
#
# A new parser gets a fuzz_NAME.c, its name in ALL, and seeds in make_seeds. A target parses bytes
# and, if they were accepted, asserts what every later use relies on. What it finds is made small
# (-minimize_crash=1 -runs=100000 INPUT), mended, and kept as a case of the parser's own test.
#
# Exit status: 0 nothing found, 1 something found, 2 it cannot run here.
set -u
cd "$(dirname "$0")/../.." || exit 2
RUNS=${RUNS:-100000} DIR=${FUZZ_DIR:-build/fuzz} CC=${FUZZ_CC:-clang}
SANITIZERS=${SANITIZERS-address,undefined}
PREPARE=${PREPARE:-./prepare} TRAIN=${TRAIN:-./train_gpt2}
ALL="json safetensors gguf tokenizer shard"

cannot() { echo "fuzz: $*"; exit 2; }

for target in "$@"; do
    [ -f "tests/fuzz/fuzz_$target.c" ] || cannot "no target is called $target; there are: $ALL"
done
mkdir -p "$DIR/logs" "$DIR/findings" "$DIR/corpus" || cannot "$DIR cannot be written"
flags="-std=gnu11 -g ${OPTIMIZED:--O1} -fsanitize=fuzzer${SANITIZERS:+,$SANITIZERS} -fno-sanitize-recover=all"
echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' |
    $CC $flags -x c - -o "$DIR/probe" 2> /dev/null ||
    cannot "needs clang with libFuzzer (Debian: clang and libclang-rt-VERSION-dev)"
[ -x "$PREPARE" ] && [ -x "$TRAIN" ] || cannot "needs ./prepare and ./train_gpt2; make builds them"

# ---- a corpus to begin with: small files of each kind, most written by the programs ----

words() {                                    # numbers as little-endian int32
    local w
    for w in "$@"; do
        printf "\\x$(printf %02x $((w & 255)))\\x$(printf %02x $((w >> 8 & 255)))"
        printf "\\x$(printf %02x $((w >> 16 & 255)))\\x$(printf %02x $((w >> 24 & 255)))"
    done
}
zeros() { head -c "$1" /dev/zero; }
seed() { cat > "$DIR/seeds/$1"; }            # seed TARGET/NAME < bytes

make_seeds() {
    local target work=$DIR/seeds/work end='"<|endoftext|>"'
    rm -rf "$DIR/seeds"
    for target in $ALL work; do mkdir -p "$DIR/seeds/$target"; done

    # 22 tokens of a vocabulary of 3; models of 88 parameters that have learnt from them
    { words 20240520 1 22 3 2; zeros 1004
      for _ in 1 2 3 4 5 6 7 8 9 10 11; do printf '\1\0\2\0'; done; } | seed shard/three
    cp "$DIR/seeds/shard/three" "$work/val"              # no file may serve both splits
    local name run=$work/adamw/latest
    learn() {                                # learn NAME FLAGS...
        $TRAIN --train "$DIR/seeds/shard/three" --val "$work/val" --out "$work/$1" --layers 1 \
            --heads 1 --channels 2 --seq-len 2 --micro-batch 1 --steps 2 "${@:2}" > /dev/null
    }
    learn adamw &&
        learn sgd --optimizer sgd --average-tokens 4 --batch-tokens 4 --noise-scale &&
        learn adaptive --batch-schedule adaptive:0.5,4,8 --lr-schedule constant &&
        learn workers --outer-every 1 || return
    for name in adamw sgd adaptive workers; do
        seed "json/$name" < "$work/$name/latest/state.json"
    done
    cp "$run"/*.safetensors "$work/sgd/latest/average.safetensors" \
        "$work"/workers/latest/{outer,workers}.safetensors "$DIR/seeds/safetensors/"
    cp "$run"/*.json "$DIR/seeds/json/"
    { echo '{"a": [0, -0.5, 1e308, 2.5e-3, 9223372036854775807, true, false, null],'
      echo ' "\"\\\/\b\f\n\r\t": "\u00e9\ud83d\ude00\u0000", "é": {"": [[], {}, "𝄞"]}}'
    } | seed json/values

    # the header's length left out: see fuzz_safetensors.c
    local header
    header=$(($(od -An -tu4 -N4 "$run/model.safetensors")))
    { head -c $((8 + header)) "$run/model.safetensors" | tail -c +9
      zeros 1
      tail -c +$((9 + header)) "$run/model.safetensors"; } | seed safetensors/model
    printf '{"a":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}}\0001234' |
        seed safetensors/bf16
    { printf '{"lm_head.weight":{"dtype":"F16","shape":[1,1,1,1,1,1,1,2],"data_offsets":[0,4]}}'
      printf '\0001234'; } | seed safetensors/dims

    # llm.c's models of one and two channels
    { words 20240326 3 1 1 1 1 1 1; zeros 992; zeros $((4 * (25 + 4))); } | seed gguf/llmc-fp32
    { words 20240326 5 2 3 1 1 2 4; zeros 992; zeros $((2 * (74 + 16))); } | seed gguf/llmc-bf16

    # a text's shards and vocabulary; tales
    printf 'abc abc abc abcab aa aaa aaaa' > "$work/text"
    $PREPARE text "$work/text" --out "$work/bpe" --tokenizer bpe:262 --val-fraction 0 > /dev/null &&
        $PREPARE tales --out "$work/tales" --tokens 300 > /dev/null || return
    cp "$work/bpe/text_train_000000.bin" "$DIR/seeds/shard/bpe"
    cp "$work/tales/tales_train_000000.bin" "$DIR/seeds/shard/tales"
    cp "$work/bpe/tokenizer.json" "$DIR/seeds/tokenizer/json"
    cp "$work/bpe/text_train_000000.bin" "$work/bpe/val.bin"
    learn gguf --train "$work/bpe/text_train_000000.bin" --val "$work/bpe/val.bin" \
        --tokenizer "$work/bpe/tokenizer.json" &&
        $TRAIN --init "$work/gguf" --export "$DIR/seeds/gguf/fp32.gguf" > /dev/null &&
        $TRAIN --init "$work/gguf" --export "$DIR/seeds/gguf/seed-f16.gguf" > /dev/null || return
    # the first byte: see fuzz_tokenizer.c
    printf '\1YWI= 256\nYWJj 257\nYWE= 258\nYWFh 259\n' | seed tokenizer/tiktoken
    printf '\2},"merges":["a b","ab c","a a","aa aa"]}}' | seed tokenizer/older
    printf '\2,"abcda":265},"merges":[["a","b"],["ab","c"]]},"added_tokens":[{"id":256,%s}]}' \
        "\"content\":$end" | seed tokenizer/newer
    printf '\3#version: 0.2\na b\nab c\na a\naa aa\nabc d\n\304\240 a\n' | seed tokenizer/merges
    printf '{"a":0,%s:1}\0a b\n' "$end" | seed tokenizer/pair
    rm -rf "$work"
}

make_seeds || cannot "the seeds cannot be made"

# ---- building and running ----

longest() {                                  # an input, in bytes: what the largest seed needs
    case $1 in
        json) echo 3000 ;;
        safetensors) echo 4096 ;;
        gguf) echo 12000 ;;
        tokenizer) echo 6000 ;;
        *) echo 2048 ;;
    esac
}

# The library of dev/, which a target links; what it includes itself is not taken from there.
build_library() {
    local sources=$(ls "$PWD"/dev/{base,cpu,data,files,model,plan,ranks,train}/*.c)
    mkdir -p "$DIR/objects" && cd "$DIR/objects" &&
        $CC ${flags/fuzzer/fuzzer-no-link} -c $sources && ar rcs ../library.a *.o
}
(build_library) > "$DIR/logs/library.log" 2>&1 ||
    cannot "the library does not build, see $DIR/logs/library.log"

# Nothing but the target's own line is printed; the rest is in the log.
fuzz() {
    local target=$1 log=$DIR/logs/$1.log runs found
    rm -f "$DIR/findings/$target"-*
    $CC $flags "tests/fuzz/fuzz_$target.c" "$DIR/library.a" -o "$DIR/fuzz_$target" -lm \
        > "$log" 2>&1 ||
        { echo "$target: does not build, see $log"; return 1; }
    mkdir -p "$DIR/corpus/$target"
    "$DIR/fuzz_$target" -runs="$RUNS" -max_len="$(longest "$target")" -len_control=0 \
        -timeout=10 -rss_limit_mb=2048 -dict=tests/fuzz/dictionary.txt -print_final_stats=1 \
        -artifact_prefix="$DIR/findings/$target-" \
        "$DIR/corpus/$target" "$DIR/seeds/$target" > "$log" 2>&1
    local status=$?
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    if [ $status = 0 ]; then
        echo "$target: ${runs:-0} executions, nothing found"
        [ "${runs:-0}" -gt 0 ]
        return
    fi
    found=$(ls "$DIR/findings/$target"-* 2> /dev/null | head -1)
    echo "$target: ${runs:-0} executions, 1 found: $(sed -n 's/^SUMMARY: //p' "$log" | head -1);" \
         "again with $DIR/fuzz_$target ${found:-(no input was kept, see $log)}"
    return 1
}

status=0
for target in ${*:-$ALL}; do fuzz "$target" || status=1; done
exit $status
