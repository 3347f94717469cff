#!/usr/bin/env python3
"""The tokenizer against tiktoken and Hugging Face's tokenizers: the same ids, the same merges.

    pip install tiktoken tokenizers; python3 tests/test_tiktoken.py [NAME...]

PREPARE names another binary than ./prepare, BATCHWISE_DATA the folder with gpt2.tiktoken and
tinyshakespeare.txt, STRINGS how many random strings are compared (default 100000; a million takes
about half a minute).
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
import testing
from testing import PREPARE

try:
    import tiktoken
    import tiktoken.load
except ImportError:
    print("skip tiktoken: needs python3 with tiktoken")
    sys.exit(0)

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


def data_file(name):
    folders = [os.environ["BATCHWISE_DATA"]] if os.environ.get("BATCHWISE_DATA") else []
    for folder in folders or ["../shared/data", "data"]:
        if os.path.exists(os.path.join(folder, name)):
            return os.path.join(folder, name)
    raise testing.Skip(f"needs {name} in BATCHWISE_DATA")


def gpt2():
    ranks = tiktoken.load.load_tiktoken_bpe(data_file("gpt2.tiktoken"))
    return tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})


def huggingface():
    """The library, which a test may lack; with GPT-2's rules."""
    try:
        import tokenizers
        from tokenizers import decoders, models, pre_tokenizers, trainers  # noqa: F401
    except ImportError as error:
        raise testing.Skip("needs python3 with tokenizers") from error

    def make(**model):
        made = tokenizers.Tokenizer(models.BPE(**model))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        return made
    return tokenizers, sorted(pre_tokenizers.ByteLevel.alphabet()), make


def prepare(*args, **how):
    return subprocess.run([PREPARE, *args], stdout=subprocess.PIPE, check=True, **how).stdout


def encode(tokenizer, text):
    return [int(word) for word in prepare("encode", "--tokenizer", tokenizer,
                                          input=text.encode()).split()]


def same(what, ours, theirs):
    for i, (a, b) in enumerate(zip(ours, theirs)):
        assert a == b, f"{what}: token {i} is {a}, not {b}"
    assert len(ours) == len(theirs), f"{what}: {len(ours)} tokens, not {len(theirs)}"


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


def test_texts_equal_tiktoken():
    theirs, vocabulary = gpt2(), data_file("gpt2.tiktoken")
    shakespeare = Path(data_file("tinyshakespeare.txt")).read_text(encoding="utf-8")
    for name, text in [("multilingual", MULTILINGUAL), ("spaces", " " * 100),
                       ("a run of 100,000", "a" * 100000), ("empty", ""),
                       ("shakespeare", shakespeare)]:
        ids = encode(vocabulary, text)
        same(name, ids, theirs.encode_ordinary(text))
        assert name != "shakespeare" or len(ids) == 338025
        words = " ".join(map(str, ids)).encode()
        assert prepare("decode", "--tokenizer", vocabulary, input=words) == text.encode(), name


def shard_tokens(path):
    with open(path, "rb") as file:
        header = struct.unpack("<256i", file.read(1024))
        return list(struct.unpack(f"<{header[2]}H", file.read()))


def encode_all(tokenizer, texts):
    """The tokens of each text, as a document of JSON lines: a million are too many for a program
    each."""
    path, out, documents = os.path.join(FOLDER, "texts.jsonl"), os.path.join(FOLDER, "texts"), [[]]
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    prepare("jsonl", path, "--out", out, "--overwrite", "--tokenizer", tokenizer,
            "--val-fraction", "0")
    tokens = shard_tokens(os.path.join(out, "jsonl_train_000000.bin"))
    for token in tokens:
        if token == tokens[-1]:
            documents.append([])
        else:
            documents[-1].append(token)
    return documents[:-1]


