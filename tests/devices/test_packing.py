"""Packing: pytrees come back as they went in, and only the small arrays are copied."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer_jax.devices.packing import Packing
from transformer_jax.training.step import initial_state

MAX = 101  # elements of an array that is packed


def arrays(*shapes: tuple[int, ...]) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    return {f"{number}": jnp.asarray(rng.normal(size=shape), jnp.float32) for number, shape in enumerate(shapes)}


@pytest.mark.parametrize("jit", [lambda function: function, jax.jit], ids=["outside", "inside jit"])
@pytest.mark.parametrize(
    ("shapes", "packed_sizes"),
    [
        ([(3, 5), (), (7,)], [23]),
        ([(3, 5), (MAX + 1,), (7,), (2, MAX)], [22, MAX + 1, 2 * MAX]),
        ([(MAX,), (MAX + 1,)], [MAX, MAX + 1]),
        ([(MAX + 1,)], [MAX + 1]),
        ([], []),
    ],
)
def test_a_packed_tree_comes_back_and_its_large_arrays_stay_apart(shapes, packed_sizes, jit):
    tree = arrays(*shapes)
    packing = Packing(tree, MAX)
    packed = jit(packing.pack)(tree)
    assert [array.size for array in jax.tree.leaves(packed)] == packed_sizes
    back = jit(packing.unpack)(packed)
    assert back.keys() == tree.keys()
    for name, array in tree.items():
        np.testing.assert_array_equal(back[name], array, strict=True)


def test_arrays_of_different_types_are_packed_apart():
    tree = {"a": jnp.ones((3,), jnp.bfloat16), "b": jnp.full((2, 5), 7.0), "c": jnp.asarray(11, jnp.int32)}
    packing = Packing(tree, MAX)
    packed = packing.pack(tree)
    assert {dtype: vector.shape for dtype, vector in packed.vectors.items()} == {
        "bfloat16": (3,),
        "float32": (10,),
        "int32": (1,),
    }
    back = packing.unpack(packed)
    assert {name: array.dtype for name, array in back.items()} == {name: array.dtype for name, array in tree.items()}
    np.testing.assert_array_equal(back["c"], 11)


def test_a_training_state_is_packed_with_the_averages_of_its_optimizer():
    params = arrays((3, 5), (MAX + 1,), (7,))
    state = initial_state(params, optax.adam(0.1), jax.random.key(0))
    state = state.replace(opt_state=jax.tree.map(lambda array: array + 2, state.opt_state))
    packing = Packing(params, MAX)
    packed = packing.pack_within(state)
    sizes = sorted(array.size for array in jax.tree.leaves((packed.params, packed.opt_state)))
    assert sizes == [
        1,
        22,
        22,
        22,
        MAX + 1,
        MAX + 1,
        MAX + 1,
    ]  # Adam's count, three vectors, three large
    back = packing.unpack_within(packed)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, back.params, state.params)
    jax.tree.map(np.testing.assert_array_equal, back.opt_state, state.opt_state)


def test_what_is_unpacked_on_the_host_is_a_copy():
    vector = np.arange(6, dtype=np.float32)
    packing = Packing({"a": jnp.zeros((2, 3))}, MAX)
    back = packing.unpack(packing.pack({"a": vector.reshape(2, 3)})._replace(vectors={"float32": vector}))
    vector[:] = -1
    np.testing.assert_array_equal(back["a"], [[0, 1, 2], [3, 4, 5]])
