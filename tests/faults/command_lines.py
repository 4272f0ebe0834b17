"""Command lines with odd flags, odd values, and bytes that are no text."""

import dataclasses
import os
import random
import re
from pathlib import Path

from faults.cases import Case, Outcome, Verdict
from faults.commands_seen import failure_of, refusal
from faults.in_process import command
from faults.watch import watch
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
# First on each line, so that what is accepted is trained quickly; a flag that follows wins.
SMALL = {
    "reverse.py": ("--train-size=71", "--val-size=7", "--test-size=7", "--seq-len=5", "--batch-size=7"),
    "anomaly.py": ("--dataset=digits", "--batch-size=7", "--num-heads=1", "--num-layers=1"),
    "translate.py": ("--train-size=71", "--val-size=7", "--test-size=7", "--batch-size=7", "--num-heads=1",
                     "--num-layers=1", "--dim-feedforward=7", "--max-bytes=100"),
    "language_model.py": ("--train-size=71", "--batch-size=7", "--model-dim=8", "--num-heads=1", "--num-layers=1",
                          "--dim-feedforward=7", "--seq-len=256", "--stride=256"),
}  # fmt: skip
ODD_VALUES = (
    "0", "-1", "1", "2", "3", "7", "1.5", "-0.5", "0.0", "1e12", "1000000000000", "3000000000", "100000", "9" * 40,
    "4294967296",
    "2147483648", "9223372036854775808", "1e-320", "1e308", "1e400", "nan", "inf", "-inf", "NaN", "", " ", "x",
    "None", "True",
    "False", "null", "0x10", "1_000", "１２", "½", "--", "-", "=", "auto", "cosine", "noam", "val/loss:min",
    "val/x:max", "val/:min",
    "../..", "/", "/dev/null", "/dev/zero", "/proc/self/mem", "a" * 300, "a" * 5000, "'", '"', "$(true)", "`true`",
    "%s", "{}",
    os.fsdecode(b"\xff\xfe"), "\udc80", "\n", "a\nb", "\t", "digits", "cifar100", "reverse", "dates", "reverse-jax",
    "1e3", "+5",
)  # fmt: skip
UNKNOWN = "--unknown", "--Batch-size", "-x", "--batch size", "--", "-", "positional", "--no-", "---seed", "--lr.x"


def run(case: Case) -> Outcome:
    """Generate a command line; it is refused in one line, or its first two steps are trained."""
    rng = case.rng()
    script = rng.choice(sorted(CONFIGS))
    parent = case.directory / "runs"
    odd = generate(script, rng)
    line = f"--checkpoint-dir={parent}", "--max-epochs=2", "--warmup=1", "--model-dim=8", *SMALL[script], *odd
    fault = f"{script} {' '.join(shown[:120] for shown in map(ascii, odd))}"
    before = os.getcwd()
    os.chdir(case.directory)
    try:
        seen = watch(command(script, *line, two_steps=True), case.directory, case.material / "compiled")
    finally:
        os.chdir(before)
    if outcome := failure_of(seen, fault) or refusal(seen, fault):
        return outcome
    if "usage:" in seen.stdout:
        return Outcome(Verdict.RIGHT, fault, "help")
    if re.search(r"(?<![\w/])nan(?![\w/])", seen.stdout.lower()):  # a number, not a path
        return Outcome(Verdict.WRONG, fault, f"NaN in {seen.stdout[-200:]}")
    return Outcome(Verdict.RIGHT, fault, "trained two steps")


def generate(script: str, rng: random.Random) -> list[str]:
    """One to four flags, most of them with an odd value."""
    line: list[str] = []
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        line += _flag(rng.choice(CONFIGS[script]), rng)
    if script == "translate.py" and rng.random() < 0.03:
        line.insert(0, "--interactive")
    if rng.random() < 0.02:
        line.append(rng.choice(("--help", "-h", "--help=1")))
    return line


def _flag(config: type[TrainingConfig], rng: random.Random) -> list[str]:
    fields = {field.name: field for field in dataclasses.fields(config)}
    field = fields[rng.choice(sorted(fields))]
    if rng.random() < 0.08:
        return [rng.choice(UNKNOWN), *([rng.choice(ODD_VALUES)] if rng.random() < 0.5 else [])]
    flag = "--" + field.name.replace("_", "-")
    if rng.random() < 0.08:  # a typing error
        place = rng.randrange(2, len(flag))
        flag = flag[:place] + rng.choice(("", "x", "_", "-")) + flag[place + 1 :]
    if isinstance(field.default, bool):
        return [rng.choice((flag, f"--no-{flag[2:]}", f"{flag}={rng.choice(ODD_VALUES)}"))]
    value = _harmless(field.name, rng.choice(ODD_VALUES))
    if rng.random() < 0.05:
        return [flag]
    return [f"{flag}={value}"] if rng.random() < 0.5 else [flag, value]


def _harmless(name: str, value: str) -> str:
    """The same value, where it would not train for hours or write outside of the case's directory as it is told to."""
    if name in ("seeds", "sweep"):  # a hundred runs end, but not in a minute
        return value[:4].replace("..", ",")
    if name in ("checkpoint_dir", "compilation_cache", "data_dir") and (value.startswith(("/", "..")) or "~" in value):
        return str(Path("inside") / value.strip("./"))
    return value
