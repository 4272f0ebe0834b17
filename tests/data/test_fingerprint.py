"""Fingerprints of data: equal for equal data, different for different data."""

import numpy as np
import pytest

from transformer_jax.data.fingerprint import fingerprint
from transformer_jax.tasks import ReverseDataset


class Known:
    """A data set that knows its digest."""

    def __init__(self, digest: str) -> None:
        self.digest = digest

    def fingerprint(self) -> str:
        return self.digest


def test_the_same_data_have_the_same_fingerprint():
    def of_data() -> str:
        return fingerprint([ReverseDataset(3, 5, 7, seed=1), Known("0123")], {"table": np.arange(6.0).reshape(2, 3)})

    assert of_data() == of_data()
    assert fingerprint([Known("a")], None) != fingerprint([Known("b")], None)
    assert len(of_data()) == 64


@pytest.mark.parametrize(
    "other",
    [
        ([ReverseDataset(3, 5, 7, seed=2)], None),
        ([ReverseDataset(3, 5, 11, seed=1)], None),
        ([ReverseDataset(3, 7, 7, seed=1)], None),
        ([ReverseDataset(3, 5, 7, seed=1)], np.zeros(1)),
        ([ReverseDataset(3, 5, 7, seed=1), Known("")], None),
        ([], None),
    ],
)
def test_other_data_have_another_fingerprint(other):
    assert fingerprint(*other) != fingerprint([ReverseDataset(3, 5, 7, seed=1)], None)


def test_constants_count_with_their_types_and_shapes_and_every_element():
    table = np.arange(6, dtype=np.int32)
    constants = [table, table.reshape(2, 3), table.view(np.float32), table + (np.arange(6) == 5), np.int32(0)]
    assert len({fingerprint([], constant) for constant in constants}) == len(constants)
