"""Measure the training step of a GPT-2: ours, the same in plain JAX, and in PyTorch, eager and compiled.

python benchmarks/gpt_contestants.py --contestant ours --size "124 M"    # one contestant in a process

Random tokens, bfloat16 with parameters in float32, Adam without weight decay. `accelerator.py` runs all contestants.
"""

import collections
import dataclasses
import functools
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from gpt_sizes import SIZES, GPTSizes
from transformer_jax import LanguageModelConfig, make_loader
from transformer_jax.cli import parse, run
from transformer_jax.fields import set_checked_fields
from transformer_jax.fit.programs import create_programs
from transformer_jax.tasks import LanguageModelTrainer
from transformer_jax.tasks.language_model.windows import RandomWindows

Contestant = Literal["ours", "plain JAX", "PyTorch", "torch.compile"]
PRODUCTS = "gemm", "nvjet", "cutlass", "xmma", "cublas", "splitK", "dot"  # in names of kernels
ATTENTION = "sdpa", "cudnn", "flash", "fmha"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContestantConfig:
    """Measure one contestant."""

    contestant: Contestant = "ours"
    size: Literal["124 M", "350 M", "1.3 B", "tiny"] = "124 M"
    steps: int = 20  # that are measured
    scan_layers: bool = False  # of ours: layers as a loop in the compiled program
    remat: Literal["none", "dots", "all"] = "none"  # of ours: activations that are recomputed
    profile: bool = False  # print the time of kernels by kind

    __post_init__ = set_checked_fields


def tokens_of(sizes: GPTSizes) -> np.ndarray:
    """Random tokens; all ids are equally frequent: the embeddings' gradient is a sum over few tokens of each."""
    return np.random.default_rng(0).integers(sizes.vocabulary, size=2**20)


def ours(config: ContestantConfig, sizes: GPTSizes) -> Callable[[], Any]:
    """Our training step, as a function that starts it and returns what to wait for."""
    settings = LanguageModelConfig(
        model_dim=sizes.model_dim,
        num_heads=sizes.num_heads,
        num_layers=sizes.num_layers,
        dim_feedforward=sizes.dim_feedforward,
        seq_len=sizes.length,
        batch_size=sizes.batch_size,
        dtype="bfloat16",
        positions="learned",
        norm="layer",
        feed_forward="relu",
        scan_layers=config.scan_layers,
        remat=config.remat,
        steps_per_call=1,
        num_devices=1,
        warmup=2,
    )
    windows = RandomWindows(tokens_of(sizes), sizes.length, 10 * sizes.batch_size, seed=0)
    loader = make_loader(windows, sizes.batch_size)
    model = LanguageModelTrainer(settings).model.clone(vocabulary_size=sizes.vocabulary)
    trainer = LanguageModelTrainer(settings, model=model)
    programs = create_programs(trainer.compiled, loader, num_steps=1000)
    batches, count = programs.runner.stack(next(loader.epoch(0)))
    # as `fit` does, before the initial state, so that both are compiled at once
    programs.runner.program.begin_to_compile(*programs.runner.arguments(next(loader.epoch(0))))
    state = programs.initial_state()

    def step() -> Any:
        nonlocal state
        state, sums = programs.runner.run(state, batches, count)
        return sums

    return step


def plain_jax(sizes: GPTSizes) -> Callable[[], Any]:
    """The step of `plain_gpt.py`."""
    import plain_gpt

    state, update = plain_gpt.training(sizes)
    rows = tokens_of(sizes)[: sizes.batch_size * (sizes.length + 1)]
    tokens = rows.reshape(sizes.batch_size, -1).astype(np.int32)

    def step() -> Any:
        nonlocal state
        state, loss = update(state, tokens)
        return loss

    return step


def pytorch(sizes: GPTSizes, *, compiled: bool) -> tuple[Callable[[], Any], Callable[[], float]]:
    """The step of `reference_gpt.py` in mixed precision, and a function that returns the peak of memory in bytes."""
    import torch
    from torch.nn.functional import cross_entropy

    from reference_gpt import GPT

    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    names = ("vocabulary", "length", "model_dim", "num_heads", "num_layers")
    arguments = [getattr(sizes, name) for name in names]
    model = GPT(*arguments, bias=True, activation=torch.nn.ReLU).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    rows = tokens_of(sizes)[: sizes.batch_size * (sizes.length + 1)]
    tokens = torch.from_numpy(rows.reshape(sizes.batch_size, -1)).to(device)

    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    if compiled:
        loss_of = torch.compile(loss_of)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(tokens)
        loss.backward()
        optimizer.step()
        return loss.item

    return step, torch.cuda.max_memory_allocated if device == "cuda" else lambda: 0.0


def wait_for(result: Any) -> None:
    """Wait until a step has ended."""
    result() if callable(result) else jax.block_until_ready(result)


def kernels_by_kind(step: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of a JAX step's kernels: products, attention, and all the rest."""
    milliseconds: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory):
            for _ in range(3):
                wait_for(step())
        (path,) = Path(directory).rglob("*.xplane.pb")
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
            if "GPU" not in plane.name:
                continue
            for line in plane.lines:
                if "Stream" not in line.name:
                    continue
                for event in line.events:
                    milliseconds[kind_of(event.name)] += event.duration_ns / 3e6
    return dict(milliseconds)


def kind_of(kernel: str) -> str:
    """Tell from its name what a kernel computes: products, attention, or the rest."""
    if any(part in kernel for part in ATTENTION):
        return "attention"
    if any(part in kernel for part in PRODUCTS):
        return "products"
    return "rest"


def measure(config: ContestantConfig) -> dict[str, Any]:
    """Seconds until the first step's end, milliseconds of a step, tokens per second, TFLOP/s, peak of memory in GiB."""
    sizes = SIZES[config.size]
    began = time.perf_counter()
    memory: Callable[[], float] = lambda: (jax.local_devices()[0].memory_stats() or {}).get(  # noqa: E731
        "peak_bytes_in_use", 0
    )
    if config.contestant == "ours":
        step = ours(config, sizes)
    elif config.contestant == "plain JAX":
        step = plain_jax(sizes)
    else:
        step, memory = pytorch(sizes, compiled=config.contestant == "torch.compile")
    wait_for(step())
    first = time.perf_counter() - began
    for _ in range(3):
        wait_for(step())
    began = time.perf_counter()
    for _ in range(config.steps):
        result = step()
    wait_for(result)
    seconds = (time.perf_counter() - began) / config.steps
    tokens = sizes.batch_size * sizes.length / seconds
    found = {
        "first_step_seconds": first,
        "milliseconds": 1000 * seconds,
        "tokens_per_second": tokens,
        "teraflops": tokens * sizes.flops_per_token / 1e12,
        "gibibytes": memory() / 2**30,
    }
    if config.profile:
        found["kernels"] = kernels_by_kind(step)
    return found


if __name__ == "__main__":
    run(
        functools.partial(parse, ContestantConfig),
        lambda config: print(json.dumps(measure(config))),
    )
