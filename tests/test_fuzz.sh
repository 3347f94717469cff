#!/usr/bin/env bash
# Fuzzes everything that reads files: a few thousand inputs for each target of tests/fuzz.c. A
# finding is a crash, an overflow, a leak, a broken assertion, ten seconds or 2 GB; the first one
# ends a target.
#
#     tests/test_fuzz.sh [TARGET...]         json, safetensors ...; all of them by default
#     make test PART=fuzz                    100,000 inputs for each, kept in build/fuzz
#
#     RUNS=2000            inputs a target
#     FUZZ_DIR=build/fuzz  where programs, corpora, logs and findings stay; else they are removed
#     FUZZ_CC=clang        a clang that has libFuzzer
#     SANITIZERS=address,undefined
#
# build/fuzz/fuzz_json build/fuzz/findings/json-crash-... runs a finding once more. What led
# somewhere new stays in build/fuzz/corpus; the next run with this folder goes on from there.
. "$(dirname "$0")/tools.sh"
fuzz=${FUZZ_DIR:-$dir/fuzz} clang=${FUZZ_CC:-clang} sanitizers=${SANITIZERS-address,undefined}
targets=$(grep -o '{ "[a-z]*", fuzz_' tests/fuzz.c | cut -d '"' -f 2)
absolute fuzz prepare train
mkdir -p "$fuzz"/{logs,findings,corpus} || exit 1
flags="-std=gnu11 -g -fsanitize=fuzzer${sanitizers:+,$sanitizers} -fno-sanitize-recover=all"
# Compiling takes longer than a few inputs.
if [ "${RUNS:=2000}" -gt 10000 ]; then flags+=" -O1"; else flags+=" -O0"; fi
echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' |
    $clang $flags -x c - -o "$fuzz/probe" 2> /dev/null || {
    skip fuzz "needs clang with libFuzzer (Debian: clang and libclang-rt-VERSION-dev)"
    exit $failed
}

# ---- a corpus to begin with: small files of each kind, most written by the programs ----

zeros() { head -c "$1" /dev/zero; }
seed() { cat > "$fuzz/seeds/$1"; }            # seed TARGET/NAME < bytes

