#!/usr/bin/env python3
"""The tokenizer against tiktoken and Hugging Face's tokenizers: the same ids, the same merges.

    pip install tiktoken tokenizers; python3 tests/test_tiktoken.py

PREPARE names another binary than ./prepare, BATCHWISE_DATA the folder with gpt2.tiktoken and
tinyshakespeare.txt, STRINGS how many random strings are compared (default 100000; a million takes
about half a minute).
"""
import ctypes
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile

PREPARE = os.environ.get("PREPARE", "./prepare")
STRINGS = int(os.environ.get("STRINGS", "100000"))
PATTERN = (r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s")

MULTILINGUAL = """\
The quick brown fox doesn't jump; it'll've 'S 'LL we're they'd I'm 'tis o'clock 'r 're're
Ångström naïve façade Straße İstanbul ǅ ﬁne ª º ⅷ ½ ² ₂ ① 〇 ٣ १२३ ๔ Ⅻ 🄰 1st 2nd 3½
Русский текст, ελληνικά, עברית עם נִקּוּד, العربية ١٢٣، हिन्दी में पाठ, ไทยไม่มีช่องว่าง, 中文没有空格。日本語のテキスト、한국어 텍스트
e\u0301a\u0308o\u0302 n\u0303 zalgo: h\u0335\u0321e\u0336l\u0337p\u0338 \u200dzero\u200bwidth\u200c\ufeffjoin\u2060er
👩\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 🇩🇪🇯🇵 👍🏽 ✊🏿 ❤️ ☃ 🫠 🧑🏻\u200d🚀 \U0001fae8
spaces: a\u00a0b\u2003c\u3000d\u2028e\u2029f\u0085g\u1680h\u180ei   j \t k\t\tl\r\nm\x0b\x0cn \n\n  o
controls: \x00\x01\x07\x08\x1b[0m\x1c\x1d\x1e\x1f\x7f\x80\x9f\u202emirrored\u202c \u061c\u2066x\u2069
private \ue000\uf8ff\U000f0000 unassigned \u0378\U000e0fff last \U0010ffff\ufffe\uffff tags \U000e0041
𝐌𝐚𝐭𝐡 𝟏𝟐𝟑 𝔄𝔅 𐍈 𒀀 𓀀 𞤀 𝟘 𐄇 𑁦 \U0001e94b a\U00010140b <|endoftext|> <|endoftext|>x
snake_case CamelCase x=y+z; /* c */ #include <a.h> 3.14159e-10 0xFF $100,000.00 100% a@b.c   """


def report(name, why):
    print(f"FAIL {name}: {why}" if why else f"ok {name}", flush=True)
    return bool(why)


def data_file(name):
    folders = [os.environ["BATCHWISE_DATA"]] if os.environ.get("BATCHWISE_DATA") else []
    for folder in folders or ["../shared/data", "data"]:
        if os.path.exists(os.path.join(folder, name)):
            return os.path.join(folder, name)
    return None


def encode(tokenizer, text, threads=None):
    env = dict(os.environ, OMP_NUM_THREADS=str(threads)) if threads else None
    done = subprocess.run([PREPARE, "encode", "--tokenizer", tokenizer], input=text, env=env,
                          stdout=subprocess.PIPE, check=True)
    return [int(word) for word in done.stdout.split()]


def decode(tokenizer, ids):
    words = " ".join(map(str, ids)).encode()
    return subprocess.run([PREPARE, "decode", "--tokenizer", tokenizer], input=words,
                          stdout=subprocess.PIPE, check=True).stdout


def random_string(rng):
    """Mostly what trips a tokenizer: apostrophes, runs of space, every kind of character."""
    kinds = [
        lambda: rng.choice(["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'", "''", "'S", "'l"]),
        lambda: rng.choice(" \n\t\r\u00a0\u3000\u2028\x0b\x1c") * rng.randint(1, 4),
        lambda: rng.choice(["the", "The", "a", "ing", "Hello", "straße", "слово", "中文"]),
        lambda: str(rng.randint(0, 10 ** rng.randint(1, 6))),
        lambda: rng.choice("!?.,;:-_()[]{}<>|@#$%^&*+=/\\\"`~") * rng.randint(1, 5),
        lambda: chr(rng.randint(0, 0x2FF)),
        lambda: chr(rng.randint(0x300, 0xD7FF)),
        lambda: chr(rng.randint(0xE000, 0xFFFF)),
        lambda: chr(rng.randint(0x10000, 0x10FFFF)),
        lambda: rng.choice("a👍\u0301\u200d") * rng.randint(1, 9),
    ]
    return "".join(rng.choice(kinds)() for _ in range(rng.randint(1, 12)))


def first_difference(ours, theirs):
    for i, (a, b) in enumerate(zip(ours, theirs)):
        if a != b:
            return f"token {i} is {a}, not {b}"
    return "" if len(ours) == len(theirs) else f"{len(ours)} tokens, not {len(theirs)}"


def test_texts(gpt2, vocabulary, shakespeare):
    why = ""
    for name, text in [("multilingual", MULTILINGUAL), ("short", "a"), ("spaces", " " * 100),
                       ("a run of 100,000", "a" * 100000), ("empty", "")]:
        ids = encode(vocabulary, text.encode())
        difference = first_difference(ids, gpt2.encode_ordinary(text))
        back = decode(vocabulary, ids) == text.encode()
        why = why or (difference and f"{name}: {difference}") or ("" if back else f"{name}: decode")
    failed = report("texts_equal_tiktoken", why)
    if not shakespeare:
        print("skip shakespeare_equals_tiktoken: needs tinyshakespeare.txt in BATCHWISE_DATA")
        return failed
    text = open(shakespeare, encoding="utf-8").read()
    why = ""
    cut = int(len(text) * 0.9)
    for part, count in [(text, 338025), (text[:cut], 301966), (text[cut:], 36059)]:
        for threads in (1, 2, 3):
            ids = encode(vocabulary, part.encode(), threads)
            why = why or first_difference(ids, gpt2.encode_ordinary(part))
            why = why or ("" if len(ids) == count else f"{len(ids)} tokens, not {count}")
    return report("shakespeare_equals_tiktoken", why) or failed


SHIM = """
#include "dev/data/tokenizer.h"
Tokenizer *shim_open(const char *path) {
    Error err;
    Tokenizer *t = (Tokenizer *)alloc_or_die(sizeof *t, "a tokenizer");
    if (!tokenizer_load(t, path, &err)) die("%s", err.text);
    return t;
}
size_t shim_encode(const Tokenizer *t, int *ids, const char *text, size_t n) {
    return tokenizer_encode(t, ids, text, n);
}
"""


class Library:
    """tokenizer.h called in this process: a million strings are too many for a program each."""

    def __init__(self, folder):
        source, library = os.path.join(folder, "shim.c"), os.path.join(folder, "shim.so")
        open(source, "w").write(SHIM)
        subprocess.run([os.environ.get("CC", "cc"), "-std=gnu11", "-O2", "-w", "-shared", "-fPIC",
                        "-I.", source, "-o", library, "-lm"], check=True)
        self.shim = ctypes.CDLL(library)
        self.shim.shim_open.restype = ctypes.c_void_p
        self.shim.shim_encode.restype = ctypes.c_size_t
        self.shim.shim_encode.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p,
                                          ctypes.c_size_t]
        self.ids = (ctypes.c_int * 100000)()

    def open(self, path):
        return self.shim.shim_open(path.encode())

    def encode(self, tokenizer, text):
        data = text.encode()
        return self.ids[:self.shim.shim_encode(tokenizer, self.ids, data, len(data))]


