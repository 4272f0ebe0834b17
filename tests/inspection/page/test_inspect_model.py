"""The page on a model without a trainer: its numbers are those of the methods that it names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_models import applied, drawn
from inspection_pages import content_of
from tiny_models import SETTINGS, encoder_decoder, language_model, predictor

from transformer_jax import InputError, TransformerLM, patch
from transformer_jax.attention import padding_mask
from transformer_jax.inspection import Inspected, inspect_model, zero
from transformer_jax.nn import TransformerMLM

pytestmark = pytest.mark.slow

WORDS = [f"w{number}" for number in range(13)]
STREAM = "decoder.layers.0.output"
POSITION = 4
DIRECTIONS = np.random.default_rng(3).normal(size=(12, 11)).astype(np.float32)
CAUSAL = language_model(SETTINGS["pre_norm"])
BOUND = Inspected(CAUSAL.model, CAUSAL.variables)
CLEAN = np.array([[3, 1, 4, 1, 5, 9, 2]])
CORRUPTED = np.array([[3, 1, 7, 1, 5, 9, 2]])


def features(x):
    return jax.nn.relu(x @ DIRECTIONS)


@pytest.fixture(scope="module")
def page():
    return inspect_model(
        CAUSAL.model,
        CAUSAL.variables,
        CLEAN[0],
        vocabulary=WORDS,
        corrupted=CORRUPTED[0].tolist(),
        position=POSITION,
        features={STREAM: features},
    )


@pytest.fixture(scope="module")
def content(page):
    return content_of(page)


def logits_of(case, *inputs):
    return np.asarray(applied(case.model, case.variables, *inputs), np.float32)[0]


def test_positions_and_answers_have_the_names_of_the_tokens(page, content):
    logits = logits_of(CAUSAL, CLEAN)
    probabilities = np.asarray(jax.nn.softmax(logits)).max(-1)
    assert [part.text for part in page.answers[0].parts] == [WORDS[index] for index in logits.argmax(-1)]
    np.testing.assert_allclose([part.probability for part in page.answers[0].parts], probabilities, rtol=1e-4)
    assert page.answers[0].probability is None  # the product over a text says nothing
    assert content["places"] == content["kinds"][0]["keys"] == [WORDS[token] for token in CLEAN[0]]


def test_each_head_is_zeroed_in_its_turn(content):
    whole = np.asarray(jax.nn.softmax(logits_of(CAUSAL, CLEAN)))
    for layer, head in ((0, 2), (1, 0)):
        patches = {f"decoder.layers.{layer}.attention.head_outputs": zero(heads=np.arange(3) == head)}
        without = np.asarray(BOUND.patch(CLEAN, patches))[0]
        shown = content["kinds"][0]["layers"][layer]
        assert [text for text, _ in shown["ablated"][head]["parts"]] == [WORDS[index] for index in without.argmax(-1)]
        moved = np.asarray(jax.nn.softmax(without))[range(7), whole.argmax(-1)] - whole.max(-1)
        np.testing.assert_allclose(shown["changes"][head], np.abs(moved).mean(), rtol=1e-3)


def test_contributions_add_up_to_the_logit_of_the_answer_at_each_position(content):
    found = content["attribution"]
    sublayers = [f"{layer} {name}" for layer in range(2) for name in ("attention", "feed-forward")]
    assert found["rows"] == ["embeddings", *sublayers, "biases"]
    np.testing.assert_allclose(np.sum(found["values"], 0), logits_of(CAUSAL, CLEAN).max(-1), atol=0.02)  # four digits
    assert found["heads"]["rows"] == ["0 attention", "1 attention"]
    heads = np.sum(found["heads"]["values"], 1)  # [L T]
    np.testing.assert_allclose(heads, [found["values"][1], found["values"][3]], atol=0.01)


def test_patching_is_that_of_the_residual_stream(content):
    right, wrong = (logits_of(CAUSAL, tokens)[POSITION].argmax() for tokens in (CLEAN, CORRUPTED))
    metric = lambda y: y[0, POSITION, right] - (y[0, POSITION, wrong] if wrong != right else 0)  # noqa: E731
    grid = BOUND.patch_grid(CLEAN, CORRUPTED, "decoder.layers.?.output", metric=metric)
    (frame,) = content["patching"]["frames"]
    np.testing.assert_allclose(frame["values"], grid.values, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(frame["values"][1], np.eye(7)[POSITION], atol=1e-4)  # behind the last layer all is there
    assert (frame["rows"], frame["columns"]) == (["layer 0", "layer 1"], [WORDS[token] for token in CLEAN[0]])
    assert f"the logit of “{WORDS[right]}”" in content["patching"]["note"]


def test_the_most_active_features_of_each_token_have_values_at_all_tokens(content):
    (found,) = content["features"]
    expected = np.asarray(features(BOUND.capture(CLEAN, [STREAM])[1][STREAM]))[0]
    top = np.unique(np.argsort(-expected, 1, kind="stable")[:, :5])
    assert (found["name"], found["width"], found["most"], found["numbers"]) == (STREAM, 11, 5, top.tolist())
    np.testing.assert_allclose(found["values"], expected[:, top].T, rtol=1e-3, atol=1e-5)


def classifier():
    model = TransformerMLM(13, 12, 3, 1, 23, max_len=7, head="classes", num_classes=5)
    return model, drawn(model, CLEAN), (CLEAN,)


def translator():
    model, variables, (source, target, _) = encoder_decoder(num_layers=1)
    return model, variables, (source[:1], target[:1], padding_mask(np.arange(7) < np.array([[5]])))


def of_vectors():
    model, variables, (x,) = predictor(num_layers=1)
    return model, variables, (x[:1],)


@pytest.mark.parametrize(
    ("case", "kinds", "num_parts"),
    [
        (translator, ["encoder", "decoder", "cross"], 5),
        (classifier, ["encoder"], 1),
        (of_vectors, ["encoder"], 7),
    ],
)
def test_models_of_every_kind_have_the_page(case, kinds, num_parts):
    model, variables, inputs = case()
    page = inspect_model(model, variables, inputs)
    content = content_of(page)
    logits = np.atleast_2d(np.asarray(applied(model, variables, *inputs))[0])
    assert [part.text for part in page.answers[0].parts] == [str(index) for index in logits.argmax(-1)]
    assert (len(logits), [kind["name"] for kind in content["kinds"]]) == (num_parts, kinds)
    assert (content["patching"], content["features"], content["neighbours"]) == (None, [], [])
    if num_parts == 1:  # behind a tanh: the slope of the logit when a token's embedding is scaled

        def margin(scales):
            patches = {"encoder.layers.0.input": lambda x: x * scales[:, None]}
            moved = patch(model, variables, *inputs, patches=patches)[0]
            return moved[logits.argmax()] - moved.mean()

        found = content["attribution"]
        assert (found["rows"], len(found["columns"])) == (["embeddings", "0 attention", "0 feed-forward"], 7)
        np.testing.assert_allclose(found["values"][0], jax.grad(margin)(np.ones(7, np.float32)), rtol=1e-3, atol=1e-7)
    else:
        np.testing.assert_allclose(np.sum(content["attribution"]["values"], 0), logits.max(-1), atol=0.02)


def test_40_tokens_of_2_layers_with_12_heads_make_a_sixth_of_2_mb_at_most():  # of which 12 layers are six times that
    model = TransformerLM(97, 24, 12, 2, 24, max_len=40)
    tokens = np.random.default_rng(0).integers(97, size=(1, 40))
    variables = drawn(model, tokens, scale=1)  # maps that compress badly
    page = inspect_model(model, variables, tokens, features={STREAM: lambda x: jnp.repeat(x, 9, -1)})
    assert len(content_of(page)["kinds"][0]["layers"]) == 2
    assert len(page.text.encode()) <= 2_000_000 / 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": np.zeros((2, 7), int)}, r"tokens is \(2, 7\); a page shows one input"),
        ({"labels": ["a", "b"]}, r"labels has {'decoder': 2} labels; .* {'decoder': 7}"),
        (
            {"corrupted": CLEAN[:, :5]},
            r"patch of decoder.layers.0.output has shape \(1, 7, 12\); it must be \(1, 5, 12\)",
        ),
        ({"corrupted": CLEAN}, "metric is the same for the clean and the corrupted input"),
        ({"corrupted": CORRUPTED, "position": 7}, "position is 7; it must be a whole number, -7 … 6"),
        ({"features": {"decoder.layers.?.output": features}}, "it must be the name of one activation"),
        ({"features": {STREAM: lambda x: x[0]}}, r"features of decoder.layers.0.output are \(7, 12\)"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        inspect_model(CAUSAL.model, CAUSAL.variables, **{"tokens": CLEAN, **arguments})
