"""Maps of chosen queries and heads: rows of the full maps, in every model, with every part."""

import jax
import numpy as np
import pytest
from compiled_models import drawn

from transformer_jax import (
    AttentionSettings,
    BlockSettings,
    Causal,
    InputError,
    RMSNorm,
    RotaryPositions,
    Transformer,
    TransformerEncoder,
    Window,
    padding_mask,
    patch,
)
from transformer_jax.nn import RelativePositions
from transformer_jax.nn.layer_stacks import STACKED, unstack_layers

pytestmark = pytest.mark.slow  # they compile

B, S, T, D, H, V = 2, 11, 7, 24, 4, 13
DRAWS = np.random.default_rng(0)
X = DRAWS.normal(size=(B, S, D)).astype(np.float32)
SOURCE, TARGET = DRAWS.integers(V, size=(B, S)), DRAWS.integers(V, size=(B, T))
VALID = np.arange(S) < np.array([[11], [6]])
QUERIES, HEADS = [5, 0, 6], [3, 1]  # in another order than they have; in the second sequence, 6 is padding
KINDS = [(RotaryPositions(), 2), (RelativePositions(num_buckets=4, max_distance=5), 1)]


def maps_of(model, variables, *inputs, **chosen):
    return model.apply(variables, *inputs, method="get_attention_maps", **chosen)


def shapes_of(model, inputs, **chosen):
    return jax.eval_shape(lambda: maps_of(model, drawn(model, *inputs), *inputs, **chosen))


def assert_rows(chosen, full, queries, heads) -> None:
    """Assert that the chosen maps of one kind are the corresponding rows of the full maps, in all layers."""
    assert len(chosen) == len(full)
    for rows, whole in zip(chosen, full, strict=True):
        np.testing.assert_allclose(rows, np.asarray(whole)[:, heads][:, :, queries], atol=1e-6)


@pytest.mark.parametrize(("positions", "num_kv_heads"), KINDS, ids=["rotary", "bias"])
def test_each_kind_of_an_encoder_decoder_has_its_own_queries(positions, num_kv_heads):
    settings = BlockSettings(positions=positions, attention=AttentionSettings(num_kv_heads, RMSNorm))
    sizes = {"model_dim": D, "num_heads": H, "dim_feedforward": 5, "num_encoder_layers": 1, "num_decoder_layers": 1}
    model = Transformer(V, V, **sizes, settings=settings)
    inputs = SOURCE, TARGET, padding_mask(VALID), Window(2, None)
    choices = {}, {"queries": QUERIES, "heads": HEADS}, {"queries": [6], "source_queries": [10, 9]}
    run = jax.jit(lambda variables: [maps_of(model, variables, *inputs, **chosen) for chosen in choices])
    full, chosen, apart = run(drawn(model, SOURCE, TARGET))
    for kind in full._fields:
        assert_rows(getattr(chosen, kind), getattr(full, kind), QUERIES, HEADS)
    assert_rows(apart.encoder, full.encoder, [10, 9], range(H))
    assert_rows(apart.cross, full.cross, [6], range(H))


@pytest.mark.parametrize(("implementation", "in_a_loop"), [("plain", True), ("blockwise", False)])
def test_rows_are_those_of_the_full_maps_of_a_pass_of_any_implementation(implementation, in_a_loop):
    attention = AttentionSettings(implementation=implementation)
    model = TransformerEncoder(3, D, H, 5, settings=BlockSettings(attention=attention, scan_layers=in_a_loop))
    used = drawn(model, X)
    assert (STACKED in used["params"]) == in_a_loop
    run = jax.jit(lambda x: maps_of(model, used, x, Causal(), queries=QUERIES, heads=HEADS))
    plain = TransformerEncoder(3, D, H, 5)
    full = jax.jit(lambda x: maps_of(plain, unstack_layers(used), x, np.tri(S, dtype=bool)))(X)
    assert_rows(run(X), full, QUERIES, HEADS)


def test_a_query_position_beyond_the_target_is_an_error_even_if_the_source_has_it():
    model = Transformer(V, V, D, H, 1, 1, 5)
    with pytest.raises(InputError, match=f"queries holds {T}; indices may be 0 … {T - 1}"):
        shapes_of(model, (SOURCE, TARGET), queries=[T])
    assert shapes_of(model, (SOURCE, TARGET), queries=[0], source_queries=[T]).encoder[0].shape == (B, H, 1, S)


def test_an_inspected_pass_gives_the_weights_that_it_used():
    model = TransformerEncoder(1, D, H, 2 * D)
    variables = drawn(model, X)
    weights = np.random.default_rng(1).dirichlet(np.ones(S), (B, H, S)).astype(np.float32)
    changes = {"patches": {"layers.0.attention.weights": weights}, "method": "get_attention_maps"}
    (maps,) = jax.jit(lambda variables: patch(model, variables, X, **changes))(variables)
    np.testing.assert_array_equal(maps, weights)
