"""Files at `--output`: existing files of any kind, and a full disk."""

import os
import random
from collections.abc import Mapping
from pathlib import Path

from faults.cases import Case, Outcome, Verdict, noise
from faults.processes import Running, Start
from transformer_jax.inspection.page.view import BEGINNING

NUMBERS = "3 1 4 1 5 9 2 6 5 3 5 8 9 7 9 3"
EARLIER = {
    "transformer_jax.predict": "input\texpected\tanswer\tprobability\tright\nearlier\t\t1\t0.5\t\n",
    "transformer_jax.inspection": f'{BEGINNING}Security-Policy">earlier</html>\n',
}
THERE = (
    "nothing", "empty", "earlier", "earlier by a link", "earlier by a hard link", "another command's", "config.json",
    "the input", "the input by a link", "the input by a hard link", "a text", "bytes", "a directory", "a pipe",
    "a device",
    "a link to nothing", "a link to itself", "no parent", "a file as parent", "a long name", "a name too long", "odd",
    "",
)  # fmt: skip
MAY_WRITE = {"nothing", "empty", "earlier by a link", "a link to nothing", "a long name", "odd"} | {*THERE[2:5]}


def write_output(case: Case) -> Outcome:
    """Write the output of a command to an existing path; it must be complete, or nothing may have changed."""
    rng = case.rng()
    command, there = rng.choice(sorted(EARLIER)), THERE[case.number % len(THERE)]
    size = int(2 ** rng.uniform(4, 18)) if rng.random() < 0.4 else None
    inputs = case.directory / "inputs.txt"
    inputs.write_text(f"{NUMBERS}\n" * rng.choice((1, 50)))
    output = _place(case.directory, there, command, inputs, rng)
    words = ("reverse", "--input", "inputs.txt") if command.endswith("predict") else ("reverse", *NUMBERS.split())
    fault = ascii(f"{command} --output={output[:80]}: {there}, files of at most {size} bytes")
    before = _contents(case.directory)
    start = Start(directory=case.directory, max_file_size=size)
    ended = Running(command, *words, f"--output={output}", start=start).wait()
    after = _contents(case.directory)
    target = str((case.directory / output).resolve()) if there in MAY_WRITE else ""
    others = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} - {target}
    if others:
        return Outcome(Verdict.WRONG, fault, f"changed, made or removed: {sorted(others)[:3]}")
    if problem := noise(ended.stderr):
        return Outcome(Verdict.OBSCURE, fault, problem)
    if ended.status == 2 and f"python -m {command}: error: " in ended.stderr:
        is_kept = before.get(target) == after.get(target)
        return Outcome(Verdict.CLEAN if is_kept else Verdict.LOST, fault, ended.stderr.strip()[:200])
    if ended.status or ended.stderr or not target:
        return Outcome(Verdict.OBSCURE, fault, f"status {ended.status}: {ended.stderr.strip()[:200]}")
    is_whole = _is_whole(command, after[target], len(inputs.read_text().splitlines()))
    return Outcome(Verdict.RIGHT if is_whole else Verdict.LOST, fault, f"{len(after[target])} bytes")


def _is_whole(command: str, written: bytes, count: int) -> bool:
    text = written.decode()
    if command.endswith("predict"):
        return text.startswith("input\t") and text.count("\n") == 1 + count and text.endswith("\t1\n")
    return text.startswith(BEGINNING) and text.rstrip().endswith("</html>")


def _place(directory: Path, there: str, command: str, inputs: Path, rng: random.Random) -> str:
    """Put something into the directory; return the value of `--output`."""
    path = directory / rng.choice(("out", "out.tsv", "-out", "o u t.html"))
    other = directory / "other"
    contents = {
        "empty": "", "earlier": EARLIER[command], "config.json": '{"format": 5}', "a text": "input\n",
        "another command's": EARLIER[min(EARLIER.keys() - {command})], "bytes": "\0\x7f",
    }  # fmt: skip
    if there in contents:
        path.write_text(contents[there])
    elif there.endswith("link"):
        if there.startswith("earlier"):
            other.write_text(EARLIER[command])
        to = inputs if there.startswith("the input") else other
        path.hardlink_to(to) if there.endswith("hard link") else path.symlink_to(to)
    elif there == "a link to nothing":
        path.symlink_to(other)
    elif there == "a link to itself":
        path.symlink_to(path)
    elif there == "a directory":
        path.mkdir()
    elif there == "a pipe":
        os.mkfifo(path)
    others = {
        "the input": inputs.name, "a device": rng.choice(("/dev/null", "/dev/full", "/dev/zero")), "": "",
        "no parent": "no/out", "a file as parent": "inputs.txt/out", "a long name": "a" * 240,
        "a name too long": "a" * 300, "odd": "日本[1]*\\ %s{0}",
    }  # fmt: skip
    return others.get(there, f"./{path.name}" if rng.random() < 0.5 else str(path))


def _contents(directory: Path) -> Mapping[str, bytes | str]:
    """Return the contents under a directory by path: a file's bytes, a link's target."""
    found: dict[str, bytes | str] = {}
    for path in directory.rglob("*"):
        if path.is_symlink():
            found[str(path)] = os.readlink(path)
        else:
            found[str(path)] = path.read_bytes() if path.is_file() else "no file"
    return found
