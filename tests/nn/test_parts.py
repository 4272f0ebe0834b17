"""Interchangeable parts of attention and models: what each computes, and that decoding computes the same."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_models import applied, compiled, drawn
from part_choices import CHOICES, MAX_LEN, pairwise, settings_of

from transformer_jax import (
    ALiBi,
    ALiBiPositions,
    AttentionSettings,
    BlockSettings,
    Causal,
    DecoderBlock,
    EncoderBlock,
    InputError,
    LearnedPositions,
    MultiheadAttention,
    RelativeBias,
    RMSNorm,
    RotaryPositions,
    Transformer,
    TransformerEncoder,
    TransformerPredictor,
    capture,
    padding_mask,
)
from transformer_jax.nn import CausalBlock, CausalStack, NoPositions, RelativePositions
from transformer_jax.nn.cached_decoding import DecodingCache, run_cached
from transformer_jax.nn.position_kinds import rotate

pytestmark = pytest.mark.slow  # they compile

B, S, T, D, H, F, V = 2, 7, 5, 24, 4, 13, 11
WIDTH = D // H
DRAWS = np.random.default_rng(0)
X = DRAWS.normal(size=(B, T, D)).astype(np.float32)
SOURCE, TARGET = DRAWS.integers(V, size=(B, S)), DRAWS.integers(V, size=(B, T))
SOURCE_MASK = padding_mask(np.arange(S) < np.array([[7], [4]]))


def of_heads(x: np.ndarray, projection: dict, norm: dict | None = None) -> np.ndarray:
    """Project to heads `[B, heads, T, d]` with a layer's parameters, in float64."""
    heads = (x.astype(np.float64) @ projection["kernel"] + projection["bias"]).reshape(B, x.shape[1], -1, WIDTH)
    heads = heads.swapaxes(1, 2)
    if norm is not None:
        heads = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-6) * norm["scale"]
    return heads


def transformer(settings: BlockSettings) -> Transformer:
    return Transformer(V, V, D, H, 1, 1, F, settings=settings, tie_embeddings=True, max_len=MAX_LEN)


# Attention.


def test_queries_and_keys_are_normalised_in_each_head():
    module = MultiheadAttention(D, H, settings=AttentionSettings(num_kv_heads=2, qk_norm=RMSNorm))
    variables = drawn(module, X)
    params = variables["params"]
    q = of_heads(X, params["query_proj"], params["query_norm"])
    k = of_heads(X, params["key_proj"], params["key_norm"])
    expected = jax.nn.softmax(np.einsum("bhtd,bhsd->bhts", q, np.repeat(k, 2, axis=1)) / np.sqrt(WIDTH))
    _, weights = applied(module, variables, X, return_attention=True)
    np.testing.assert_allclose(weights, expected, atol=1e-6)
    scaled = jax.tree.map(lambda leaf: leaf, params)
    scaled["query_proj"] = jax.tree.map(lambda leaf: 100 * leaf, params["query_proj"])
    _, same = applied(module, {"params": scaled}, X, return_attention=True)
    np.testing.assert_allclose(same, weights, atol=1e-4)  # but for the epsilon, the length of a query is gone


def test_rotary_attention_is_the_softmax_of_rotated_queries_and_keys():
    kind = RotaryPositions(base=13.0)
    module = MultiheadAttention(D, H, positions=kind)
    variables = drawn(module, X)
    params = variables["params"]
    q, k = (jnp.asarray(of_heads(X, params[name]), jnp.float32) for name in ("query_proj", "key_proj"))
    q, k = (rotate(x, 0, x.shape[-2], kind) for x in (q, k))
    expected = jax.nn.softmax(q @ k.swapaxes(-1, -2) / np.sqrt(WIDTH))
    _, weights = applied(module, variables, X, return_attention=True)
    np.testing.assert_allclose(weights, expected, atol=1e-6)
    _, without = applied(MultiheadAttention(D, H), variables, X, return_attention=True)
    assert np.abs(weights - without).max() > 1e-2


