"""Captured activations are those of the formulas, under every transformation, and cost nothing where none is asked."""

import contextlib
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_models import applied, drawn
from formulas import Formulas

from transformer_jax import (
    AttentionSettings,
    BlockSettings,
    EncoderBlock,
    GatedFeedForward,
    InputError,
    MultiheadAttention,
    RMSNorm,
    Transformer,
    TransformerDecoder,
    TransformerLM,
    TransformerPredictor,
    activation_names,
    capture,
    padding_mask,
    patch,
)
from transformer_jax.inspection import Inspected, zero
from transformer_jax.nn.layers import Tapped

B, T, S, D, H, F, L, C, V = 2, 5, 7, 24, 4, 13, 2, 3, 11
DRAWS = np.random.default_rng(3)
X = DRAWS.normal(size=(B, T, 6)).astype(np.float32)
SOURCE, TARGET = DRAWS.integers(V, size=(B, S)), DRAWS.integers(V, size=(B, T))
VALID = np.arange(S) < np.array([[7], [4]])
MASK = np.asarray(padding_mask(VALID))  # [B 1 1 S]

ALL = ["*", "*.head_results"]  # which are large, and come by their own name alone

POST_NORM = BlockSettings()
GATED = BlockSettings(norm_first=True, feed_forward=GatedFeedForward, attention=AttentionSettings(num_kv_heads=2))
GATED_FORMULAS = {"norm_first": True, "is_gated": True}


def predictor(settings: BlockSettings = POST_NORM) -> TransformerPredictor:
    return TransformerPredictor(D, C, H, L, settings=settings)


def transformer(settings: BlockSettings = POST_NORM) -> Transformer:
    return Transformer(V, V, D, H, 1, 2, F, settings=settings)


