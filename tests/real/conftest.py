"""Published models, which `make real-models` fetches; without them the tests are skipped."""

from collections.abc import Callable
from pathlib import Path

import pytest

import published_models


def fetched(directory_of: Callable[[], Path]) -> Path:
    try:
        return directory_of()
    except published_models.NotFetchedError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return fetched(published_models.smollm2)


@pytest.fixture(scope="session")
def minilm() -> Path:
    return fetched(published_models.minilm)


@pytest.fixture(scope="session")
def rxnmapper() -> Path:
    return fetched(published_models.rxnmapper)
