"""Wrong calls of the public functions and models: each is an `InputError` whose message names the argument."""

import datetime
import re
from functools import partial

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from transformer_jax import (
    AttentionSettings,
    BlockSettings,
    DecoderBlock,
    DigitsConfig,
    EncoderBlock,
    InputError,
    MultiheadAttention,
    PositionalEncoding,
    ReverseConfig,
    Transformer,
    TransformerDecoder,
    TransformerEncoder,
    TransformerLM,
    TransformerPredictor,
    TranslationConfig,
    beam_search,
    causal_mask,
    combine_masks,
    expand_mask,
    greedy_decode,
    padding_mask,
    sample,
    scaled_dot_product,
)
from transformer_jax.array_checks import check_token_ids
from transformer_jax.attention.masks.arrays import fit_mask
from transformer_jax.data.batch import num_rows, pad_batch, pad_rows
from transformer_jax.data.length_buckets import Shape, choose_shapes, smallest_shape
from transformer_jax.decoding.next_token import draw_tokens
from transformer_jax.nn.dense import Dense
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.feed_forward import FeedForward
from transformer_jax.nn.positions import sinusoidal_table
from transformer_jax.plots import (
    plot_attention_maps,
    plot_image_sets,
    plot_positional_curves,
    plot_positional_encoding,
    plot_schedules,
    plot_set_prediction,
)
from transformer_jax.tasks import (
    AnomalyTrainer,
    ReverseDataset,
    ReverseTrainer,
    SetAnomalyDataset,
    TranslationTrainer,
    stratified_split,
)
from transformer_jax.tasks.translation.dates import date_pairs, write_date
from transformer_jax.training import cosine_warmup_schedule, noam_schedule, warmup_then_cosine_schedule
from transformer_jax.training.metrics import means, weighted_sums

B, T, S, D, H, C, V, F = 2, 3, 5, 6, 2, 4, 7, 11
NAN, INF = float("nan"), float("inf")
X, MEMORY = np.zeros((B, T, D), np.float32), np.zeros((B, S, D), np.float32)
TOKENS, MASK = np.zeros((B, T), np.int32), np.ones((T, T), bool)


