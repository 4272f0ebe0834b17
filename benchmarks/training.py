"""Measure training: the loop of `transformer_jax` against the tutorial's loop in JAX and the same model in PyTorch.

python benchmarks/training.py                      # both tasks: about four minutes on two CPU cores (make bench)
python benchmarks/training.py --quick              # three turns, too few to compare losses: a minute
python benchmarks/training.py --task reverse --json training.json

Each contestant (`training_contestants.py`) has its own process. They take turns, so that other load on the machine
affects all of them; the others are idle meanwhile. The result is the median over turns. A turn is a number of steps of
the real loop, with loading, logging and progress bar, until the last result is ready. Compilation and the first turn
are not counted.

Efficiency is the time of our compiled computation alone, with the data already on the device, divided by the time of
our loop; both are measured in the same turns. After the same number of steps all contestants must have learned: their
losses may not differ by more than those of different seeds.
"""

import dataclasses
import json
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, Literal

from tqdm import tqdm

from training_contestants import CONTESTANTS, Window, ask, peak_memory, prepare
from transformer_jax.cli import parse, run
from transformer_jax.fields import set_checked_fields, setting


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a task is measured."""

    steps: int  # per turn
    window: Window  # steps whose losses are compared
    spread: float  # largest ratio of two losses that counts as noise


# Seed 42 gives ratios of 1.07 and 1.31; a contestant that does not learn exceeds 10.
PLANS = {"reverse": Plan(200, (900, 1000), 1.25), "anomaly": Plan(25, (150, 200), 1.5)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkConfig:
    """Measure training."""

    task: Literal["reverse", "anomaly", "both"] = "both"  # what is trained
    turns: int = setting(9, least=1)  # of each contestant, beside the first that does not count
    seed: int = 42  # of parameters, dropout and order
    quick: bool = False  # three turns, and no comparison of losses
    json: Path | None = None  # file for the results

    __post_init__ = set_checked_fields


def measure(task: str, turns: int, seed: int, *, check: bool) -> dict[str, Any]:
    """Measure one task.

    Raises:
        RuntimeError: with `check`, the losses differ by more than noise.
    """
    plan = PLANS[task]
    context = get_context("spawn")
    with ExitStack() as stack:
        contestants = {
            name: stack.enter_context(ProcessPoolExecutor(1, context, prepare, (name, task, seed)))
            for name in CONTESTANTS
        }
        times, computing = {name: [] for name in contestants}, []
        for _ in tqdm(range(turns + 1), desc=task, leave=False, disable=None):
            for name, contestant in contestants.items():
                times[name].append(contestant.submit(ask, "run", plan.steps).result())
            computing.append(contestants["ours"].submit(ask, "compute", plan.steps).result())
        results = {name: summarize(times[name][1:]) for name in contestants}
        for name, contestant in contestants.items():
            compile_seconds, loss = contestant.submit(ask, "finish", plan.window).result()
            results[name] |= {
                "compile_seconds": compile_seconds,
                "loss": loss,
                "peak_memory_mib": contestant.submit(peak_memory).result(),
            }
    ours = results["ours"]
    ours["computing_ms_per_step"] = median(computing[1:])
    ours["efficiency"] = ours["computing_ms_per_step"] / ours["ms_per_step"]
    for name in results:
        results[name]["ours_is_faster_by"] = results[name]["ms_per_step"] / ours["ms_per_step"]
    losses = {name: result["loss"] for name, result in results.items()}
    if check and not max(losses.values()) <= plan.spread * min(losses.values()):
        raise RuntimeError(
            f"{task}: the mean losses of steps {plan.window} are {losses}; they differ by more than"
            " noise"
        )
    return results


def summarize(times: list[float]) -> dict[str, float]:
    """Summarize the milliseconds per step of several turns."""
    return {
        "ms_per_step": median(times),
        "min_ms_per_step": min(times),
        "max_ms_per_step": max(times),
        "steps_per_second": 1000 / median(times),
    }


def print_table(task: str, results: dict[str, Any]) -> None:
    """Print one line per contestant."""
    print(f"{task:17}  ms/step (min – max)      steps/s   ours is    compile    memory     loss")
    for name, result in results.items():
        spread = f"({result['min_ms_per_step']:.2f} – {result['max_ms_per_step']:.2f})"
        print(
            f"  {name:15}  {result['ms_per_step']:6.2f} {spread:17}"
            f" {result['steps_per_second']:7.1f}   {result['ours_is_faster_by']:6.2f}×  "
            f" {result['compile_seconds']:6.1f} s   {result['peak_memory_mib']:5.0f} MiB  "
            f" {result['loss']:.3f}"
        )
    ours = results["ours"]
    print(
        f"  efficiency: {ours['efficiency']:.2f} (computing alone"
        f" {ours['computing_ms_per_step']:.2f} ms)\n"
    )


def main(config: BenchmarkConfig) -> None:
    turns = min(3, config.turns) if config.quick else config.turns
    tasks = PLANS if config.task == "both" else [config.task]
    results: dict[str, Any] = {}
    for task in tasks:
        results[task] = measure(task, turns, config.seed, check=not config.quick)
        print_table(task, results[task])
    if config.json is not None:
        config.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    run(partial(parse, BenchmarkConfig), main)
