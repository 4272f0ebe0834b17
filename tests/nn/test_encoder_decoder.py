"""The encoder-decoder Transformer: PyTorch's numbers, cached decoding, masks, maps, and what each option changes."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from transformer_jax import padding_mask, params_from_torch
from transformer_jax.nn.decoder import DecoderBlock
from transformer_jax.nn.encoder_decoder import Transformer

B, S, T, D, H, F, L, V_SOURCE, V_TARGET = 3, 7, 5, 22, 2, 13, 2, 11, 17
SIZES = {
    "model_dim": D,
    "num_heads": H,
    "num_encoder_layers": L,
    "num_decoder_layers": L,
    "dim_feedforward": F,
}
RNG = np.random.default_rng(0)
SOURCE, TARGET = RNG.integers(V_SOURCE, size=(B, S)), RNG.integers(V_TARGET, size=(B, T))
SOURCE_VALID = np.arange(S) < np.array([[7], [4], [1]])
TARGET_VALID = np.arange(T) < np.array([[3], [5], [1]])


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def tokens_model(**options) -> tuple[Transformer, dict]:
    """A model whose every parameter is drawn, so that none can be forgotten."""
    model = Transformer(V_SOURCE, V_TARGET, **SIZES, **options)
    params = model.init(jax.random.key(0), SOURCE, TARGET)
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    drawn = [0.3 * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    return model, structure.unflatten(drawn)


def torch_transformer(norm_first: bool) -> torch.nn.Transformer:
    torch.manual_seed(2)
    module = torch.nn.Transformer(D, H, L, L, F, dropout=0.0, batch_first=True, norm_first=norm_first)
    module.encoder.enable_nested_tensor = False
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")  # nn.Transformer offers no way to turn it off
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_outputs_and_gradients_agree_with_pytorch(norm_first, padded):
    module = torch_transformer(norm_first)
    model = Transformer(**SIZES, dropout_prob=0.0, norm_first=norm_first, final_norm=True, layer_norm_epsilon=1e-5)
    params = params_from_torch(model, module.state_dict())
    source, target, cotangent = draw(B, S, D), draw(B, T, D, seed=1), draw(B, T, D, seed=2)
    masks = (padding_mask(SOURCE_VALID), padding_mask(TARGET_VALID)) if padded else (None, None)
    torch_masks = {}
    if padded:
        not_source, not_target = torch.tensor(~SOURCE_VALID), torch.tensor(~TARGET_VALID)
        torch_masks = {
            "src_key_padding_mask": not_source,
            "memory_key_padding_mask": not_source,
            "tgt_key_padding_mask": not_target,
        }
    torch_source, torch_target = (torch.tensor(x, requires_grad=True) for x in (source, target))
    causal = torch.ones(T, T).triu(1).bool()
    expected = module(torch_source, torch_target, tgt_mask=causal, **torch_masks)
    (expected * torch.tensor(cotangent)).sum().backward()

    np.testing.assert_allclose(model.apply(params, source, target, *masks), expected.detach(), atol=1e-5)
    gradients = jax.grad(lambda p, s, t: jnp.sum(model.apply(p, s, t, *masks) * cotangent), (0, 1, 2))(
        params, source, target
    )
    # Relative beside absolute: the sum over positions makes some gradients larger than one.
    np.testing.assert_allclose(gradients[1], torch_source.grad, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(gradients[2], torch_target.grad, atol=1e-5, rtol=1e-5)
    cross = gradients[0]["params"]["decoder"]["layers_0"]["cross_attn"]["key_proj"]["kernel"]
    expected = module.decoder.layers[0].multihead_attn.in_proj_weight.grad[D : 2 * D].T
    np.testing.assert_allclose(cross, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"norm_first": True}, {"final_norm": True}])
def test_cached_decoding_equals_the_full_pass_at_every_position_with_ragged_sources(options):
    model, params = tokens_model(**options)
    mask = padding_mask(SOURCE_VALID)
    full = model.apply(params, SOURCE, TARGET, mask)
    cache = model.apply(params, SOURCE, mask, T + 2, method=model.start_decoding)
    step = jax.jit(lambda token, position, cache: model.apply(params, token, position, cache, method=model.decode_step))
    assert np.abs(full).max() > 0.1
    for position in range(T):
        logits, cache = step(TARGET[:, position], position, cache)
        np.testing.assert_allclose(logits, full[:, position], atol=1e-5)


def test_the_cache_of_tied_embeddings_and_without_a_mask():
    model = Transformer(V_SOURCE, V_SOURCE, **SIZES, tie_embeddings=True)
    target = TARGET % V_SOURCE
    params = model.init(jax.random.key(0), SOURCE, target)
    full = model.apply(params, SOURCE, target)
    cache = model.apply(params, SOURCE, length=T, method=model.start_decoding)
    logits, cache = model.apply(params, target[:, 0], 0, cache, method=model.decode_step)
    np.testing.assert_allclose(logits, full[:, 0], atol=1e-5)
    assert all(leaf.shape[0] == B for leaf in jax.tree.leaves(cache))  # rows can be reordered, as beams are


def test_what_stands_in_the_padding_changes_nothing():
    model, params = tokens_model()
    mask = padding_mask(SOURCE_VALID)
    other = np.where(SOURCE_VALID, SOURCE, (SOURCE + 3) % V_SOURCE)
    np.testing.assert_array_equal(model.apply(params, SOURCE, TARGET, mask), model.apply(params, other, TARGET, mask))
    assert np.abs(model.apply(params, SOURCE, TARGET) - model.apply(params, other, TARGET)).max() > 1e-3


def test_no_position_sees_a_later_one_and_all_see_the_source():
    model = Transformer(**SIZES, dropout_prob=0.0)
    source, target = draw(1, S, D), draw(1, T, D, seed=1)
    params = model.init(jax.random.key(0), source, target)
    of_source, of_target = jax.jacobian(lambda s, t: model.apply(params, s, t)[0, :, 0], (0, 1))(source, target)
    np.testing.assert_array_equal(np.abs(of_target[:, 0]).max(-1) > 1e-9, np.tri(T, dtype=bool))
    assert (np.abs(of_source[:, 0]).max(-1) > 1e-9).all()


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


def test_the_maps_of_all_three_attentions_come_out_of_the_forward_pass():
    model, params = tokens_model()
    mask = padding_mask(SOURCE_VALID)
    maps = model.apply(params, SOURCE, TARGET, mask, method=model.get_attention_maps)
    output, from_the_pass = model.apply(params, SOURCE, TARGET, mask, return_attention=True)
    np.testing.assert_array_equal(output, model.apply(params, SOURCE, TARGET, mask))
    jax.tree.map(np.testing.assert_array_equal, maps, from_the_pass)
    for kind, shape in (("encoder", (S, S)), ("decoder", (T, T)), ("cross", (T, S))):
        layers = getattr(maps, kind)
        assert [layer.shape for layer in layers] == [(B, H, *shape)] * L
        for layer in layers:
            np.testing.assert_allclose(layer.sum(-1), 1, atol=1e-5)
    for layer in (*maps.encoder, *maps.cross):
        np.testing.assert_array_equal(layer[1, :, :, 4:], 0)
    for layer in maps.decoder:
        np.testing.assert_array_equal(np.triu(layer[0, 0], 1), 0)


def test_embeddings_start_as_large_as_positions_when_they_are_read():
    model = Transformer(5000, 5000, **(SIZES | {"model_dim": 64}))
    params = model.init(jax.random.key(0), SOURCE, TARGET)["params"]
    # Specification, trap 10: standard deviation 1/√D. 320 000 draws determine it to 0.2 %.
    np.testing.assert_allclose(np.std(params["source_embedding"]["embedding"]), 64**-0.5, rtol=0.01)
    np.testing.assert_allclose(np.std(params["target_embedding"]["embedding"]), 64**-0.5, rtol=0.01)


def test_tied_embeddings_are_one_matrix():
    model = Transformer(V_SOURCE, V_SOURCE, **SIZES, tie_embeddings=True)
    params = model.init(jax.random.key(0), SOURCE, TARGET % V_SOURCE)["params"]
    assert {name for name in params if "embedding" in name or "output" in name} == {"source_embedding"}
    assert model.apply({"params": params}, SOURCE, TARGET % V_SOURCE).shape == (B, T, V_SOURCE)


@pytest.mark.parametrize(
    "options",
    [
        {"norm_first": True},
        {"final_norm": True},
        {"activation": nn.gelu},
        {"layer_norm_epsilon": 0.5},
        {"dropout_prob": 0.5},
    ],
)
def test_each_option_changes_the_output(options):
    _, params = tokens_model(final_norm=options.get("norm_first", False) or options.get("final_norm", False))
    plain = Transformer(V_SOURCE, V_TARGET, **SIZES)
    changed = Transformer(V_SOURCE, V_TARGET, **SIZES, **options)
    train = {"train": True, "rngs": {"dropout": jax.random.key(1)}}
    outputs = [model.apply(params, SOURCE, TARGET, **train) for model in (plain, changed)]
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-3


def test_outside_training_no_key_is_needed():
    model, params = tokens_model(dropout_prob=0.5)
    np.testing.assert_array_equal(
        model.apply(params, SOURCE, TARGET), Transformer(V_SOURCE, V_TARGET, **SIZES).apply(params, SOURCE, TARGET)
    )


def test_impossible_models_and_sequences_are_errors():
    with pytest.raises(ValueError, match="num_heads is 3"):
        Transformer(model_dim=D, num_heads=3)
    with pytest.raises(ValueError, match=r"tie_embeddings .* \(11, 17\)"):
        Transformer(V_SOURCE, V_TARGET, **SIZES, tie_embeddings=True)
    with pytest.raises(ValueError, match="num_heads is 3"):
        DecoderBlock(D, 3, F)
    model = Transformer(V_SOURCE, V_TARGET, **SIZES, max_len=S - 1)
    with pytest.raises(ValueError, match="the sequence has 7 positions; max_len"):
        model.init(jax.random.key(0), SOURCE, TARGET)