@pytest.mark.parametrize("looks_ahead", [True, False])
def test_positions_in_attention_are_the_biases_of_their_papers(looks_ahead):
    learned = MultiheadAttention(D, H, positions=RelativePositions(4, 5), looks_ahead=looks_ahead)
    variables = drawn(learned, X)
    params = dict(variables["params"])
    table = params.pop("attention_positions")["embedding"]
    assert table.shape == (4, H)
    plain = functools.partial(applied, MultiheadAttention(D, H), {"params": params}, X)
    expected = plain(bias=RelativeBias(table, bidirectional=looks_ahead, max_distance=5))
    np.testing.assert_allclose(applied(learned, variables, X), expected, atol=1e-6)
    alibi, given = MultiheadAttention(D, H, positions=ALiBiPositions()), DRAWS.normal(size=(T, T)).astype(np.float32)
    found = applied(alibi, {"params": params}, X, bias=given)
    np.testing.assert_allclose(found, plain(bias=ALiBi(H) + given), atol=1e-6)
    assert np.abs(plain(bias=ALiBi(H) + given) - plain(bias=given)).max() > 1e-3


def test_a_function_of_ones_own_computes_the_attention():
    def sink(q, k, v, mask, bias, dropout):  # a key of zeros that every query sees, with a value of zeros
        logits = jnp.einsum("bhtd,bhsd->bhts", q, k) / np.sqrt(WIDTH)
        weights = jnp.exp(logits)
        return (weights / (1 + weights.sum(-1, keepdims=True))) @ v

    module = MultiheadAttention(D, H, settings=AttentionSettings(implementation=sink))
    variables = drawn(module, X)
    _, weights = applied(MultiheadAttention(D, H), variables, X, return_attention=True)
    found = capture(module, variables, X, names=["queries", "keys", "values", "head_outputs"])[1]
    total = np.exp(np.einsum("bhtd,bhsd->bhts", found["queries"], found["keys"]) / np.sqrt(WIDTH)).sum(-1)
    expected = weights * (total / (1 + total))[..., None] @ found["values"]
    np.testing.assert_allclose(found["head_outputs"], expected, atol=1e-6)
    with pytest.raises(InputError, match="implementation is sink, which returns no weights; it must return"):
        module.apply(variables, X, return_attention=True)


def test_learned_position_biases_start_at_zero_and_norms_at_one():
    module = MultiheadAttention(D, H, settings=AttentionSettings(qk_norm=RMSNorm), positions=RelativePositions())
    params = jax.jit(module.init)(jax.random.key(0), X)["params"]
    assert not params["attention_positions"]["embedding"].any()
    assert (params["query_norm"]["scale"] == 1).all()
    assert params["query_norm"]["scale"].shape == (WIDTH,)  # the heads share it


def test_weights_are_dropped_in_training_alone():
    settings = BlockSettings(attention=AttentionSettings(dropout_prob=0.25))
    block = EncoderBlock(D, H, F, settings=settings)
    params = drawn(block, X)
    names, rngs = ["attention.weights"], {"dropout": jax.random.key(0)}
    weights = capture(block, params, X, names=names)[1][names[0]]
    dropped = capture(block, params, X, names=names, train=True, rngs=rngs)[1][names[0]]
    is_dropped = np.asarray(dropped) == 0
    assert 20 < is_dropped.sum() < 82  # of 200; 5 standard deviations around 50
    np.testing.assert_allclose(dropped, np.where(is_dropped, 0, weights / 0.75), atol=1e-6)


# Models.


@pytest.mark.parametrize("positions", CHOICES["positions"], ids=lambda positions: type(positions).__name__)
def test_only_a_model_without_positions_is_permutation_equivariant(positions):
    model = TransformerPredictor(D, 3, H, 1, settings=BlockSettings(positions=positions), max_len=S)
    params = drawn(model, X)
    order = np.array([2, 0, 4, 1, 3])
    difference = np.abs(compiled(model)(params, X[:, order]) - compiled(model)(params, X)[:, order]).max()
    assert difference < 1e-5 if type(positions) is NoPositions else difference > 1e-3


