"""Published models, which `make real-models` fetches; without them the tests are skipped."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import published_models


def fetched(directory_of: Callable[[], Path]) -> Path:
    try:
        return directory_of()
    except published_models.NotFetchedError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Use one thread in PyTorch, whose threads compete with those of JAX."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return fetched(published_models.smollm2)


@pytest.fixture(scope="session")
def minilm() -> Path:
    return fetched(published_models.minilm)


@pytest.fixture(scope="session")
def rxnmapper() -> Path:
    return fetched(published_models.rxnmapper)