def assert_same(found: dict, expected: dict) -> None:
    """Within a few roundings of float32, relative to the largest number of each activation."""
    assert set(found) == set(expected)
    for name, array in found.items():
        largest = np.abs(expected[name]).max()
        assert array.shape == expected[name].shape, name
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-5 * largest, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "formulas"), [(POST_NORM, {}), (GATED, GATED_FORMULAS)])
def test_a_predictors_activations_are_those_of_the_formulas(settings, formulas):
    model = predictor(settings)
    variables = drawn(model, X)
    mask = np.tri(T, dtype=bool) | (DRAWS.random((B, 1, T, T)) < 0.5)
    expected = Formulas(variables["params"], H, **formulas).predictor(X, L, mask)
    names = activation_names(model)
    output, found = jax.jit(lambda v: capture(model, v, X, names=ALL, mask=mask))(variables)
    assert list(found) == list(names)
    sizes = {"B": B, "T": T, "S": T, "D": D, "d": D // H, "H": H, "F": 2 * D, "C": C, "1": 1}
    sizes["Hkv"] = settings.attention.num_kv_heads or H
    letters = {name: tuple(sizes[letter] for letter in of_axes.split()) for name, of_axes in names.items()}
    assert letters == {name: array.shape for name, array in found.items()}
    assert_same(found, expected)
    np.testing.assert_array_equal(output, found["logits"])


@pytest.mark.slow
def test_an_encoder_decoders_activations_are_those_of_the_formulas():
    model = transformer(GATED)
    variables = drawn(model, SOURCE, TARGET)
    expected = Formulas(variables["params"], H, **GATED_FORMULAS).encoder_decoder(SOURCE, TARGET, (1, 2), MASK)
    output, found = jax.jit(lambda v: capture(model, v, SOURCE, TARGET, MASK, names=ALL))(variables)
    _, others = jax.eval_shape(lambda: capture(model, variables, SOURCE, TARGET, MASK, names=["*"]))
    assert set(found) - set(others) == {name for name in found if name.endswith(".head_results")}
    assert list(found) == list(activation_names(model))
    assert_same(found, expected)
    np.testing.assert_array_equal(output, found["logits"])


@pytest.mark.slow
def test_models_need_no_inputs_and_have_the_letters_of_their_axes():
    names = activation_names(transformer())  # the formulas have all the names
    assert "B H T S" == names["decoder.layers.1.cross_attention.weights"] == names["encoder.layers.0.attention.weights"]
    assert (names["logits"], activation_names(predictor())["logits"]) == ("B T V", "B T C")
    assert "logits" not in activation_names(Transformer(None, None, D, H, 1, 1, F))  # features in and out
    assert list(activation_names(TransformerDecoder(1, D, H, F)))[-1] == "output"
    prefix = {"method": "start_decoding", "prefix": np.zeros((1, 3), int)}
    assert "embeddings" in activation_names(TransformerLM(V, D, H, 1, F), None, 0, **prefix)
    normed = activation_names(MultiheadAttention(D, H, settings=AttentionSettings(qk_norm=RMSNorm)))
    assert [normed[f"{name}_norm.scale"] for name in ("query", "key")] == ["B H T 1", "B Hkv S 1"]


SMALL = BlockSettings(
    dropout_prob=0.1, norm_first=True, scan_layers=True, attention=AttentionSettings(dropout_prob=0.1)
)


@pytest.mark.slow
def test_unused_taps_leave_the_compiled_program_unchanged():
    model = transformer(SMALL)
    variables = drawn(model, SOURCE, TARGET)

    def loss(variables):
        return jnp.sum(model.apply(variables, SOURCE, TARGET, train=True, rngs={"dropout": jax.random.key(0)}) ** 2)

    without_taps = mock.patch.multiple(  # no methods of Flax's any more
        Tapped, tap=lambda _, name, x, letters: x, is_requested=lambda _, *names: False
    )
    texts = []
    for setting in (contextlib.nullcontext(), without_taps):  # called from one line, which stands in the text
        with setting:
            texts.append(jax.jit(jax.value_and_grad(loss)).lower(variables).as_text(debug_info=True))
    assert "self_attn.attend" in texts[0]  # the scopes that profiles show are in the text
    assert texts[0] == texts[1]


def test_attention_that_is_not_asked_for_makes_no_weights():
    model = MultiheadAttention(D, H, settings=AttentionSettings(implementation="blockwise"))
    x = jnp.ones((1, 1500, D))  # more than one block
    variables = model.init(jax.random.key(0), x)

    def program(names):
        return jax.jit(lambda v, x: capture(model, v, x, names=names)).lower(variables, x).as_text()

    size = "1500x1500xf32"
    assert size not in program(["queries", "head_outputs", "output"])
    assert size in program(["weights"])
    assert size not in jax.jit(model.apply).lower(variables, x).as_text()


def test_weights_are_those_after_dropout():
    model, x = MultiheadAttention(D, H, dropout_prob=0.3), jnp.ones((B, T, D))
    options = {"train": True, "rngs": {"dropout": jax.random.key(5)}}
    (expected, weights), (output, found) = jax.jit(
        lambda v: (
            model.apply(v, x, return_attention=True, **options),
            capture(model, v, x, names=["weights"], **options),
        )
    )(drawn(model, x))
    np.testing.assert_allclose(found["weights"], weights, atol=1e-6)
    np.testing.assert_allclose(output, expected, atol=1e-6)
    np.testing.assert_allclose(weights, np.where(weights > 0, 1 / T / 0.7, 0), atol=1e-6)  # all keys are the same
    assert 27 < np.sum(weights == 0) < 93  # of 200; 5 standard deviations around 60


@pytest.mark.slow
def test_bfloat16_has_its_own_types():
    model = TransformerPredictor(D, C, H, 1)
    variables = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), drawn(model, X))
    output, found = capture(model, variables, X.astype(jnp.bfloat16), names=["*"])
    plain = applied(model, variables, X.astype(jnp.bfloat16))
    np.testing.assert_allclose(output.astype(jnp.float32), plain.astype(jnp.float32), atol=0.02)  # 8 bits, of about 1
    types = {name: array.dtype for name, array in found.items()}
    assert types.pop("encoder.layers.0.attention.logits") == jnp.float32  # as the softmax is computed
    assert types["encoder.layers.0.attention.weights"] == types["logits"] == output.dtype
    assert types["encoder.layers.0.attention_norm.scale"] == jnp.float32
    rounded = {name: array.astype(jnp.float32) for name, array in found.items()}  # to the pass's own types
    np.testing.assert_array_equal(patch(model, variables, X.astype(jnp.bfloat16), patches=rounded), output)


class Mixer(nn.Module):
    """A feed-forward of a user's own, without taps."""

    width: int
    dropout_prob: float = 0.0
    activation: object = None

    @nn.compact
    def __call__(self, x, *, train):
        return nn.Dense(x.shape[-1], name="contract")(nn.tanh(nn.Dense(self.width, name="expand")(x)))