@pytest.fixture(autouse=True)
def without_type_checks():
    """Users call without the type checks of the tests, which would come first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def call(model, *args, **options):
    """Trace a model on known arguments."""
    return jax.eval_shape(lambda: model.init(jax.random.key(0), *args, **options))


def test_the_check_of_the_type_checks_is_off_and_a_right_call_passes():
    def num_parameters(*arguments):
        return sum(leaf.size for leaf in jax.tree.leaves(call(*arguments)))

    attention, norm = 4 * (D * D + D), 2 * D
    network = lambda width: 2 * D * width + width + D  # noqa: E731
    layers = 2 * (D * D + D) + norm + D * C + C  # the predictor's own
    assert num_parameters(TransformerPredictor(D, C, H, 1), X, MASK) == layers + attention + network(2 * D) + 2 * norm
    blocks = 3 * attention + 2 * network(F) + 5 * norm
    assert num_parameters(Transformer(V, V, D, H, 1, 1, F), TOKENS, TOKENS) == 2 * V * D + D * V + V + blocks


# A name is that of the test; each call must raise an InputError with the fragment that stands beside it.
ATTENTION = [
    (lambda: scaled_dot_product(zeros(3), zeros(5, 4), zeros(5, 4)), "q, k and v have shapes (3,), (5, 4)"),
    (lambda: scaled_dot_product(zeros(3, 4), zeros(5), zeros(5, 4)), "q, k and v have shapes"),
    (lambda: scaled_dot_product(zeros(3, 4), zeros(5, 4), zeros(5)), "q, k and v have shapes"),
    (lambda: scaled_dot_product(zeros(3, 4), zeros(5, 6), zeros(5, 6)), "[..., T, d], [..., S, d] and [..., S, d_v]"),
    (lambda: scaled_dot_product(zeros(3, 4), zeros(5, 4), zeros(6, 4)), "(3, 4), (5, 4) and (6, 4)"),
    (lambda: scaled_dot_product(zeros(3, 4), zeros(5, 4), zeros(1, 4)), "q, k and v have shapes"),
    (lambda: scaled_dot_product(zeros(3, 0), zeros(5, 0), zeros(5, 0)), "no size of 0"),
    (lambda: scaled_dot_product(zeros(3, 4), zeros(0, 4), zeros(0, 4)), "no size of 0"),
    (lambda: scaled_dot_product(zeros(2, 3, 4), zeros(7, 5, 4), zeros(7, 5, 4)), "(2, 3, 4), (7, 5, 4)"),
    (lambda: scaled_dot_product(np.ones((3, 4), bool), zeros(5, 4), zeros(5, 4)), "q has type bool"),
    (lambda: scaled_dot_product(zeros(3, 4), np.ones((5, 4), bool), zeros(5, 4)), "k has type bool"),
    (lambda: scaled_dot_product(zeros(3, 4), zeros(5, 4), "v"), "v has type <U1"),
    (lambda: scaled_dot_product(None, zeros(5, 4), zeros(5, 4)), "q has type object"),
    (lambda: scaled_dot_product(zeros(3, 4), zeros(5, 4), zeros(5, 4), zeros(3, 5)), "mask has type float32"),
    (lambda: scaled_dot_product(zeros(3, 4), zeros(5, 4), zeros(5, 4), np.ones(5, bool)), "mask has shape (5,)"),
    (lambda: scaled_dot_product(zeros(3, 4), zeros(5, 4), zeros(5, 4), MASK), "mask of shape (3, 3)"),
    (lambda: scaled_dot_product(zeros(3, 4), zeros(3, 4), zeros(3, 4), 2 * MASK.astype(int)), "mask holds 2"),
    (lambda: MultiheadAttention(0, 1), "embed_dim is 0"),
    (lambda: MultiheadAttention(-6, 2), "embed_dim is -6"),
    (lambda: MultiheadAttention(6.0, 2), "embed_dim is 6.0"),
    (lambda: MultiheadAttention(6, 0), "num_heads is 0"),
    (lambda: MultiheadAttention(6, 7), "num_heads is 7"),
    (lambda: MultiheadAttention(6, 2.0), "num_heads is 2.0"),
    (lambda: call(MultiheadAttention(D, H), zeros(B, T)), "x has shape (2, 3); it must be [B, T, D]"),
    (lambda: call(MultiheadAttention(D, H), zeros(B, H, T, D)), "x has shape (2, 2, 3, 6)"),
    (lambda: call(MultiheadAttention(D, H), zeros(B, 0, D)), "x has shape (2, 0, 6)"),
    (lambda: call(MultiheadAttention(D, H), zeros(B, T, 0)), "x has shape (2, 3, 0)"),
    (lambda: call(MultiheadAttention(D, H), zeros(B, T, D, dtype=np.int32)), "x has type int32"),
    (lambda: call(MultiheadAttention(D, H), "text"), "x has type <U4"),
    (lambda: call(MultiheadAttention(D, H), X, MASK[None]), "memory has type bool"),
    (lambda: call(MultiheadAttention(D, H), X, MASK), "memory has type bool"),
    (lambda: call(MultiheadAttention(D, H), X, zeros(S, D)), "memory has shape (5, 6)"),
    (lambda: call(MultiheadAttention(D, H), X, zeros(B + 1, S, D)), "memory has 3 rows and x has 2"),
    (lambda: call(MultiheadAttention(D, H), X, zeros(1, S, D)), "memory has 1 rows"),
    (lambda: call(MultiheadAttention(D, H), X, MEMORY, MASK), "mask of shape (3, 3)"),
]
MASKS = [
    (lambda: causal_mask(-1), "length is -1"),
    (lambda: causal_mask(10**12), "length is 1000000000000"),
    (lambda: causal_mask(10**5), "length is 100000"),
    (lambda: causal_mask(0), "length is 0"),
    (lambda: causal_mask(2.5), "length is 2.5"),
    (lambda: causal_mask("3"), "length is '3'"),
    (lambda: causal_mask(None), "length is None"),
    (lambda: causal_mask(True), "length is True"),
    (lambda: padding_mask(zeros(B, S)), "valid has type float32"),
    (lambda: padding_mask(np.ones(S, bool)), "valid has shape (5,)"),
    (lambda: padding_mask(np.ones((B, 1, S), bool)), "valid has shape (2, 1, 5)"),
    (lambda: padding_mask(np.array([[3, 2, 1]])), "valid holds 3"),
    (lambda: padding_mask(None), "valid has type object"),
    (lambda: expand_mask("TTF"), "mask has type <U3"),
    (lambda: expand_mask(None), "mask has type object"),
    (lambda: expand_mask(True), "mask has shape ()"),
    (lambda: expand_mask(np.ones(S, bool)), "mask has shape (5,)"),
    (lambda: expand_mask(np.ones((1, 1, 1, T, S), bool)), "mask has shape (1, 1, 1, 3, 5)"),
    (lambda: expand_mask(np.ones((T, S), complex)), "mask has type complex128"),
    (lambda: expand_mask(np.array([[-1, 0]])), "mask holds -1"),
    (lambda: fit_mask(MASK, (B, H, T, S)), "mask of shape (3, 3)"),
    (lambda: combine_masks(MASK, np.ones((T, S), bool)), "(1, 1, 3, 3) and (1, 1, 3, 5)"),
    (lambda: combine_masks(MASK, zeros(T, T)), "mask has type float32"),
]
POSITIONS = [
    (lambda: PositionalEncoding(0), "d_model is 0"),
    (lambda: PositionalEncoding(-6), "d_model is -6"),
    (lambda: PositionalEncoding(6.0), "d_model is 6.0"),
    (lambda: PositionalEncoding(6, 0), "max_len is 0"),
    (lambda: call(PositionalEncoding(D), zeros(B, T, D, dtype=np.int32)), "x has type int32"),
    (lambda: call(PositionalEncoding(D), np.ones((B, T, D), bool)), "x has type bool"),
    (lambda: call(PositionalEncoding(D), zeros(T, D)), "x has shape (3, 6)"),
    (lambda: call(PositionalEncoding(D), zeros(B, H, T, D)), "x has shape (2, 2, 3, 6)"),
    (lambda: call(PositionalEncoding(D), zeros(D)), "x has shape (6,)"),
    (lambda: call(PositionalEncoding(D), zeros(B, T, D + 1)), "the input is 7 wide; d_model is 6"),
    (lambda: call(PositionalEncoding(D, 2), X), "max_len is 2"),
    (lambda: call(PositionalEncoding(D), X[:, :1], -1, 5, method="at"), "position is -1"),
    (lambda: call(PositionalEncoding(D), X[:, :1], 5, 5, method="at"), "position is 5"),
    (lambda: call(PositionalEncoding(D, 4), X[:, :1], 0, 5, method="at"), "max_len is 4"),
    (lambda: sinusoidal_table(-1, 6), "length is -1"),
    (lambda: sinusoidal_table(3, 0), "d_model is 0"),
]
PARTS = [
    (lambda: Dense(0), "features is 0"),
    (lambda: Dense(-2), "features is -2"),
    (lambda: Dense(2).apply({"params": {"kernel": zeros(7, 2), "bias": zeros(2)}}, X), "must be 7 wide"),
    (lambda: Dropout(1.0), "rate is 1.0"),
    (lambda: Dropout(-0.1), "rate is -0.1"),
    (lambda: Dropout(NAN), "rate is nan"),
    (lambda: FeedForward(0), "dim_feedforward is 0"),
    (lambda: call(FeedForward(F), zeros(T, D), train=False), "x has shape (3, 6)"),
    (lambda: call(FeedForward(F), zeros(B, T, D, dtype=int), train=False), "x has type int64"),
    (lambda: BlockSettings(dropout_prob=1.5), "dropout_prob is 1.5"),
    (lambda: BlockSettings(dropout_prob=NAN), "dropout_prob is nan"),
    (lambda: BlockSettings(layer_norm_epsilon=0.0), "layer_norm_epsilon is 0.0"),
    (lambda: BlockSettings(layer_norm_epsilon=NAN), "layer_norm_epsilon is nan"),
    (lambda: BlockSettings(activation="relu"), "activation is 'relu'"),
    (lambda: AttentionSettings(qk_norm="rms"), "qk_norm is 'rms'; it must be a class such as RMSNorm"),
    (lambda: AttentionSettings(implementation="flash"), "implementation is 'flash'; it must be one of auto"),
    (lambda: BlockSettings(positions="rotary"), "positions is 'rotary'; it must be a Positions such as Rotary"),
    (lambda: BlockSettings(norm="rms"), "norm is 'rms'; it must be a class such as RMSNorm"),
    (lambda: BlockSettings(feed_forward="swiglu"), "feed_forward is 'swiglu'; it must be a class such as Gated"),
    (lambda: BlockSettings(attention={}), "attention is {}; it must be an AttentionSettings"),
    (lambda: EncoderBlock(0, 1, F), "input_dim is 0"),
    (lambda: EncoderBlock(D, D + 1, F), "num_heads is 7"),
    (lambda: EncoderBlock(D, H, 0), "dim_feedforward is 0"),
    (lambda: EncoderBlock(D, H, F, settings={"norm_first": True}), "settings is {'norm_first': True}"),
    (lambda: EncoderBlock(D, H, F, settings=None), "settings is None"),
    (lambda: TransformerEncoder(-1, D, H, F), "num_layers is -1"),
    (lambda: TransformerEncoder(1.5, D, H, F), "num_layers is 1.5"),
    (lambda: TransformerEncoder(1, 0, 1, F), "input_dim is 0"),
    (lambda: TransformerEncoder(1, D, H, -F), "dim_feedforward is -11"),
    (lambda: call(EncoderBlock(D, H, F), zeros(B, T, 1)), "x has shape (2, 3, 1); it must be [B, T, 6]"),
    (lambda: call(EncoderBlock(D, H, F), zeros(T, D)), "x has shape (3, 6)"),
    (lambda: call(TransformerEncoder(1, D, H, F), zeros(B, T, D + 1)), "x has shape (2, 3, 7)"),
    (lambda: call(TransformerEncoder(1, D, H, F), TOKENS), "x has type int32"),
    (lambda: call(TransformerEncoder(1, D, H, F), X, np.ones((B, T), bool)), "mask of shape (2, 3)"),
    (lambda: call(TransformerEncoder(1, D, H, F), X, MEMORY), "mask has type float32"),
    (lambda: call(DecoderBlock(D, H, F), X, MASK), "memory has type bool"),
    (lambda: call(DecoderBlock(D, H, F), X, MEMORY[0]), "memory has shape (5, 6)"),
    (lambda: call(TransformerDecoder(1, D, H, F), X[0], MEMORY), "x has shape (3, 6)"),
    (lambda: call(TransformerDecoder(1, D, H, F), zeros(B, 0, D), MEMORY), "x has shape (2, 0, 6)"),
    (lambda: call(TransformerDecoder(1, D, H, F), X, MEMORY[:1]), "memory has 1 rows"),
    (lambda: call(TransformerDecoder(1, D, H, F), X, MEMORY, np.ones((S, S), bool)), "mask of shape (5, 5)"),
    (lambda: call(TransformerDecoder(1, D, H, F), X, MEMORY, None, MASK), "mask of shape (3, 3)"),
]
MODELS = [
    (lambda: TransformerPredictor(0, C, 1, 1), "model_dim is 0"),
    (lambda: TransformerPredictor(D, C, D + 1, 1), "num_heads is 7"),
    (lambda: TransformerPredictor(D, 0, H, 1), "num_classes is 0"),
    (lambda: TransformerPredictor(D, C, H, -1), "num_layers is -1"),
    (lambda: TransformerPredictor(D, C, H, 1, max_len=0), "max_len is 0"),
    (lambda: TransformerPredictor(D, C, H, 1, input_dropout_prob=1.0), "input_dropout_prob is 1.0"),
    (lambda: TransformerPredictor(D, C, H, 1, dropout_prob=NAN), "dropout_prob is nan"),
    (lambda: TransformerPredictor(D, C, H, 1, settings="pre-norm"), "settings is 'pre-norm'"),
    (lambda: call(TransformerPredictor(D, C, H, 1), TOKENS), "x has type int32"),
    (lambda: call(TransformerPredictor(D, C, H, 1), X[0]), "x has shape (3, 6)"),
    (lambda: call(TransformerPredictor(D, C, H, 1), X[None]), "x has shape (1, 2, 3, 6)"),
    (lambda: call(TransformerPredictor(D, C, H, 1), zeros(B, 0, D)), "x has shape (2, 0, 6)"),
    (lambda: call(TransformerPredictor(D, C, H, 1), zeros(B, T, 0)), "x has shape (2, 3, 0)"),
    (lambda: call(TransformerPredictor(D, C, H, 1), "abc"), "x has type <U3"),
    (lambda: call(TransformerPredictor(D, C, H, 1), X, np.ones((B, T), bool)), "mask of shape (2, 3)"),
    (lambda: call(TransformerPredictor(D, C, H, 1), X, zeros(T, T)), "mask has type float32"),
    (lambda: call(TransformerPredictor(D, C, H, 1, max_len=2), X), "max_len is 2"),
    (lambda: TransformerLM(0, D, H), "vocabulary_size is 0"),
    (lambda: TransformerLM(V, D, H, 1.5), "num_layers is 1.5"),
    (lambda: TransformerLM(V, D, H, 1, 0), "dim_feedforward is 0"),
    (lambda: TransformerLM(V, D, H, 1, F, settings="pre-norm"), "settings is 'pre-norm'"),
    (lambda: call(TransformerLM(V, D, H, 1, F), X), "tokens has type float32; it must be token ids [B, T]"),
    (lambda: call(TransformerLM(V, D, H, 1, F), TOKENS[0]), "tokens has shape (3,)"),
    (lambda: call(TransformerLM(V, D, H, 1, F), zeros(B, 0, dtype=int)), "tokens has shape (2, 0)"),
    (lambda: call(TransformerLM(V, D, H, 1, F), TOKENS + V), "tokens holds the token id 7; ids may be 0 … 6"),
    (lambda: call(TransformerLM(V, D, H, 1, F), TOKENS, np.ones((S, S), bool)), "mask of shape (5, 5)"),
    (lambda: call(TransformerLM(V, D, H, 1, F, max_len=2), TOKENS), "max_len is 2"),
    (lambda: Transformer(V, V, 0, 1), "model_dim is 0"),
    (lambda: Transformer(V, V, D, D + 1), "num_heads is 7"),
    (lambda: Transformer(0, V, D, H), "source_vocabulary_size is 0"),
    (lambda: Transformer(V, -1, D, H), "target_vocabulary_size is -1"),
    (lambda: Transformer(V, 7.0, D, H), "target_vocabulary_size is 7.0"),
    (lambda: Transformer(V, V, D, H, -1), "num_encoder_layers is -1"),
    (lambda: Transformer(V, V, D, H, 1, -1), "num_decoder_layers is -1"),
    (lambda: Transformer(V, V, D, H, 1, 1, 0), "dim_feedforward is 0"),
    (lambda: Transformer(V, V, D, H, max_len=-1), "max_len is -1"),
    (lambda: Transformer(V, V + 1, D, H, tie_embeddings=True), "tie_embeddings"),
]
TRANSFORMER = partial(call, Transformer(V, V, D, H, 1, 1, F))
FEATURES = partial(call, Transformer(None, None, D, H, 1, 1, F))
TRANSFORMER_CALLS = [
    (lambda: TRANSFORMER(TOKENS + V, TOKENS), "source holds the token id 7; ids may be 0 … 6"),
    (lambda: TRANSFORMER(TOKENS, TOKENS - 1), "target holds the token id -1; ids may be 0 … 6"),
    (lambda: TRANSFORMER(jnp.full((B, S), 10**6), TOKENS), "source holds the token id 1000000"),
    (lambda: TRANSFORMER(TOKENS[0], TOKENS), "source has shape (3,)"),
    (lambda: TRANSFORMER(TOKENS, TOKENS[None]), "target has shape (1, 2, 3)"),
    (lambda: TRANSFORMER(TOKENS, np.int32(3)), "target has shape ()"),
    (lambda: TRANSFORMER(TOKENS.astype(np.float32), TOKENS), "source has shape (2, 3); it must be [B, T, 6]"),
    (lambda: TRANSFORMER(TOKENS.astype(bool), TOKENS), "source has type bool"),
    (lambda: TRANSFORMER("text", TOKENS), "source has type <U4"),
    (lambda: TRANSFORMER(["text"], TOKENS), "source has type <U4"),
    (lambda: TRANSFORMER(zeros(B, S, D + 1), TOKENS), "source has shape (2, 5, 7)"),
    (lambda: TRANSFORMER(TOKENS, TOKENS[:1]), "memory has 2 rows and x has 1"),
    (lambda: TRANSFORMER(TOKENS, TOKENS, TOKENS.astype(bool)), "mask of shape (2, 3)"),
    (lambda: TRANSFORMER(TOKENS, TOKENS, TOKENS[0]), "mask has shape (3,)"),
    (lambda: TRANSFORMER(TOKENS, zeros(B, 0, dtype=np.int32)), "target has shape (2, 0)"),
    (lambda: TRANSFORMER(TOKENS, X[0], method="decode"), "memory has shape (3, 6)"),
    (lambda: TRANSFORMER(TOKENS, MASK, method="decode"), "memory has type bool"),
    (lambda: TRANSFORMER(TOKENS + V, method="encode"), "source holds the token id 7"),
    (lambda: TRANSFORMER(TOKENS, None, -1, method="start_decoding"), "length is -1"),
    (
        lambda: TRANSFORMER(TOKENS, prefix=TOKENS[:1], method="start_decoding"),
        "prefix has 1 rows and source has 2; they must be equal",
    ),
    (lambda: TRANSFORMER(TOKENS, prefix=TOKENS[0], method="start_decoding"), "prefix has shape (3,)"),
    (lambda: TRANSFORMER(TOKENS, np.ones((T, T), bool), 4, method="start_decoding"), "mask of shape (3, 3)"),
    (lambda: FEATURES(TOKENS, X), "source holds integers; without source_vocabulary_size"),
    (lambda: FEATURES(X, TOKENS), "target holds integers; without target_vocabulary_size"),
    (lambda: FEATURES(X, zeros(B, T, D + 1)), "target has shape (2, 3, 7)"),
    (lambda: step_of([V, 0], 0), "target holds the token id 7"),
    (lambda: step_of([-1, 0], 0), "target holds the token id -1"),
    (lambda: step_of([[0], [0]], 0), "target has shape (2, 1)"),
    (lambda: step_of([0.5, 0.5], 0), "target has type float64"),
    (lambda: step_of([0, 0], 4), "position is 4"),
    (lambda: step_of([0, 0], -1), "position is -1"),
    (lambda: grown(2), "length is 2"),
    (lambda: check_token_ids("ids", np.array([[0, V]]), V), "ids holds the token id 7"),
    (lambda: check_token_ids("ids", np.array([0]), V), "ids has shape (1,)"),
]


def empty_cache(model):
    """A cache of four positions, as arrays of zeros."""
    shapes = jax.eval_shape(lambda: model.init_with_output(jax.random.key(0), TOKENS, None, 4, method="start_decoding"))
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes[0])


def step_of(tokens, position):
    model = Transformer(V, V, D, H, 1, 1, F)
    call(model, np.array(tokens), position, empty_cache(model), method="decode_step")


def grown(length):
    empty_cache(Transformer(V, V, D, H, 1, 1, F)).grow(length)


def constant_step(tokens, position, cache, value=0.0):
    return jnp.full((len(tokens), 4), value), cache


def decode(function, step=constant_step, cache=None, batch_size=2, **settings):
    ends = {"start_token": 0, "end_token": 1, "pad_token": 0, "max_length": 3}
    return function(step, {} if cache is None else cache, batch_size, **{**ends, **settings})


SAMPLE = partial(sample, key=jax.random.key(0))
DECODERS = [greedy_decode, SAMPLE, beam_search]
DECODING = [
    *(
        (partial(decode, function, **settings), message)
        for function in DECODERS
        for settings, message in [
            ({"start_token": -1}, "start_token is -1"),
            ({"start_token": 4}, "start_token is 4; it must be below 4"),
            ({"end_token": -1}, "end_token is -1"),
            ({"end_token": 4}, "end_token is 4; it must be below 4"),
            ({"end_token": 1.0}, "end_token is 1.0"),
            ({"pad_token": None}, "pad_token is None"),
            ({"max_length": 0}, "max_length is 0"),
            ({"max_length": 2.5}, "max_length is 2.5"),
            ({"batch_size": 0}, "batch_size is 0"),
            ({"batch_size": "2"}, "batch_size is '2'"),
            ({"step": None}, "step is None"),
            ({"cache": zeros(3, 1)}, "cache has shape (3, 1)"),
            ({"cache": {"a": np.float32(0)}}, "cache['a'] has shape ()"),
            ({"step": lambda tokens, position, cache: jnp.zeros((len(tokens), 4))}, "it must give a pair"),
            ({"step": lambda tokens, position, cache: (jnp.zeros(4), cache)}, "step gave logits of shape (4,)"),
            ({"step": lambda t, position, cache: (jnp.zeros((len(t), 0)), cache)}, "step gave logits of shape"),
            ({"step": lambda t, position, cache: (jnp.zeros((len(t), 4), int), cache)}, "logits of type int32"),
            ({"step": lambda t, position, cache: (jnp.zeros((len(t), 4)), ())}, "step gave a cache"),
            ({"step": partial(constant_step, value=NAN)}, "step gave logits of NaN or +inf for row 0"),
            ({"step": partial(constant_step, value=INF)}, "step gave logits of NaN or +inf for row 0"),
        ]
    ),
    (lambda: decode(SAMPLE, temperature=0.0), "temperature is 0.0"),
    (lambda: decode(SAMPLE, temperature=-1.0), "temperature is -1.0"),
    (lambda: decode(SAMPLE, temperature=NAN), "temperature is nan"),
    (lambda: decode(SAMPLE, temperature="hot"), "temperature is 'hot'"),
    (lambda: decode(beam_search, length_penalty="x"), "length_penalty is 'x'"),
    (lambda: decode(beam_search, beam_width=10**9), "beam_width is 1000000000"),
    (lambda: decode(greedy_decode, pad_token=-1), "pad_token is -1"),
    (lambda: decode(greedy_decode, max_length=10**12), "max_length is 1000000000000"),
    (lambda: decode(SAMPLE, top_k=0), "top_k is 0"),
    (lambda: decode(SAMPLE, top_k=2.5), "top_k is 2.5"),
    (lambda: decode(SAMPLE, top_p=0.0), "top_p is 0.0"),
    (lambda: decode(SAMPLE, top_p=1.5), "top_p is 1.5"),
    (lambda: decode(beam_search, beam_width=0), "beam_width is 0"),
    (lambda: decode(beam_search, beam_width=2.5), "beam_width is 2.5"),
    (lambda: decode(beam_search, n_best=0), "n_best is 0"),
    (lambda: decode(beam_search, n_best=5), "n_best is 5"),
    (lambda: decode(beam_search, length_penalty=-1.0), "length_penalty is -1.0"),
    (lambda: decode(beam_search, length_penalty=NAN), "length_penalty is nan"),
    (lambda: draw_tokens(jnp.zeros(4), jax.random.key(0)), "logits have shape (4,)"),
    (lambda: draw_tokens(jnp.zeros((2, 4), int), jax.random.key(0)), "type int32"),
    (lambda: draw_tokens(jnp.full((2, 4), NAN), jax.random.key(0)), "logits hold nan"),
    (lambda: draw_tokens(jnp.full((2, 4), INF), jax.random.key(0)), "logits hold inf"),
]
SCHEDULES = [
    *(
        (partial(schedule, *arguments), message)
        for schedule in (cosine_warmup_schedule, warmup_then_cosine_schedule)
        for arguments, message in [
            ((NAN, 1, 5), "base_lr is nan"),
            ((INF, 1, 5), "base_lr is inf"),
            ((-1e-3, 1, 5), "base_lr is -0.001"),
            ((0.0, 1, 5), "base_lr is 0.0"),
            ((1.0, -1, 5), "warmup is -1"),
            ((1.0, 5, 5), "warmup is 5"),
            ((1.0, NAN, 5), "warmup is nan"),
            ((1.0, 0.5, 5), "warmup is 0.5"),
            ((1.0, 0, 0), "max_iters is 0"),
            ((1.0, 0, NAN), "max_iters is nan"),
            ((1.0, 0, INF), "max_iters is inf"),
        ]
    ),
    (lambda: noam_schedule("6"), "d_model is '6'"),
    (lambda: cosine_warmup_schedule("fast", 1, 5), "base_lr is 'fast'"),
    (lambda: cosine_warmup_schedule(1.0, None, 5), "warmup is None"),
    (lambda: noam_schedule(0), "d_model is 0"),
    (lambda: noam_schedule(NAN), "d_model is nan"),
    (lambda: noam_schedule(6, 0), "warmup is 0"),
    (lambda: noam_schedule(6, NAN), "warmup is nan"),
]
MAPS = [zeros(B, H, T, T)]
IMAGES = zeros(B, S, 2, 2)
PLOTS = [
    (lambda: plot_attention_maps(None, []), "attention_maps has arrays of shapes []"),
    (lambda: plot_attention_maps(None, zeros(T, T)), "attention_maps has arrays of shapes [(3, 3)]"),
    (lambda: plot_attention_maps(None, [zeros(H, T, T)]), "attention_maps has arrays of shapes"),
    (lambda: plot_attention_maps(None, [*MAPS, zeros(B, 1, T, T)]), "attention_maps has arrays of shapes"),
    (lambda: plot_attention_maps(None, [zeros(B, 0, T, T)]), "attention_maps has arrays of shapes"),
    (lambda: plot_attention_maps(None, MAPS, idx=2), "idx is 2"),
    (lambda: plot_attention_maps(None, MAPS, idx=-1), "idx is -1"),
    (lambda: plot_attention_maps(None, MAPS, idx=0.5), "idx is 0.5"),
    (lambda: plot_set_prediction(IMAGES[0], zeros(S), 0.5, [zeros(H, S, S)]), "anomaly is 0.5"),
    (lambda: plot_attention_maps("abc", MAPS), "input_data is 'abc'"),
    (lambda: plot_attention_maps(np.arange(T), MAPS), "input_data is array([0, 1, 2])"),
    (lambda: plot_attention_maps(["abc"], MAPS, idx=1), "input_data is ['abc']"),
    (lambda: plot_attention_maps(zeros(B, T + 1), MAPS), "4 labels for 3 positions"),
    (lambda: plot_attention_maps(None, MAPS, query_data=["ab", "cd"]), "2 labels for 3 positions"),
    (lambda: plot_positional_encoding(0, 5), "d_model is 0"),
    (lambda: plot_positional_encoding(6, -1), "length is -1"),
    (lambda: plot_positional_curves(6, 0), "length is 0"),
    (lambda: plot_positional_curves(3, 5), "dimensions is (0, 1, 2, 3)"),
    (lambda: plot_positional_curves(6, 5, []), "dimensions is []"),
    (lambda: plot_positional_curves(6, 5, [-1]), "dimensions is [-1]"),
    (lambda: plot_schedules({}, 5), "schedules is {}"),
    (lambda: plot_schedules([noam_schedule(6)], 5), "schedules is ["),
    (lambda: plot_schedules({"a": 0.1}, 5), "schedules is {'a': 0.1}"),
    (lambda: plot_schedules({"a": noam_schedule(6)}, 0), "num_steps is 0"),
    (lambda: plot_image_sets(zeros(S, 2), np.zeros(2, int)), "images has shape (5, 2)"),
    (lambda: plot_image_sets(zeros(0, S, 2, 2), np.zeros(0, int)), "images has shape (0, 5, 2, 2)"),
    (lambda: plot_image_sets(zeros(B, S, 2, 2, 2), np.zeros(B, int)), "images has shape (2, 5, 2, 2, 2)"),
    (lambda: plot_image_sets(IMAGES, np.zeros(3, int)), "anomalies has shape (3,)"),
    (lambda: plot_image_sets(IMAGES, np.array([0, S])), "anomalies is [0 5]"),
    (lambda: plot_image_sets(IMAGES, np.array([-1, 0])), "anomalies is [-1  0]"),
    (lambda: plot_set_prediction(IMAGES[0], zeros(S), S, [zeros(H, S, S)]), "anomaly is 5"),
    (lambda: plot_set_prediction(IMAGES[0], zeros(T), 0, [zeros(H, S, S)]), "probabilities has shape (3,)"),
    (lambda: plot_set_prediction(IMAGES[0], zeros(S), 0, []), "attention_maps has arrays of shapes []"),
    (lambda: plot_set_prediction(IMAGES[0, 0], zeros(2), 0, [zeros(H, 2, 2)]), "images has shape (2, 2)"),
]
SAMPLES = (zeros(3, 2), zeros(3))
LENGTHS = np.array([1, 2, 3])
DATA = [
    (lambda: num_rows({}), "have shapes []"),
    (lambda: num_rows([]), "have shapes []"),
    (lambda: num_rows(np.float32(1)), "have shapes [()]"),
    (lambda: num_rows([zeros(3), zeros(2)]), "have shapes [(3,), (2,)]"),
    (lambda: pad_rows(zeros(0, 2), 3), "the batch has 0 rows"),
    (lambda: pad_batch(list(SAMPLES), 3), "a data set gives (inputs, targets); got list"),
    (lambda: pad_batch((zeros(3), zeros(2)), 3), "have shapes [(3,), (2,)]"),
    (lambda: choose_shapes(np.zeros(0, int), np.zeros(0, int)), "there are no pairs"),
    (lambda: smallest_shape(LENGTHS, LENGTHS, [Shape(2, 2)]), "a pair has lengths 3 and 3"),
    (lambda: means([]), "steps is empty"),
    (lambda: weighted_sums({"loss": (zeros(3), zeros(3, 1))}, np.ones(3, bool)), "weights of shape (3, 1)"),
    (lambda: weighted_sums({"loss": (zeros(3), zeros(2))}, np.ones(3, bool)), "weights of shape (2,)"),
    (lambda: weighted_sums({"loss": (zeros(2), 1.0)}, np.ones(3, bool)), "values of shape (2,)"),
    (lambda: weighted_sums({"loss": (np.float32(0), 1.0)}, np.ones(3, bool)), "values of shape ()"),
]
REVERSE, NUMBERS = ReverseTrainer(ReverseConfig()), np.zeros((2, 5), int)
DIGITS, SETS = AnomalyTrainer(DigitsConfig()), zeros(2, 5, 64)
TRANSLATION = TranslationTrainer(TranslationConfig())
LABELS, TABLE = np.array([0, 0, 1, 1]), zeros(4, 3)
TASKS = [
    (lambda: REVERSE.predict(NUMBERS + 10), "inputs holds the token id 10; ids may be 0 … 9"),
    (lambda: REVERSE.predict(NUMBERS - 1), "inputs holds the token id -1"),
    (lambda: REVERSE.predict(NUMBERS[None]), "inputs has shape (1, 2, 5)"),
    (lambda: REVERSE.predict(NUMBERS[:, :0]), "inputs has shape (2, 0)"),
    (lambda: REVERSE.predict(zeros(2, 5)), "inputs has type float32"),
    (lambda: REVERSE.predict([[1, 2], [3]]), "inputs has rows of different lengths"),
    (lambda: REVERSE.predict("123"), "inputs has type <U3"),
    (lambda: DIGITS.predict(SETS[:0]), "inputs has shape (0, 5, 64)"),
    (lambda: DIGITS.predict(SETS.astype(int)), "inputs has type int64"),
    (lambda: DIGITS.predict(np.full_like(SETS, NAN)), "inputs holds a feature that is not finite, in set 0 at 0"),
    (lambda: TRANSLATION.predict([1]), "inputs is [1]; it must be a text or a list of texts"),
    (lambda: TRANSLATION.predict(3), "inputs is 3"),
    (lambda: TRANSLATION.predict([b"x"]), "inputs is [b'x']"),
    (lambda: TRANSLATION.predict([""]), "the text '' has 0 bytes"),
    (lambda: ReverseDataset(size=1.5), "size is 1.5"),
    (lambda: ReverseDataset(seed=-1), "seed is -1"),
    (lambda: ReverseDataset(num_categories="10"), "num_categories is '10'"),
    (lambda: SetAnomalyDataset(TABLE[0], LABELS, 2), "features has shape (3,)"),
    (lambda: SetAnomalyDataset(TABLE, LABELS[None], 2), "labels has shape (1, 4)"),
    (lambda: SetAnomalyDataset(TABLE, LABELS[:3], 2), "4 features and 3 labels"),
    (lambda: SetAnomalyDataset(TABLE, LABELS.astype(float), 2), "labels has shape (4,) and type float64"),
    (lambda: SetAnomalyDataset(TABLE, LABELS, 2, subset=np.array([0, -1])), "subset holds -1"),
    (lambda: SetAnomalyDataset(TABLE, LABELS, 2, subset=np.array([0, 4])), "subset holds 4"),
    (lambda: SetAnomalyDataset(TABLE, LABELS, 2, subset=np.array([0.5])), "subset has shape (1,) and type float64"),
    (lambda: SetAnomalyDataset(TABLE, LABELS, 1), "set_size is 1"),
    (lambda: SetAnomalyDataset(TABLE, LABELS, 2.5), "set_size is 2.5"),
    (lambda: SetAnomalyDataset(TABLE, LABELS, 2, seed=-1), "seed is -1"),
    (lambda: stratified_split(LABELS, NAN), "fraction is nan"),
    (lambda: stratified_split(LABELS, "0.5"), "fraction is '0.5'"),
    (lambda: stratified_split(LABELS[None], 0.5), "labels has shape (1, 4)"),
    (lambda: date_pairs("training", 3), "split is 'training'; it must be one of train, val, test"),
    (lambda: date_pairs("train", 0), "size is 0"),
    (lambda: date_pairs("train", 3, seed=-1), "seed is -1"),
    (lambda: write_date(datetime.date(2017, 1, 3), "xx", "full"), "locale is 'xx'"),
    (lambda: write_date(datetime.date(2017, 1, 3), "fr", "tiny"), "style is 'tiny'"),
]
WRONG_CALLS = {
    "attention": ATTENTION,
    "masks": MASKS,
    "positions": POSITIONS,
    "parts": PARTS,
    "models": MODELS,
    "transformer": TRANSFORMER_CALLS,
    "decoding": DECODING,
    "schedules": SCHEDULES,
    "plots": PLOTS,
    "data": DATA,
    "tasks": TASKS,
}


@pytest.mark.parametrize(
    ("wrong_call", "fragment"),
    [
        pytest.param(wrong_call, fragment, id=f"{group}-{index}-{fragment}")
        for group, calls in WRONG_CALLS.items()
        for index, (wrong_call, fragment) in enumerate(calls)
    ],
)
def test_a_wrong_call_is_an_error_that_names_the_argument(wrong_call, fragment):
    with pytest.raises(InputError, match=re.escape(fragment)):
        wrong_call()
