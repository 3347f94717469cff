#!/usr/bin/env bash
# The comparisons of `make bench`: the tokenizer with tiktoken, and whole training steps with
# PyTorch, in alternating rounds. A line says what is not installed.
#
#     scripts/bench_others.sh            the character model in fp32
#     scripts/bench_others.sh --full     bf16 autocast and torch.compile too, and GPT-2 124M
#
# PYTHONS lists the interpreters in which to look for PyTorch; each version is timed once.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/bench_lib.sh
full=${1:-}
data=${BATCHWISE_DATA:-data}
vocabulary=$data/gpt2.tiktoken text=$data/tinyshakespeare.txt
PYTHONS=${PYTHONS:-"${PYTHON:-python3} /usr/bin/python3"}

# ---- tokenizer ----

compare_tokenizer() {
    local python
    echo "tokenizer, GPT-2's vocabulary, Tiny Shakespeare"
    "$build/bench_tokenizer" "$vocabulary" "$text"
    for python in $PYTHONS; do
        "$python" -c "import tiktoken" 2> /dev/null || continue
        "$python" dev/reference/bench_tiktoken.py "$vocabulary" "$text"
        return
    done
    echo "tiktoken is not installed: not compared"
}

echo
if [ -f "$vocabulary" ] && [ -f "$text" ]; then compare_tokenizer
else
    echo "tokenizer: needs $vocabulary and $text" \
        "(dev/data/fetch_gpt2_vocab.sh, fetch_shakespeare.sh)"
fi

# ---- training steps ----

# settings, one a line: threads, steps a round, build/bench's name | gpt2.py's flags for the same.
characters="--layers 4 --heads 4 --channels 128 --vocab 257 --batch 12 --seq-len 64"
gpt2_124m="--layers 12 --heads 12 --channels 768 --vocab 50257 --batch 4 --seq-len"
settings() {
    echo "1 10 characters, B=12 T=64|$characters"
    echo "2 10 characters, B=12 T=64|$characters"
    [ -n "$full" ] || return
    echo "2 1 124M, B=4 T=64|$gpt2_124m 64"
    echo "2 1 124M, B=4 T=1024|$gpt2_124m 1024"
}
modes() {                      # modes VERSION: name|flags of gpt2.py that this PyTorch supports
    echo "fp32|"
    [ -n "$full" ] || return
    echo "bf16|--dtype bf16"
    case $1 in 1.*) return ;; esac
    echo "fp32, compiled|--compile"
    echo "bf16, compiled|--dtype bf16 --compile"
}

# compare PYTHON VERSION MODE FLAGS: the left contestant with PyTorch.
compare() {
    local rounds=3 label
    [ -n "$full" ] && rounds=5
    label="PyTorch ${2%%+*} $3"
    start_contestant right "$1" dev/reference/gpt2.py bench --rounds --threads "$threads" \
        --steps "$steps" $flags $4
    if in_turn $rounds 900; then
        printf '  %-28s %9.1f ms   here %9.1f ms   %5.2f times as fast here\n' \
            "$label" "$right" "$left" "$ratio"
        put_result "{\"name\":\"$name, threads $threads, beside $label\",\"precision\":\
\"${PRECISION:-fp32}\",\"threads\":$threads,\"rounds\":$rounds,\"step_ms\":$left,\
\"pytorch_step_ms\":$right,\"ratio\":$ratio}"
    else
        printf '  %-28s not compared: %s\n' "$label" "$why"
    fi
    stop_contestant right
}

# compare_all: compares with every PyTorch, in the setting $threads $steps $name $flags.
compare_all() {
    local seen='' python version
    echo
    echo "$name, threads: $threads, a training step"
    start_contestant left env OMP_NUM_THREADS="$threads" "$build/bench" --rounds "$steps" "$name"
    for python in $PYTHONS; do
        version=$("$python" -c "import torch; print(torch.__version__)" 2> /dev/null) || continue
        case "$seen " in *" $version "*) continue ;; esac
        seen="$seen $version"
        while IFS='|' read -r mode extra; do
            compare "$python" "$version" "$mode" "$extra"
        done < <(modes "$version")
    done
    stop_contestant left
    [ -n "$seen" ] || echo "  PyTorch is not installed: not compared"
}

while IFS='|' read -r what flags; do
    read -r threads steps name <<< "$what"
    compare_all
done < <(settings)
write_bench_json
