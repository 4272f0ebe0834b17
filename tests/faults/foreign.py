"""Files of others where a run wants to write: in a directory that is no run, or behind a link in one that is."""

import shutil
from pathlib import Path

from faults.cases import Case, Outcome, Verdict
from faults.commands_seen import failure_of, refusal
from faults.in_process import command
from faults.material import TASK, arguments
from faults.watch import watch

WAYS = ((), ("--no-resume",), ("--no-resume", "--overwrite"), ("--pretrained=reverse", "--logger=csv"))
THEIRS = ("b.png", "notes.txt", "checkpoints/theirs/weights", "src/main.py", "checkpoints/7/state")
THEIR_BYTES = b"theirs"
LINKED = (
    ".lock_holder", ".lock", "attention_maps.png", "config.json.tmp", "results.json.tmp", "results.json", "metrics.csv",
)  # fmt: skip


def run(case: Case) -> Outcome:
    """Train, or evaluate, where files of others lie; their bytes stay."""
    rng = case.rng()
    way = rng.choice(WAYS)
    parent, outside = case.directory / "runs", case.directory / "outside"
    own = parent / (f"{TASK}_pretrained" if "--pretrained=reverse" in way else TASK)
    outside.mkdir()
    if rng.random() < 0.5:
        files = [own / name for name in rng.sample(THEIRS, 2)]
        fault = f"{' '.join(way)} where {', '.join(file.name for file in files)} lie"
    else:
        shutil.copytree(case.material / "unfinished" / TASK, own)
        link = own / rng.choice(LINKED)
        files = [outside / "file"]
        link.unlink(missing_ok=True)
        link.symlink_to(files[0])
        fault = f"{' '.join(way)} where {link.name} is a link"
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(THEIR_BYTES)
    seen = watch(command("reverse.py", *arguments(case.material, parent), *way), parent, case.material / "compiled")
    if changed := [file for file in files if not file.is_file() or file.read_bytes() != THEIR_BYTES]:
        return Outcome(Verdict.WRONG, fault, f"changed or gone: {', '.join(map(_last_parts, changed))}")
    return failure_of(seen, fault) or refusal(seen, fault) or Outcome(Verdict.RIGHT, fault)


def _last_parts(path: Path) -> str:
    return "/".join(path.parts[-3:])
