"""List the runs below a directory: `python -m transformer_jax.runs --help`."""

import dataclasses
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.errors import InputError
from transformer_jax.flags import Parser
from transformer_jax.runs.listing import STATES, Run, find_runs

PROGRAM = "python -m transformer_jax.runs"
DEFAULT = Path("checkpoints")  # as of `TrainingConfig.checkpoint_dir`
SORTS = ("name", "best", "seconds", "steps", "time")
HEADINGS = ("task", "name", "state", "steps", "best", "seconds", "size", "differing settings")
MAX_REASON = 80  # characters of it in the table; --json has all


def main(arguments: list[str]) -> None:
    """Print the runs below a directory, as a table or as JSON.

    Raises:
        InputError: an unknown flag, or there is no such directory.
    """
    parser = Parser(prog=PROGRAM, description="List the runs below a directory.")
    help_of_directory = "where runs are looked for, also further below (default: %(default)s)"
    parser.add_argument("directory", nargs="?", type=Path, default=DEFAULT, metavar="DIR", help=help_of_directory)
    parser.add_argument("--json", action="store_true", help="print a JSON list in the place of a table")
    parser.add_argument("--sort", choices=SORTS, default="name", help="by what the runs are sorted (default: name)")
    parser.add_argument("--task", help="list the runs of this task alone, as ReverseTask")
    parser.add_argument("--state", choices=STATES, help="list the runs in this state alone")
    chosen = parser.parse_args(arguments)
    runs = [] if chosen.directory == DEFAULT and not DEFAULT.exists() else find_runs(chosen.directory)
    runs = [run for run in runs if chosen.task in (None, run.task) and chosen.state in (None, run.state)]
    runs = sorted(runs, key=lambda run: sort_key(run, chosen.sort))
    if chosen.json:
        print(json.dumps([dataclasses.asdict(run) for run in runs], indent=2))
    else:
        print(table(runs, chosen.directory))


def sort_key(run: Run, sort: str) -> tuple[object, ...]:
    """Ascending paths; the best value of a task's metric first; the most seconds or steps first, or the newest."""
    if sort == "best":
        is_known = run.best_value is not None and math.isfinite(run.best_value)
        value = (-1 if run.mode == "max" else 1) * (run.best_value or 0.0) if is_known else 0.0
        return (run.task or "", run.best_metric or "", not is_known, value, run.path)
    if sort == "name":
        return (run.path,)
    return (-(getattr(run, sort) or 0), run.path)


def table(runs: Sequence[Run], directory: Path) -> str:
    """The runs as lines of columns, or a sentence if there is none."""
    if not runs:
        return f"No runs in {directory}"
    rows = [HEADINGS, *(_row(run, directory) for run in runs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _row(run: Run, directory: Path) -> tuple[str, ...]:
    steps = "" if run.steps is None else str(run.steps)
    best = "" if run.best_value is None else f"{run.best_metric} {run.best_value:.4f}"
    path = os.path.relpath(run.path, directory)
    about = " ".join(f"{name}={value}" for name, value in run.settings.items())
    return (
        _printable(run.task or "?"),
        _printable(run.name if path == "." else path),
        run.state,
        steps if run.num_steps is None else f"{steps}/{run.num_steps}",
        best,
        "" if run.seconds is None else f"{run.seconds:.0f}",
        f"{run.bytes / 1e6:.1f} MB",
        _printable(about if run.reason is None else f"{about} ({run.reason[:MAX_REASON]})".strip()),
    )


def _printable(text: str) -> str:
    """The text with escapes for what a terminal would act on."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads any more, as after `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (InputError, OSError) as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        sys.exit(2)
