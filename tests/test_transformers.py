#!/usr/bin/env python3
"""Checkpoints against Hugging Face's transformers, in both directions.

What checkpoint.h writes, from_pretrained opens without conversion, and the logits are those of
dev/reference (in the fixtures, computed in float64). What save_pretrained writes, checkpoint.h
reads to the bit. Known to work: transformers 4.30.2 with PyTorch 1.13.

Prints lines as the C tests do; skips where a library is missing.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FIXTURES = ["gpt2_L1_C5.bin", "gpt2_L2_C24.bin", "gpt2_L3_C32.bin"]
EOT = "<|endoftext|>"

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error",
                  OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "dev", "reference"))
try:
    import numpy
    import safetensors.torch
    import torch
    import transformers
except ImportError as missing:
    print(f"skip transformers: needs python3 with torch, transformers, safetensors ({missing})")
    sys.exit(0)
import gpt2                                                # the reference


def tool(program, *args):
    """Runs test_checkpoint with these arguments; its output, or an AssertionError."""
    result = subprocess.run([program, *args], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr.strip()
    return result.stdout


def build(folder):
    """build/test_checkpoint of the Makefile, or one of our own."""
    program = os.path.join(ROOT, "build", "test_checkpoint")
    if not os.access(program, os.X_OK):
        program = os.path.join(folder, "test_checkpoint")
        source = os.path.join(ROOT, "tests", "test_checkpoint.c")
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-std=gnu11", "-O1", source, "-o", program, "-lm"], check=True)
    return program


def byte_tokenizer(path):
    """A tokenizer.json whose 256 bytes keep their values, end of text 256."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in visible}
    hidden = [b for b in range(256) if b not in letters]
    letters.update({b: chr(256 + i) for i, b in enumerate(hidden)})
    vocab = {letters[b]: b for b in range(256)}
    added = {"id": 256, "content": EOT, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "vocab": {**vocab, EOT: 256},
             "merges": []}
    with open(path, "w") as f:
        json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [added],
                   "normalizer": None, "pre_tokenizer": level, "post_processor": None,
                   "decoder": level, "model": model}, f)


# ---------------------------------------------------------------- ours there

def test_opens_ours(program, folder, fixture):
    """from_pretrained misses nothing and is surprised by nothing; the logits agree."""
    out, path = os.path.join(folder, fixture), os.path.join(ROOT, "tests", "fixtures", fixture)
    tool(program, "--write", out, path)
    cfg, T, B, stored = gpt2.read_fixture(path)
    model, info = transformers.GPT2LMHeadModel.from_pretrained(
        os.path.join(out, "latest"), output_loading_info=True)
    surprises = {kind: names for kind, names in info.items() if names}
    assert not surprises, surprises
    inputs = torch.tensor(stored["inputs"][:B * T]).view(B, T)
    with torch.no_grad():
        logits = model.eval()(inputs).logits.flatten()
    difference = (logits - torch.tensor(stored["logits"])).abs().max().item()
    assert difference < 1e-4, f"logits differ by {difference:.1e}"
    with torch.no_grad():
        training = model.train()(inputs).logits.flatten()
    assert torch.equal(training, logits), "dropout is not 0"


def test_tokenizer(program, folder):
    """AutoTokenizer finds tokenizer.json, and gives each byte its value."""
    path, out = os.path.join(folder, "tokenizer.json"), os.path.join(folder, "with_tokenizer")
    byte_tokenizer(path)
    tool(program, "--write", out, os.path.join(ROOT, "tests", "fixtures", FIXTURES[2]), path)
    latest = os.path.join(out, "latest")
    tokenizer = transformers.AutoTokenizer.from_pretrained(latest)
    text = "Once upon a time , there was\n a caf\u00e9.  It 's \U0001F600 !"
    ids = tokenizer(text)["input_ids"]
    assert ids == list(text.encode()), ids
    assert tokenizer.decode(ids) == text, tokenizer.decode(ids)
    assert tokenizer.eos_token_id == tokenizer.bos_token_id == 256, tokenizer.eos_token_id
    config = transformers.AutoConfig.from_pretrained(latest)
    assert config.eos_token_id == 256 and tokenizer.model_max_length == config.n_positions
    assert transformers.AutoModelForCausalLM.from_pretrained(latest).config.n_layer == 3


# ---------------------------------------------------------------- theirs here

