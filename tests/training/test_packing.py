"""Packing: what comes back is what went in, and only the small arrays are copied."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.training.packing import LARGEST, pack, unpack


def arrays(*shapes: tuple[int, ...]) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    return {f"{number}": jnp.asarray(rng.normal(size=shape), jnp.float32) for number, shape in enumerate(shapes)}


@pytest.mark.parametrize(
    ("shapes", "packed_sizes"),
    [
        ([(3, 5), (), (7,)], [23]),
        ([(3, 5), (LARGEST + 1,), (7,), (2, LARGEST)], [22, LARGEST + 1, 2 * LARGEST]),
        ([(LARGEST,), (LARGEST + 1,)], [LARGEST, LARGEST + 1]),
        ([(LARGEST + 1,)], [LARGEST + 1]),
        ([], []),
    ],
)
def test_what_is_packed_comes_back_and_the_large_ones_stay_apart(shapes, packed_sizes):
    tree = arrays(*shapes)
    packed = pack(tree)
    assert [array.size for array in packed] == packed_sizes
    back = unpack(packed, tree)
    assert back.keys() == tree.keys()
    for name, array in tree.items():
        np.testing.assert_array_equal(back[name], array, strict=True)


def test_each_array_keeps_its_type():
    tree = {"a": jnp.ones((3,), jnp.bfloat16), "b": jnp.full((2, 5), 7.0), "c": jnp.asarray(11, jnp.int32)}
    back = unpack(pack(tree), tree)
    assert {name: array.dtype for name, array in back.items()} == {name: array.dtype for name, array in tree.items()}
    np.testing.assert_array_equal(back["c"], 11)
