"""Settings of the benchmarks' tests."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    """Use one thread: several only slow down models this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