def test_learned_positions_are_added_and_shared_by_source_and_target():
    model = transformer(BlockSettings(positions=LearnedPositions()))
    params = drawn(model, SOURCE, TARGET)
    table = params["params"]["positional_encoding"]["embedding"]
    assert table.shape == (MAX_LEN, D)
    bound = model.bind(params)
    np.testing.assert_allclose(bound.positional_encoding(X), X + table[:T], atol=1e-6)
    changed = jax.tree.map(np.copy, params)
    changed["params"]["positional_encoding"]["embedding"][S - 1] += 1  # a position that the source alone has
    run = compiled(model)
    assert np.abs(run(params, SOURCE, TARGET) - run(changed, SOURCE, TARGET)).max() > 1e-3
    with pytest.raises(InputError, match=f"{MAX_LEN + 1} positions; .* max_len, {MAX_LEN}"):
        bound.positional_encoding(np.ones((1, MAX_LEN + 1, D), np.float32))


def test_learned_positions_begin_as_large_as_sinusoidal_ones():
    table = LearnedPositions(1009).encoding(D, 2000).init(jax.random.key(0), X)["params"]["embedding"]
    assert float((table**2).mean()) == pytest.approx(0.5, rel=0.05)  # 24 216 draws: 5 standard deviations


# Decoding.


@pytest.mark.parametrize("row", pairwise())
def test_cached_decoding_equals_the_full_pass_for_every_pair_of_parts(row):
    model = transformer(settings_of(row))
    params = drawn(model, SOURCE, TARGET)

    @jax.jit
    def full_and_caches():
        start = functools.partial(model.apply, params, SOURCE, SOURCE_MASK, T + 2, method="start_decoding")
        return model.apply(params, SOURCE, TARGET, SOURCE_MASK), start(), start(prefix=TARGET[:, :3])

    full, *caches = full_and_caches()
    assert np.abs(full).max() > 0.1
    step = jax.jit(functools.partial(model.apply, params, method="decode_step"))
    for first, cache in zip((0, 3), caches, strict=True):
        for position in range(first, T):
            logits, cache = step(TARGET[:, position], position, cache)
            np.testing.assert_allclose(logits, full[:, position], atol=1e-5)


def test_a_prefix_makes_room_for_itself_and_the_cache_grows():
    model = transformer(BlockSettings(positions=RotaryPositions()))
    params = drawn(model, SOURCE, TARGET)
    cache = applied(model, params, SOURCE, prefix=TARGET[:, :3], method="start_decoding")
    assert [kept.key.shape for kept in cache.decoded.values()] == [(B, H, 3, WIDTH)]
    full = compiled(model)(params, SOURCE, TARGET)
    logits, _ = applied(model, params, TARGET[:, 3], 3, cache.grow(T), method="decode_step")
    np.testing.assert_allclose(logits, full[:, 3], atol=1e-5)


def test_several_positions_at_once_see_those_before_them_and_not_the_later_ones():
    block = DecoderBlock(D, H, F, settings=BlockSettings(positions=RelativePositions(4, 5)))
    memory = DRAWS.normal(size=(B, S, D)).astype(np.float32)
    params = drawn(block, X, memory)
    expected = applied(block, params, X, memory, Causal())
    run = functools.partial(block.apply, params)
    first, cache = run_cached(lambda: run(X[:, :2], memory, Causal()), DecodingCache({}, {}), 0, T)
    rest, _ = run_cached(lambda: run(X[:, 2:], memory, Causal()), cache, 2)
    np.testing.assert_allclose(np.concatenate([first, rest], axis=1), expected, atol=1e-5)


