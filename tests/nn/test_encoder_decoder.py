"""The encoder-decoder Transformer: PyTorch's numbers, cached decoding, masks, maps, effect of each option."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from compiled_models import compiled, draw, drawn

from transformer_jax import padding_mask, params_from_torch
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.embeddings import EmbeddingSettings
from transformer_jax.nn.encoder_decoder import Transformer

B, S, T, D, H, F, L, V_SOURCE, V_TARGET = 3, 7, 5, 10, 2, 13, 2, 11, 17
SIZES = {
    "model_dim": D,
    "num_heads": H,
    "num_encoder_layers": 1,
    "num_decoder_layers": L,
    "dim_feedforward": F,
}
RNG = np.random.default_rng(0)
SOURCE, TARGET = RNG.integers(V_SOURCE, size=(B, S)), RNG.integers(V_TARGET, size=(B, T))
SOURCE_VALID = np.arange(S) < np.array([[7], [4], [1]])
TARGET_VALID = np.arange(T) < np.array([[3], [5], [1]])


MODEL = Transformer(V_SOURCE, V_TARGET, **SIZES)
SOURCE_MASK = np.asarray(padding_mask(SOURCE_VALID))


@pytest.fixture(scope="module")
def params() -> dict:
    return drawn(MODEL, SOURCE, TARGET)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")  # nn.Transformer offers no way to turn it off
def test_outputs_and_gradients_agree_with_pytorch():
    """For post-norm see test_encoder.py."""
    torch.manual_seed(2)
    module = torch.nn.Transformer(D, H, 1, L, F, dropout=0.0, batch_first=True, norm_first=True)
    module.encoder.enable_nested_tensor = False
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    settings = BlockSettings(norm_first=True, layer_norm_epsilon=1e-5)
    model = Transformer(**SIZES, settings=settings, final_norm=True)
    params = {"params": params_from_torch(model, module.state_dict())}
    source, target, cotangent = draw(B, S, D), draw(B, T, D, seed=1), draw(B, T, D, seed=2)
    masks = [np.asarray(padding_mask(valid)) for valid in (SOURCE_VALID, TARGET_VALID)]
    no_source, no_target = torch.tensor(~SOURCE_VALID), torch.tensor(~TARGET_VALID)
    names = "src_key_padding_mask", "memory_key_padding_mask", "tgt_key_padding_mask"
    torch_masks = dict(zip(names, (no_source, no_source, no_target), strict=True))
    torch_source, torch_target = (torch.tensor(x, requires_grad=True) for x in (source, target))
    causal = torch.ones(T, T).triu(1).bool()
    expected = module(torch_source, torch_target, tgt_mask=causal, **torch_masks)
    (expected * torch.tensor(cotangent)).sum().backward()

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1, 2), has_aux=True)
    def total(params, source, target):
        output = model.apply(params, source, target, *masks)
        return jnp.sum(output * cotangent), output

    (_, output), gradients = total(params, source, target)
    np.testing.assert_allclose(output, expected.detach(), atol=1e-5)
    # Relative beside absolute: the sum over positions makes some gradients larger than one.
    np.testing.assert_allclose(gradients[1], torch_source.grad, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(gradients[2], torch_target.grad, atol=1e-5, rtol=1e-5)
    cross = gradients[0]["params"]["decoder"]["layers_0"]["cross_attn"]["key_proj"]["kernel"]
    expected = module.decoder.layers[0].multihead_attn.in_proj_weight.grad[D : 2 * D].T
    np.testing.assert_allclose(cross, expected, atol=1e-5, rtol=1e-5)


def test_the_content_of_the_padding_changes_nothing(params):
    other = np.where(SOURCE_VALID, SOURCE, (SOURCE + 3) % V_SOURCE)
    run = functools.partial(compiled(MODEL), params)
    np.testing.assert_array_equal(run(SOURCE, TARGET, SOURCE_MASK), run(other, TARGET, SOURCE_MASK))
    unmasked = np.ones_like(SOURCE_MASK)
    assert np.abs(run(SOURCE, TARGET, unmasked) - run(other, TARGET, unmasked)).max() > 1e-3


def test_no_position_sees_a_later_one_and_all_see_the_source(params):
    """Change one token at a time; a position depends on the token if its logits change."""

    def changes(sequence, position, of_source):
        changed = sequence.copy()
        changed[:, position] = (changed[:, position] + 1) % V_SOURCE
        pair = (changed, TARGET) if of_source else (SOURCE, changed)
        difference = run(*pair, mask) - run(SOURCE, TARGET, mask)
        return np.abs(difference[0]).max(-1) > 1e-5  # [T]

    run, mask = functools.partial(compiled(MODEL), params), np.ones_like(SOURCE_MASK)
    of_target = np.stack([changes(TARGET, position, False) for position in range(T)], axis=1)
    np.testing.assert_array_equal(of_target, np.tri(T, dtype=bool))
    assert np.all([changes(SOURCE, position, True) for position in range(S)])


def test_the_feature_form_and_the_defaults_are_those_of_the_base_model():
    model = Transformer()
    assert (model.num_encoder_layers, model.num_decoder_layers, model.model_dim, model.num_heads) == (6, 6, 512, 8)
    assert (model.dim_feedforward, model.dropout_prob) == (2048, 0.1)
    source, target = jnp.zeros((64, 32, 512)), jnp.zeros((64, 16, 512))
    output, params = jax.eval_shape(lambda: model.init_with_output(jax.random.key(0), source, target))
    assert output.shape == (64, 16, 512)
    attention, norm, feed_forward = 4 * (512 + 1) * 512, 2 * 512, (512 + 1) * 2048 + (2048 + 1) * 512
    expected = 6 * (attention + feed_forward + 2 * norm) + 6 * (2 * attention + feed_forward + 3 * norm)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == expected


def test_embeddings_start_as_large_as_positions_when_they_are_read():
    sizes = SIZES | {"model_dim": 64, "num_encoder_layers": 0, "num_decoder_layers": 0}
    params = jax.jit(Transformer(5000, 5000, **sizes).init)(jax.random.key(0), SOURCE, TARGET)["params"]
    # Reading multiplies by √D, so that they start with 1/√D. 320 000 draws determine it to 0.2 %.
    np.testing.assert_allclose(np.std(params["source_embedding"]["embedding"]), 64**-0.5, rtol=0.01)
    np.testing.assert_allclose(np.std(params["target_embedding"]["embedding"]), 64**-0.5, rtol=0.01)


def test_a_model_without_logits_has_no_output_bias():
    model = Transformer(**SIZES, embeddings=EmbeddingSettings(output_bias=True))
    output, params = jax.eval_shape(model.init_with_output, jax.random.key(0), draw(B, S, D), draw(B, T, D))
    assert (output.shape, params["params"].keys()) == ((B, T, D), {"encoder", "decoder"})
