"""Trainings in several processes or on several devices, by `mesh_runs.py`."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from repository import REPOSITORY

CLOSE = {"rtol": 0, "atol": 1e-12}  # sums in another order; in float32, rounding would flip ReLUs


class Way(NamedTuple):
    """Numbers of processes and devices of a training."""

    processes: int
    devices: int  # of each


def free_address() -> str:
    """Return an address with an unused port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def environment(devices: int, precision: int = 32) -> dict[str, str]:
    """Return the environment of a process with some CPU devices, and numbers of 32 or 64 bits."""
    flags = re.sub(r"\S*host_platform_device_count=\d+", "", os.environ.get("XLA_FLAGS", ""))
    return os.environ | {
        "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": str(int(precision == 64)),
        "PYTHONPATH": str(REPOSITORY),
    }


def train(way: Way, directory: Path, *runs: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Run `mesh_runs.py` with these settings, one training after another; return its output for each process."""
    together = {"distributed": True, "coordinator": free_address(), "num_processes": way.processes}
    own = [together | {"process_id": n} if way.processes > 1 else {} for n in range(way.processes)]
    command = [sys.executable, str(REPOSITORY / "tests" / "mesh_runs.py"), str(directory)]
    command += [json.dumps([of_process | run for run in runs]) for of_process in own]
    done = subprocess.run(command, env=environment(way.devices, 64), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