def test_all_buckets_of_a_decoder_are_for_earlier_keys_and_half_of_an_encoders():
    settings = BlockSettings(positions=RelativePositions(4, 5))
    for kind, inputs in ((DecoderBlock, (X, X)), (CausalBlock, (X,)), (EncoderBlock, (X,))):
        block = kind(D, H, F, settings=settings)
        params = drawn(block, *inputs)
        changed = jax.tree.map(np.copy, params)
        changed["params"]["self_attn"]["attention_positions"]["embedding"][2:] += 1
        outputs = [applied(block, variables, *inputs, Causal()) for variables in (params, changed)]
        assert (np.abs(outputs[0] - outputs[1]).max() > 1e-3) == (kind is not EncoderBlock)


def test_an_encoder_of_causal_blocks_has_the_causal_mask():
    encoder, of_causal_blocks = (TransformerEncoder(1, D, H, F, block=block) for block in (EncoderBlock, CausalBlock))
    params = drawn(encoder, X)
    np.testing.assert_array_equal(applied(of_causal_blocks, params, X), applied(encoder, params, X, Causal()))


# Combinations that make no sense.

WRONG = [
    (
        lambda: MultiheadAttention(D, H, settings=AttentionSettings(num_kv_heads=3)),
        "num_kv_heads is 3; it must divide num_heads, 4",
    ),
    (lambda: MultiheadAttention(20, 4, positions=RotaryPositions()), "5 of a head's 5 elements are .* must be even"),
    (lambda: AttentionSettings(dropout_prob=1.0), "dropout_prob is 1.0"),
    (lambda: MultiheadAttention(32, 2, positions=RotaryPositions(fraction=0.05)), "0 of a head's 16 elements are"),
    (lambda: RotaryPositions(0.0), "base is 0.0"),
    (lambda: RelativePositions(5), "num_buckets is 5; it must be even"),
    (lambda: RelativePositions(2), "num_buckets is 2; it must be at least 4"),
    (lambda: RelativePositions(32, 16), "max_distance is 16; it must be at least 17"),
    (lambda: RelativePositions(32, 2**21), "max_distance is 2097152; it may be at most 1048576"),
    (lambda: LearnedPositions(0), "max_len is 0"),
    (lambda: CausalStack(1, D, H, F, block=EncoderBlock), "block is EncoderBlock, which looks ahead"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_a_part_that_cannot_work_is_an_error(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_parts_that_do_not_fit_the_heads_are_an_error_at_construction():
    make = functools.partial(TransformerEncoder, 0, 20, dim_feedforward=F)  # as all below `SettingsModule`
    make(2, settings=BlockSettings(positions=RotaryPositions(), attention=AttentionSettings(num_kv_heads=2)))
    with pytest.raises(InputError, match="5 of a head's 5 elements are rotated"):
        make(4, settings=BlockSettings(positions=RotaryPositions()))
    with pytest.raises(InputError, match="num_kv_heads is 3; it must divide num_heads, 4"):
        make(4, settings=BlockSettings(attention=AttentionSettings(num_kv_heads=3)))


@pytest.mark.parametrize("positions", [RotaryPositions(), RelativePositions()])
def test_positions_inside_attention_are_no_part_of_cross_attention(positions):
    module = MultiheadAttention(D, H, positions=positions)
    with pytest.raises(InputError, match="memory is given, but positions is .* self-attention only"):
        module.init(jax.random.key(0), X, X)
    block = DecoderBlock(D, H, F, settings=BlockSettings(positions=positions))
    params = drawn(block, X, X)
    assert "attention_positions" not in params["params"]["cross_attn"]
    memory_order = np.array([3, 1, 0, 4, 2])  # which cross-attention does not see
    np.testing.assert_allclose(
        applied(block, params, X, X[:, memory_order]), applied(block, params, X, X), atol=1e-5
    )  # fmt: skip


def test_positions_inside_attention_cannot_be_left_out_of_a_call():
    model = TransformerPredictor(D, 3, H, 1, settings=BlockSettings(positions=RotaryPositions()))
    params = drawn(model, X)
    with pytest.raises(InputError, match="add_positional_encoding is False, but RotaryPositions"):
        model.apply(params, X, None, False)
