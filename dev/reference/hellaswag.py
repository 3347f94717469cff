#!/usr/bin/env python3
"""HellaSwag with transformers: what --hellaswag of the trainers must agree with.

    hellaswag.py CHECKPOINT hellaswag_val.jsonl [--seq-len T] [--verbose]

Of each of the four endings of an example: the loss of its tokens, each given the context and the
tokens before it. The answer is the ending of the lowest sum (acc), or lowest mean (acc_norm).
CHECKPOINT is a directory with config.json, model.safetensors and tokenizer.json; `latest` in a
run's --out is one. Prints one line of JSON; with --verbose also one for each example.
"""
import argparse
import json
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error",
                  TOKENIZERS_PARALLELISM="false")
try:
    import torch
    import torch.nn.functional as F
    import transformers
except ImportError as missing:
    sys.exit(f"hellaswag.py: needs a python3 with torch and transformers ({missing})")


def ending_losses(model, context, ending, T):
    """Losses in nats, in float64, of the ending's tokens after the context's."""
    row = torch.tensor((context + ending)[-(T + 1):])    # T tokens are read, the last is a target
    with torch.no_grad():
        logits = model(row[None, :-1]).logits[0]
    return F.cross_entropy(logits, row[1:], reduction="none")[-len(ending):]


def answer(model, tokenizer, example, T):
    """Sums, means and token counts of the endings, and the two answers."""
    context = tokenizer.encode(example["ctx"])
    losses = [ending_losses(model, context, tokenizer.encode(" " + ending), T)
              for ending in example["endings"]]
    sums = torch.stack([loss.sum() for loss in losses])
    means = torch.stack([loss.mean() for loss in losses])
    return {"label": int(example["label"]), "answer": int(sums.argmin()),
            "answer_norm": int(means.argmin()), "sums": sums.tolist(), "means": means.tolist(),
            "tokens": [len(loss) for loss in losses]}


def evaluate(checkpoint, path, T=None):
    """The answers to every example of the file, in order."""
    model = transformers.GPT2LMHeadModel.from_pretrained(checkpoint).double().eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    T = T or model.config.n_positions
    with open(path, encoding="utf-8") as f:
        return [answer(model, tokenizer, json.loads(line), T) for line in f if line.strip()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("file")
    parser.add_argument("--seq-len", type=int, metavar="T", help="tokens read at most")
    parser.add_argument("--verbose", action="store_true", help="a line for each example, too")
    args = parser.parse_args()
    answers = evaluate(args.checkpoint, args.file, args.seq_len)
    for a in answers if args.verbose else []:
        print(json.dumps(a))
    n = len(answers)
    print(json.dumps({"examples": n, "acc": sum(a["answer"] == a["label"] for a in answers) / n,
                      "acc_norm": sum(a["answer_norm"] == a["label"] for a in answers) / n}))


if __name__ == "__main__":
    main()
