"""A stream that reaches 25 000 at its first position, as those of published models do, spoils no other position."""

import jax
import numpy as np
import pytest
from inspection_pages import content_of, data_of

from transformer_jax import BlockSettings, TransformerLM, attribute_logits
from transformer_jax.inspection import Inspected, inspect_model, linear_cka, logit_lens, show_grid
from transformer_jax.inspection.page.passes import InspectedPasses
from transformer_jax.training import InspectedExample

HUGE = 25_000
VOCABULARY = ["<s>", *(f"Ġw{number}" for number in range(1, 31))]
MODEL = TransformerLM(31, 12, 3, 1, 23, settings=BlockSettings(norm_first=True), max_len=13, tie_embeddings=False)
TOKENS = np.array([[0, 3, 1, 4, 1, 5, 9, 2, 6, 5, 8]])  # whose first occurs at the first position alone
STREAM = "decoder.layers.0.output"


@pytest.fixture(scope="module")
def bound():
    shapes = jax.eval_shape(MODEL.init, jax.random.key(0), TOKENS)
    rng = np.random.default_rng(0)
    variables = jax.tree.map(lambda leaf: rng.normal(scale=0.5, size=leaf.shape).astype(np.float32), shapes)
    variables["params"]["embedding"]["embedding"][0, 5] = HUGE
    return Inspected(MODEL, variables)


@pytest.fixture(scope="module")
def stream(bound):
    """[T D]"""
    _, seen = bound.capture(TOKENS, [STREAM])
    found = np.asarray(seen[STREAM])[0]
    assert np.abs(found[0]).max() > 0.9 * HUGE
    assert np.abs(found[1:]).max() < 20
    return found


def test_contributions_add_up_at_each_position_to_its_own_precision(bound):
    parts = bound.apply(attribute_logits, TOKENS)
    logits = np.asarray(bound.patch(TOKENS, {}))[0]
    found = sum(np.asarray(p).reshape(-1, *logits.shape).sum(0) for p in parts.values())
    np.testing.assert_allclose(found[1:], logits[1:], atol=1e-5 * np.abs(logits[1:]).max())  # a hundred roundings


def test_the_lens_is_that_of_each_position_by_itself(bound, stream):
    params = jax.tree.map(np.float64, bound.variables["params"])
    norm, output = params["decoder"]["norm"], params["output_layer"]
    normalized = (stream - stream.mean(-1, keepdims=True)) / np.sqrt(stream.var(-1, keepdims=True) + 1e-6)
    expected = (normalized * norm["scale"] + norm["bias"]) @ output["kernel"] + output["bias"]
    lens = np.asarray(bound.apply(logit_lens, TOKENS))[-1, 0]
    np.testing.assert_allclose(lens[1:], expected[1:], atol=1e-5 * np.abs(expected[1:]).max())  # a hundred roundings


@pytest.mark.slow
def test_the_page_has_the_tokens_as_text_and_colours_for_every_position(bound, stream):
    page = inspect_model(
        MODEL, bound.variables, TOKENS, vocabulary=VOCABULARY, features={STREAM: lambda x: jax.nn.relu(x[..., 4:7])}
    )
    content = content_of(page)
    assert content["places"][:3] == ["<s>", " w3", " w1"]
    (features,) = content["features"]
    for full in (features["full"], features["fulls"][1]):
        assert 1 < full < 100 < features["values"][1][0] == pytest.approx(stream[0, 5], rel=1e-3)
    (frame,) = data_of(show_grid(np.abs(stream).T, VOCABULARY[:11]))["frames"]
    assert frame["full"] < 100
    assert frame["values"][5][0] > 0.9 * HUGE


def test_texts_are_alike_by_all_their_positions(bound, stream):
    passes = InspectedPasses(bound, lambda tokens: (tokens,), TOKENS)
    _, mean = passes.final_mean(InspectedExample(inputs=TOKENS, labels=TOKENS[0].tolist()))
    directions = stream / np.linalg.norm(stream, axis=1, keepdims=True)
    expected = directions.mean(0) / np.linalg.norm(directions.mean(0))
    np.testing.assert_allclose(mean, expected, atol=1e-6)
    first = stream.mean(0) / np.linalg.norm(stream.mean(0))
    assert first @ directions[0] > 0.999 > 0.9 > mean @ directions[0]  # a mean of vectors is that of the first position


def test_similarity_is_read_without_the_first_position(stream):
    shuffled = stream[[0, *np.random.default_rng(0).permutation(np.arange(1, len(stream)))]]
    assert linear_cka(stream, shuffled) > 0.999  # as the docstring warns
    assert linear_cka(stream[1:], shuffled[1:]) < 0.9
