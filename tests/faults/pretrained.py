"""Damaged and hostile directories of pretrained models: headers, indices, links, configs, pickles, tokenizers."""

import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_models
from safetensors.numpy import load_file

from faults.cases import Case, Outcome, Verdict, refusal
from faults.comparing import same
from faults.corruptions import cut, flip
from faults.watch import trip, watch
from transformer_jax import from_transformers, load_transformers

SINGLE, PART, INDEX = "model.safetensors", "part.safetensors", "model.safetensors.index.json"
TOKENIZER = "tokenizer.json", "tokenizer_config.json", "source.spm"
AUTO_MAP = {"auto_map": {"AutoModelForCausalLM": "modeling_evil.Evil", "AutoTokenizer": "modeling_evil.Evil"}}
KNOWN: tuple[dict[str, Any], ...] = (  # changes that a stranger would make
    AUTO_MAP, {"model_type": "mamba"}, {"model_type": ["gpt2"]}, {"quantization_config": {"load_in_4bit": True}},
    {"n_layer": 10**9}, {"n_embd": 10**9, "n_head": 1},
)  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 1e308, 10**9, 10**30, -(2**63), float("nan"), float("inf"), "", "x", "1", "\ud800",
    "../../..", "/dev/zero", [], [1], {}, {"a": 1}, [[[[]]]], "x" * 10**5,
)  # fmt: skip


class Call:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.reduced


def _good(directory: Path) -> Path:
    """A GPT-2 with random weights, in a directory with code that must not run."""
    huggingface_models.drawn("gpt2", random.Random(0)).save_pretrained(directory)
    (directory / "modeling_evil.py").write_text("import faults.watch; faults.watch.trip('a module')")
    return directory


def run(case: Case) -> Outcome:
    """Damage one part of a directory, and open it."""
    rng, directory = case.rng(), _good(case.directory / "model")
    damage = rng.choice((_header, _header, _index, _link, _config, _more, _more))
    fault = f"{damage.__name__.strip('_')}: {damage(directory, rng)}"[:200]
    size = sum(path.stat().st_size for path in directory.iterdir() if path.is_file() and not path.is_symlink())
    seen = watch(lambda: _opened(directory), case.directory)
    if outcome := refusal(seen, fault, size, of_call=True):
        return outcome
    model, variables = from_transformers(_good(case.directory / "good"))
    is_right = seen.value[0] == model and same(seen.value[1], variables)
    return Outcome(Verdict.RIGHT if is_right else Verdict.WRONG, fault, "" if is_right else "another model in silence")


def _opened(directory: Path) -> tuple[Any, Any]:
    if any((directory / name).exists() for name in TOKENIZER):
        load_transformers(directory)
    return from_transformers(directory)


def _header(directory: Path, rng: random.Random) -> str:
    """Damage the header of the weights, a JSON object after its length, or give it an odd entry."""
    content = (directory / SINGLE).read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    change = rng.choice((cut, flip, _odd_entry, _odd_entry))
    header = change(content[8:end], rng)
    length = rng.choice((len(header), len(header), len(header), 0, end, 10**8, 2**64 - 1))
    (directory / SINGLE).write_bytes(length.to_bytes(8, "little") + header + content[end:])
    return f"{change.__name__}; {length} bytes claimed"


def _odd_entry(text: bytes, rng: random.Random) -> bytes:
    header = json.loads(text)
    entry = header[rng.choice([name for name in header if name != "__metadata__"])]
    odd: dict[str, tuple[Any, ...]] = {
        "shape": ([2**31, 2**31], [2**62, 4], [10**9], [-1], [0], [1] * 1000, [], None, [1.5], [10**30]),
        "dtype": ("I32", "F64", "F16", "BF16", "BOOL", "F8_E5M2", "C64", "OBJECT", None),
        "data_offsets": ([0, 10**12], [-4, 0], [4, 0], [0, 0], [2**63, 2**63 + 4], [0], None, [0, 24]),
    }
    key = rng.choice(list(odd))
    entry[key] = rng.choice(odd[key])
    return json.dumps(header).encode()


def _index(directory: Path, rng: random.Random) -> str:
    outside = directory.parent / "outside.safetensors"
    outside.write_bytes((directory / SINGLE).read_bytes())
    (directory / SINGLE).rename(directory / PART)
    file = rng.choice((
        f"../{outside.name}", str(outside), "/dev/zero", "no.safetensors", "a\0b.safetensors", "", ".", f"./{PART}",
        f"{PART}/", INDEX, None, [PART], "~", "x" * 10**5,
    ))  # fmt: skip
    places = dict.fromkeys(load_file(directory / PART), PART)
    places[rng.choice(sorted(places))] = file
    index = rng.choice(({"weight_map": places}, {"weight_map": places}, {"weight_map": [file]}, [places]))
    (directory / INDEX).write_text(json.dumps(index))
    return f"names {file!r}"


def _link(directory: Path, rng: random.Random) -> str:
    path = directory / rng.choice(("config.json", SINGLE))
    target = rng.choice(("/dev/zero", "/proc/self/mem", "/etc/passwd", path.name, ".", "gone", "pipe", "own"))
    if target == "pipe":
        os.mkfifo(directory / target)
    elif target == "own":  # as the hub's cache has them
        (directory / target).write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(target)
    return f"{path.name} links to {target}"


def _config(directory: Path, rng: random.Random) -> str:
    content, done = _odd_settings((directory / "config.json").read_text(), rng)
    (directory / "config.json").write_bytes(content)
    return done


def _odd_settings(text: str, rng: random.Random) -> tuple[bytes, str]:
    """Return JSON with a changed setting, or damaged, too long or nested too deep; and a description."""
    settings = json.loads(text)
    if rng.random() < 0.6:
        changes = {rng.choice(list(settings)): rng.choice(ODD)} if rng.random() < 0.7 else rng.choice(KNOWN)
        return json.dumps(settings | changes).encode(), json.dumps(changes)[:100]
    depth = rng.choice((900, 10**4, 10**6))
    contents = {
        "empty": b"", "cut": cut(text.encode(), rng), "UTF-16": text.encode("utf-16"), "random": rng.randbytes(999),
        "not UTF-8": text.encode().replace(b"e", b"\xe9", 3), "60 MB of blanks": b" " * 60_000_000, "a list": b"[1]",
        "nested": b"[" * depth + b"]" * depth, "a number of 10 000 digits": b'{"seed": ' + b"9" * 10**4 + b"}",
    }  # fmt: skip
    name = rng.choice(list(contents))
    return contents[name], name


def _more(directory: Path, rng: random.Random) -> str:
    """Add a file that the directory should not have, or replace one by another kind of file."""
    name = rng.choice((SINGLE, "pytorch_model.bin", *TOKENIZER))
    content = rng.choice((
        b"", b"{}", b"[1]", rng.randbytes(999), b"[" * 10**5, b'{"model": {"type": "BPE", "vocab": 3}}',
        json.dumps(AUTO_MAP).encode(), pickle.dumps(Call(trip, 1)), pickle.dumps({"a": Call(trip, 1)}),
    ))  # fmt: skip
    (directory / name).write_bytes(content)
    if name == "pytorch_model.bin":
        (directory / SINGLE).unlink()
    return f"{name}: {content[:60]!r}"
