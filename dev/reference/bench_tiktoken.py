#!/usr/bin/env python3
"""Measures tiktoken's speed, to compare with bench_tokenizer: bench_tiktoken.py VOCABULARY TEXT"""
import sys
import time

import tiktoken
import tiktoken.load

PATTERN = (r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s")

ranks = tiktoken.load.load_tiktoken_bpe(sys.argv[1])
gpt2 = tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
text = open(sys.argv[2], encoding="utf-8").read()
size = len(text.encode())
parts = [text[: len(text) // 2], text[len(text) // 2:]]
for threads, encode in [(1, lambda: gpt2.encode_ordinary(text)),
                        (2, lambda: gpt2.encode_ordinary_batch(parts, num_threads=2))]:
    best = 1e9
    for _ in range(5):
        start = time.perf_counter()
        encode()
        best = min(best, time.perf_counter() - start)
    print(f"tiktoken, threads: {threads}  {size / best / 1e6:8.1f} MB/s")
