#!/usr/bin/env python3
"""HellaSwag (Zellers et al. 2019) with transformers: the reference for the trainers' --hellaswag.

    hellaswag.py CHECKPOINT hellaswag_val.jsonl [--seq-len T]

An example has a context and four endings. Each token of an ending has a loss, given the context and
the tokens before it. The answer is the ending with the lowest sum of losses (acc), or the lowest
mean (acc_norm). CHECKPOINT is a directory with config.json, model.safetensors and tokenizer.json,
such as OUT/latest of a run. Prints one line of JSON.
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
    """Losses, in nats, of the ending's tokens after the context; computed in float64."""
    row = torch.tensor((context + ending)[-(T + 1):])    # T inputs; the last token is a target only
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
    parser.add_argument("--seq-len", type=int, metavar="T", help="longest input")
    args = parser.parse_args()
    answers = evaluate(args.checkpoint, args.file, args.seq_len)
    n = len(answers)
    print(json.dumps({"examples": n, "acc": sum(a["answer"] == a["label"] for a in answers) / n,
                      "acc_norm": sum(a["answer_norm"] == a["label"] for a in answers) / n}))


if __name__ == "__main__":
    main()
