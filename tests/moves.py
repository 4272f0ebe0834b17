"""Runs that move between devices, meshes and processes: `python tests/moves.py` makes the table of docs/scaling.md.

Each move trains an epoch of reverse in one way and a second one in another, with dropout, and compares its losses with
those of one device.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from repository import REPOSITORY


class Way(NamedTuple):
    """A way to train."""

    processes: int
    devices: int  # of each
    settings: dict[str, Any] = {}  # noqa: RUF012 (never changed)

    def __str__(self) -> str:
        flags = " ".join(f"--{name} {value}" for name, value in self.settings.items())
        return f"{self.processes} × {self.devices}" + (f" `{flags}`" if flags else "")


ONE = Way(1, 1)
FSDP, ALL_AXES = {"mesh": "fsdp=8"}, {"mesh": "data=2,fsdp=2,tensor=2"}
MOVES = [
    (Way(2, 2), Way(1, 2)),
    (Way(2, 2), Way(4, 1)),
    (Way(2, 2), Way(1, 4)),
    (Way(2, 2), Way(2, 2)),
    (Way(2, 2), ONE),
    (ONE, Way(2, 2)),
    (Way(1, 2), Way(2, 1)),
    (Way(4, 1), Way(2, 1)),
    (Way(1, 8), Way(2, 4)),
    (ONE, Way(1, 8, FSDP)),
    (Way(1, 8, FSDP), ONE),
    (Way(1, 8, FSDP), Way(1, 8, ALL_AXES)),
    (Way(1, 8, ALL_AXES), Way(1, 2)),
    (Way(1, 8, FSDP), Way(2, 4, FSDP)),
    (Way(2, 4, FSDP), Way(2, 2)),
    (Way(2, 4, FSDP), Way(1, 8, ALL_AXES)),
    (Way(2, 4, ALL_AXES), Way(4, 1)),
    (Way(4, 2, {"mesh": "data=4,fsdp=2"}), Way(1, 8, FSDP)),
    (Way(2, 2, {"accumulate": 2}), Way(2, 4, ALL_AXES | {"remat": "all"})),
    (Way(2, 2, {"mesh": "tensor=2,data=2"}), Way(1, 4, {"accumulate": 4})),
]


def train(way: Way, task: str, directory: Path, precision: int = 32, **settings: Any) -> list[dict[str, Any]]:
    """What `mesh_runs.py` prints in each process, with numbers of 32 or 64 bits."""
    flags = re.sub(r"\S*host_platform_device_count=\d+", "", os.environ.get("XLA_FLAGS", ""))
    environment = os.environ | {
        "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count={way.devices}",
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": str(int(precision == 64)),
        "PYTHONPATH": str(REPOSITORY),
    }
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    started = []
    for number in range(way.processes):
        chosen = (
            way.settings
            | settings
            | ({} if way.processes > 1 else {"num_devices": 0 if "mesh" in way.settings else way.devices})
        )
        if way.processes > 1:
            chosen |= {
                "distributed": True,
                "coordinator": address,
                "num_processes": way.processes,
                "process_id": number,
            }
        command = [sys.executable, str(REPOSITORY / "tests" / "mesh_runs.py"), task, str(directory), json.dumps(chosen)]
        started.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    outputs = [process.communicate(timeout=600) for process in started]
    for process, (_, errors) in zip(started, outputs, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return [json.loads(output.splitlines()[-1])[0] for output, _ in outputs]


def losses_of(move: tuple[Way, Way], directory: Path, first_legs: dict[str, list[float]]) -> list[float]:
    """The losses of both epochs of a move; the first ones are trained once for all moves that begin with them."""
    first, second = move
    begun = directory / f"begun {first}".replace("/", "_")
    if str(first) not in first_legs:
        first_legs[str(first)] = train(first, "reverse", begun, max_epochs=2, stop_after=1)[0]["losses"]
    moved = directory / "moved"
    shutil.copytree(begun, moved)
    second_leg = train(second, "reverse", moved, max_epochs=2)[0]["losses"]
    shutil.rmtree(moved)
    return first_legs[str(first)] + second_leg


def rows() -> Iterator[str]:
    """The rows of the table."""
    yield "| from (processes × devices) | to | largest difference from one device, of 100 losses |"
    yield "| --- | --- | ---: |"
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        alone = train(ONE, "reverse", directory / "alone", max_epochs=2)[0]["losses"]
        first_legs: dict[str, list[float]] = {}
        for move in MOVES:
            difference = np.abs(np.subtract(losses_of(move, directory, first_legs), alone)).max()
            yield f"| {move[0]} | {move[1]} | {difference:.1e} |"


if __name__ == "__main__":
    for row in rows():
        print(row, flush=True)
