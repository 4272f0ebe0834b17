"""Many runs by one command: the runs of `--seeds` and `--sweep`, and their `summary.json`."""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer_jax.config import EMA, TrainingConfig
from transformer_jax.errors import InputError, shortened
from transformer_jax.fields import from_text, type_hints
from transformer_jax.outside_files import Json
from transformer_jax.runs.settings import as_json, write_json
from transformer_jax.training.metrics import format_metric

SUMMARY = "summary.json"
MAX_RUNS = 1000  # more are probably a typing error
# results that are not averaged
ABOUT_THE_RUN = frozenset({"seed", "num_devices", "settings", "model", "versions"})


class Member(NamedTuple):
    """One run of a sweep."""

    config: Any  # the task's own class
    settings: Json  # settings in which the runs of the sweep differ
    # these settings without the seed, e.g. lr=0.001,num_layers=1; empty if only the seeds differ
    point: str


def members(config: TrainingConfig, directory: Path) -> list[Member]:
    """The runs of `config.seeds` and `config.sweep`; runs that differ only in the seed are adjacent.

    Args:
        config: the settings that the runs share.
        directory: parent of the runs' directories, e.g. `seed0` or `lr=0.001,num_layers=1,seed0`.

    Raises:
        InputError: a text cannot be parsed, a setting is unknown or cannot be swept, a value is invalid, two runs are
            the same, or there are too many runs.
    """
    if config.pretrained is not None:
        raise InputError(
            f"pretrained is {config.pretrained}, so nothing is trained; leave out seeds and sweep"
        )
    values = dict(_values(config, text) for text in config.sweep)
    if len(values) < len(config.sweep):
        raise InputError(f"sweep is {' '.join(config.sweep)}; it must name each setting once")
    if config.seeds is not None:
        if "seed" in values:
            raise InputError(
                f"seeds is {config.seeds}, but sweep has seed too; give only one of them"
            )
        values["seed"] = _seeds(config.seeds)
    elif "seed" in values:
        values["seed"] = values.pop("seed")  # last
    if (count := math.prod(map(len, values.values()))) > MAX_RUNS:
        raise InputError(
            f"seeds and sweep ask for {count} runs; they may ask for at most {MAX_RUNS}"
        )
    shared = dataclasses.replace(config, seeds=None, sweep=(), checkpoint_dir=directory)
    runs = [
        _member(shared, dict(zip(values, chosen, strict=True)))
        for chosen in itertools.product(*values.values())
    ]
    for name in values:
        if all(reasons := [run.config.idle().get(name) for run in runs]):
            raise InputError(f"sweep has {name}, which has no effect: {reasons[0]}")
    if len({run.config.name for run in runs}) < count:
        raise InputError("seeds and sweep ask for a run twice; the values of a setting must differ")
    return runs


def _member(shared: TrainingConfig, settings: Json) -> Member:
    point = ",".join(
        f"{name}={_in_a_name(value)}" for name, value in settings.items() if name != "seed"
    )
    seed = f"seed{settings['seed']}" if "seed" in settings else ""
    name = ",".join(filter(None, (point, seed)))
    return Member(dataclasses.replace(shared, **settings, name=name), settings, point)


def _values(config: TrainingConfig, text: str) -> tuple[str, Sequence[object]]:
    """Parse a setting and its values, e.g. `lr=1e-3,3e-4`."""
    name, equals, listed = text.partition("=")
    name, hints = name.replace("-", "_"), type_hints(type(config))
    if not equals:
        raise InputError(
            f"sweep is {shortened(text)}; it must be SETTING=VALUE,VALUE, such as lr=1e-3,3e-4"
        )
    if name not in hints:
        raise InputError(
            f"sweep is {shortened(text)}; {shortened(name)} is not a setting of this task"
        )
    if name in config.fields_with("keeps_result"):
        raise InputError(
            f"sweep is {shortened(text)}; {name} cannot be swept, since the trained parameters do"
            " not depend on it"
        )
    return name, [from_text(f"{name} in sweep", value, hints[name]) for value in listed.split(",")]


