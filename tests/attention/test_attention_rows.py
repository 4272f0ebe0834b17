"""Weights of chosen queries: those of the whole pass. Their memory: tests/nn/test_attention_memory.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import ALiBi, Causal, InputError, Padding, dot_product_attention
from transformer_jax.attention import attention_rows

B, H, T, S, D = 2, 6, 11, 13, 5


def operands(*leading: int, groups: int = H) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    q = rng.normal(size=(*leading, H, T, D)).astype(np.float32)
    return jnp.asarray(q), jnp.asarray(rng.normal(size=(*leading, groups, S, D)).astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "leading"), [(1, (B,)), (2, (3, B))])
def test_rows_are_those_of_all_weights(groups, leading):
    q, k = operands(*leading, groups=groups)
    valid = np.random.default_rng(1).random((B, S)) < 0.7
    asked = Causal(-2) & Padding(valid), ALiBi(H)
    queries, heads = np.array([7, 0, 10]), np.array([4, 1])

    @jax.jit
    def run(q, k):
        _, weights = dot_product_attention(q, k, k, *asked, return_attention=True)
        return weights, attention_rows(q, k, *asked), attention_rows(q, k, *asked, queries=queries, heads=heads)

    weights, same, rows = run(q, k)
    np.testing.assert_allclose(rows, weights[..., heads, :, :][..., queries, :], atol=1e-6)
    np.testing.assert_allclose(same, weights, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queries": np.array([3, T])}, f"queries holds {T}; indices may be 0 … {T - 1}"),
        ({"queries": np.array([-1])}, "queries holds -1"),
        ({"queries": np.array([0]), "heads": np.array([H])}, f"heads holds {H}; indices may be 0 … {H - 1}"),
        ({"queries": np.zeros(0, int)}, r"queries has type int64 and shape \(0,\); it must be indices \[n\]"),
    ],
)
def test_arguments_that_are_not_indices_are_named(options, message):
    q, k = operands(B)
    with pytest.raises(InputError, match=message):
        attention_rows(q, k, **options)
    with pytest.raises(InputError, match="have no axis of heads"):
        attention_rows(q[0, 0], k[0, 0], queries=np.array([0]), heads=np.array([0]))
