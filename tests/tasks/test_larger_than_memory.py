"""A table of features several times as large as the memory that the process may take."""

import subprocess
import sys

import numpy as np
import pytest
from repository import REPOSITORY

ALLOWANCE = 96 * 2**20  # bytes: a block of the data, the index, what libraries take in passing


@pytest.mark.slow
def test_features_four_times_as_large_are_read_whole_with_their_batches_and_fingerprint(tmp_path):
    path = tmp_path / "features.npy"
    table = np.lib.format.open_memmap(path, "w+", np.float32, (100_003, 1021))
    for start in range(0, len(table), 10_007):
        table[start : start + 10_007] = np.float32(start)
    del table
    np.save(tmp_path / "labels.npy", np.arange(100_003) % 5)
    batches = sum(round(0.8 * count) - round(0.1 * round(0.8 * count)) for count in [20_001] * 3 + [20_000] * 2)
    assert path.stat().st_size > 4 * ALLOWANCE
    command = [sys.executable, str(REPOSITORY / "tests" / "larger_than_memory.py"), str(tmp_path), str(ALLOWANCE)]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert int(outcome.stdout.split()[1]) == batches // 64
