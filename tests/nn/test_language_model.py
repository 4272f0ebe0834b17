"""The decoder-only language model: cached decoding, masks, options. For its numbers see test_huggingface.py."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_models import applied, compiled, drawn, started
from part_choices import MAX_LEN, pairwise, settings_of

from transformer_jax import (
    ALiBiPositions,
    BlockSettings,
    InputError,
    LearnedPositions,
    RotaryPositions,
    Segments,
    TransformerLM,
    beam_search,
    greedy_decode,
)
from transformer_jax.decoding import AfterPrefix, after_prefix, grow_after_prefix
from transformer_jax.nn import AttentionKind, CausalCache, EmbeddingSettings, NoPositions

B, T, D, H, F, L, V = 3, 5, 24, 4, 13, 2, 11
TOKENS = np.random.default_rng(0).integers(V, size=(B, T))
SIZES = {"model_dim": D, "num_heads": H, "num_layers": L, "dim_feedforward": F, "max_len": MAX_LEN}


def model_with(settings: BlockSettings | None = None, **more) -> TransformerLM:
    return TransformerLM(V, **{**SIZES, **more}, settings=settings or BlockSettings())


MODEL = model_with()


@pytest.fixture(scope="module")
def params() -> dict:
    return drawn(MODEL, TOKENS)


def decoder_of(model: TransformerLM, params: dict):
    """Return the step function of a model with these parameters."""
    return functools.partial(model.apply, params, method="decode_step")


# Cached decoding.


@pytest.mark.slow
@pytest.mark.parametrize("row", pairwise()[2:5:2])  # learned and rotary positions
def test_cached_decoding_equals_the_full_pass(row):
    """For every pair of parts see tests/nn/test_parts.py, which tests the encoder-decoder."""
    model = model_with(settings_of(row))
    params = drawn(model, TOKENS)

    @jax.jit
    def full_and_caches():
        start = functools.partial(model.apply, params, length=T + 2, method="start_decoding")
        return model.apply(params, TOKENS), start(B), start(prefix=TOKENS[:, :3])

    full, *caches = full_and_caches()
    assert np.abs(full).max() > 0.1
    step = jax.jit(decoder_of(model, params))
    for first, cache in zip((0, 3), caches, strict=True):
        for position in range(first, T):
            logits, cache = step(TOKENS[:, position], position, cache)
            np.testing.assert_allclose(logits, full[:, position], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("positions", "kinds"),
    [
        (LearnedPositions(), (AttentionKind(),)),
        (RotaryPositions(), (AttentionKind(),)),
        (ALiBiPositions(), (AttentionKind(soft_cap=0.3),)),
        (RotaryPositions(), (AttentionKind(window=2, positions=RotaryPositions(13.0)), AttentionKind(soft_cap=0.3))),
        (RotaryPositions(), (AttentionKind(positions=NoPositions()), AttentionKind(window=1))),
    ],
)
def test_prompts_of_unequal_lengths_are_padded_at_the_left(positions, kinds):
    """Each text has the same logits as alone, from its first token on."""
    model = model_with(BlockSettings(positions=positions), attention_kinds=kinds)
    params = drawn(model, TOKENS)
    texts = [TOKENS[0, :1], TOKENS[1, :3]]  # and two more tokens each
    prefix = np.array([[V - 1, V - 1, *texts[0]], texts[1]])
    cache = started(model, params, length=5, prefix=prefix, padding=np.array([2, 0]))
    step = jax.jit(decoder_of(model, params))
    for more in range(2):
        logits, cache = step(TOKENS[[0, 1], [1 + more, 3 + more]], 3 + more, cache)
        for row, text in enumerate(texts):
            whole = TOKENS[row : row + 1, : len(text) + more + 1]
            np.testing.assert_allclose(logits[row], applied(model, params, whole)[0, -1], atol=1e-5)
    with pytest.raises(InputError, match="padding is 3; it must be a whole number, 0 … 2"):
        model.apply(params, prefix=prefix, padding=np.array([3, 0]), method="start_decoding")


@pytest.mark.slow
@pytest.mark.parametrize("search", [greedy_decode, functools.partial(beam_search, n_best=1, length_penalty=0.0)])
def test_a_search_goes_on_after_a_prefix_with_a_cache_that_grows(params, search, monkeypatch):
    """Its scores are those of the full pass. Comparison with Transformers: tests/weights/test_huggingface.py."""
    monkeypatch.setattr("transformer_jax.decoding.token_by_token._SHORTEST_SEGMENT", 2)
    prefix, step = TOKENS[:, :3], after_prefix(decoder_of(MODEL, params), 2)
    ends = {"start_token": 0, "end_token": V - 1, "pad_token": V, "max_length": MAX_LEN - 2}
    begin = AfterPrefix(started(MODEL, params, prefix=prefix), prefix[:, -1])
    grow = grow_after_prefix(CausalCache.grow, 2)
    found = jax.jit(lambda begin: search(step, begin, B, **ends, grow=grow))(begin)
    tokens = np.minimum(found.tokens, V - 1).reshape(B, -1)  # the padding is no token
    logits = compiled(MODEL)(params, np.concatenate([prefix, tokens[:, :-1]], axis=1))[:, 2:]
    of_tokens = np.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], axis=2)[..., 0]
    is_result = np.arange(tokens.shape[1]) < found.lengths.reshape(B, 1)
    np.testing.assert_allclose(found.scores.ravel(), of_tokens.sum(1, where=is_result), atol=1e-5)


def test_a_cache_without_room_for_the_longest_result_is_an_error_in_a_compiled_program_too(params):
    cache = started(MODEL, params, B, 3)
    step = decoder_of(MODEL, params)
    ends = {"start_token": 0, "end_token": V - 1, "pad_token": 0, "max_length": 4}
    with pytest.raises(InputError, match="position is 3; it must be a whole number, 0 … 2"):
        jax.jit(lambda cache: greedy_decode(step, cache, B, **ends))(cache)


def test_cache_entries_after_the_filled_positions_have_no_effect(params):
    """A prefix may be padded at its end: later tokens overwrite the padding before any query sees it."""
    padded = np.concatenate([TOKENS[:, :3], np.full((B, 2), 7)], axis=1)
    cache = started(MODEL, params, prefix=padded)
    logits, _ = jax.jit(decoder_of(MODEL, params))(TOKENS[:, 3], 3, cache)
    np.testing.assert_allclose(logits, compiled(MODEL)(params, TOKENS)[:, 3], atol=1e-5)


# What a position sees.


@pytest.mark.parametrize("positions", [LearnedPositions(), RotaryPositions()], ids=type)
def test_texts_in_a_row_are_as_alone(positions):
    """A mask is combined with the causal one. Gradients, and other positions: test_packing.py."""
    model = model_with(BlockSettings(positions=positions))
    params = drawn(model, TOKENS)
    ids, places = np.array([[0, 0, 1, 1, 1]]), np.tile([0, 1, 0, 1, 2], (B, 1))
    calls = (TOKENS, Segments(ids, ids), places), (TOKENS[:, :2],), (TOKENS[:, 2:],)
    masked, *apart = jax.jit(lambda params: [model.apply(params, *call) for call in calls])(params)
    np.testing.assert_allclose(masked, np.concatenate(apart, axis=1), atol=1e-5)


# Options.


@pytest.mark.slow
def test_layers_see_the_keys_of_their_windows_and_the_kinds_are_repeated():
    model = model_with(num_layers=3, attention_kinds=(AttentionKind(window=2), AttentionKind()))
    maps = jax.jit(lambda params: model.apply(params, TOKENS, method="get_attention_maps"))(drawn(model, TOKENS))
    causal = np.tri(T, dtype=bool)
    near = causal & ~np.tri(T, k=-2, dtype=bool)
    for weights, is_seen in zip(maps, (near, causal, near), strict=True):
        np.testing.assert_array_equal(weights > 0, np.broadcast_to(is_seen, weights.shape))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"attention_kinds": ()}, r"attention_kinds is \(\); it must have at least one"),
        (
            {"attention_kinds": (AttentionKind(), AttentionKind(3)), "settings": BlockSettings(scan_layers=True)},
            "with share_layers or scan_layers, it must have a single kind",
        ),
    ],
)
def test_kinds_of_attention_that_layers_cannot_have_are_an_error(more, message):
    with pytest.raises(InputError, match=message):
        jax.eval_shape(model_with(**more).init, jax.random.key(0), TOKENS)
    with pytest.raises(InputError, match="window is 0; it must be at least 1"):
        AttentionKind(window=0)


def test_the_parameters_are_one_matrix_and_the_blocks():
    assert drawn(MODEL, TOKENS)["params"].keys() == {"embedding", "decoder"}
    assert drawn(model_with(tie_embeddings=False), TOKENS)["params"].keys() == {"embedding", "decoder", "output_layer"}
    untied = model_with(embeddings=EmbeddingSettings(ties_output=False))
    assert drawn(untied, TOKENS)["params"].keys() == {"embedding", "decoder", "output_layer"}
    model = TransformerLM(50257)
    attention, norm, feed_forward = 4 * (512 + 1) * 512, 2 * 512, (512 + 1) * 2048 + (2048 + 1) * 512
    shapes = jax.eval_shape(model.init, jax.random.key(0), TOKENS)
    expected = 50257 * 512 + 6 * (attention + feed_forward + 2 * norm)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == expected
    assert model.dropout_prob == 0.1


# Bad input.


@pytest.mark.slow
def test_a_step_of_one_row_writes_the_cache_in_its_place():
    model = model_with(max_len=1009)
    params = drawn(model, TOKENS)
    cache = model.apply(params, 1, 1009, method="start_decoding")
    step = jax.jit(functools.partial(model.apply, method="decode_step"), donate_argnums=3)
    used = step.lower(params, TOKENS[:1, 0], jnp.int32(7), cache).compile().memory_analysis()
    assert used.temp_size_in_bytes < next(iter(cache.decoded.values())).key.nbytes
