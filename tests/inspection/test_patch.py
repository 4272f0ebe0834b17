"""Patched passes: its own values change nothing; heads, positions and edges are those that were chosen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_models import compiled, drawn, started

from transformer_jax import (
    ALiBiPositions,
    AttentionSettings,
    BlockSettings,
    InputError,
    MultiheadAttention,
    RMSNorm,
    Transformer,
    TransformerPredictor,
    capture,
    padding_mask,
    patch,
)
from transformer_jax.inspection import add, knock_out, mean, replace, swap, zero

B, T, S, D, H, F, L, C, V = 2, 5, 7, 12, 4, 13, 1, 3, 11
d = D // H
DRAWS = np.random.default_rng(4)
X, OTHER = DRAWS.normal(size=(2, B, T, 6)).astype(np.float32)
SOURCE, TARGET = DRAWS.integers(V, size=(B, S)), DRAWS.integers(V, size=(B, T))
WHOLE = DRAWS.normal(size=(B, T, D)).astype(np.float32)  # input of an attention alone

MODEL = TransformerPredictor(D, C, H, L)
HEADS, WEIGHTS = "encoder.layers.0.attention.head_outputs", "encoder.layers.0.attention.weights"


@pytest.fixture(scope="module")
def variables() -> dict:
    return drawn(MODEL, X)


def traced(variables, patches):
    return jax.eval_shape(lambda: patch(MODEL, variables, X, patches=patches))


def test_positions_may_differ_between_examples_and_units_are_chosen(variables):
    hidden, before = (f"encoder.layers.0.feed_forward.{name}" for name in ("hidden", "pre"))
    positions = np.array([[0, 2], [1, -1]])
    _, seen = jax.jit(lambda v: capture(MODEL, v, X, names=[hidden, before]))(variables)
    np.testing.assert_array_equal(np.maximum(seen[before], 0), seen[hidden])
    change = zero(None, positions, units=[3, -1])
    _, patched = jax.jit(lambda v: patch(MODEL, v, X, patches={hidden: change}, names=[hidden]))(variables)
    expected = np.array(seen[hidden])
    for row in range(B):
        for position in positions[row]:
            expected[row, position, [3, -1]] = 0
    np.testing.assert_allclose(patched[hidden], expected, atol=1e-6)
    for wrong, message in (
        (np.zeros((3, 1), int), "positions of .* has 3 rows; there are 2 examples"),
        (np.array([[0], [97]]), "positions of .* holds 97"),
    ):
        with pytest.raises(InputError, match=message):
            traced(variables, {hidden: zero(positions=wrong)})
    with pytest.raises(InputError, match="units is 3; .* has no units"):
        traced(variables, {WEIGHTS: zero(units=3)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heads", "positions", "chosen"),
    [
        (2, None, np.s_[2, :]),
        ([0, -1], 3, np.s_[[0, 3], 3]),
        (np.array([False, True, False, False]), [-1], np.s_[1, 4]),
        (None, range(1, 3), np.s_[:, 1:3]),
    ],
)
def test_patches_change_the_chosen_heads_and_positions_alone(variables, heads, positions, chosen):
    own = np.asarray(capture(MODEL, variables, X, names=[HEADS])[1][HEADS])
    other = np.asarray(capture(MODEL, variables, OTHER, names=[HEADS])[1][HEADS])
    direction = np.arange(d, dtype=np.float32)
    average = other.mean((0, 2), keepdims=True)[0]  # [H 1 d]
    changes = {
        "zero": (zero(heads, positions), np.zeros_like(own)),
        "mean": (mean(average, heads, positions), np.broadcast_to(average, own.shape)),
        "replace": (replace(7.0, heads, positions), np.full_like(own, 7)),
        "add": (add(direction, heads, positions), own + direction),
        "swap": (swap(other, heads, positions), other),
    }
    for name, (change, everywhere) in changes.items():
        expected = own.copy()
        expected[(slice(None), *chosen)] = everywhere[(slice(None), *chosen)]
        output, captured = patch(MODEL, variables, X, patches={HEADS: change}, names=[HEADS])
        np.testing.assert_array_equal(captured[HEADS], expected, err_msg=name)
        if name == "swap":
            np.testing.assert_array_equal(output, patch(MODEL, variables, X, patches={HEADS: expected}))


def test_changes_act_one_after_another(variables):
    changes = [zero(heads=1), add(1.0), lambda x: 2 * x]
    one_list, two_names = {HEADS: changes}, {HEADS: changes[0], "*.head_outputs": changes[1:]}
    own, *found = jax.jit(
        lambda v: [patch(MODEL, v, X, patches=each, names=[HEADS])[1][HEADS] for each in ({}, one_list, two_names)]
    )(variables)
    expected = 2 * (own.at[:, 1].set(0) + 1)
    for captured in found:
        np.testing.assert_allclose(captured, expected, atol=1e-5)


@pytest.mark.parametrize(("name", "implementation"), [("logits", "auto"), ("weights", "blockwise")])
def test_knocked_out_edges_are_masked(name, implementation):
    plain = MultiheadAttention(D, H, positions=ALiBiPositions())
    model = plain.clone(settings=AttentionSettings(implementation=implementation))
    variables = drawn(model, WHOLE)
    mask = np.tri(T, dtype=bool)
    for queries, keys, heads in [(2, [0, 1], None), (None, 0, [1, 3]), ([1, -1], None, 2)]:
        seen = np.broadcast_to(mask, (B, H, T, T)).copy()
        of_heads = range(H) if heads is None else np.atleast_1d(heads)
        of_queries = range(T) if queries is None else np.atleast_1d(queries)
        seen[np.ix_(range(B), of_heads, of_queries, range(T) if keys is None else np.atleast_1d(keys))] = False
        expected, weights = compiled(plain, return_attention=True)(variables, WHOLE, None, seen)
        patches = {name: knock_out(queries, keys, heads)}
        output, captured = jax.jit(
            lambda v, patches=patches: patch(model, v, WHOLE, None, mask, patches=patches, names=["weights"])
        )(variables)
        np.testing.assert_allclose(captured["weights"], weights, atol=1e-6)
        np.testing.assert_allclose(output, expected, atol=1e-6)
        assert not weights[~seen].any()


def test_other_patches_of_weights_apply_after_knock_out():
    model = MultiheadAttention(D, H)
    variables = drawn(model, WHOLE)
    blind, half = knock_out(0, [1, 2], heads=0), lambda x: x / 2
    _, whole = patch(model, variables, WHOLE, patches={"weights": blind}, names=["weights"])
    np.testing.assert_allclose(whole["weights"].sum(-1), 1, atol=1e-6)
    for changes in ([blind, half], [half, blind]):
        _, halved = patch(model, variables, WHOLE, patches={"weights": changes}, names=["weights"])
        np.testing.assert_array_equal(halved["weights"], whole["weights"] / 2)


@pytest.mark.slow
def test_a_pass_for_each_head_is_a_vmap(variables):
    expected = [patch(MODEL, variables, X, patches={HEADS: zero(heads=head)}) for head in range(H)]

    def ablated(change):
        return patch(MODEL, variables, X, patches={HEADS: change})

    for heads in (jnp.arange(H), jnp.eye(H, dtype=bool)):
        outputs = jax.jit(jax.vmap(ablated))(zero(heads=heads))
        np.testing.assert_allclose(outputs, np.stack(expected), atol=1e-5)

    def without_edge(place):
        return patch(MODEL, variables, X, patches={WEIGHTS: knock_out(place, place)})

    outputs = jax.jit(jax.vmap(without_edge))(jnp.arange(T))
    np.testing.assert_allclose(outputs[3], without_edge(3), atol=1e-5)


@pytest.mark.slow
def test_steps_of_decoding_are_captured_and_patched_as_the_whole_pass():
    settings = BlockSettings(norm_first=True, attention=AttentionSettings(qk_norm=RMSNorm))
    model, inputs = Transformer(V, V, D, H, 1, 1, F, settings=settings), (SOURCE, TARGET)
    variables = drawn(model, *inputs)
    mask = padding_mask(np.arange(S) < np.array([[7], [4]]))
    stem = "decoder.layers.0.attention"
    patches = {  # positions count from the text's start
        "decoder.layers.0.cross_attention.head_outputs": zero(heads=1, positions=[1, 3]),
        f"{stem}.output": [add(WHOLE, positions=np.arange(T) > 1), swap(2 * WHOLE, positions=np.array([[0], [4]]))],
        f"{stem}.weights": knock_out([2, 4], [1, 2]),
        f"{stem}.key_norm.normalized": zero(positions=3),
    }
    names = ["decoder.layers.*.*attention.queries", "decoder.*.weights", "decoder.layers.*.output", "logits"]
    names += [f"{stem}.head_results"]
    _, whole = jax.jit(lambda v: patch(model, v, *inputs, mask, patches=patches, names=names))(variables)
    cache = started(model, variables, SOURCE, mask, T)

    def step(cache, at):  # in a loop: values leave it as its results
        (_, cache), found = patch(model, variables, *at, cache, patches=patches, names=names, method="decode_step")
        return cache, found

    _, steps = jax.jit(lambda cache: jax.lax.scan(step, cache, (TARGET.T, np.arange(T))))(cache)
    assert set(steps) == set(whole)
    for name, array in steps.items():
        found, tolerance = jnp.moveaxis(array[..., 0, :], 0, -2), 1e-5 * np.abs(whole[name]).max()
        np.testing.assert_allclose(found, whole[name], rtol=0, atol=tolerance, err_msg=name)
    wrong = {f"{stem}.output": zero(positions=-1)}
    with pytest.raises(InputError, match="positions of .* holds -1; in cached decoding they count"):
        patch(model, variables, TARGET[:, 0], 0, cache, patches=wrong, method="decode_step")


@pytest.mark.parametrize(
    ("patches", "message"),
    [
        (
            {HEADS: np.zeros((B, H, T, 1))},
            rf"patch of {HEADS} has shape \(2, 4, 5, 1\); it must be \(2, 4, 5, 3\), \[B H T d\]",
        ),
        ({HEADS: None}, rf"the patch of {HEADS} is None; it must be an array, a function that returns one, or a patch"),
        ({HEADS: lambda x: x[0]}, r"has shape \(4, 5, 3\); it must be"),
        ({HEADS: add(np.zeros(H))}, r"has shape \(4,\); it must broadcast to \(2, 4, 5, 3\)"),
        ({HEADS: zero(heads=[0, -5])}, r"heads of \S+ holds -5"),
        ({HEADS: zero(heads=[True, False])}, r"a boolean mask must be \(4,\)"),
        ({"logits": zero(heads=0)}, r"logits is \[B T C\] and has no heads"),
        ({WEIGHTS: knock_out(0, T)}, r"keys of \S+ holds 5"),
        ({HEADS: knock_out(0, 0)}, r"knock_out is for logits and weights of attention"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_a_patch_that_does_not_fit_is_an_error(variables, patches, message):
    with pytest.raises(InputError, match=message):
        traced(variables, patches)
