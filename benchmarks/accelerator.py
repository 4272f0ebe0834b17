"""Measure performance on an accelerator, in about ten minutes on an H100; print rows for docs/performance.md.

python benchmarks/accelerator.py           # on one GPU
python benchmarks/accelerator.py --tiny    # the same with tiny sizes, on any machine: two minutes on two CPU cores

It runs, in this order: tests of attention, precision and large vocabularies; the four tasks with their defaults; the
training step of a GPT-2 with 124 M parameters (ReLU) on random tokens in bfloat16, beside the same in PyTorch and in
plain JAX, and of two larger ones (`gpt_contestants.py`); attention by length in bfloat16 (`attention.py`). A command
that exceeds its time limit is stopped, and its row says so. FLOPs per token are 6 per parameter, position embeddings
excluded, plus 6 L D T for causal attention; recomputed products count once.
"""

import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

import attention
from transformer_jax.cli import parse, run
from transformer_jax.devices.flops import peak_of
from transformer_jax.fields import set_checked_fields

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
GPTS = [
    ("ours", "124 M"),
    ("plain JAX", "124 M"),
    ("PyTorch", "124 M"),
    ("torch.compile", "124 M"),
    ("ours", "350 M"),
    ("ours", "1.3 B"),
]  # contestants and sizes
SECONDS = {"tests": 90, "task": 120, "GPT-2": 100}  # time limits of a command


@dataclasses.dataclass(frozen=True, kw_only=True)
class AcceleratorConfig:
    """Measure tests, tasks, attention and the training of a GPT-2 on an accelerator."""

    steps: int = 20  # of the GPT-2 that are measured
    tasks: tuple[str, ...] = tuple(TASKS)  # that are trained
    tiny: bool = False  # tiny sizes, and of the tests those of one file

    __post_init__ = set_checked_fields


def ended(kind: str, *command: str) -> tuple[str, float]:
    """Run a command; return how it ended (of a GPT-2 its last line), and its duration in seconds."""
    began = time.perf_counter()
    try:
        streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, timeout=SECONDS[kind], **streams
        )
        last_line = done.stdout.strip().rpartition("\n")[2]
        says_more = done.returncode != 0 or kind == "GPT-2"
        how = last_line if says_more else "done"
    except subprocess.TimeoutExpired:
        how = f"stopped after {SECONDS[kind]} s"
    return how, time.perf_counter() - began


def print_commands(config: AcceleratorConfig) -> None:
    """Print the rows of tests and tasks, which run in processes of their own."""
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


def print_gpts(config: AcceleratorConfig) -> None:
    """Print the rows of the GPT-2's training step, each measured in a process of its own."""
    peak = peak_of(jax.devices()[0].device_kind)
    columns = "first step, s | ms | tokens/s | share of the peak | GiB | kernels, ms"
    print(f"| GPT-2 | {columns} |\n|{' --- |' * 7}")
    for contestant, size in [("ours", "tiny")] if config.tiny else GPTS:
        flags = "--contestant", contestant, "--size", size, "--steps", str(config.steps)
        profile = ["--profile"] if contestant in ("ours", "plain JAX") else []
        how, _ = ended("GPT-2", "benchmarks/gpt_contestants.py", *flags, *profile)
        row = how if not how.startswith("{") else " | ".join(cells(json.loads(how), peak))
        print(f"| {size}, {contestant} | {row} |", flush=True)


def cells(found: dict[str, Any], peak: float | None) -> list[str]:
    """Cells of the row of a GPT-2, from the numbers of `gpt_contestants.py`."""
    share = "unknown" if peak is None else f"{found['teraflops'] * 1e12 / peak:.1%}"
    kernels = [f"{kind} {ms:.1f}" for kind, ms in found.get("kernels", {}).items()]
    return [
        f"{found['first_step_seconds']:.0f}",
        f"{found['milliseconds']:.1f}",
        f"{found['tokens_per_second']:,.0f}",
        share,
        f"{found['gibibytes']:.1f}",
        ", ".join(kernels),
    ]


def main(config: AcceleratorConfig) -> None:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # of this process and the others
    print_commands(config)
    print_gpts(config)
    print_attention(config)


if __name__ == "__main__":
    run(functools.partial(parse, AcceleratorConfig), main)