def test_random_strings(library, gpt2, vocabulary):
    rng, tokenizer, why = random.Random(1), library.open(vocabulary), ""
    for _ in range(STRINGS):
        text = random_string(rng)
        ids = library.encode(tokenizer, text)
        difference = first_difference(ids, gpt2.encode_ordinary(text))
        why = why or (difference and f"{text!r}: {difference}")
        why = why or ("" if gpt2.decode_bytes(ids) == text.encode() else f"{text!r}: decoding")
    return report(f"{STRINGS}_random_strings_equal_tiktoken", why)


def test_random_merges(library, folder):
    """Vocabularies that no training would give, tokens that cannot be reached among them."""
    import tokenizers
    from tokenizers import models, pre_tokenizers
    rng, why, path = random.Random(3), "", os.path.join(folder, "random.json")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    for _ in range(50):
        vocab = {char: i for i, char in enumerate(alphabet)}
        merges, parts = [], list("abc")
        for _ in range(rng.randint(1, 60)):
            pair = (rng.choice(parts), rng.choice(parts))
            if pair in merges or len("".join(pair)) > 20:
                continue
            merges.append(pair)
            vocab.setdefault("".join(pair), len(vocab))
            parts.append("".join(pair))
        vocab["<|endoftext|>"] = len(vocab)
        theirs = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
        theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        theirs.save(path)
        tokenizer = library.open(path)
        for _ in range(200):
            text = "".join(rng.choice("abc") for _ in range(rng.randint(1, 100)))
            difference = first_difference(library.encode(tokenizer, text), theirs.encode(text).ids)
            why = why or (difference and f"{merges}: {text}: {difference}")
    return report("random_merges_equal_tokenizers", why)


def shard_tokens(path):
    with open(path, "rb") as file:
        header = struct.unpack("<256i", file.read(1024))
        return list(struct.unpack(f"<{header[2]}H", file.read()))