def _seeds(text: str) -> Sequence[int]:
    """Parse seeds, e.g. `0..4` or `0,3,7`."""
    match = re.fullmatch(r"(\d{1,10})\.\.(\d{1,10})|\d{1,10}(, *\d{1,10})*", text, re.ASCII)
    seeds = range(int(match[1]), int(match[2]) + 1) if match and match[1] else []
    if match is None or (match[1] and not seeds):
        raise InputError(
            f"seeds is {shortened(text)}; it must be a range, such as 0..4, or a list, such as"
            " 0,3,7"
        )
    return seeds or [int(seed) for seed in text.split(",")]


def _in_a_name(value: object) -> str:
    """A value as a part of a directory's name."""
    text = str(value).lower() if value is None or isinstance(value, bool) else str(value)
    return re.sub(r"[^\w.+-]", "_", text)


def write_summary(
    directory: Path, members: Sequence[Member], outcomes: Sequence[Json | FloatingPointError]
) -> Json:
    """Write `summary.json`: `runs`, and `mean` and `std` of every number in their results.

    `runs` has the `name`, the `settings` that differ, and the `results` of each run; if the run diverged, `results` is
    null and `error` gives the reason. `mean` and `std` (of the sample; null for one run) are over the other runs. They
    have the structure of `results.json`; with a sweep, each grid point has one such object, under its name.

    Returns:
        The content of the file.
    """
    runs, finished = [], dict[str, list[Json]]()
    for member, outcome in zip(members, outcomes, strict=True):
        run: Json = {"name": member.config.name, "settings": as_json(member.settings)}
        if isinstance(outcome, FloatingPointError):
            run |= {"results": None, "error": str(outcome)}
        else:
            run["results"] = as_json(outcome)
            finished.setdefault(member.point, []).append(run["results"])
        runs.append(run)
    mean: Json = {}
    std: Json = {}
    for point, found in finished.items():
        mean[point], std[point] = _statistics(found)
    if not any(member.point for member in members):
        mean, std = mean.get("", {}), std.get("", {})
    summary = {"runs": runs, "mean": mean, "std": std}
    write_json(directory / SUMMARY, summary)
    return summary


def lines(summary: Json, metric: str) -> Iterator[str]:
    """A line for each grid point, or one for all runs: mean and standard deviation of a metric on each split.

    Args:
        summary: from `write_summary`.
        metric: name of the metric; a task without this metric shows its loss.
    """
    if not summary["mean"]:  # all runs diverged
        return
    is_grid = any(name != "seed" for name in summary["runs"][0]["settings"])
    of_points, stds = (
        summary[kind] if is_grid else {"": summary[kind]} for kind in ("mean", "std")
    )
    metric = metric.removeprefix(EMA)  # the averaged parameters were tested
    for point, mean in of_points.items():
        shown = metric if metric in mean["val"] else "loss"
        means = []
        for split in ("val", "test"):
            deviation = stds[point][split][shown]
            more = "" if deviation is None else f" ± {format_metric(shown, deviation)}"
            means.append(f"{split} {shown} {format_metric(shown, mean[split][shown])}{more}")
        yield f"{point or 'Mean of the runs'}: {', '.join(means)}"


def _statistics(results: Sequence[Json]) -> tuple[Json, Json]:
    """Mean and sample standard deviation of every number that all results have, in their structure.

    The standard deviation of a single number is None.
    """
    flat = [flatten_dict(of_run) for of_run in results]
    means: Json = {}
    deviations: Json = {}
    for path in flat[0]:
        numbers = [of_run.get(path) for of_run in flat]
        are_numbers = all(type(number) in (int, float) for number in numbers)
        if are_numbers and path[0] not in ABOUT_THE_RUN:
            means[path] = float(np.mean(numbers))
            with np.errstate(invalid="ignore"):  # NaN for infinite numbers
                deviations[path] = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
    return unflatten_dict(means), unflatten_dict(deviations)
