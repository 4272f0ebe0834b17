"""Measures a GPT-2 with random weights, opened by `from_transformers` and by `transformers` in PyTorch.

python benchmarks/pretrained.py                         # GPT-2 small: about six minutes on two CPU cores
python benchmarks/pretrained.py --num-layers 2 --width 64 --vocabulary 97   # seconds, as the test does

Loading is measured in a process of its own, with the memory that it adds at its peak. A pass is that of 8 × 512 tokens;
a generated token is one step with a cache of 128 positions, of 1 and of 16 rows. The contestants take turns
(`harness.py`). The least time to read the weights from memory is measured by summing them up.
"""

import dataclasses
import functools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from harness import measure_turns
from transformer_jax import from_transformers
from transformer_jax.cli import parse, run
from transformer_jax.fields import set_checked_fields, setting

LOAD = """
import re, sys, time
from pathlib import Path
import jax, jax.numpy as jnp
from transformer_jax.weights.huggingface import pretrained

def most():  # bytes of memory that this process had at its peak; ru_maxrss begins with that of its parent
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

jnp.zeros(1).block_until_ready()
before, began = most(), time.perf_counter()
_, variables = pretrained.from_transformers(sys.argv[1])
seconds = time.perf_counter() - began
print(seconds, (most() - before) / sum(leaf.nbytes for leaf in jax.tree.leaves(variables)))
"""
CACHE = 128  # positions


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainedConfig:
    """Measure a pretrained model."""

    width: int = setting(768, least=64)  # D, of heads 64 wide
    num_layers: int = setting(12, least=1)  # L
    vocabulary: int = setting(50257, least=2)  # V
    batch_size: int = setting(8, least=1)  # of a pass
    length: int = setting(512, least=1)  # of a pass
    repeats: int = setting(5, least=1)  # times that each contestant is measured; the median counts
    compiled: bool = True  # also PyTorch's compiled pass

    __post_init__ = set_checked_fields


Calls = dict[str, Callable[[], object]]


def contestants(config: PretrainedConfig, directory: str) -> dict[str, Calls]:
    """By what is measured the call of each contestant; those of PyTorch want its `inference_mode`."""
    import torch
    import transformers

    model, variables = from_transformers(directory)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(directory).eval()
    tokens = np.random.default_rng(0).integers(config.vocabulary, size=(config.batch_size, config.length))
    ids, forward = torch.tensor(tokens), jax.jit(model.apply)

    calls: dict[str, Calls] = {
        f"pass of {config.batch_size} x {config.length} tokens": {
            "transformer-jax": lambda: jax.block_until_ready(forward(variables, tokens)),
            "eager PyTorch": functools.partial(theirs, ids, use_cache=False),
        }
    }
    if config.compiled:
        calls[next(iter(calls))]["torch.compile"] = functools.partial(torch.compile(theirs), ids, use_cache=False)
    step = jax.jit(functools.partial(model.apply, method="decode_step"), donate_argnums=3)
    for rows in (1, 16):
        cache = jax.jit(lambda v, n=rows: model.apply(v, n, CACHE, method="start_decoding"))(variables)
        ours = _steps(functools.partial(step, variables), cache, np.zeros(rows, np.int32))
        prompt = torch.zeros((rows, CACHE - 1), dtype=torch.long)
        with torch.inference_mode():
            filled = theirs(prompt, use_cache=True).past_key_values
        calls[f"token, batch {rows}"] = {
            "transformer-jax": functools.partial(next, ours),
            "eager PyTorch": functools.partial(_torch_step, theirs, filled, prompt[:, :1]),
        }
    return calls


def _steps(step: Callable[..., tuple[jax.Array, object]], cache: object, tokens: np.ndarray) -> Iterator[jax.Array]:
    """One more step of decoding each time, at the cache's last position; the cache is used up and replaced."""
    while True:
        logits, cache = step(tokens, jnp.int32(CACHE - 1), cache)
        yield jax.block_until_ready(logits)


def _torch_step(model: Callable[..., object], cache: object, tokens: object) -> None:
    model(tokens, past_key_values=cache, use_cache=True)
    cache.crop(-1)  # what it added


def measure(config: PretrainedConfig) -> dict[str, dict[str, float]]:
    """Milliseconds by what is measured and by contestant, and the figures of loading."""
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as directory:
        of_gpt2 = transformers.GPT2Config(
            vocab_size=config.vocabulary, n_embd=config.width, n_layer=config.num_layers, n_head=config.width // 64
        )
        transformers.GPT2LMHeadModel(of_gpt2).save_pretrained(directory)
        loads = [
            subprocess.run([sys.executable, "-c", LOAD, directory], check=True, capture_output=True, text=True)
            for _ in range(min(3, config.repeats))
        ]
        calls = contestants(config, directory)
        weights = list(jax.tree.leaves(from_transformers(directory)[1]))
    read = jax.jit(lambda arrays: sum(jnp.sum(array) for array in arrays))
    calls["token, batch 1"]["reading the weights"] = lambda: jax.block_until_ready(read(weights))
    seconds, memory = np.median([[*map(float, load.stdout.split())] for load in loads], axis=0)
    found: dict[str, dict[str, float]] = {"load": {"seconds": seconds, "peak memory / weights": memory}}
    with torch.inference_mode():
        for what, of_what in calls.items():
            found[what] = measure_turns(of_what, config.repeats)
    return found


def main(config: PretrainedConfig) -> None:
    found = measure(config)
    for what, figures in found.items():
        unit = "" if what == "load" else " ms"
        print(f"{what}: " + ", ".join(f"{name} {value:.4g}{unit}" for name, value in figures.items()))


if __name__ == "__main__":
    run(functools.partial(parse, PretrainedConfig), main)