make_seeds() {
    local target work=$fuzz/seeds/work
    rm -rf "$fuzz/seeds"
    for target in $targets work; do mkdir -p "$fuzz/seeds/$target"; done

    # 22 tokens of a vocabulary of 3; models of 88 parameters that have learnt from them
    { int32 20240520 1 22 3 2; zeros 1004
      for _ in 1 2 3 4 5 6 7 8 9 10 11; do printf '\1\0\2\0'; done; } | seed shard/three
    cp "$fuzz/seeds/shard/three" "$work/val"              # no file may serve both splits
    local name run=$work/adamw/latest
    learn() {                                # learn NAME FLAGS...
        $train --train "$fuzz/seeds/shard/three" --val "$work/val" --out "$work/$1" --layers 1 \
            --heads 1 --channels 2 --seq-len 2 --micro-batch 1 --steps 2 "${@:2}" > /dev/null
    }
    learn adamw &&
        learn sgd --optimizer sgd --average-tokens 4 --batch-tokens 4 --noise-scale &&
        learn workers --outer-every 1 || return
    for name in adamw sgd workers; do
        seed "json/$name" < "$work/$name/latest/state.json"
    done
    cp "$run"/*.safetensors "$work/sgd/latest/average.safetensors" \
        "$work"/workers/latest/{outer,workers}.safetensors "$fuzz/seeds/safetensors/"
    cp "$run"/*.json "$fuzz/seeds/json/"
    { echo '{"a": [0, -0.5, 1e308, 2.5e-3, 9223372036854775807, true, false, null],'
      echo ' "\"\\\/\b\f\n\r\t": "\u00e9\ud83d\ude00\u0000", "é": {"": [[], {}, "𝄞"]}}'
    } | seed json/values

    # the header's length left out: see fuzz.c
    local header
    header=$(($(od -An -tu4 -N4 "$run/model.safetensors")))
    { head -c $((8 + header)) "$run/model.safetensors" | tail -c +9
      zeros 1
      tail -c +$((9 + header)) "$run/model.safetensors"; } | seed safetensors/model
    printf '{"a":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}}\0001234' |
        seed safetensors/bf16

    # llm.c's models of one and two channels
    { int32 20240326 3 1 1 1 1 1 1; zeros 992; zeros $((4 * (25 + 4))); } | seed gguf/llmc-fp32
    { int32 20240326 5 2 3 1 1 2 4; zeros 992; zeros $((2 * (74 + 16))); } | seed gguf/llmc-bf16

    # a text's shards and vocabulary, in every form; tales
    printf 'abc abc abc abcab aa aaa aaaa' > "$work/text"
    $prepare text "$work/text" --out "$work/bpe" --tokenizer bpe:262 --val-fraction 0 > /dev/null &&
        $prepare tales --out "$work/tales" --tokens 300 > /dev/null || return
    cp "$work/bpe/text_train_000000.bin" "$fuzz/seeds/shard/bpe"
    cp "$work/tales/tales_train_000000.bin" "$fuzz/seeds/shard/tales"
    cp "$work/bpe/tokenizer.json" "$fuzz/seeds/tokenizer/json"
    cp "$work/bpe/text_train_000000.bin" "$work/bpe/val.bin"
    learn gguf --train "$work/bpe/text_train_000000.bin" --val "$work/bpe/val.bin" \
        --tokenizer "$work/bpe/tokenizer.json" &&
        $train --init "$work/gguf" --export "$fuzz/seeds/gguf/fp32.gguf" > /dev/null &&
        $train --init "$work/gguf" --export "$fuzz/seeds/gguf/seed-f16.gguf" > /dev/null || return
    sed 's/^      "\(.*\) \(.*\)"/["\1","\2"]/' "$work/bpe/tokenizer.json" | seed tokenizer/newer
    local byte
    { for byte in $(seq 0 255); do
          echo "$(printf "\\x$(printf %02x "$byte")" | base64) $byte"
      done
      printf 'YWI= 256\nYWJj 257\nYWE= 258\nYWFh 259\n'; } | seed tokenizer/tiktoken
    rm -rf "$work"
}

make_seeds || note "the seeds cannot be made"

# ---- building and running ----

# The library of dev/; what fuzz.c includes itself is not taken from there.
build_fuzzers() {
    local target
    library "$fuzz/library.a" $clang ${flags/fuzzer/fuzzer-no-link} &&
        $clang $flags tests/fuzz.c "$fuzz/library.a" -o "$fuzz/fuzz" -lm || return
    for target in $targets; do ln -sf fuzz "$fuzz/fuzz_$target"; done
}
build_fuzzers > "$fuzz/logs/build" 2>&1 ||
    note "it does not build: $(grep -m 1 error "$fuzz/logs/build")"
end fuzz_builds

for target in ${*:-$targets}; do
    log=$fuzz/logs/$target
    rm -f "$fuzz/findings/$target"-*
    mkdir -p "$fuzz/corpus/$target"
    "$fuzz/fuzz_$target" -runs="$RUNS" -max_len=12000 -len_control=0 \
        -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$fuzz/findings/$target-" \
        "$fuzz/corpus/$target" "$fuzz/seeds/$target" > "$log" 2>&1 ||
        note "$(sed -n 's/^SUMMARY: //p' "$log" | head -n 1); again with $fuzz/fuzz_$target" \
            "$(ls "$fuzz/findings/$target"-* 2> /dev/null | head -n 1)"
    grep -q '^stat::number_of_executed_units: *[1-9]' "$log" ||
        note "no input was run: $(tail -n 1 "$log")"
    end fuzz_$target
done
exit $failed
