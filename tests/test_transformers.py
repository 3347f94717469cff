#!/usr/bin/env python3
"""Checkpoints against Hugging Face's transformers, in both directions.

What checkpoint.c writes, from_pretrained opens without conversion, and the logits are those of
dev/reference (in the fixtures, computed in float64). What save_pretrained writes, checkpoint.c
reads to the bit. Known to work: transformers 4.30.2 with PyTorch 1.13.

Prints lines as the C tests do; skips where a library is missing.
"""
import os
import re
import subprocess
import sys
import tempfile

FIXTURES = ["gpt2_L1_C5.bin", "gpt2_L2_C24.bin", "gpt2_L3_C32.bin"]

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error",
                  OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
sys.dont_write_bytecode = True
import testing
from testing import ROOT

PREPARE = os.path.join(ROOT, os.environ.get("PREPARE", "prepare"))
sys.path.insert(0, os.path.join(ROOT, "dev", "reference"))
try:
    import safetensors.torch
    import torch
    import transformers
except ImportError as missing:
    print(f"skip transformers: needs python3 with torch, transformers, safetensors ({missing})")
    sys.exit(0)
import gpt2                                                # the reference


def tool(*args):
    """Runs test_checkpoint with these arguments; its output, or an AssertionError."""
    result = subprocess.run([PROGRAM, *args], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr.strip()
    return result.stdout


def build():
    """build/test_checkpoint of the Makefile, or one of our own."""
    program = os.path.join(ROOT, "build", "test_checkpoint")
    if not os.access(program, os.X_OK):
        program = os.path.join(FOLDER, "test_checkpoint")
        source = os.path.join(ROOT, "tests", "test_checkpoint.c")
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-std=gnu11", "-O1", source, "-o", program, "-lm"], check=True)
    return program


# ---------------------------------------------------------------- ours there

def opens_ours(fixture):
    """from_pretrained misses nothing and is surprised by nothing; the logits agree."""
    out, path = os.path.join(FOLDER, fixture), os.path.join(ROOT, "tests", "fixtures", fixture)
    tool("--write", out, path)
    cfg, T, B, stored = gpt2.read_fixture(path)
    model, info = transformers.GPT2LMHeadModel.from_pretrained(
        os.path.join(out, "latest"), output_loading_info=True)
    surprises = {kind: names for kind, names in info.items() if names}
    assert not surprises, surprises
    inputs = torch.tensor(stored["inputs"][:B * T]).view(B, T)
    with torch.no_grad():
        logits = model.eval()(inputs).logits.flatten()
        training = model.train()(inputs).logits.flatten()
    difference = (logits - torch.tensor(stored["logits"])).abs().max().item()
    assert difference < 1e-4, f"logits differ by {difference:.1e}"
    assert torch.equal(training, logits), "dropout is not 0"


def test_transformers_opens_ours():
    for fixture in FIXTURES:
        opens_ours(fixture)


def test_transformers_tokenizer():
    """AutoTokenizer finds tokenizer.json, that of bytes, and gives each byte its value."""
    data, out = os.path.join(FOLDER, "tales"), os.path.join(FOLDER, "with_tokenizer")
    subprocess.run([PREPARE, "tales", "--out", data, "--tokens", "2000"], check=True,
                   stdout=subprocess.DEVNULL)
    tool("--write", out, os.path.join(ROOT, "tests", "fixtures", FIXTURES[2]),
         os.path.join(data, "tokenizer.json"))
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

def random_model(seed, kind, **sizes):
    torch.manual_seed(seed)
    model = kind(transformers.GPT2Config(initializer_range=0.3, **sizes))
    for p in model.parameters():                           # biases and gains must differ as well
        if p.dim() == 1:
            p.data += 0.1 * torch.randn(p.shape)
    return model


def reads_theirs(seed, kind, dtype, **sizes):
    model = random_model(seed, kind, **sizes).to(dtype)
    out = os.path.join(FOLDER, str(seed))
    model.save_pretrained(out, safe_serialization=True)
    tool("--copy", out, out + ".copy")
    latest = os.path.join(out + ".copy", "latest")
    found = safetensors.torch.load_file(os.path.join(latest, "model.safetensors"))
    config = transformers.AutoConfig.from_pretrained(latest)
    wanted = {re.sub("^transformer.", "", key): value for key, value in model.state_dict().items()}
    for key in sizes:
        assert getattr(config, key) == sizes[key], key
    for name, tensor in found.items():
        expected = wanted[re.sub("^transformer.", "", name)].float()
        assert torch.equal(tensor, expected), name
    assert len(found) == 4 + 12 * config.n_layer, sorted(found)


def test_transformers_reads_theirs():
    """save_pretrained's files, with and without the prefix, in three types, read to the bit."""
    lm, base = transformers.GPT2LMHeadModel, transformers.GPT2Model
    odd = dict(n_layer=2, n_head=3, n_embd=27, vocab_size=101, n_positions=13)
    reads_theirs(1, lm, torch.float32, **odd)
    reads_theirs(2, base, torch.float32, **odd)
    reads_theirs(3, lm, torch.bfloat16, **odd)
    reads_theirs(4, base, torch.float16, n_layer=1, n_head=1, n_embd=1, vocab_size=3,
                 n_positions=1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as FOLDER:
        PROGRAM = build()
        sys.exit(testing.run_tests(globals(), sys.argv[1:]))
