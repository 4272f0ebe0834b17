"""Damaged and hostile directories of pretrained models: headers, shapes, types, indices, links, configs, tokenizers."""

import json
import os
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from faults import canary
from faults.cases import Case, Outcome, Verdict
from faults.commands_seen import failure_of, refusal_of_call
from faults.comparing import same
from faults.crafted_config import ODD
from faults.crafted_weights import _Call
from faults.watch import watch
from transformer_jax import from_transformers, load_transformers

V, T, D, F = 13, 11, 6, 7
CONFIG = {
    "model_type": "gpt2", "vocab_size": V, "n_positions": T, "n_embd": D, "n_head": 2, "n_layer": 1, "n_inner": F,
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
}  # fmt: skip
SHAPES = {
    "wte.weight": (V, D), "wpe.weight": (T, D), "h.0.attn.c_attn.weight": (D, 3 * D), "h.0.attn.c_attn.bias": (3 * D,),
    "h.0.attn.c_proj.weight": (D, D), "h.0.attn.c_proj.bias": (D,), "h.0.mlp.c_fc.weight": (D, F),
    "h.0.mlp.c_fc.bias": (F,), "h.0.mlp.c_proj.weight": (F, D), "h.0.mlp.c_proj.bias": (D,),
} | {f"{norm}.{name}": (D,) for norm in ("h.0.ln_1", "h.0.ln_2", "ln_f") for name in ("weight", "bias")}  # fmt: skip
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
EVIL = "import faults.canary; faults.canary.trip('a module of the directory')\n"


def good(directory: Path) -> Path:
    """A GPT-2 with random weights, and beside it code that nobody may run."""
    directory.mkdir()
    rng = np.random.default_rng(0)
    arrays = {f"transformer.{name}": rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    save_file(arrays, directory / SINGLE)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "modeling_evil.py").write_text(EVIL)
    return directory


def run(case: Case) -> Outcome:
    """Damage one part of a directory, and open it."""
    rng, directory = case.rng(), good(case.directory / "model")
    damage = rng.choice((_header_bytes, _header, _index, _link, _config, _config_text, _pickle, _tokenizer))
    fault = f"{damage.__name__.strip('_')}: {damage(directory, rng)}"[:200]
    size = sum(path.stat().st_size for path in directory.iterdir() if path.is_file() and not path.is_symlink())
    seen = watch(lambda: _opened(directory, damage is _tokenizer), case.directory)
    if outcome := failure_of(seen, fault, size) or refusal_of_call(seen, fault):
        return outcome
    model, variables = _opened(good(case.directory / "good"), False)
    is_right = seen.value[0] == model and same(seen.value[1], variables)
    return Outcome(Verdict.RIGHT if is_right else Verdict.WRONG, fault, "" if is_right else "another model in silence")


def _opened(directory: Path, with_tokenizer: bool) -> tuple[Any, Any]:
    if with_tokenizer:
        load_transformers(directory)
    return from_transformers(directory)


def _header_bytes(directory: Path, rng: random.Random) -> str:
    file = directory / SINGLE
    content = bytearray(file.read_bytes())
    (end,) = struct.unpack("<Q", content[:8])
    if rng.random() < 0.4:
        length = rng.choice((0, 1, 7, 8, 9, end, 8 + end, len(content) - 1, rng.randrange(len(content))))
        file.write_bytes(content[:length])
        return f"cut to {length} bytes"
    if rng.random() < 0.5:
        claimed = rng.choice((0, 1, end - 1, end + 1, 10**8, 2**31, 2**62, 2**63, 2**64 - 1))
        content[:8] = struct.pack("<Q", claimed)
        file.write_bytes(content)
        return f"a header of {claimed} bytes, where it has {end}"
    for place in (places := [rng.randrange(8, 8 + end) for _ in range(20)]):
        content[place] = rng.randrange(256)
    file.write_bytes(content)
    return f"bytes {places} of the header"


def _header(directory: Path, rng: random.Random) -> str:
    file = directory / SINGLE
    content = file.read_bytes()
    (end,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + end])
    name = rng.choice([name for name in header if name != "__metadata__"])
    key = rng.choice(("shape", "shape", "dtype", "data_offsets", "name"))
    odd: dict[str, tuple[Any, ...]] = {
        "shape": ([2**31, 2**31], [2**62, 4], [10**9], [-1], [0], [1] * 1000, [], None, "x", [1.5], [10**30]),
        "dtype": ("I32", "F64", "F16", "BF16", "BOOL", "F8_E5M2", "C64", "OBJECT", "", None, 3, ["F32"]),
        "data_offsets": ([0, 10**12], [-4, 0], [4, 0], [0, 0], [2**63, 2**63 + 4], [0], [], None, "x", [0, 24]),
        "name": ("", "a\nb", "x" * 10**5, "\u202e", "../../etc/passwd", "__metadata__", "transformer.h.9.ln_1.bias"),
    }
    value = rng.choice(odd[key])
    if key == "name":
        header[value] = header.pop(name)
    else:
        header[name][key] = value
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + end :])
    return f"{key} of {name} is {value!r}"[:150]


