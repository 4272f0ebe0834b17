"""Memory of attention, from the compiler's analysis: it is linear in the length, and no model stores `[T, S]`."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import (
    ALiBi,
    Causal,
    RelativeBias,
    Transformer,
    TransformerPredictor,
    Window,
    dot_product_attention,
    padding_mask,
)

pytestmark = pytest.mark.slow  # they compile

H, D = 4, 64
MIB = 2**20


def temporaries(length: int, mask, bias) -> int:
    """Bytes that a forward and backward pass need in addition to inputs and results."""
    x = jax.ShapeDtypeStruct((1, H, length, D), jnp.float32)

    def gradients(q, k, v, cotangent):
        attend = lambda q, k, v: dot_product_attention(q, k, v, mask, bias, implementation="blockwise")  # noqa: E731
        return jax.vjp(attend, q, k, v)[1](cotangent)

    return jax.jit(gradients).lower(x, x, x, x).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(
    ("mask", "bias"), [(Causal(), None), (Window(256, 0), ALiBi(H)), (None, RelativeBias(jnp.zeros((32, H))))], ids=str
)
def test_it_grows_with_the_length(mask, bias):
    of_8192 = temporaries(8192, mask, bias)
    assert of_8192 < 128 * MIB
    assert temporaries(32768, mask, bias) <= 4.8 * of_8192


T, WIDTH = 4096, 16
X, IDS = jax.ShapeDtypeStruct((1, T, WIDTH), jnp.float32), jax.ShapeDtypeStruct((1, T), jnp.int32)
VALID, KEY = jax.ShapeDtypeStruct((1, T), bool), jax.eval_shape(lambda: jax.random.key(0))
PREDICTOR = TransformerPredictor(WIDTH, 3, 2, 1, 0.1)
TRANSFORMER = Transformer(11, 11, WIDTH, 2, 1, 1, 2 * WIDTH)


def translation(params, ids, valid, key):
    mask = padding_mask(valid)
    return TRANSFORMER.apply(params, ids, ids, mask, mask, train=True, rngs={"dropout": key}).sum()


def test_a_training_step_does_not_hold_attention_weights_unless_requested():
    params = jax.eval_shape(TRANSFORMER.init, KEY, IDS, IDS)
    text = jax.jit(jax.grad(translation)).lower(params, IDS, VALID, KEY).compile().as_text()
    assert re.findall(rf"\w+\[(?:\d+,)*{T},{T}[\d,]*\]", text) == []
    assert f"{T},{WIDTH}]" in text  # the pattern would have found them


QUERIES, HEADS = np.array([0, 2047, T - 1]), np.array([1])


@pytest.mark.parametrize(
    ("model", "inputs", "mask"),
    [
        (PREDICTOR.clone(num_layers=2), (X,), Causal()),
        (TRANSFORMER, (IDS, IDS), None),
    ],
    ids=["predictor", "encoder-decoder"],
)
def test_maps_of_chosen_queries_are_all_that_is_held_of_the_weights(model, inputs, mask):
    params = jax.eval_shape(model.init, KEY, *inputs)
    maps = functools.partial(model.apply, mutable=False, queries=QUERIES, heads=HEADS)
    run = jax.jit(lambda params, *inputs: maps(params, *inputs, mask, method=model.get_attention_maps))
    lowered = run.lower(params, *inputs)
    text = lowered.compile().as_text()
    assert re.findall(rf"\w+\[(?:\d+,)*{T},{T}[\d,]*\]", text) == []
    assert {leaf.shape for leaf in jax.tree.leaves(lowered.out_info)} == {(1, 1, 3, T)}
    assert f",3,{T}]" in text