def test_training(shakespeare, folder, size):
    """The merges that Hugging Face's trainer learns, and files that both libraries read alike."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers
    theirs = tokenizers.Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size - 1, min_frequency=2, initial_alphabet=alphabet,
                                  show_progress=False)
    text = open(shakespeare, encoding="utf-8").read()
    theirs.train_from_iterator([text], trainer)
    out = os.path.join(folder, f"bpe{size}")
    subprocess.run([PREPARE, "text", shakespeare, "--out", out, "--tokenizer", f"bpe:{size}",
                    "--val-fraction", "0"], check=True, stdout=subprocess.PIPE)
    ours_json = json.load(open(os.path.join(out, "tokenizer.json")))["model"]
    theirs_json = json.loads(theirs.to_str())["model"]
    a = [tuple(merge.split(" ")) for merge in ours_json["merges"]]
    b = [tuple(merge.split(" ") if isinstance(merge, str) else merge)      # older and newer files
         for merge in theirs_json["merges"]]
    why = first_difference(a, b) or ("" if len(a) == size - 257 else f"{len(a)} merges")
    failed = report(f"training_bpe_{size}_equals_tokenizers", why)

    read = tokenizers.Tokenizer.from_file(os.path.join(out, "tokenizer.json"))
    ids = shard_tokens(os.path.join(out, "text_train_000000.bin"))
    why = first_difference(ids[:-1], read.encode(text).ids)
    why = why or ("" if ids[-1] == read.token_to_id("<|endoftext|>") == size - 1 else "end of text")
    why = why or ("" if read.decode(ids[:-1]) == text else "decoding gives something else")
    # its own version of Unicode may differ from ours: the multilingual text is for known letters
    ours = encode(os.path.join(out, "tokenizer.json"), MULTILINGUAL.replace("<|", "<").encode())
    why = why or first_difference(ours, read.encode(MULTILINGUAL.replace("<|", "<")).ids)
    return report(f"tokenizer_json_{size}_opens_in_tokenizers", why) or failed


def test_foreign_files(vocabulary, gpt2, folder):
    """GPT-2's vocabulary as others write it: tokenizer.json, and vocab.json with merges.txt."""
    import tokenizers
    out = os.path.join(folder, "gpt2")
    os.mkdir(os.path.join(folder, "one"))
    open(os.path.join(folder, "one", "x"), "w").write("x")
    subprocess.run([PREPARE, "text", os.path.join(folder, "one", "x"), "--out", out, "--tokenizer",
                    vocabulary, "--val-fraction", "0"], check=True, stdout=subprocess.PIPE)
    ours = os.path.join(out, "tokenizer.json")
    read = tokenizers.Tokenizer.from_file(ours)
    text = MULTILINGUAL.replace("<|", "<")
    want = gpt2.encode_ordinary(text)
    why = first_difference(read.encode(text).ids, want)
    saved = os.path.join(folder, "saved.json")
    read.save(saved)
    pair = os.path.join(folder, "pair")
    os.mkdir(pair)
    model = json.load(open(ours))["model"]
    json.dump(model["vocab"], open(os.path.join(pair, "vocab.json"), "w"))
    with open(os.path.join(pair, "merges.txt"), "w", encoding="utf-8") as file:
        file.write("#version: 0.2\n" + "\n".join(model["merges"]) + "\n")
    for name in (ours, saved, out, os.path.join(pair, "vocab.json"), pair):
        why = why or first_difference(encode(name, text.encode()), want)
    return report("gpt2_in_every_kind_of_file", why)


def main():
    try:
        import tiktoken
        import tiktoken.load
    except ImportError:
        print("skip tiktoken: needs python3 with tiktoken")
        return 0
    vocabulary, shakespeare = data_file("gpt2.tiktoken"), data_file("tinyshakespeare.txt")
    if not vocabulary:
        print("skip tiktoken: needs gpt2.tiktoken in BATCHWISE_DATA")
        return 0
    ranks = tiktoken.load.load_tiktoken_bpe(vocabulary)
    gpt2 = tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    failed = test_texts(gpt2, vocabulary, shakespeare)
    folder = tempfile.mkdtemp(prefix="batchwise.")
    try:
        failed |= test_with_folder(folder, gpt2, vocabulary, shakespeare)
    finally:
        shutil.rmtree(folder)
    return failed


def test_with_folder(folder, gpt2, vocabulary, shakespeare):
    failed, library = False, None
    if shutil.which(os.environ.get("CC", "cc")):
        library = Library(folder)
        failed |= test_random_strings(library, gpt2, vocabulary)
    else:
        print("skip random_strings_equal_tiktoken: needs a C compiler")
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        print("skip tokenizers: needs python3 with tokenizers")
        return failed
    if library:
        failed |= test_random_merges(library, folder)
    failed |= test_foreign_files(vocabulary, gpt2, folder)
    if not shakespeare:
        print("skip training: needs tinyshakespeare.txt in BATCHWISE_DATA")
        return failed
    for size in (300, 4096):
        failed |= test_training(shakespeare, folder, size)
    return failed


if __name__ == "__main__":
    sys.exit(main())