def _index(directory: Path, rng: random.Random) -> str:
    outside = directory.parent / "outside.safetensors"
    outside.write_bytes((directory / SINGLE).read_bytes())
    (directory / SINGLE).rename(directory / "part.safetensors")
    file = rng.choice((
        "../outside.safetensors", str(outside), "/etc/passwd", "/dev/zero", "no.safetensors", "a\0b.safetensors", "",
        ".", "./part.safetensors", "part.safetensors/", "config.json", INDEX, None, 3, ["part.safetensors"], "~",
        "x" * 10**5,
    ))  # fmt: skip
    some = {f"transformer.{name}": "part.safetensors" for name in SHAPES} | {"transformer.ln_f.bias": file}
    index = rng.choice(({"weight_map": some}, {"weight_map": some}, {"weight_map": [file]}, {"weight_map": {}}, [some]))
    (directory / INDEX).write_text(json.dumps(index))
    return f"names {file!r}"[:150]


def _link(directory: Path, rng: random.Random) -> str:
    path = directory / rng.choice(("config.json", SINGLE))
    content = path.read_bytes()
    path.unlink()
    target = rng.choice(
        ("/dev/zero", "/dev/stdin", "/proc/self/mem", "/etc/passwd", path.name, ".", "gone", "pipe", "own")
    )
    if target == "pipe":
        os.mkfifo(directory / target)
    elif target == "own":  # as the hub's cache has them
        (directory / target).write_bytes(content)
    path.symlink_to(target)
    return f"{path.name} links to {target}"


def _config(directory: Path, rng: random.Random) -> str:
    changes = rng.choice((
        {"auto_map": {"AutoModelForCausalLM": "modeling_evil.Evil"}}, {"model_type": "mamba"}, {"model_type": ["gpt2"]},
        {"quantization_config": {"load_in_4bit": True}}, {"n_layer": 10**9}, {"n_embd": 10**9, "n_head": 1},
        {"vocab_size": 2**62}, {"n_head": 0}, {"n_inner": -1}, {"activation_function": "__import__('os')"},
        *({name: rng.choice(ODD)} for name in CONFIG), {rng.choice(("x", "is_decoder", "a\nb")): rng.choice(ODD)},
    ))  # fmt: skip
    (directory / "config.json").write_text(json.dumps(CONFIG | changes))
    return json.dumps(changes)[:150]


def _config_text(directory: Path, rng: random.Random) -> str:
    text, depth = json.dumps(CONFIG), rng.choice((900, 10**4, 10**6))
    texts: dict[str, bytes] = {
        "empty": b"", "cut": text[: rng.randrange(len(text))].encode(), "UTF-16": text.encode("utf-16"),
        "nested": b"[" * depth + b"]" * depth, "random": rng.randbytes(999), "60 MB of blanks": b" " * 60_000_000,
        "a list": b"[1]", "a long number": text[:-1].encode() + b', "x": ' + b"9" * 10**4 + b"}",
    }  # fmt: skip
    name = rng.choice(list(texts))
    (directory / "config.json").write_bytes(texts[name])
    return name


def _pickle(directory: Path, rng: random.Random) -> str:
    content = pickle.dumps({"a": _Call(canary.trip, 1)})
    name = rng.choice((SINGLE, "pytorch_model.bin"))
    (directory / SINGLE).unlink()
    (directory / name).write_bytes(content)
    return f"as {name}"


def _tokenizer(directory: Path, rng: random.Random) -> str:
    name = rng.choice(("tokenizer.json", "tokenizer_config.json", "source.spm"))
    contents: tuple[bytes, ...] = (
        b"", b"{}", b"[1]", rng.randbytes(999), b"[" * 10**5, b'{"model": {"type": "BPE", "vocab": 3}}',
        b'{"auto_map": {"AutoTokenizer": "modeling_evil.Evil"}}', pickle.dumps(_Call(canary.trip, 2)),
    )  # fmt: skip
    number = rng.randrange(len(contents))
    (directory / name).write_bytes(contents[number])
    return f"{name}: {contents[number][:60]!r}"