def test_random_strings_equal_tiktoken():
    theirs, rng = gpt2(), random.Random(1)
    texts = [random_string(rng) for _ in range(STRINGS)]
    for text, ids in zip(texts, encode_all(data_file("gpt2.tiktoken"), texts)):
        same(repr(text), ids, theirs.encode_ordinary(text))
        assert theirs.decode_bytes(ids) == text.encode(), f"{text!r}: decoding"


def test_random_merges_equal_tokenizers():
    """Vocabularies that no training would give, tokens that cannot be reached among them."""
    _, alphabet, make = huggingface()
    rng, path = random.Random(3), os.path.join(FOLDER, "random.json")
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
        theirs = make(vocab=vocab, merges=merges)
        theirs.save(path)
        texts = ["".join(rng.choices("abc", k=rng.randint(1, 100))) for _ in range(200)]
        for text, ids in zip(texts, encode_all(path, texts)):
            same(f"{merges}: {text}", ids, theirs.encode(text).ids)


def test_training_equals_tokenizers():
    """The merges that Hugging Face's trainer learns, and a file that both libraries read alike. In
    a short text many pairs are as frequent as another, so that their age decides."""
    tokenizers, alphabet, make = huggingface()
    shakespeare, short = data_file("tinyshakespeare.txt"), os.path.join(FOLDER, "short")
    Path(short).write_text("".join(random.Random(5).choices("aaabc\x01~\u00e9\u4e2d! ", k=3000)),
                           encoding="utf-8")
    for path, size in [(shakespeare, 300), (shakespeare, 4096), (short, 360)]:
        text = Path(path).read_text(encoding="utf-8")
        theirs, out = make(), os.path.join(FOLDER, f"bpe{size}")
        theirs.train_from_iterator([text], tokenizers.trainers.BpeTrainer(
            vocab_size=size - 1, min_frequency=2, initial_alphabet=alphabet, show_progress=False))
        prepare("text", path, "--out", out, "--tokenizer", f"bpe:{size}", "--val-fraction", "0")
        saved = os.path.join(out, "tokenizer.json")
        model = json.loads(Path(saved).read_text(encoding="utf-8"))["model"]
        ours = [tuple(merge.split(" ")) for merge in model["merges"]]
        merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge)    # older and newer
                  for merge in json.loads(theirs.to_str())["model"]["merges"]]
        same(f"merges of {size}", ours, merges)
        assert len(ours) == size - 257

        read = tokenizers.Tokenizer.from_file(saved)
        ids = shard_tokens(os.path.join(out, "text_train_000000.bin"))
        same(f"the shard of {size}", ids[:-1], read.encode(text).ids)
        assert ids[-1] == read.token_to_id("<|endoftext|>") == size - 1
        assert read.decode(ids[:-1]) == text, "decoding gives something else"


def test_gpt2_in_every_kind_of_file():
    """As others write it: tokenizer.json, and vocab.json with merges.txt."""
    tokenizers, _, _ = huggingface()
    out, pair, one = (os.path.join(FOLDER, name) for name in ("gpt2", "pair", "one"))
    os.mkdir(pair)
    Path(one).write_text("x", encoding="utf-8")
    prepare("text", one, "--out", out, "--tokenizer", data_file("gpt2.tiktoken"), "--val-fraction",
            "0")
    ours, saved = os.path.join(out, "tokenizer.json"), os.path.join(FOLDER, "saved.json")
    read, text = tokenizers.Tokenizer.from_file(ours), MULTILINGUAL.replace("<|", "<")
    want = gpt2().encode_ordinary(text)
    same("ours, read by theirs", read.encode(text).ids, want)
    read.save(saved)
    model = json.loads(Path(ours).read_text(encoding="utf-8"))["model"]
    Path(pair, "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    Path(pair, "merges.txt").write_text("#version: 0.2\n" + "\n".join(model["merges"]) + "\n",
                                        encoding="utf-8")
    for name in (ours, saved, out, os.path.join(pair, "vocab.json"), pair):
        same(name, encode(name, text), want)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as FOLDER:
        sys.exit(testing.run_tests(globals(), sys.argv[1:]))