def checksums(state, config):
    """What --read prints for these weights."""
    lines = [" ".join(str(n) for n in (config.n_layer, config.n_head, config.n_embd,
                                       config.vocab_size, config.n_positions))]
    cfg = gpt2.Config(config.n_layer, config.n_head, config.n_embd, config.vocab_size,
                      config.n_positions)
    for _, key, shape in gpt2.tensor_table(cfg):
        key = key[len("transformer."):]
        bits = state[key].float().contiguous().numpy().view(numpy.uint32).astype(numpy.uint64)
        assert tuple(bits.shape) == shape, (key, bits.shape)
        places = numpy.arange(1, bits.size + 1, dtype=numpy.uint64)
        total = int((places * bits.ravel()).sum(dtype=numpy.uint64))
        rows = shape[0] if len(shape) == 2 else 1
        lines.append(f"{key} {rows} {shape[-1]} {total}")
    return lines


def random_model(seed, kind, **sizes):
    torch.manual_seed(seed)
    model = kind(transformers.GPT2Config(initializer_range=0.3, **sizes))
    for p in model.parameters():                           # biases and gains must differ as well
        if p.dim() == 1:
            p.data += 0.1 * torch.randn(p.shape)
    return model


def test_reads_theirs(program, folder, name, seed, kind, dtype, **sizes):
    """save_pretrained's files, with and without the prefix, in three types, read to the bit."""
    model = random_model(seed, kind, **sizes).to(dtype)
    out = os.path.join(folder, name)
    model.save_pretrained(out, safe_serialization=True)
    state = {re.sub("^transformer.", "", key): value for key, value in model.state_dict().items()}
    expected, got = checksums(state, model.config), tool(program, "--read", out).splitlines()
    assert got == expected, [pair for pair in zip(got, expected) if pair[0] != pair[1]][:3]


def test_reads_old_layout(program, folder):
    """As openai-community/gpt2 is published: no prefix, causal masks beside the weights."""
    model = random_model(5, transformers.GPT2Model, n_layer=2, n_head=3, n_embd=21, vocab_size=17,
                         n_positions=9)
    out = os.path.join(folder, "old")
    model.save_pretrained(out, safe_serialization=True)
    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    for layer in range(2):
        state[f"h.{layer}.attn.bias"] = torch.tril(torch.ones(9, 9)).view(1, 1, 9, 9)
        state[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    safetensors.torch.save_file(state, os.path.join(out, "model.safetensors"), {"format": "pt"})
    expected, got = checksums(state, model.config), tool(program, "--read", out).splitlines()
    assert got == expected


def test_reads_written_head(program, folder):
    """lm_head.weight written a second time; and changed, which is refused."""
    model = random_model(6, transformers.GPT2LMHeadModel, n_layer=1, n_head=1, n_embd=6,
                         vocab_size=11, n_positions=4)
    out = os.path.join(folder, "head")
    model.save_pretrained(out, safe_serialization=True)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    assert "lm_head.weight" in state
    safetensors.torch.save_file(state, os.path.join(out, "model.safetensors"), {"format": "pt"})
    tool(program, "--read", out)
    state["lm_head.weight"][3, 2] += 1
    safetensors.torch.save_file(state, os.path.join(out, "model.safetensors"), {"format": "pt"})
    result = subprocess.run([program, "--read", out], capture_output=True, text=True)
    assert result.returncode == 1 and "lm_head.weight differs" in result.stderr, result.stderr


# ---------------------------------------------------------------- all of them

def run(name, test, *args, **sizes):
    try:
        test(*args, **sizes)
    except Exception as error:                             # one line a test, whatever happened
        text = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"FAIL transformers_{name}: {text[:500]}")
        return 1
    print(f"ok transformers_{name}")
    return 0


def main():
    lm, base = transformers.GPT2LMHeadModel, transformers.GPT2Model
    odd = dict(n_layer=2, n_head=3, n_embd=27, vocab_size=101, n_positions=13)
    tiny = dict(n_layer=1, n_head=1, n_embd=1, vocab_size=3, n_positions=1)
    with tempfile.TemporaryDirectory() as folder:
        program = build(folder)
        failed = sum(run(f"opens_{fixture[:-4]}", test_opens_ours, program, folder, fixture)
                     for fixture in FIXTURES)
        failed += run("tokenizer", test_tokenizer, program, folder)
        for name, seed, kind, dtype, sizes in [
                ("fp32", 1, lm, torch.float32, odd), ("base", 2, base, torch.float32, odd),
                ("bf16", 3, lm, torch.bfloat16, odd), ("fp16", 4, base, torch.float16, tiny)]:
            failed += run(f"reads_{name}", test_reads_theirs, program, folder, name, seed, kind,
                          dtype, **sizes)
        failed += run("reads_old_layout", test_reads_old_layout, program, folder)
        failed += run("reads_written_head", test_reads_written_head, program, folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
