"""The benchmark of training, run as a user runs it; its times are not judged here."""

import json
import subprocess
import sys

import pytest
from repository import REPOSITORY

pytestmark = pytest.mark.slow

TRAINING = REPOSITORY / "benchmarks/training.py"


def test_it_measures_every_contestant_and_writes_what_it_printed(tmp_path):
    path = tmp_path / "training.json"
    command = [sys.executable, TRAINING, "--task", "reverse", "--quick", "--turns", "1", "--json", path]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    results = json.loads(path.read_text())["reverse"]
    assert list(results) == ["ours", "reference_jax", "reference_torch"]
    for name, result in results.items():
        assert result["ours_is_faster_by"] == pytest.approx(result["ms_per_step"] / results["ours"]["ms_per_step"])
        assert f"{result['ms_per_step']:.2f}" in printed, name
