"""Published tables made again: train what is missing, and write `docs/papers.md` (`make papers`).

A run that was interrupted goes on, one that is finished is only tested again. The runs are below `--checkpoint-dir`;
their `results.json` are copied to `experiments/papers/results/`, from which the page is written. `--quick` trains each
row for a few steps and writes all below `--checkpoint-dir`.
"""

import dataclasses
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from transformer_jax import run
from transformer_jax.cli import parse

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "papers.md"
RESULTS = FOLDER / "results"
INTRODUCTION = """# Papers

Published numbers, and the same ones made here by one command each. `make papers` runs all commands, goes on after a
kill, and writes this page from the `results.json` in `experiments/papers/results/`; every number in a column "here" is
the mean over seeds ± the sample's standard deviation. A setting that could not be run in full says so. Seconds are of
training and compilation, on a machine that did other work beside it.
"""


class Line(NamedTuple):
    """A line of a table: one number."""

    label: str
    published: str  # the paper's, or a dash
    runs: str  # pattern of the directories of the runs, which differ in the seed
    path: str  # of the number in `results.json`, as test/loss


@dataclasses.dataclass(frozen=True)
class Row:
    """A paper's table, in one setting."""

    name: str  # of its directory of results, and of its runs
    title: str
    source: str  # paper, table or section
    command: str  # arguments of python, from the repository's root
    lines: Sequence[Line]
    remarks: str  # what differs in the setting and why, and what does not agree


SET_LINES = (
    Line("SAB + PMA", "0.2085 ± 0.0127", "pooling=pma,*", "test/loss"),
    Line("max pooling", "0.1355 ± 0.0074", "pooling=max,*", "test/loss"),
    Line("sum pooling", "1.902 ± 0.137", "pooling=sum,*", "test/loss"),
    Line("mean pooling", "2.133 ± 0.190", "pooling=mean,*", "test/loss"),
)
ROWS = (
    Row(
        "LargestOfASet",
        "Set Transformer: the largest of a set, as in the authors' notebook",
        "Lee et al. 2019, *Set Transformer*, table 1: mean absolute error on fresh sets.",
        "experiments/papers/set_transformer.py --sweep pooling=pma,max,sum,mean --seeds 0..4",
        SET_LINES,
        """
The setting is that of the authors' notebook: 500 steps of 1 024 sets, Adam 1e-4, no LayerNorm. Here each set of a batch
has a length of its own (theirs share one, drawn for each batch); a linear layer widens the numbers before the first SAB
(there its projections do, and the residual starts after them); rFF has two layers (there one) and PMA has its rFF
(equation 11, which their code leaves out); logits are divided by the root of a head's width (there of all heads').

Only max pooling agrees, within two of the deviations here, which are wide. The three others do not: SAB + PMA has a
training loss that still jumps between entries of its log at the end, so that the result depends on the last steps, and
sum and mean pooling are far from the published errors. Which of the two settings the table was made with could not be
found out; nothing else was tried.
""",
    ),
    Row(
        "LargestOfASet_supplement",
        "Set Transformer: the largest of a set, as in the supplement",
        "Lee et al. 2019, table 1, with the setting of the supplement: 20 000 steps of 128 sets, Adam 1e-3.",
        "experiments/papers/set_transformer.py --supplement --sweep pooling=pma,max,sum,mean --seeds 0..4",
        SET_LINES,
        """
**Fewer seeds and poolings than the command's were run**: the column of seeds says how many. What differs is as above.
The one seed of SAB + PMA and that of max pooling are both above the published errors by more than two of their
deviations. The rate stays at 1e-3 to the end; a rate that falls, and MABs that compute what the authors' code does,
were not tried.
""",
    ),
    Row(
        "InContextRegression_tiny",
        "Regression in context, with the tiny model",
        "Garg et al. 2022, *What Can Transformers Learn In-Context?*, the toy setting of their code: squared error by "
        "the number of examples in the prompt, divided by d = 5.",
        "experiments/papers/in_context.py --tiny --seeds 0..2",
        tuple(
            Line(f"{name}, {count} examples", "–", "seed*", f"{key}/{count}")
            for count in (0, 2, 4, 5, 7, 10)
            for name, key in (("Transformer", "curve"), ("least squares", "least_squares"))
        ),
        """
The toy has no published number; in the paper's figure 2, at d = 20 after 500 000 steps, the Transformer's curve lies on
that of least squares, which is computed here on the same prompts (the solution of least norm where there are fewer
examples than dimensions). **The model is the paper's tiny one** (3 layers, width 64, 2 heads), and **fewer seeds than
the command's were run**; the toy's own model (12 layers, width 256, 8 heads: the command without `--tiny`) was not run,
which would take hours on two cores, by estimate. Steps (5 001), batch (64) and Adam's rate (1e-4) are the toy's. The
Transformer does not agree with least squares: after so few steps it is better than no answer (error 1), but the error
of least squares vanishes from five examples on.
""",
    ),
    Row(
        "Grokking_small",
        "Grokking, with a smaller modulus",
        "Nanda et al. 2023, *Progress measures for grokking via mechanistic interpretability*, sections 3 to 5.",
        "experiments/papers/grokking.py --small --seeds 0",
        (
            Line("accuracy on the other pairs", "near 1", "seed*", "val/accuracy"),
            Line("loss on the other pairs", "–", "seed*", "val/loss"),
            Line("share of the embedding's squared norm at its 5 strongest frequencies", "–", "seed*", "key_share"),
            Line("loss on all pairs", "–", "seed*", "test/loss"),
            Line("… with the 5 frequencies removed", "–", "seed*", "without_keys/loss"),
            Line("… with all others removed", "–", "seed*", "keys_alone/loss"),
        ),
        """
**The modulus is 59 and not 113, 40 % of the pairs are trained on and not 30 %, for 5 000 epochs and not 14 000**: the
paper's setting is the command without `--small`. **Neither was run**: by the speed of its first hundred steps the small
one takes forty minutes on two busy cores, the paper's some hours. Width, heads, Adam's rate, decay and β are the
paper's. Frequencies are removed from the embedding here, and from the logits in the paper.
""",
    ),
)


