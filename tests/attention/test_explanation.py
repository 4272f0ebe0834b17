"""The record of attention in a traced program, and the lines that are made of it."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import BlockSettings, Causal, Transformer, dot_product_attention
from transformer_jax.attention.request import recording_attention

B, S, T, D, H, V = 2, 7, 5, 12, 2, 11
SOURCE, TARGET = np.zeros((B, S), int), np.zeros((B, T), int)


@pytest.mark.cpu(reason="the message names the backend")
def test_each_kind_of_a_model_is_recorded_with_the_size_of_its_logits_in_a_loop_over_layers_too():
    model = Transformer(V, V, D, H, 2, 1, 3, settings=BlockSettings(scan_layers=True))
    params = jax.eval_shape(model.init, jax.random.key(0), SOURCE, TARGET)
    with recording_attention() as calls:
        jax.eval_shape(model.apply, params, SOURCE, TARGET)
    assert {call.logits for call in calls} == {(S, S), (T, T), (T, S)}
    reasons = "not blockwise: plain is faster for few logits; not fused: there is no kernel for the backend cpu"
    assert str(calls[0]) == f"plain attention of {S} × {S} logits: there are few logits; {reasons}"


def test_calls_are_recorded_only_inside_the_block():
    q = np.zeros((B, H, T, 3), np.float32)
    with recording_attention() as calls:
        jax.eval_shape(nn.Dense(3).init, jax.random.key(0), jnp.zeros((B, D)))
        jax.eval_shape(lambda q: dot_product_attention(q, q, q, Causal(), implementation="blockwise"), q)
    dot_product_attention(q, q, q)
    assert [call.implementation for call in calls] == ["blockwise"]
