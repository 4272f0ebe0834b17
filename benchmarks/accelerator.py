"""Measure performance on an accelerator, in about seven minutes on an H100; print rows for docs/performance.md.

python benchmarks/accelerator.py           # on one GPU
python benchmarks/accelerator.py --tiny    # the same with tiny sizes, on any machine: two minutes on two CPU cores

It runs, in this order: tests of attention, precision and large vocabularies; the four tasks with their defaults; the
training step of a GPT-2 with 124 M parameters (ReLU) on random tokens in bfloat16, with a profile for TensorBoard;
attention by length in bfloat16 (`attention.py`). A command that exceeds its time limit is stopped, and its row says
so. FLOPs per token are 6 per parameter, position embeddings excluded, plus 6 L D T for causal attention; recomputed
products count once.
"""

import dataclasses
import functools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import attention
from transformer_jax import LanguageModelConfig, make_loader
from transformer_jax.cli import parse, run
from transformer_jax.data.loader import Loader
from transformer_jax.fields import set_checked_fields
from transformer_jax.fit.programs import create_programs
from transformer_jax.tasks import LanguageModelTrainer
from transformer_jax.tasks.language_model.windows import RandomWindows

ROOT = Path(__file__).parents[1]
TESTS = [f"tests/{name}.py" for name in ("attention/test_fused", "attention/test_dot_product",
         "training/test_precision_and_memory", "training/test_token_losses")]  # fmt: skip
TASKS = {
    "reverse": ("reverse.py", "--train-size=64", "--val-size=8", "--test-size=8"),
    "digits": ("anomaly.py", "--dataset=digits"),
    "dates": ("translate.py", "--train-size=64", "--val-size=8", "--test-size=8"),
    "language model": (
        "language_model.py",
        f"--data={ROOT / 'LICENSE'}",
        "--train-size=64",
        "--seq-len=16",
    ),
}  # script, and flags that make its data tiny
TINY = "--max-epochs=1", "--batch-size=8", "--warmup=1"
PEAK_FLOPS = {"NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H200": 989e12}  # dense bfloat16
SECONDS = {"tests": 90, "task": 120}  # time limits of a command


@dataclasses.dataclass(frozen=True, kw_only=True)
class AcceleratorConfig:
    """Measure tests, tasks, attention and the training of a GPT-2 on an accelerator."""

    batch_size: int = 32  # rows of the GPT-2's step
    steps: int = 20  # of the GPT-2 that are measured
    tasks: tuple[str, ...] = tuple(TASKS)  # that are trained
    tiny: bool = False  # tiny sizes, and of the tests those of one file
    profile: Path = Path("checkpoints/accelerator")  # directory of the profile

    __post_init__ = set_checked_fields


def ended(kind: str, *command: str) -> tuple[str, float]:
    """Run a command; return how it ended, and its duration in seconds."""
    began = time.perf_counter()
    try:
        streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, timeout=SECONDS[kind], **streams
        )
        how = done.stdout.strip().rpartition("\n")[2] if done.returncode else "done"
    except subprocess.TimeoutExpired:
        how = f"stopped after {SECONDS[kind]} s"
    return how, time.perf_counter() - began


def print_commands(config: AcceleratorConfig) -> None:
    """Print the rows of tests and tasks: subprocesses, run before this process reserves the device's memory."""
    how, seconds = ended(
        "tests", "-m", "pytest", "-q", "-m", "not slow", *TESTS[:1] if config.tiny else TESTS
    )
    print(f"| tests | {how} | {seconds:.0f} s |", flush=True)
    for name in config.tasks:
        script, *tiny = TASKS[name]
        with tempfile.TemporaryDirectory() as directory:
            flags = [*tiny, *TINY] if config.tiny else [flag for flag in tiny if "dataset" in flag]
            how, seconds = ended(
                "task", f"experiments/{script}", f"--checkpoint-dir={directory}", *flags
            )
            for path in Path(directory).rglob("results.json"):
                found = json.loads(path.read_text())
                how = ", ".join(f"{metric} {value:.4g}" for metric, value in found["test"].items())
                how += f" | compilation {found['compile_seconds']:.0f} s"
        print(f"| {name} | {how} | {seconds:.0f} s |", flush=True)


