"""Measure a causal language model, loaded by `from_transformers` and by `transformers` in PyTorch.

python benchmarks/pretrained.py           # GPT-2 small with random weights: about six minutes on two CPU cores
python benchmarks/pretrained.py --num-layers 2 --width 64 --vocabulary 97   # seconds, as the test does
taskset -c 0 .venv/bin/python benchmarks/pretrained.py --directory data/real/smollm2 --batch-size 1 --no-compiled
                                          # published weights, a prompt of 512 tokens, one core: six minutes

A forward pass is over 8 × 512 tokens; a generated token is one decoding step with a cache of 128 positions, for 1 and
for 16 rows. The contestants take turns (`harness.py`). The time to sum all weights is a lower bound for reading them
from memory. Memory and first calls are measured in subprocesses (`pretrained_process.py`): loading and, with
`--directory`, which then needs a tokenizer, the first answers and steps of fine-tuning.
"""

import dataclasses
import functools
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np

from harness import measure_turns, print_figures
from transformer_jax import from_transformers
from transformer_jax.cli import parse, run
from transformer_jax.fields import set_checked_fields, setting

PROCESS = Path(__file__).with_name("pretrained_process.py")
CACHE = 128  # positions


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainedConfig:
    """Measure a pretrained model."""

    # with the files of a model; None for a GPT-2 with random weights, as follows
    directory: Path | None = None
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
    """Calls by measurement and contestant; those of PyTorch must run in `torch.inference_mode`."""
    import torch
    import transformers

    model, variables = from_transformers(directory)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokens = np.random.default_rng(0).integers(
        theirs.config.vocab_size, size=(config.batch_size, config.length)
    )
    ids, forward = torch.tensor(tokens), jax.jit(model.apply)

    calls: dict[str, Calls] = {
        f"pass of {config.batch_size} x {config.length} tokens": {
            "transformer-jax": lambda: jax.block_until_ready(forward(variables, tokens)),
            "eager PyTorch": functools.partial(theirs, ids, use_cache=False),
        }
    }
    if config.compiled:
        calls[next(iter(calls))]["torch.compile"] = functools.partial(
            torch.compile(theirs), ids, use_cache=False
        )
    step = jax.jit(functools.partial(model.apply, method="decode_step"), donate_argnums=3)
    for rows in (1, 16):
        cache = jax.jit(lambda v, n=rows: model.apply(v, n, CACHE, method="start_decoding"))(
            variables
        )
        ours = _steps(functools.partial(step, variables), cache, np.zeros(rows, np.int32))
        prompt = torch.zeros((rows, CACHE - 1), dtype=torch.long)
        with torch.inference_mode():
            filled = theirs(prompt, use_cache=True).past_key_values
        calls[f"token, batch {rows}"] = {
            "transformer-jax": functools.partial(next, ours),
            "eager PyTorch": functools.partial(_torch_step, theirs, filled, prompt[:, :1]),
        }
    return calls


def _steps(
    step: Callable[..., tuple[jax.Array, object]], cache: object, tokens: np.ndarray
) -> Iterator[jax.Array]:
    """Yield the logits of one decoding step after another at the cache's last position; each donates the cache."""
    while True:
        logits, cache = step(tokens, jnp.int32(CACHE - 1), cache)
        yield jax.block_until_ready(logits)


def _torch_step(model: Callable[..., object], cache: object, tokens: object) -> None:
    model(tokens, past_key_values=cache, use_cache=True)
    cache.crop(-1)  # removes the position that the call added


def measure_processes(what: str, directory: str, repeats: int) -> dict[str, float]:
    """Figures of both contestants from `pretrained_process.py`: medians over processes that take turns."""
    found: dict[str, list[float]] = {}
    for _, contestant in itertools.product(range(repeats), ("ours", "theirs")):
        command = [sys.executable, str(PROCESS), contestant, what, directory]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for name, value in json.loads(printed.splitlines()[-1]).items():
            found.setdefault(f"{contestant} {name}", []).append(value)
    return {name: median(values) for name, values in found.items()}


def measure(config: PretrainedConfig) -> dict[str, dict[str, float]]:
    """Results by measurement and contestant: milliseconds, or the figures of `pretrained_process.py`."""
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as random_weights:
        directory = str(config.directory or random_weights)
        if config.directory is None:
            of_gpt2 = transformers.GPT2Config(
                vocab_size=config.vocabulary,
                n_embd=config.width,
                n_layer=config.num_layers,
                n_head=config.width // 64,
            )
            transformers.GPT2LMHeadModel(of_gpt2).save_pretrained(directory)
        kinds = ["load"] if config.directory is None else ["load", "answer", "fine-tuning"]
        found = {what: measure_processes(what, directory, min(3, config.repeats)) for what in kinds}
        calls = contestants(config, directory)
        weights = list(jax.tree.leaves(from_transformers(directory)[1]))
    read = jax.jit(lambda arrays: sum(jnp.sum(array) for array in arrays))
    calls["token, batch 1"]["reading the weights"] = lambda: jax.block_until_ready(read(weights))
    with torch.inference_mode():
        for what, of_what in calls.items():
            found[f"{what}, ms"] = measure_turns(of_what, config.repeats)
    return found


def main(config: PretrainedConfig) -> None:
    print_figures(measure(config))


if __name__ == "__main__":
    run(functools.partial(parse, PretrainedConfig), main)