class Twice(nn.Module):
    """A user's own model that runs one block twice."""

    @nn.compact
    def __call__(self, x):
        block = EncoderBlock(D, H, F, settings=BlockSettings(feed_forward=Mixer), name="block")
        return nn.Dense(C, name="head")(block(block(x)))


def test_a_users_modules_are_named_after_their_paths_and_their_second_run_has_a_number():
    x = DRAWS.normal(size=(B, T, D)).astype(np.float32)
    model = Twice()
    variables = drawn(model, x)
    names = activation_names(model, x)
    letters = {"block.feed_forward.expand.output": F, "block.feed_forward.output": D}
    assert {name: names[f"{name}.2"] for name in letters} == {name: f"B T {size}" for name, size in letters.items()}
    assert names["head.output"] == f"B T {C}"
    contract = variables["params"]["block"]["feed_forward"]["contract"]
    weights = [f"block.attention.weights{end}" for end in ("", ".2")]
    everything, *alone = jax.jit(
        lambda v: [capture(model, v, x, names=names)[1] for names in (["*"], *([name] for name in weights))]
    )(variables)
    for end, name, found in zip(("", ".2"), weights, alone, strict=True):  # also where the others are not asked for
        assert list(found) == [name]
        np.testing.assert_allclose(found[name], everything[name], atol=1e-6)
        hidden = np.tanh(everything[f"block.feed_forward.expand.output{end}"])
        expected = hidden @ contract["kernel"] + contract["bias"]
        np.testing.assert_allclose(everything[f"block.feed_forward.output{end}"], expected, atol=1e-5)


class Normed(nn.Module):
    """A user's own model with running averages."""

    @nn.compact
    def __call__(self, x, train=False):
        return nn.BatchNorm(use_running_average=not train)(nn.Dense(C)(x))


@pytest.mark.parametrize("options", [{}, {"train": True, "mutable": ["batch_stats"]}])
def test_names_are_listed_and_captured_with_the_same_arguments(options):
    model, x = Normed(), np.ones((B, T, D), ">f4")
    variables = model.init(jax.random.key(0), x.astype(np.float32))
    _, captured = capture(model, variables, x, names=["*"], **options)
    assert list(captured) == ["Dense_0.output", "BatchNorm_0.output", "output"]
    for inputs in ((x,), (variables, x)):
        assert list(activation_names(model, *inputs, **options)) == list(captured)


class Cell(Tapped):
    """Compiled by itself; Flax keeps the program, so that a pass after the first one shows nothing."""

    def __call__(self, x):
        return self.tap("state", x + 1, "B T D")


Compiled = nn.jit(Cell)


def test_activations_inside_a_transformation_can_be_neither_captured_nor_patched():
    model, x = Compiled(), jnp.ones((1, T, D))
    assert "state" in activation_names(model, x)
    for changed in ({"patches": {}, "names": ["state"]}, {"patches": {"state": zero()}}):
        with pytest.raises(InputError, match="state is inside a loop .* neither captured nor patched .*decode_step"):
            patch(model, {}, x, **changed)
    np.testing.assert_array_equal(model.apply({}, x), 2)  # nothing was zeroed


NEAREST = r"is not an activation of this pass; .* lists all; did you mean encoder.layers.0.attention.weights\?"
BARE = {"encoder": {}, "decoder": {}}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model, v: capture(model, v, X, names=["encoder.layers.0.attention.weight"]), NEAREST),
        (lambda model, v: patch(model, v, X, patches={"*.cross_attention.*": zero()}), "is not an activation of"),
        (lambda model, v: Inspected(model, v).capture(X, None), "names is None; it must be Sequence"),
        (lambda model, v: capture(model, v, X, names="logits"), r"names is 'logits'; it must be Sequence"),
        (
            lambda model, v: capture(model, BARE, X, names=["logits"]),
            r'variables has encoder, decoder; it must be {"params": …}, such as {"params": trained.params}',
        ),
        (lambda model, v: activation_names(model, "text"), "the input is 'text'; a model takes arrays"),
        (lambda model, v: activation_names(Twice()), r"Twice needs inputs: activation_names\(model, \*inputs\)"),
    ],
)
def test_wrong_calls_are_errors(call, message):
    model = predictor()
    with pytest.raises(InputError, match=message):
        jax.eval_shape(lambda: call(model, drawn(model, X)))
