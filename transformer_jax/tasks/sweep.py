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

from transformer_jax.config import EMA, TrainingConfig, format_metric
from transformer_jax.errors import InputError, meant, shortened
from transformer_jax.fields import from_text, type_hints
from transformer_jax.outside_files import Json
from transformer_jax.runs.settings import as_json, write_json

SUMMARY = "summary.json"
MEAN = "Mean of the runs"  # if only the seeds differ
MAX_RUNS = 1000  # more are probably a typing error
# results that are not averaged
ABOUT_THE_RUN = frozenset(
    {"seed", "num_devices", "settings", "model", "trained_length", "versions"}
)


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
    pairs = [_values(config, text) for text in config.sweep]  # setting and values
    if config.seeds is not None:
        pairs.append(("seed", parse_seeds(config.seeds)))
    # the seed last, which then changes fastest
    values = dict(sorted(pairs, key=lambda pair: pair[0] == "seed"))
    if len(values) < len(pairs):
        raise InputError(
            f"sweep is {' '.join(config.sweep)}, seeds is {config.seeds}; each setting must be"
            " named once"
        )
    count = math.prod(map(len, values.values()))
    if count > MAX_RUNS:
        raise InputError(
            f"seeds and sweep ask for {count} runs; they may ask for at most {MAX_RUNS}"
        )
    shared = dataclasses.replace(config, seeds=None, sweep=(), checkpoint_dir=directory)
    runs = [
        _member(shared, dict(zip(values, chosen, strict=True)))
        for chosen in itertools.product(*values.values())
    ]
    idle = [run.config.idle() for run in runs]
    for name in values:
        if all(name in reasons for reasons in idle):
            raise InputError(f"sweep has {name}, which has no effect: {idle[0][name]}")
    if len({run.config.name for run in runs}) < count:
        raise InputError("seeds and sweep ask for a run twice; the values of a setting must differ")
    return runs


def _member(shared: TrainingConfig, settings: Json) -> Member:
    words = [f"{name}={_in_a_name(value)}" for name, value in settings.items() if name != "seed"]
    point = ",".join(words)
    if "seed" in settings:
        words.append(f"seed{settings['seed']}")
    config = dataclasses.replace(shared, **settings, name=",".join(words))
    return Member(config, settings, point)


def _values(config: TrainingConfig, text: str) -> tuple[str, Sequence[object]]:
    """Parse a setting and its values, e.g. `lr=1e-3,3e-4`."""
    name, equals, listed = text.partition("=")
    name = name.replace("-", "_")
    hints = type_hints(type(config))
    problem = ""
    if not equals:
        problem = "it must be SETTING=VALUE,VALUE, such as lr=1e-3,3e-4"
    elif name not in hints:
        problem = f"{shortened(name)} is not a setting of this task{meant(name, hints)}"
    elif name in config.fields_with("keeps_result"):
        problem = f"{name} cannot be swept, since the trained parameters do not depend on it"
    if problem:
        raise InputError(f"sweep is {shortened(text)}; {problem}")
    place = f"sweep is {shortened(text)}: {name}"
    return name, [from_text(place, value, hints[name]) for value in listed.split(",")]


def parse_seeds(text: str) -> Sequence[int]:
    """Parse seeds, e.g. `0..4` or `0,3,7`."""
    seeds: Sequence[int] = []
    if re.fullmatch(r"\d{1,10}(\.\.\d{1,10}|(, *\d{1,10})*)", text, re.ASCII):
        numbers = [int(number) for number in re.findall(r"\d+", text)]
        seeds = range(numbers[0], numbers[1] + 1) if ".." in text else numbers
    if not seeds:
        raise InputError(
            f"seeds is {shortened(text)}; it must be a range, such as 0..4, or a list, such as"
            " 0,3,7"
        )
    return seeds


def _in_a_name(value: object) -> str:
    """A value as a part of a directory's name."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return re.sub(r"[^\w.+-]", "_", str(value))


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
    runs: list[Json] = []
    finished: dict[str, list[Json]] = {}  # results by grid point
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
    for point, results in finished.items():
        mean[point], std[point] = _statistics(results)
    if not members[0].point:  # only the seeds differ
        mean = mean.get("", {})
        std = std.get("", {})
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
    means = summary["mean"]
    deviations = summary["std"]
    if set(summary["runs"][0]["settings"]) == {"seed"}:
        means, deviations = {MEAN: means}, {MEAN: deviations}
    metric = metric.removeprefix(EMA)  # the averaged parameters were tested
    for point, mean in means.items():
        shown = metric if metric in mean["val"] else "loss"
        words = []
        for split in ("val", "test"):
            word = f"{split} {shown} {format_metric(shown, mean[split][shown])}"
            deviation = deviations[point][split][shown]
            if deviation is not None:
                word += f" ± {format_metric(shown, deviation)}"
            words.append(word)
        yield f"{point}: {', '.join(words)}"


def _statistics(results: Sequence[Json]) -> tuple[Json, Json]:
    """Mean and sample standard deviation of every number that all results have, in their structure.

    The standard deviation of a single number is None.
    """
    runs = [flatten_dict(result) for result in results]
    means: Json = {}
    deviations: Json = {}
    for path in runs[0]:
        numbers = [run.get(path) for run in runs]
        are_numbers = all(type(number) in (int, float) for number in numbers)
        if are_numbers and path[0] not in ABOUT_THE_RUN:
            means[path] = float(np.mean(numbers))
            with np.errstate(invalid="ignore"):  # NaN for infinite numbers
                deviations[path] = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
    return unflatten_dict(means), unflatten_dict(deviations)
