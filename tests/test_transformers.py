#!/usr/bin/env python3
"""Checkpoints against Hugging Face's transformers, in both directions.

What save_pretrained writes, --init reads, and what is saved then has the same bits; from_pretrained
opens it without conversion, and the logits are those of dev/reference (in the fixtures, computed in
float64). And the fixtures are what dev/reference/gpt2.py writes. Known to work: transformers 4.30.2
with PyTorch 1.13.

TRAIN and PREPARE name other programs. Prints lines as the C tests do; skips where a library is
missing.
"""
import os
import re
import struct
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error",
                  OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
sys.dont_write_bytecode = True
import testing
from testing import PREPARE, ROOT, TRAIN, run

sys.path.insert(0, os.path.join(ROOT, "dev", "reference"))
try:
    import safetensors.torch
    import torch
    import transformers
except ImportError as missing:
    print(f"skip transformers: needs python3 with torch, transformers, safetensors ({missing})")
    sys.exit(0)
import gpt2                                                # the reference

FIXTURES = [os.path.join(ROOT, "tests", "fixtures", f"gpt2_{name}.bin")
            for name in ("L1_C5", "L2_C24", "L3_C32")]


def saved_again(model, name):
    """The checkpoint of a model of transformers' after an update that changes no weight: the first
    of a warm-up that never ends. Its data are a few tokens."""
    out = os.path.join(FOLDER, name)
    train, val = out + "_train.bin", out + "_val.bin"
    vocab, T = model.config.vocab_size, model.config.n_positions
    model.save_pretrained(out, safe_serialization=True)
    for path in (train, val):
        with open(path, "wb") as file:
            file.write(struct.pack("<5i", 20240520, 1, 100, vocab, vocab - 1) + bytes(1004))
            file.write(struct.pack("<100H", *(i % vocab for i in range(100))))
    run(TRAIN, "--train", train, "--val", val, "--init", out, "--seq-len", T, "--micro-batch", 1,
        "--batch-tokens", T, "--eval-tokens", T, "--steps", 1, "--out", out + ".saved",
        "--lr", 1e-12, "--lr-schedule", "constant", "--warmup-tokens", "1e15", "--weight-decay", 0)
    return os.path.join(out + ".saved", "latest")


# ---------------------------------------------------------------- ours there

def fixture_model(cfg, stored):
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=cfg.V, n_positions=cfg.P, n_embd=cfg.C, n_layer=cfg.L, n_head=cfg.NH))
    state = model.state_dict()
    for (_, key, shape), (_, span) in zip(gpt2.tensor_table(cfg),
                                          gpt2.tensor_slices("params", cfg)):
        state[key].copy_(torch.tensor(stored["params"][span]).view(shape))
    return model


def test_transformers_opens_ours():
    """from_pretrained misses nothing and is surprised by nothing; the logits agree."""
    for fixture in FIXTURES:
        cfg, T, B, stored = gpt2.read_fixture(fixture)
        model, info = transformers.GPT2LMHeadModel.from_pretrained(
            saved_again(fixture_model(cfg, stored), os.path.basename(fixture)),
            output_loading_info=True)
        surprises = {kind: names for kind, names in info.items() if names}
        assert not surprises, surprises
        inputs = torch.tensor(stored["inputs"][:B * T]).view(B, T)
        with torch.no_grad():
            logits = model.eval()(inputs).logits.flatten()
            training = model.train()(inputs).logits.flatten()
        difference = (logits - torch.tensor(stored["logits"])).abs().max().item()
        assert difference < 1e-4, f"logits differ by {difference:.1e}"
        assert torch.equal(training, logits), "dropout is not 0"


def test_transformers_tokenizer():
    """AutoTokenizer finds tokenizer.json, that of bytes, and gives each byte its value."""
    data, out = os.path.join(FOLDER, "tales"), os.path.join(FOLDER, "with_tokenizer")
    run(PREPARE, "tales", "--out", data, "--tokens", "2000")
    run(TRAIN, "--data", data, "--layers", 3, "--heads", 2, "--channels", 16, "--seq-len", 32,
        "--eval-tokens", 32, "--steps", 1, "--out", out)
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
    latest = saved_again(model, str(seed))
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
        sys.exit(gpt2.check(FIXTURES) or testing.run_tests(globals(), sys.argv[1:]))
