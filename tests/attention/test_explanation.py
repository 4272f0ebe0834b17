"""The record of attention in a traced program, and the line that is made of it."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import (
    AttentionSettings,
    BlockSettings,
    Causal,
    MultiheadAttention,
    Transformer,
    TransformerEncoder,
    dot_product_attention,
)
from transformer_jax.attention.explanation import AttentionCall, Explanation, attention_line, recording_attention

B, S, T, D, H, V = 2, 7, 5, 12, 2, 11
SOURCE, TARGET = np.zeros((B, S), int), np.zeros((B, T), int)


def traced(model: nn.Module, *inputs) -> list[AttentionCall]:
    with recording_attention() as calls:
        jax.eval_shape(model.init, jax.random.key(0), *inputs)
    return calls


@pytest.mark.parametrize("scan_layers", [False, True])
def test_each_kind_is_recorded_with_its_module_and_the_size_of_its_logits(scan_layers):
    model = Transformer(V, V, D, H, 2, 1, 3, settings=BlockSettings(scan_layers=scan_layers))
    params = jax.eval_shape(model.init, jax.random.key(0), SOURCE, TARGET)
    with recording_attention() as calls:
        jax.eval_shape(model.apply, params, SOURCE, TARGET)
    assert {(call.module.replace("/layers", ""), call.explanation.logits) for call in calls} == {
        ("encoder/self_attn", (S, S)),
        ("decoder/self_attn", (T, T)),
        ("decoder/cross_attn", (T, S)),
    }
    assert attention_line(calls) == (
        f"Attention: plain for {S} × {S}, {T} × {T}, {T} × {S} logits: they are few; not blockwise: plain is faster "
        "for few; not fused: there is no kernel for the backend cpu"
    )


def test_modules_are_named_where_they_differ():
    class Both(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = MultiheadAttention(D, H, implementation="blockwise")(x)
            return TransformerEncoder(1, D, H, 3, name="top")(x)

    line = attention_line(traced(Both(), np.zeros((B, T, D), np.float32)))
    blockwise, plain = line.split(" | ")
    assert blockwise.startswith(
        f"Attention: blockwise in MultiheadAttention for {T} × {T} logits: it was asked for; not plain: another was"
    )
    assert plain.startswith(f"plain in top/layers/self_attn for {T} × {T} logits: they are few; ")


def test_a_call_outside_of_modules_is_recorded_too_and_one_outside_of_the_block_is_not():
    q = np.zeros((B, H, T, 3), np.float32)
    with recording_attention() as calls:
        jax.eval_shape(lambda q: dot_product_attention(q, q, q, Causal(), implementation="blockwise"), q)
    dot_product_attention(q, q, q)
    assert [(call.module, call.explanation.implementation) for call in calls] == [("", "blockwise")]


def test_reasons_against_an_implementation_are_listed_once_each():
    calls = [
        AttentionCall("a", Explanation("plain", "few", {"fused": reason}, (length, 3)))
        for length, reason in ((3, "odd"), (4, "bias"), (3, "odd"))
    ]
    assert attention_line(calls) == "Attention: plain for 3 × 3, 4 × 3 logits: few; not fused: odd, bias"


def test_a_model_of_another_kind_has_none():
    assert traced(nn.Dense(3), jnp.zeros((B, D))) == []


def test_a_recording_changes_no_result():
    model = TransformerEncoder(2, D, H, 3, settings=BlockSettings(attention=AttentionSettings(num_kv_heads=1)))
    x = np.random.default_rng(0).normal(size=(B, T, D)).astype(np.float32)
    variables = model.init(jax.random.key(0), x)
    with recording_attention():
        recorded = model.apply(variables, x)
    np.testing.assert_array_equal(recorded, model.apply(variables, x))
