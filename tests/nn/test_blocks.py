"""Settings of blocks, the residual connection, and custom blocks."""

import inspect
import re
import textwrap
from functools import partial

import flax.linen as nn
import jax
import numpy as np
import pytest
from compiled_models import applied, drawn
from repository import REPOSITORY

from transformer_jax import (
    DecoderBlock,
    EncoderBlock,
    InputError,
    TransformerDecoder,
    TransformerEncoder,
    TransformerPredictor,
)
from transformer_jax.nn.blocks import BlockSettings, Residual
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.nn.position_kinds import RelativePositions

B, S, T, D, H, F, L = 2, 7, 5, 6, 2, 13, 2
X = np.random.default_rng(0).normal(size=(B, T, D)).astype(np.float32)
MAKERS = {
    "block": lambda *dropout, **options: EncoderBlock(D, H, F, *dropout, **options),
    "stack": lambda *dropout, **options: TransformerEncoder(L, D, H, F, *dropout, **options),
    "predictor": lambda *dropout, **options: TransformerPredictor(D, 3, H, L, *dropout, **options),
    "transformer": lambda *dropout, **options: Transformer(11, 13, D, H, L, L, F, *dropout, **options),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_dropout_prob_is_a_shorthand_for_that_of_the_settings(make):
    settings = BlockSettings(dropout_prob=0.3)
    model = make(settings=settings)
    assert model == make(0.3) == make(dropout_prob=0.3) == make(0.3, settings=settings)
    assert (model.dropout_prob, model.settings.dropout_prob) == (0.3, 0.3)
    assert hash(model) == hash(make(0.3))
    assert make(0.0).settings.dropout_prob == 0
    pre_norm = make(0.3, settings=BlockSettings(dropout_prob=0.1, norm_first=True))
    assert pre_norm == make(settings=BlockSettings(dropout_prob=0.3, norm_first=True)) == pre_norm.clone()
    assert pre_norm.clone(dropout_prob=0.0) == make(0.0, settings=BlockSettings(norm_first=True))
    assert pre_norm.clone(settings=BlockSettings(dropout_prob=0.2)) == make(0.2)
    assert make().dropout_prob == (0.1 if isinstance(make(), Transformer) else 0)


def test_stacks_and_models_pass_their_settings_to_their_parts():
    settings = BlockSettings(dropout_prob=0.3, norm_first=True, activation=nn.gelu, layer_norm_epsilon=1e-5)
    for stack in (TransformerEncoder, TransformerDecoder):
        assert [layer.settings for layer in stack(L, D, H, F, settings=settings).bind({}).layers] == [settings] * L
    predictor = TransformerPredictor(D, 3, H, L, settings=settings).bind({})
    assert (predictor.encoder.settings, predictor.output_dropout.rate) == (settings, 0.3)
    assert predictor.output_norm.epsilon == 1e-5
    model = Transformer(11, 13, D, H, L, L, F, settings=settings).bind({})
    assert (model.encoder.settings, model.decoder.settings, model.embedding_dropout.rate) == (settings, settings, 0.3)


def layer_norm(x: np.ndarray, epsilon: float) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_residual_connection_adds_the_sublayer_of_its_input(norm_first):
    residual = Residual(BlockSettings(norm_first=norm_first, layer_norm_epsilon=0.25))

    def sublayer(h):
        return 3 * h + 1

    output, _ = residual.init_with_output(jax.random.key(0), X, sublayer, train=False)
    read = layer_norm(X, 0.25) if norm_first else X
    expected = X + 3 * read + 1 if norm_first else layer_norm(X + 3 * read + 1, 0.25)
    np.testing.assert_allclose(output, expected, atol=2e-6)
    with pytest.raises(InputError, match=f"sublayer returned shape \\({B}, {T}, 1\\); it must be the shape of x"):
        residual.init_with_output(jax.random.key(0), X, lambda h: h[..., :1], train=False)


def test_a_residual_connection_drops_elements_of_the_sublayer_in_training_alone():
    residual = Residual(BlockSettings(dropout_prob=0.25, norm_first=True))
    x = np.zeros((97, T, D), np.float32)
    params = {"params": {"norm": {"scale": np.ones(D), "bias": np.zeros(D)}}}
    for train, share in ((False, 1.0), (True, 0.75)):
        output = applied(residual, params, x, lambda h: h + 1, train=train, rngs={"dropout": jax.random.key(1)})
        assert set(np.unique(output).round(5)) == ({1.0} if not train else {0.0, np.float32(1.33333)})
        # 2 910 numbers: the standard deviation of the share is 0.008.
        assert np.mean(output != 0) == pytest.approx(share, abs=0.03)


def example_block() -> type[EncoderBlock]:
    """Return the block that the docstring of EncoderBlock defines: sub-layers that read the same input."""
    code = re.search(r"^ +class Parallel.*?(?=\n\n +model = )", EncoderBlock.__doc__, re.MULTILINE | re.DOTALL)
    names = {"EncoderBlock": EncoderBlock}
    exec(textwrap.dedent(code[0]), names)
    return names["Parallel"]


ParallelBlock = example_block()


def test_the_example_block_is_that_of_the_guide():
    guide = (REPOSITORY / "docs" / "new_task.md").read_text(encoding="utf-8")
    written = re.search(r"^class ParallelBlock.*?(?=\n\n\n)", guide, re.MULTILINE | re.DOTALL)[0]
    assert textwrap.indent(written.replace("ParallelBlock", "Parallel"), " " * 4) in inspect.getdoc(EncoderBlock)


def test_the_example_block_adds_the_bias_that_a_stack_shares():
    shared, own = (
        TransformerEncoder(1, D, H, F, settings=BlockSettings(positions=positions), block=ParallelBlock)
        for positions in (RelativePositions(4, 5, is_shared=True), RelativePositions(4, 5))
    )
    variables = drawn(shared, X)
    params = dict(variables["params"])
    table = params.pop("positions")
    layer = params["layers_0"]
    in_block = {**layer, "self_attn": {**layer["self_attn"], "attention_positions": table}}
    expected = applied(own, {"params": {**params, "layers_0": in_block}}, X)
    np.testing.assert_allclose(applied(shared, variables, X), expected, atol=1e-6)
    without = {"params": {**variables["params"], "positions": jax.tree.map(np.zeros_like, table)}}
    assert np.abs(applied(shared, without, X) - expected).max() > 1e-3


class AttentionOnlyDecoderBlock(DecoderBlock):
    """Decoder block without a feed-forward network."""

    def __call__(self, x, memory, mask=None, memory_mask=None, *, train=False):
        x = self.self_attn_residual(x, lambda h: self.self_attn(h, mask=mask, train=train), train=train)
        return self.cross_attn_residual(x, lambda h: self.cross_attn(h, memory, memory_mask), train=train)


def test_the_transformer_uses_custom_blocks_in_the_full_pass_and_in_cached_decoding():
    blocks = {"encoder_block": ParallelBlock, "decoder_block": AttentionOnlyDecoderBlock}
    model = Transformer(11, 13, D, H, 1, 1, F, **blocks)
    rng = np.random.default_rng(1)
    source, target = rng.integers(11, size=(B, S)), rng.integers(13, size=(B, T))
    params = drawn(model, source, target)
    assert "feed_forward_residual" not in params["params"]["encoder"]["layers_0"]
    assert "feed_forward" not in params["params"]["decoder"]["layers_0"]
    start = partial(model.apply, length=T, method="start_decoding")
    full, cache = jax.jit(lambda params: (model.apply(params, source, target), start(params, source)))(params)
    step = jax.jit(lambda *arguments: model.apply(params, *arguments, method="decode_step"))
    for position in range(T):
        logits, cache = step(target[:, position], position, cache)
        np.testing.assert_allclose(logits, full[:, position], atol=1e-5)
