"""Files from strangers: weights and settings that were made to do harm."""

import builtins
import io
import json
import os
import pickle
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from faults.cases import Case, Outcome, Verdict, refusal
from faults.comparing import holds_nan
from faults.corruptions import cut, flip
from faults.watch import trip, watch
from transformer_jax.nn.attention import MultiheadAttention
from transformer_jax.tasks.registry import load_run
from transformer_jax.trained.load import SHIPPED, shipped_models
from transformer_jax.trained.published import load_pretrained
from transformer_jax.weights.pytorch import params_from_torch

ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 1e308, 10**9, 10**30, -(2**63), float("nan"), float("inf"), "", "x", "1", "\ud800",
    "../../..", "/dev/zero", [], [1], {}, {"a": 1}, [[[[]]]], "x" * 10**5,
)  # fmt: skip


def run(case: Case) -> Outcome:
    """Craft one file, and use it."""
    rng = case.rng()
    return rng.choice((_settings, _weights, _weights))(case, rng)


def _weights(case: Case, rng: random.Random) -> Outcome:
    file = case.directory / "model.ckpt"
    make = rng.choice((_good, _damaged, _calling, _odd_tensor))
    file.write_bytes(make(rng))
    load = {
        "params_from_torch": lambda: params_from_torch(MultiheadAttention(8, 2), file),
        "load_pretrained": lambda: load_pretrained(file, num_heads=1)[1],
    }
    use = rng.choice(list(load))
    fault = f"{use} of a file: {make.__name__.strip('_')}"
    seen = watch(load[use], case.directory)
    verdict = Verdict.WRONG if holds_nan(seen.value) else Verdict.RIGHT
    return refusal(seen, fault, file.stat().st_size, of_call=True) or Outcome(verdict, fault, "accepted")


def _settings(case: Case, rng: random.Random) -> Outcome:
    name = rng.choice(shipped_models())
    directory = Path(shutil.copytree(SHIPPED / name, case.directory / "own" / name))
    text = (directory / "config.json").read_text()
    known = {"task": "SetAnomalyTask_cifar100"}, {"task": "../../x"}, {"format": 10**9}, {"x": 1}
    content, done = odd_settings(text, known, rng)
    (directory / "config.json").write_bytes(content)
    seen = watch(lambda: load_run(directory), case.directory)
    fault = f"config.json of {name}: {done}"
    verdict = Verdict.RIGHT if content == text.encode() else Verdict.WRONG  # their digest is another
    return refusal(seen, fault, of_call=True) or Outcome(verdict, fault, "accepted")


def odd_settings(text: str, known: Sequence[dict[str, Any]], rng: random.Random) -> tuple[bytes, str]:
    """JSON in which a setting was changed, or that is damaged, too much, nested too deep; and a description.

    Args:
        text: the good JSON.
        known: changes that a stranger would make.
        rng: chooses.
    """
    settings = json.loads(text)
    if rng.random() < 0.6:
        changes = {rng.choice(list(settings)): rng.choice(ODD)} if rng.random() < 0.7 else rng.choice(known)
        return json.dumps(settings | changes).encode(), json.dumps(changes)[:100]
    depth = rng.choice((900, 10**4, 10**6))
    contents = {
        "empty": b"", "cut": cut(text.encode(), rng), "UTF-16": text.encode("utf-16"), "random": rng.randbytes(999),
        "not UTF-8": text.encode().replace(b"e", b"\xe9", 3), "60 MB of blanks": b" " * 60_000_000, "a list": b"[1]",
        "nested": b"[" * depth + b"]" * depth, "a number of 10 000 digits": b'{"seed": ' + b"9" * 10**4 + b"}",
    }  # fmt: skip
    name = rng.choice(list(contents))
    return contents[name], name


class Call:
    """Unpickled, it calls."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.reduced


def _saved(content: Any, rng: random.Random) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, _use_new_zipfile_serialization=rng.random() < 0.7)
    return stream.getvalue()


def _good(rng: random.Random) -> bytes:
    """The state of the module that `params_from_torch` expects here, or a Flax file."""
    if rng.random() < 0.5:
        return _saved(torch.nn.MultiheadAttention(8, 2).state_dict(), rng)
    return (SHIPPED / "reverse" / "params.msgpack").read_bytes()


def _damaged(rng: random.Random) -> bytes:
    return rng.choice((cut, flip))(_good(rng), rng)


def _calling(rng: random.Random) -> bytes:
    call = rng.choice((
        Call(trip, 1), Call(os.system, "true"), Call(builtins.eval, "1 + 1"), Call(os.mkdir, "/tmp/never"),
        Call(builtins.open, "/tmp/never", "w"), Call(builtins.bytearray, 10**10),
    ))  # fmt: skip
    content = {"state_dict": {"weight": call, "other": torch.ones(2)}}
    return rng.choice((_saved(content, rng), pickle.dumps(content, protocol=rng.choice((2, 3, 4)))))


def _odd_tensor(rng: random.Random) -> bytes:
    kernel = torch.zeros(24, 8)
    odd: Any = rng.choice((
        kernel * float("nan"), kernel.to(torch.int8), kernel.to(torch.complex64), kernel.to_sparse(),
        kernel.to(torch.float8_e5m2), kernel.to("meta"), kernel.double() + 1e300, kernel.T, torch.zeros(()), None, [1],
    ))  # fmt: skip
    name = rng.choice(("in_proj_weight", "more", 3))
    return _saved({**torch.nn.MultiheadAttention(8, 2).state_dict(), name: odd}, rng)
