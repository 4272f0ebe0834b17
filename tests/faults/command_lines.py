"""Command lines with odd flags, odd values, and bytes that are not text."""

import contextlib
import dataclasses
import os
import random
import re

from faults.cases import Case, Outcome, Verdict, refusal
from faults.watch import command, watch
from transformer_jax.config import TrainingConfig
from transformer_jax.tasks.anomaly.task import Cifar100Config, DigitsConfig
from transformer_jax.tasks.language_model.config import LanguageModelConfig
from transformer_jax.tasks.reverse import ReverseConfig
from transformer_jax.tasks.translation.task import TranslationConfig

CONFIGS: dict[str, tuple[type[TrainingConfig], ...]] = {
    "reverse.py": (ReverseConfig,),
    "anomaly.py": (DigitsConfig, Cifar100Config),
    "translate.py": (TranslationConfig,),
    "language_model.py": (LanguageModelConfig,),
}
# First on each command line, so that accepted commands train quickly; later flags override these.
SMALL = ("--max-epochs=2", "--warmup=1", "--model-dim=8", "--batch-size=7", "--num-heads=1", "--num-layers=1")
SMALL_TASK = {
    "reverse.py": ("--train-size=71", "--val-size=7", "--test-size=7", "--seq-len=5"),
    "anomaly.py": ("--dataset=digits",),
    "translate.py": ("--train-size=71", "--val-size=7", "--test-size=7", "--dim-feedforward=7", "--max-bytes=100"),
    "language_model.py": ("--train-size=71", "--dim-feedforward=7", "--seq-len=256", "--stride=256"),
}
ODD_VALUES = (
    "0", "-1", "1", "2", "7", "1.5", "-0.5", "1000000000000", "9" * 40, "4294967296", "9223372036854775808", "1e-320",
    "1e308", "nan", "-inf", "", " ", "x", "None", "True", "１２", "--", "-", "=", "auto", "cosine", "val/loss:min",
    "val/x:max", "../..", "/", "/dev/null", "/dev/zero", "/proc/self/mem", "a" * 300, "a" * 5000, "$(true)", "{}",
    os.fsdecode(b"\xff\xfe"), "\udc80", "a\nb", "digits", "cifar100", "reverse", "dates",
)  # fmt: skip
UNKNOWN = "--unknown", "--Batch-size", "-x", "--batch size", "--", "positional", "--no-", "--lr.x", "--help", "--help=1"
WRITTEN = "checkpoint_dir", "compilation_cache", "data_dir"


def run(case: Case) -> Outcome:
    """Generate a command line, which must be refused in one line or train its first two steps."""
    rng = case.rng()
    script = rng.choice(sorted(CONFIGS))
    odd = [text for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))) for text in _flag(rng.choice(CONFIGS[script]), rng)]
    line = f"--checkpoint-dir={case.directory / 'runs'}", *SMALL, *SMALL_TASK[script], *odd
    fault = f"{script} {' '.join(shown[:120] for shown in map(ascii, odd))}"
    with contextlib.chdir(case.directory):
        seen = watch(command(script, *line, two_steps=True), case.directory)
    if outcome := refusal(seen, fault):
        return outcome
    if re.search(r"(?<![\w/])nan(?![\w/])", seen.stdout.lower()):  # a number, not a path
        return Outcome(Verdict.WRONG, fault, f"NaN in {seen.stdout[-200:]}")
    return Outcome(Verdict.RIGHT, fault, "help" if "usage:" in seen.stdout else "trained two steps")


def _flag(config: type[TrainingConfig], rng: random.Random) -> list[str]:
    """Draw one flag, mostly with an odd value."""
    if rng.random() < 0.1:
        return [rng.choice(UNKNOWN), *([rng.choice(ODD_VALUES)] if rng.random() < 0.5 else [])]
    field = rng.choice(dataclasses.fields(config))
    flag, value = "--" + field.name.replace("_", "-"), rng.choice(ODD_VALUES)
    if isinstance(field.default, bool):
        return [rng.choice((flag, f"--no-{flag[2:]}", f"{flag}={value}"))]
    if field.name in ("seeds", "sweep"):  # a hundred runs end, but not in a minute
        value = value[:4].replace("..", ",")
    if field.name in WRITTEN:  # it would write outside of the case's directory, as it is told to
        value = value.strip("./")
    return rng.choice(2 * ([f"{flag}={value}"], [flag, value]) + ([flag],))
