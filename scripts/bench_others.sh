#!/usr/bin/env bash
# The part of `make bench` that looks at others: the tokenizer beside tiktoken, and the character
# model of scripts/shakespeare.sh beside PyTorch, in alternation, on 1 and 2 threads. What is not
# installed is left out, and said.
set -u
cd "$(dirname "$0")/.."
unset OPENBLAS_CORETYPE        # it would pick OpenBLAS's kernel for another processor
data=${BATCHWISE_DATA:-data}
vocabulary=$data/gpt2.tiktoken text=$data/tinyshakespeare.txt

python_with() {                # the first python3 that can import the modules
    for python in "${PYTHON:-python3}" /usr/bin/python3; do
        "$python" -c "import $1" 2>/dev/null && echo "$python" && return
    done
}

echo
if [ -f "$vocabulary" ] && [ -f "$text" ]; then
    echo "tokenizer, GPT-2's vocabulary, Tiny Shakespeare"
    build/bench_tokenizer "$vocabulary" "$text"
    python=$(python_with tiktoken)
    if [ -n "$python" ]; then "$python" dev/reference/bench_tiktoken.py "$vocabulary" "$text"
    else echo "tiktoken is not installed: not compared"; fi
else
    echo "tokenizer: needs $vocabulary and $text (dev/data/fetch_gpt2_vocab.sh, fetch_shakespeare.sh)"
fi

echo
python=$(python_with torch)
if [ -z "$python" ]; then echo "PyTorch is not installed: not compared"; exit 0; fi
milliseconds() { sed -n 's/.*"ms_per_iteration": \([0-9.]*\).*/\1/p'; }
for threads in 1 2; do
    for round in 1 2 3; do
        theirs=$("$python" dev/reference/gpt2.py bench --layers 4 --heads 4 --channels 128 \
            --seq-len 64 --batch 12 --vocab 257 --threads $threads --steps 60 2>/dev/null | milliseconds)
        ours=$(OMP_NUM_THREADS=$threads build/bench "characters" \
            | sed -n 's/.*: \([0-9.]*\) ms a step.*/\1/p')
        awk -v t="$theirs" -v o="$ours" -v n=$threads 'BEGIN {
            printf "characters, threads: %d   here %6.1f ms   PyTorch %6.1f ms   ratio %.2f\n",
                   n, o, t, t / o }'
    done
done