@dataclasses.dataclass(frozen=True)
class Papers:
    """Train what the tables need, and write the page."""

    checkpoint_dir: Path = Path("checkpoints")  # parent of the runs
    quick: bool = False  # a few steps with one seed each; the page and its results go below checkpoint_dir
    write_only: bool = False  # train nothing; write the page from the results that were copied


def make(papers: Papers) -> None:
    """Run every row's command, copy its results, and write the page."""
    results, page = (
        (RESULTS, PAGE) if not papers.quick else (papers.checkpoint_dir / name for name in ("results", "papers.md"))
    )
    for row in ROWS:
        if not papers.write_only:
            script, *arguments = shlex.split(row.command)
            more = ["--seeds", "0", "--quick"] if papers.quick else []
            directory = papers.checkpoint_dir.resolve()
            command = [script, *arguments, "--checkpoint-dir", str(directory), *more]
            print(f"# {row.title}", flush=True)
            subprocess.run([sys.executable, *command], cwd=FOLDER.parents[1], check=True)
            collect(papers.checkpoint_dir / row.name, results / row.name)
    page.write_text(text(results), encoding="utf-8")
    print(f"Written: {page}")


def collect(trained: Path, collected: Path) -> None:
    """Copy `results.json` of each run, and note the machine; a run that was only tested again keeps its copy."""
    for found in sorted(trained.glob("*/results.json")):
        target = collected / found.parent.name / found.name
        of_run = json.loads(found.read_text())
        if target.exists() and json.loads(target.read_text())["test"] == of_run["test"]:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        of_run["settings"] |= {"checkpoint_dir": "checkpoints"}  # no path of this machine
        of_run["machine"] = machine()
        target.write_text(json.dumps(of_run, indent=1) + "\n", encoding="utf-8")


def machine() -> dict[str, object]:
    """Name of the processor, as far as the system says it, its cores, and the day."""
    cpus = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in cpus.open() if "model name" in line] if cpus.exists() else []
    processor = (names or [platform.processor() or platform.machine()])[0]
    return {"processor": processor, "cores": os.cpu_count(), "date": str(datetime.date.today())}


def text(results: Path = RESULTS) -> str:
    """The page."""
    sections = [INTRODUCTION, *(section(row, results / row.name) for row in ROWS), HOW_TO_ADD]
    return "\n".join(sections)


def section(row: Row, results: Path) -> str:
    """One paper's table, its command, its machine and its remarks."""
    table = ["| | published | here | seeds | seconds of a run |", "| --- | --- | --- | --- | --- |"]
    machines = set()
    for line in row.lines:
        runs = [json.loads(path.read_text()) for path in sorted(results.glob(f"{line.runs}/results.json"))]
        values = [number(of_run, line.path) for of_run in runs]
        seconds = [of_run["train_seconds"] + of_run["compile_seconds"] for of_run in runs]
        time = f"{statistics.mean(seconds):.0f}" if seconds else "–"
        table.append(f"| {line.label} | {line.published} | {spread(values)} | {len(values)} | {time} |")
        for of_run in runs:
            its, versions = of_run["machine"], of_run["versions"]
            machines.add(f"{its['processor']}, {its['cores']} cores, {its['date']}, jax {versions['jax']}")
    made = f"Made on: {'; '.join(sorted(machines)) or 'no machine yet'}."
    parts = [f"## {row.title}", row.source, "\n".join(table), f"```\n.venv/bin/python {row.command}\n```", made]
    return "\n\n".join([*parts, row.remarks.strip(), ""])


def number(results: dict, path: str) -> float:
    """The number at a path of `results.json`."""
    for name in path.split("/"):
        results = results[name]
    return float(results)


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation, with the latter's two digits."""
    if not values:
        return "not run"
    mean = f"{statistics.mean(values):.4f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.4f}"


HOW_TO_ADD = """## Add a paper

1. Write `experiments/papers/<name>.py`, a task as in [A task of your own](new_task.md): settings, data, model, loss.
2. The paper's setting is the defaults of its config; the docstring has the source and the command.
3. A flag `--quick` (a `Setting` beside the config, as in `in_context.py`) takes seconds.
4. Metrics of the loss function are in `results.json` as `test/<metric>`; others are what `report` of `train_and_test`
   returns.
5. What the library lacks belongs in the library, not in the file.
6. Add a `Row` to `ROWS` in `make_tables.py`: source, command with `--seeds`, and a `Line` for each published number.
7. Its `remarks` say what differs in the setting, why, and what does not agree.
8. `make papers ARGS="--quick --checkpoint-dir /tmp/papers"` shows in a minute that all works.
9. `make papers` trains it and writes this page; a run that is finished is not trained again.
10. Commit the page and `experiments/papers/results/<name>/`; a test compares the two.
"""

if __name__ == "__main__":
    run(partial(parse, Papers), make)
