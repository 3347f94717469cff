#!/usr/bin/env python3
"""What --export writes, as the gguf package of llama.cpp reads it, and what that package writes, as
--init reads it: every tensor to the bit, and the tokenizer token by token.

    pip install gguf; python3 tests/test_gguf.py [NAME...]

TRAIN and PREPARE name other programs than ./train_gpt2 and ./prepare. Known to work: gguf 0.19.0.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
import testing
from testing import PREPARE, TRAIN, run

try:
    import gguf
    import numpy
except ImportError as missing:
    print(f"skip gguf: needs python3 with gguf and numpy ({missing})")
    sys.exit(0)

EOT = "<|endoftext|>"
NORMAL, CONTROL = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
# Hugging Face's name of a tensor -> llama.cpp's.
NAMES = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "ln_1": "attn_norm",
         "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
         "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
# As make run trains, but for its length.
TALES = ["--layers", "2", "--heads", "2", "--channels", "64", "--seq-len", "256", "--micro-batch",
         "4", "--lr", "3e-3", "--beta2", "0.99"]


def file_of(name):
    return os.path.join(FOLDER, name)


def data(kind):
    """The data of a kind of model, of bytes or of merged bytes; made when first asked for, as what
    follows is."""
    out, text = file_of("data_" + kind), file_of("text")
    if not os.path.exists(out) and kind == "tales":
        run(PREPARE, "tales", "--out", out, "--tokens", "50000")
    elif not os.path.exists(out):
        Path(text).write_text("It was the best of times, it wasn't the worst. Na\u00efve "
                              "\U0001F600!\n" * 300, encoding="utf-8")
        run(PREPARE, "text", text, "--out", out, "--tokenizer", "bpe:300")
    return out


def checkpoint_of(kind):
    out = file_of("run_" + kind)
    if not os.path.exists(out):
        run(TRAIN, "--data", data(kind), *TALES, "--steps", "3", "--out", out)
    return os.path.join(out, "latest")


def export(kind, dtype="fp32"):
    out = file_of(kind + ("-f16" if dtype == "fp16" else "") + ".gguf")
    if not os.path.exists(out):
        run(TRAIN, "--init", checkpoint_of(kind), "--export", out)
    return out


def tensors_of(checkpoint):
    """The tensors of model.safetensors by their names, without a library."""
    path = os.path.join(checkpoint, "model.safetensors")
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    data = numpy.memmap(path, numpy.uint8, "r", 8 + length)
    return {re.sub("^transformer.", "", name):
            data[slice(*entry["data_offsets"])].view("<f4").reshape(entry["shape"])
            for name, entry in header.items() if name != "__metadata__"}


def ggufs_of(tensors, dtype):
    """Each tensor as a GGUF of this type should have it: under its name, (out, in), rounded."""
    for name, tensor in tensors.items():
        block, kind, end = re.fullmatch(r"(?:h\.(\d+)\.)?(.+)\.(weight|bias)", name).groups()
        matrix = tensor.ndim == 2
        if dtype == "fp16" and matrix and kind != "wpe":
            tensor = tensor.astype(numpy.float16)
        yield (f"blk.{block}.{NAMES[kind]}.{end}" if block else f"{NAMES[kind]}.{end}",
               tensor.T if matrix and block else tensor)


def check_tensors(kind, dtype):
    reader = gguf.GGUFReader(export(kind, dtype))
    found = {tensor.name: tensor.data for tensor in reader.tensors}
    expected = dict(ggufs_of(tensors_of(checkpoint_of(kind)), dtype))
    assert sorted(found) == sorted(expected), set(found) ^ set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, f"{name} is {found[name].dtype}"
        assert found[name].shape == tensor.shape, f"{name} is {found[name].shape}"
        assert numpy.array_equal(found[name], tensor), f"{name} differs"
    return reader


def check_fields(kind, dtype, reader):
    config, tokenizer = (json.loads(Path(checkpoint_of(kind), name).read_text(encoding="utf-8"))
                         for name in ("config.json", "tokenizer.json"))
    vocab = tokenizer["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.get)
    expected = {
        "GGUF.version": 3, "general.architecture": "gpt2",
        "general.file_type": int(dtype == "fp16"),
        "gpt2.context_length": config["n_positions"], "gpt2.embedding_length": config["n_embd"],
        "gpt2.block_count": config["n_layer"], "gpt2.feed_forward_length": 4 * config["n_embd"],
        "gpt2.attention.head_count": config["n_head"], "tokenizer.ggml.model": "gpt2",
        "gpt2.attention.layer_norm_epsilon": float(numpy.float32(1e-5)),
        "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL if token == EOT else NORMAL for token in tokens],
        "tokenizer.ggml.merges": tokenizer["model"]["merges"],
        "tokenizer.ggml.bos_token_id": vocab[EOT], "tokenizer.ggml.eos_token_id": vocab[EOT],
        "tokenizer.ggml.add_bos_token": False,
    }
    for key, value in expected.items():
        found = reader.get_field(key).contents()
        assert found == value, f"{key} is {found}, not {value}"
    return len(expected["tokenizer.ggml.merges"])


def test_gguf_as_the_package_reads_it():
    for dtype in ["fp32", "fp16"]:
        assert check_fields("tales", dtype, check_tensors("tales", dtype)) == 0
        assert check_fields("bpe", dtype, check_tensors("bpe", dtype)) > 20


def saved(init):
    """What a run from there saves after an update."""
    out, files = file_of("onwards"), ["model.safetensors", "tokenizer.json", "config.json"]
    run(TRAIN, "--data", data("bpe"), "--init", init, "--steps", "1", "--eval-tokens", "256",
        "--out", out, "--overwrite")
    return {name: Path(out, "latest", name).read_bytes() for name in files}


def written(name, tensors, alignment=None, raw_dtype=None):
    """A file of gguf's own writer, with the tensors in this order; with a type, of that type."""
    path = file_of(name + ".gguf")
    field = {key: gguf.GGUFReader(export("bpe")).get_field(key).contents() for key in [
        "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.merges"]}
    writer = gguf.GGUFWriter(path, "gpt2")
    if alignment:
        writer.add_custom_alignment(alignment)
    writer.add_array("general.odd", [1, 2, 3])               # a pair that nobody asks for
    writer.add_block_count(2)
    writer.add_context_length(256)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(256)
    writer.add_head_count(2)
    writer.add_layer_norm_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(field["tokenizer.ggml.tokens"])
    writer.add_token_types(field["tokenizer.ggml.token_type"])
    writer.add_token_merges(field["tokenizer.ggml.merges"])
    for key, tensor in tensors:
        writer.add_tensor(key, numpy.ascontiguousarray(tensor), raw_dtype=raw_dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gguf_of_the_package():
    """As llama.cpp's converter of GPT-2 makes it; and with a repeated head."""
    checkpoint = checkpoint_of("bpe")
    tensors = list(ggufs_of(tensors_of(checkpoint), "fp32"))
    head = [("output.weight", dict(tensors)["token_embd.weight"])]
    ours, theirs = saved(checkpoint), saved(written("package", head + tensors[::-1], 64))
    for name, content in ours.items():
        assert theirs[name] == content, f"{name} differs after an update"
    other = written("other", tensors + [("output.weight", head[0][1] + 1)])
    done = subprocess.run([TRAIN, "--init", other, "--generate", "x"], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 1 and "output.weight differs" in done.stderr, done.stderr


def test_gguf_in_bf16():
    """Numbers that BF16 holds are those of a file in fp32. (What F16 holds: test_export.sh.)"""
    tensors = ggufs_of(tensors_of(checkpoint_of("bpe")), "fp32")
    bits = [(name, (numpy.ascontiguousarray(tensor).view("<u4") >> 16).astype("<u2"))
            for name, tensor in tensors]
    whole = [(name, (b.astype("<u4") << 16).view("<f4")) for name, b in bits]
    half = written("bf16", [(name, b.view("u1")) for name, b in bits],
                   raw_dtype=gguf.GGMLQuantizationType.BF16)
    assert saved(half) == saved(written("whole", whole))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        FOLDER = temporary
        sys.exit(testing.run_tests(globals(), sys.argv[1:]))
