#!/usr/bin/env bash
# --export FILE.gguf and --init FILE.gguf from outside: flags, errors in one line, a full disk, and
# the same file from both programs. tests/test_gguf.py looks into the files.
. "$(dirname "$0")/tools.sh"

$prepare tales --out "$dir/tales" --tokens 20000 > /dev/null
small="--layers 1 --heads 2 --channels 16 --micro-batch 2 --eval-tokens 64"
$train --data "$dir/tales" $small --seq-len 32 --steps 20 --lr 1e-2 --out "$dir/run" > /dev/null

good "$train" --init "$dir/run" --export "$dir/run.gguf"
has "$dir/stdout" "exported to $dir/run.gguf"
has "$dir/stdout" "keep prompt and text together within 32 tokens"
good "$train" --resume --out "$dir/run" --export "$dir/resumed.gguf"
cmp -s "$dir/run.gguf" "$dir/resumed.gguf" || note "another file from --out"
good "$train" --init "$dir/run.gguf" --export "$dir/again.gguf"
cmp -s "$dir/run.gguf" "$dir/again.gguf" || note "another file from a GGUF"
good "$train" --init "$dir/run" --export "$dir/half-f16.gguf"
has "$dir/stdout" "parameters, matrices in fp16"
[ "$(wc -c < "$dir/half-f16.gguf")" -lt $(($(wc -c < "$dir/run.gguf") - 10000)) ] ||
    note "fp16 saves nothing"
good "$train" --init "$dir/half-f16.gguf" --export "$dir/again-f16.gguf"
cmp -s "$dir/half-f16.gguf" "$dir/again-f16.gguf" || note "another file from halves"
end export_writes

write="--generate Once --max-new 50 --seed 3"
good "$train" --init "$dir/run" $write
cp "$dir/stdout" "$dir/text-run"
good "$train" --init "$dir/run.gguf" $write
cmp -s "$dir/stdout" "$dir/text-run" || note "a GGUF writes '$(cat "$dir/stdout")'"
[ "$(wc -c < "$dir/text-run")" -gt 10 ] || note "no text: $(cat "$dir/text-run")"
good "$prepare" text dev/base/rng.h --out "$dir/text" --tokenizer "$dir/run.gguf"
cmp -s "$dir/text/tokenizer.json" "$dir/tales/tokenizer.json" || note "another tokenizer"
end export_reads_back

# ---- refusals ----

one_line "--export: a fresh model" "$train" --export "$dir/no.gguf"
one_line "leave --export out" "$train" --plan --export "$dir/no.gguf"
one_line "cannot create it" "$train" --init "$dir/run" --export "$dir/nowhere/no.gguf"
cp -rL "$dir/run/latest" "$dir/bare" && rm "$dir/bare/tokenizer.json"
one_line "has no tokenizer.json, and llama.cpp needs one" "$train" --init "$dir/bare" \
    --export "$dir/no.gguf"
good "$train" --init "$dir/bare" --tokenizer "$dir/tales/tokenizer.json" --export "$dir/named.gguf"
cmp -s "$dir/named.gguf" "$dir/run.gguf" || note "another file with --tokenizer"
cp -rL "$dir/run/latest" "$dir/large"                # an element of wte.weight is 65,536 there
header=$(($(od -An -tu8 -N8 "$dir/large/model.safetensors")))
printf '\0\0\200\107' |
    dd of="$dir/large/model.safetensors" bs=1 seek=$((8 + header)) conv=notrunc 2> /dev/null
one_line '"wte.weight" holds 65536, more than fp16 can' "$train" --init "$dir/large" \
    --export "$dir/no-f16.gguf"
good "$train" --init "$dir/large" --export "$dir/large.gguf"
[ -z "$(find "$dir" -name '*.tmp*' -o -name 'no*.gguf')" ] || note "something is left"
sed 's/gpt-2/gpt-5/' "$dir/run.gguf" > "$dir/other.gguf"
one_line '"tokenizer.ggml.pre" must be "gpt-2"; nothing else is supported; name another one with' \
    "$train" --init "$dir/other.gguf" --generate x
good "$train" --init "$dir/other.gguf" --tokenizer "$dir/tales/tokenizer.json" --generate x \
    --max-new 2
end export_refuses

# ---- a full disk: one line; an older file stays as it was; nothing is left ----

cp "$dir/run.gguf" "$dir/kept.gguf"
(ulimit -f 8; "$train" --init "$dir/run" --export "$dir/kept.gguf") > "$dir/stdout" \
    2> "$dir/stderr"
same "status on a full disk" $? 1
same "lines on a full disk" "$(lines "$dir/stderr")" 1
has "$dir/stderr" ": cannot write it: File too large"
cmp -s "$dir/run.gguf" "$dir/kept.gguf" || note "the older file has changed"
[ -z "$(find "$dir" -name '*.tmp*')" ] || note "half a file stays"
end export_to_a_full_disk

if [ -x "$emulated" ]; then
    good "$emulated" --init "$dir/run" --export "$dir/gpu.gguf"
    cmp -s "$dir/gpu.gguf" "$dir/run.gguf" || note "another file from the GPU's program"
    good "$emulated" --init "$dir/run.gguf" --generate "Once" --max-new 5
    end export_from_the_twin
else
    skip export_from_the_twin "needs train_gpt2cu-emulated"
fi
exit $failed