def print_attention(config: AcceleratorConfig) -> None:
    """Print the rows of causal attention by length: milliseconds, forward and backward."""
    sizes = (
        {"batch_size": 1, "num_heads": 1, "lengths": (16,)}
        if config.tiny
        else {"batch_size": 4, "num_heads": 12}
    )
    sizes = {"lengths": (512, 1024, 2048, 4096, 8192), "dtype": "bfloat16", "repeats": 2} | sizes
    for row in attention.measure(attention.AttentionConfig(**sizes)):
        kinds = ("plain causal", "blockwise causal", "auto causal")
        cells = " | ".join(f"{row['ms'].get(kind, float('nan')):.3f}" for kind in kinds)
        print(f"| attention, T {row['length']}: {', '.join(kinds)}, ms | {cells} |", flush=True)


def gpt2(config: AcceleratorConfig) -> tuple[LanguageModelTrainer, Loader]:
    """The trainer of a GPT-2 with random weights, and a loader of windows of random tokens."""
    sizes = {
        "model_dim": 768,
        "num_heads": 12,
        "num_layers": 12,
        "dim_feedforward": 3072,
        "seq_len": 1024,
    }
    vocabulary, rows = 50304, config.batch_size
    if config.tiny:
        sizes = {
            "model_dim": 16,
            "num_heads": 2,
            "num_layers": 1,
            "dim_feedforward": 64,
            "seq_len": 16,
        }
        vocabulary, rows = 307, 8
    settings = LanguageModelConfig(
        **sizes, batch_size=rows, dtype="bfloat16", positions="learned", norm="layer", feed_forward="relu",
        steps_per_call=1, num_devices=1, warmup=2,
    )  # fmt: skip
    # All ids are equally frequent: the gradient of the embeddings is a sum over few tokens of each.
    tokens = np.random.default_rng(0).integers(vocabulary, size=2**20)
    loader = make_loader(RandomWindows(tokens, settings.seq_len, 10 * rows, seed=0), rows)
    model = LanguageModelTrainer(settings).model.clone(vocabulary_size=vocabulary)
    return LanguageModelTrainer(settings, model=model), loader


def print_gpt2(config: AcceleratorConfig) -> None:
    """Print the row of a GPT-2's training step."""
    trainer, loader = gpt2(config)
    length, width, layers, rows = (
        getattr(trainer.config, name)
        for name in ("seq_len", "model_dim", "num_layers", "batch_size")
    )
    programs = create_programs(trainer.compiled, loader, num_steps=10 * config.steps)
    batches, count = programs.runner.stack(next(loader.epoch(0)))
    run_step, state = programs.runner.run, programs.initial_state()
    state, _ = jax.block_until_ready(run_step(state, batches, count))  # compiles
    with jax.profiler.trace(str(config.profile)):
        state, _ = jax.block_until_ready(run_step(state, batches, count))
    began = time.perf_counter()
    for _ in range(config.steps):
        state, _ = run_step(state, batches, count)
    jax.block_until_ready(state)
    per_second = config.steps * rows * length / (time.perf_counter() - began)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(programs.shapes.params)) - length * width
    flops = per_second * (6 * parameters + 6 * layers * width * length)
    device = jax.devices()[0]
    peak, memory = (
        PEAK_FLOPS.get(device.device_kind),
        (device.memory_stats() or {}).get("peak_bytes_in_use"),
    )
    share = "peak unknown" if peak is None else f"{flops / peak:.1%} of the peak"
    used = "memory unknown" if memory is None else f"{memory / 2**30:.1f} GiB"
    print(
        f"| GPT-2, {parameters / 1e6:.1f} M, {rows} × {length} | {per_second:,.0f} tokens/s,"
        f" {share} | {used} |"
    )


def main(config: AcceleratorConfig) -> None:
    print_commands(config)
    print(f"On {jax.devices()[0].device_kind}:", flush=True)
    print_gpt2(config)  # first, since its row has the process's peak of memory
    print_attention(config)
    print(f"Profile: {config.profile}, for TensorBoard")


if __name__ == "__main__":
    run(functools.partial(parse, AcceleratorConfig), main)
