"""Names and paths with any characters, and outputs in any encoding."""

import random
import signal
import time
from pathlib import Path

from faults.cases import Case, Outcome, Verdict, noise
from faults.comparing import differences
from faults.material import SETTINGS, TASK, undisturbed
from faults.processes import Ended, Running, Start
from transformer_jax.runs.listing import read_run
from transformer_jax.tasks.registry import load_run

# Patterns, escapes of shells and formats, addresses, other scripts, marks that combine, the largest characters.
ODD = (
    "[1e-3]", "**", "\\", "gs:", "s3:", "file:", "%s", "{0}", "${HOME}", "~", "..", " .",
    "日本", "ñ", "e\u0301", "\u00df", "ﬁ", "١", "😀", "\U0010fffd", "-x", "--", "_pretrained", "checkpoints",
)  # fmt: skip
PIECES = (*map(chr, range(32, 127)), *(6 * ODD))
ENCODINGS = "ascii", "latin-1", "cp1252", "cp437", "koi8-r", "shift_jis", "gbk", "utf-8", "utf-16"
NUMBERS = "3 1 4 1 5 9 2 6 5 3 5 8 9 7 9 3"
PRINTING = {  # commands, and what makes a moment's text the same each time
    "reverse.py": ("--help",),
    "transformer_jax.runs": (),
    "transformer_jax.predict": ("dates", "日本 2003\u202e", "1.2.2003", "ß\x1b[2J"),
    "transformer_jax.inspection": ("dates", "3. März 2004", "\U0010fffd"),
    "transformer_jax.trained": ("export", "reverse", "modèle 日本"),
}


def name_run(case: Case) -> Outcome:
    """Train under a random name in a random directory, killed in half of the cases; then open the run."""
    rng = case.rng()
    name, parent, work_dir = (_name(rng) for _ in range(3))
    fault = ascii(f"--name={name} --checkpoint-dir={parent} in {work_dir}")
    directory = case.directory / work_dir
    directory.mkdir()
    line = [f"--checkpoint-dir={parent}", f"--name={name}", *SETTINGS, "--num-devices=1"]
    if rng.random() < 0.5:
        running = Running("reverse.py", *line, start=Start(directory=directory))
        time.sleep(rng.random() * 6)
        running.send(signal.SIGKILL, to_group=True)
        running.wait()
    ended = Running("reverse.py", *line, start=Start(directory=directory)).wait()
    if problem := noise(ended.stderr):
        return Outcome(Verdict.OBSCURE, fault, problem)
    if ended.status == 2 and "reverse.py: error: " in ended.stderr:
        left = [path for path in case.directory.rglob("*") if path.is_file()]
        is_early = not (left or "step" in ended.stdout)
        return Outcome(Verdict.CLEAN if is_early else Verdict.LOST, fault, ended.stderr.strip()[:300])
    if ended.status or ended.stderr:
        return Outcome(Verdict.OBSCURE, fault, f"status {ended.status}: {ended.stderr.strip()[:300]}")
    run = directory / parent / name
    if differing := differences(run, undisturbed("reverse", case.material) / TASK):
        return Outcome(Verdict.WRONG, fault, "; ".join(differing.values()))
    if (state := read_run(run).state) != "finished" or load_run(run).results["steps"] != read_run(run).steps:
        return Outcome(Verdict.WRONG, fault, f"its state is {state}")
    return Outcome(Verdict.RIGHT, fault)


def _name(rng: random.Random) -> str:
    """Draw one to six pieces that make the name of one directory."""
    while True:
        name = "".join(rng.choices(PIECES, k=rng.randint(1, 6))).replace("/", "")
        if name.strip(".") and len(name.encode()) < 200:
            return name


def encode_output(case: Case) -> Outcome:
    """Print in an encoding that lacks characters, with and without a buffer, and to a closed pipe."""
    rng = case.rng()
    encoding, unbuffered, closes = rng.choice(ENCODINGS), rng.random() < 0.5, rng.random() < 0.25
    usual = Start(directory=case.directory, encoding="utf-8")
    odd = usual._replace(encoding=encoding, unbuffered=unbuffered)
    if rng.random() < 0.3:
        return _encode_training(case, odd, f"a training in {encoding}, unbuffered: {unbuffered}")
    command = rng.choice(sorted(PRINTING))
    if closes:
        command, words = "transformer_jax.predict", ("reverse", *[NUMBERS], "--input", "lines.txt")
        (case.directory / "lines.txt").write_text(f"{NUMBERS}\n" * 3000)
    else:
        words = PRINTING[command]
    fault = ascii(f"{command} {' '.join(words)} in {encoding}, unbuffered: {unbuffered}, closed: {closes}")
    if closes:
        running = Running(command, *words, start=odd)
        running.close_output()
        ended = running.wait()
        is_right = (ended.status, ended.stderr) == (128 + signal.SIGPIPE, "")
        return Outcome(
            Verdict.RIGHT if is_right else Verdict.WRONG, fault, f"status {ended.status}: {ended.stderr[:200]}"
        )
    expected, ended = (Running(command, *words, start=start).wait() for start in (usual, odd))
    if problem := noise(ended.stderr) or (f"status {ended.status}: {ended.stderr[:200]}" if ended.status else None):
        return Outcome(Verdict.OBSCURE, fault, problem)
    text = expected.stdout.encode(encoding, "backslashreplace").decode(encoding)
    return Outcome(Verdict.RIGHT if ended.stdout == text else Verdict.WRONG, fault, ended.stdout[:200])


def _encode_training(case: Case, start: Start, fault: str) -> Outcome:
    """Train with lines, a name and samples that the encoding cannot represent."""
    (case.directory / "text.txt").write_text("吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。" * 99)
    line = (
        "--data=text.txt", "--name=猫", "--max-epochs=1", "--train-size=64", "--batch-size=8", "--seq-len=32",
        "--model-dim=16", "--num-layers=1", "--num-heads=1", "--dim-feedforward=8", "--max-new=8", "--warmup=1",
    )  # fmt: skip
    ended: Ended = Running("language_model.py", *line, start=start).wait()
    if problem := noise(ended.stderr) or (f"status {ended.status}: {ended.stderr[:200]}" if ended.status else None):
        return Outcome(Verdict.OBSCURE, fault, problem)
    run = Path(case.directory, "checkpoints", "猫")
    missing = [name for name in ("results.json", "samples.txt") if not (run / name).exists()]
    return Outcome(Verdict.LOST if missing else Verdict.RIGHT, fault, f"missing: {missing}" if missing else "")
