"""Patched passes: its own values change nothing; heads, positions and edges are those that were chosen."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_models import drawn, quick_jit
from jax.test_util import check_grads

from transformer_jax import (
    ALiBiPositions,
    AttentionSettings,
    BlockSettings,
    InputError,
    MultiheadAttention,
    RMSNorm,
    Transformer,
    TransformerPredictor,
    activation_names,
    capture,
    patch,
)
from transformer_jax.inspection import add, knock_out, mean, replace, swap, zero

B, T, S, D, H, F, L, C, V = 2, 5, 7, 12, 4, 13, 2, 3, 11
d = D // H
DRAWS = np.random.default_rng(4)
X, OTHER = DRAWS.normal(size=(2, B, T, 6)).astype(np.float32)
SOURCE, TARGET = DRAWS.integers(V, size=(B, S)), DRAWS.integers(V, size=(B, T))
WHOLE = DRAWS.normal(size=(B, T, D)).astype(np.float32)  # input of an attention alone

SHARED = BlockSettings(
    norm_first=True,
    norm=RMSNorm,
    attention=AttentionSettings(num_kv_heads=2, qk_norm=RMSNorm, implementation="blockwise"),
)
MODEL = TransformerPredictor(D, C, H, L)
MODELS = {
    "predictor": (MODEL, X),
    "other parts": (TransformerPredictor(D, C, H, 1, settings=SHARED), X),
    "encoder-decoder": (Transformer(V, V, D, H, 1, 1, F, settings=BlockSettings(norm_first=True)), SOURCE, TARGET),
}
HEADS, WEIGHTS = "encoder.layers.0.attention.head_outputs", "encoder.layers.0.attention.weights"


@pytest.fixture(scope="module")
def variables() -> dict:
    return drawn(MODEL, X)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", MODELS.values(), ids=MODELS)
def test_a_pass_patched_with_its_own_values_is_bitwise_the_same(arguments):
    model, *inputs = arguments
    variables = drawn(model, *inputs)
    output, own = capture(model, variables, *inputs, names=["*"])
    for name in activation_names(model):
        again, captured = patch(model, variables, *inputs, patches={name: own[name]}, names=["*"])
        np.testing.assert_array_equal(again, output, err_msg=name)
        for other, array in captured.items():
            np.testing.assert_array_equal(array, own[other], err_msg=f"{name} {other}")
    everything = patch(model, variables, *inputs, patches=own)
    np.testing.assert_array_equal(everything, output)
    if model.settings is not SHARED:  # forced blocks differ from the plain pass by rounding
        np.testing.assert_array_equal(model.apply(variables, *inputs), output)
    else:
        np.testing.assert_allclose(model.apply(variables, *inputs), output, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", MODELS.values(), ids=MODELS)
def test_every_activation_is_what_the_pass_goes_on_with(arguments):
    """A change of one moves the output, so none is a copy beside the pass."""
    model, *inputs = arguments
    variables = drawn(model, *inputs)
    for name in activation_names(model):
        output = patch(model, variables, *inputs, patches={name: lambda x: x})  # the same operations
        kind = name.rpartition(".")[2]
        change = (lambda x: x * jnp.linspace(0.5, 2, x.shape[-1])) if kind != "scale" else (lambda x: 2 * x)
        changed = patch(model, variables, *inputs, patches={name: change})
        assert (changed != output).any(), name


def test_without_its_heads_an_attention_is_its_output_bias(variables):
    """Zeroing all heads is the model without attention: the kernel of the output projection sees zeros."""
    params = jax.tree.map(lambda leaf: leaf, variables["params"])
    for layer in range(L):
        kernel = params["encoder"][f"layers_{layer}"]["self_attn"]["output_proj"]
        kernel["kernel"] = np.zeros_like(kernel["kernel"])
    expected = MODEL.apply({"params": params}, X)
    np.testing.assert_array_equal(patch(MODEL, variables, X, patches={"*.head_outputs": zero()}), expected)


@pytest.mark.parametrize(
    ("heads", "positions", "chosen"),
    [
        (None, None, np.s_[:, :]),
        (2, None, np.s_[2, :]),
        ([0, -1], 3, np.s_[[0, 3], 3]),
        (np.array([False, True, False, False]), [-1], np.s_[1, 4]),
        (None, range(1, 3), np.s_[:, 1:3]),
        ([], None, np.s_[[], :]),
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
        np.testing.assert_array_equal(output, patch(MODEL, variables, X, patches={HEADS: expected}))


def test_a_swapped_whole_input_is_the_other_pass(variables):
    other = capture(MODEL, variables, OTHER, names=["embeddings"])[1]["embeddings"]
    output = patch(MODEL, variables, X, patches={"embeddings": swap(other)})
    np.testing.assert_array_equal(output, MODEL.apply(variables, OTHER))


def test_changes_act_one_after_another(variables):
    changes = [zero(heads=1), add(1.0), lambda x: 2 * x]
    own = np.array(capture(MODEL, variables, X, names=[HEADS])[1][HEADS])
    own[:, 1] = 0
    expected = 2 * (own + 1)
    captured = patch(MODEL, variables, X, patches={HEADS: changes}, names=[HEADS])[1]
    np.testing.assert_array_equal(captured[HEADS], expected)
    captured = patch(MODEL, variables, X, patches={HEADS: changes[0], "*.head_outputs": changes[1:]}, names=[HEADS])[1]
    np.testing.assert_array_equal(captured[HEADS], expected)


@pytest.mark.parametrize("name", ["logits", "weights"])
@pytest.mark.parametrize("implementation", ["auto", "blockwise"])
def test_knocked_out_edges_are_masked(name, implementation):
    plain = MultiheadAttention(D, H, positions=ALiBiPositions())
    model = plain.clone(implementation=implementation)
    variables = drawn(model, WHOLE)
    mask = np.tri(T, dtype=bool)
    for queries, keys, heads in [(2, [0, 1], None), (None, 0, [1, 3]), ([1, -1], None, 2)]:
        seen = np.broadcast_to(mask, (B, H, T, T)).copy()
        of_heads = range(H) if heads is None else np.atleast_1d(heads)
        of_queries = range(T) if queries is None else np.atleast_1d(queries)
        seen[np.ix_(range(B), of_heads, of_queries, range(T) if keys is None else np.atleast_1d(keys))] = False
        expected, weights = plain.apply(variables, WHOLE, None, seen, return_attention=True)
        output, captured = patch(
            model, variables, WHOLE, None, mask, patches={name: knock_out(queries, keys, heads)}, names=["weights"]
        )
        np.testing.assert_array_equal(captured["weights"], weights)
        np.testing.assert_array_equal(output, expected)
        assert not weights[~seen].any()


def test_what_else_is_done_to_weights_follows_the_edges_that_are_knocked_out():
    model = MultiheadAttention(D, H)
    variables = drawn(model, WHOLE)
    blind, half = knock_out(0, [1, 2], heads=0), lambda x: x / 2
    _, whole = patch(model, variables, WHOLE, patches={"weights": blind}, names=["weights"])
    np.testing.assert_allclose(whole["weights"].sum(-1), 1, atol=1e-6)
    for changes in ([blind, half], [half, blind]):
        _, halved = patch(model, variables, WHOLE, patches={"weights": changes}, names=["weights"])
        np.testing.assert_array_equal(halved["weights"], whole["weights"] / 2)
    # A pattern that fits the logits too.
    _, found = patch(model, variables, WHOLE, patches={"[lw]*s": [blind, half]}, names=["logits"])
    _, plain = capture(model, variables, WHOLE, names=["logits"])
    expected = np.array(plain["logits"]) / 2
    expected[:, 0, 0, 1:3] = -np.inf
    np.testing.assert_array_equal(found["logits"], expected)


def test_weights_and_logits_that_are_patched_are_used():
    """Uniform weights average the values, whichever of the two is replaced."""
    model = MultiheadAttention(D, H, num_kv_heads=2, implementation="blockwise")
    variables = drawn(model, WHOLE)
    for patches in ({"weights": replace(1 / T)}, {"logits": zero()}):
        _, found = patch(model, variables, WHOLE, patches=patches, names=["values", "head_outputs"])
        average = np.repeat(found["values"].mean(2, keepdims=True), H // 2, 1)
        np.testing.assert_allclose(found["head_outputs"], np.broadcast_to(average, (B, H, T, d)), atol=1e-6)


def test_a_pass_for_each_head_is_a_vmap(variables):
    expected = [patch(MODEL, variables, X, patches={HEADS: zero(heads=head)}) for head in range(H)]

    def ablated(change):
        return patch(MODEL, variables, X, patches={HEADS: change})

    for outputs in (
        quick_jit(jax.vmap(ablated))(zero(heads=jnp.arange(H))),
        quick_jit(jax.vmap(ablated))(zero(heads=jnp.eye(H, dtype=bool))),
        quick_jit(jax.vmap(lambda head: ablated([zero(heads=head), lambda x: x])))(jnp.arange(H)),
    ):
        np.testing.assert_allclose(outputs, np.stack(expected), atol=1e-5)

    def weights(query, key):
        return patch(MODEL, variables, X, patches={WEIGHTS: knock_out(query, key)}, names=[WEIGHTS])[1][WEIGHTS]

    edges = np.asarray(quick_jit(jax.vmap(weights))(jnp.arange(T), jnp.arange(T)))
    is_zero = np.eye(T, dtype=bool)[:, :, None] & np.eye(T, dtype=bool)[:, None]  # of pass n edge (n, n)
    np.testing.assert_array_equal(edges == 0, np.broadcast_to(is_zero[:, None, None], edges.shape))


def test_scanned_layers_and_jit_patch_the_same(variables):
    scanned = MODEL.clone(settings=dataclasses.replace(MODEL.settings, scan_layers=True))
    name = "encoder.layers.1.attention.weights"
    expected = patch(MODEL, variables, X, patches={name: zero(heads=0)})
    found = quick_jit(lambda x: patch(scanned, variables, x, patches={name: zero(heads=0)}))(X)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found - MODEL.apply(variables, X)).max() > 1e-2


def test_gradients_are_those_of_finite_differences():
    model = TransformerPredictor(D, C, H, 1, settings=BlockSettings(activation=nn.tanh))
    names = {
        "encoder.layers.0.attention.head_outputs": (B, H, T, d),
        "encoder.layers.0.attention.logits": (B, H, T, T),
        "encoder.layers.0.feed_forward.hidden": (B, T, 2 * D),
        "encoder.layers.0.attention_norm.scale": (B, T, 1),
        "embeddings": (B, T, D),
    }
    with jax.enable_x64():
        wide = jax.tree.map(lambda leaf: leaf.astype(np.float64), drawn(model, X))

        def loss(added, variables):
            patches = {name: add(direction) for name, direction in added.items()}
            patches["encoder.layers.0.attention.weights"] = knock_out(1, 2, heads=0)
            return jnp.sum(patch(model, variables, X.astype(np.float64), patches=patches) ** 2)

        compiled = jax.jit(loss)
        zeros = {name: np.zeros(shape) for name, shape in names.items()}
        for name in names:
            check_grads(lambda x, name=name: compiled(zeros | {name: x}, wide), [zeros[name]], 1, ["rev"])
        check_grads(lambda variables: compiled(zeros, variables), [wide], 1, ["rev"])


@pytest.mark.slow
def test_bfloat16_stays(variables):
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), variables)
    x = X.astype(jnp.bfloat16)
    output, own = capture(MODEL, narrow, x, names=["*"])
    for name, array in own.items():
        wide = patch(MODEL, narrow, x, patches={name: array.astype(jnp.float32)})  # rounded to the pass's own type
        assert wide.dtype == jnp.bfloat16
        np.testing.assert_array_equal(wide, output, err_msg=name)


@pytest.mark.slow
def test_a_step_of_decoding_is_patched():
    model, *inputs = MODELS["encoder-decoder"]
    variables = drawn(model, *inputs)
    name = "decoder.layers.0.cross_attention.head_outputs"
    whole = patch(model, variables, SOURCE, TARGET, patches={name: zero(heads=1)})
    cache = model.apply(variables, SOURCE, None, T, method="start_decoding")
    for position in range(T):
        step = TARGET[:, position], position, cache
        logits, cache = patch(model, variables, *step, patches={name: zero(heads=1)}, method="decode_step")
        np.testing.assert_allclose(logits, whole[:, position], atol=1e-4)


@pytest.mark.parametrize(
    ("patches", "message"),
    [
        (
            {"encoder.layers.0.attention.head_output": zero()},
            r"the nearest are encoder.layers.0.attention.head_outputs",
        ),
        ({"*.cross_attention.weights": zero()}, r"matches no activation"),
        (
            {HEADS: np.zeros((B, H, T, 1))},
            rf"patch of {HEADS} has shape \(2, 4, 5, 1\); it must be \(2, 4, 5, 3\), \[B H T d\]",
        ),
        ({HEADS: zero}, rf"the patch of {HEADS} is .*; it must be an array, a function that returns one, or a patch"),
        ({HEADS: "zero"}, rf"the patch of {HEADS} is 'zero'; it must be an array"),
        ({HEADS: None}, rf"the patch of {HEADS} is None; it must be an array"),
        ({HEADS: lambda x: x[0]}, r"has shape \(4, 5, 3\); it must be"),
        ({HEADS: swap(np.zeros(d))}, r"has shape \(3,\); it must be"),
        ({HEADS: add(np.zeros(H))}, r"has shape \(4,\); it must broadcast to \(2, 4, 5, 3\)"),
        ({HEADS: zero(heads=H)}, r"heads of \S+ holds 4; there are 4, 0 … 3"),
        ({HEADS: zero(heads=[0, -5])}, r"heads of \S+ holds -5"),
        ({HEADS: zero(positions=T)}, r"positions of \S+ holds 5; there are 5, 0 … 4"),
        ({HEADS: zero(heads=[True, False])}, r"truth values must be \(4,\)"),
        ({HEADS: zero(heads=np.array([0.5]))}, r"it must be whole numbers"),
        ({"logits": zero(heads=0)}, r"logits is \[B T C\] and has no heads"),
        ({WEIGHTS: knock_out(0, T)}, r"keys of \S+ holds 5"),
        ({HEADS: knock_out(0, 0)}, r"knock_out is for logits and weights of attention"),
    ],
)
def test_a_patch_that_does_not_fit_is_an_error(variables, patches, message):
    with pytest.raises(InputError, match=message):
        patch(MODEL, variables, X, patches=patches)
