"""Import and export of PyTorch's weights: exact round trips, our models run in PyTorch, errors.

That weights which come in give PyTorch's outputs and gradients is shown in the tests of each model.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from compiled_models import compiled
from compiled_models import drawn as drawn_params

from transformer_jax import (
    ALiBiPositions,
    AttentionSettings,
    GatedFeedForward,
    MultiheadAttention,
    RMSNorm,
    TransformerEncoder,
    padding_mask,
    params_from_torch,
    params_to_torch,
)
from transformer_jax.errors import InputError
from transformer_jax.nn import RelativePositions
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.encoder import EncoderBlock
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.nn.predictor import TransformerPredictor

B, S, T, D, H, F, L = 3, 7, 5, 22, 2, 13, 3
SOURCE_VALID = np.arange(S) < np.array([[7], [4], [1]])
TARGET_VALID = np.arange(T) < np.array([[3], [5], [1]])
STACKS = pytest.mark.parametrize("final_norm", [False, True])
ORDERS = pytest.mark.parametrize("norm_first", [False, True])

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")  # nn.Transformer cannot turn it off


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def torch_encoder(norm_first: bool = False, final_norm: bool = False) -> torch.nn.TransformerEncoder:
    layer = torch.nn.TransformerEncoderLayer(D, H, F, dropout=0.0, batch_first=True, norm_first=norm_first)
    norm = torch.nn.LayerNorm(D) if final_norm else None
    return torch.nn.TransformerEncoder(layer, L, norm, enable_nested_tensor=False)


def torch_transformer(norm_first: bool = False, final_norm: bool = True) -> torch.nn.Transformer:
    options = {"dropout": 0.0, "batch_first": True, "norm_first": norm_first}
    module = torch.nn.Transformer(D, H, 1, L - 1, F, **options)
    if not final_norm:
        module.encoder.norm = module.decoder.norm = None
    return module


def encoder(norm_first: bool = False, final_norm: bool = False) -> TransformerEncoder:
    return TransformerEncoder(L, D, H, F, settings=settings(norm_first), final_norm=final_norm)


def transformer(norm_first: bool = False, final_norm: bool = True) -> Transformer:
    sizes = {"model_dim": D, "num_heads": H, "num_encoder_layers": 1, "num_decoder_layers": L - 1, "dim_feedforward": F}
    return Transformer(**sizes, settings=settings(norm_first), final_norm=final_norm)


def settings(norm_first: bool) -> BlockSettings:
    return BlockSettings(norm_first=norm_first, layer_norm_epsilon=1e-5)


def drawn(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A state dict of which no two arrays are alike."""
    torch.manual_seed(2)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module.state_dict()


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


@pytest.mark.slow
@ORDERS
@STACKS
@pytest.mark.parametrize("make", [(torch_encoder, encoder), (torch_transformer, transformer)], ids=["stack", "pair"])
def test_from_pytorch_and_back_is_exact(make, norm_first, final_norm):
    module, model = (one(norm_first, final_norm) for one in make)
    state = drawn(module)
    params = params_from_torch(model, state)
    assert_same(params_to_torch(model, params), state)
    assert_same(params_to_torch(model, jax.tree.map(jnp.asarray, params)), state)


@pytest.mark.parametrize(
    ("module", "model"),
    [
        (torch.nn.MultiheadAttention(D, H), MultiheadAttention(D, H)),
        (torch.nn.TransformerEncoderLayer(D, H, F), EncoderBlock(D, H, F)),
    ],
    ids=["attention", "block"],
)
def test_attention_and_a_block_from_pytorch_and_back_are_exact(module, model):
    state = drawn(module)
    assert_same(params_to_torch(model, params_from_torch(model, state)), state)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_every_floating_type_stays_what_it_is(dtype):
    state = drawn(torch_encoder().to(dtype))
    params = params_from_torch(encoder(), state)
    kernel = params["layers_2"]["feed_forward"]["expand"]["kernel"]
    assert (kernel.shape, str(kernel.dtype)) == ((D, F), str(dtype).removeprefix("torch."))
    assert_same(params_to_torch(encoder(), params), state)


@pytest.mark.slow
@ORDERS
@STACKS
def test_an_encoder_made_here_runs_in_pytorch(norm_first, final_norm):
    model, module = encoder(norm_first, final_norm), torch_encoder(norm_first, final_norm)
    x = draw(B, S, D)
    params = drawn_params(model, x)
    module.load_state_dict(params_to_torch(model, params["params"]))
    expected = compiled(model)(params, x, padding_mask(SOURCE_VALID))
    output = module.train()(torch.tensor(x), src_key_padding_mask=torch.tensor(~SOURCE_VALID))
    np.testing.assert_allclose(output.detach(), expected, atol=1e-5)


@pytest.mark.slow
@ORDERS
@STACKS
def test_an_encoder_decoder_made_here_runs_in_pytorch(norm_first, final_norm):
    model, module = transformer(norm_first, final_norm), torch_transformer(norm_first, final_norm)
    source, target = draw(B, S, D), draw(B, T, D, seed=1)
    params = drawn_params(model, source, target)
    module.load_state_dict(params_to_torch(model, params["params"]))
    expected = compiled(model)(params, source, target, padding_mask(SOURCE_VALID), padding_mask(TARGET_VALID))
    not_source, not_target = torch.tensor(~SOURCE_VALID), torch.tensor(~TARGET_VALID)
    output = module(
        torch.tensor(source),
        torch.tensor(target),
        tgt_mask=torch.ones(T, T).triu(1).bool(),
        src_key_padding_mask=not_source,
        memory_key_padding_mask=not_source,
        tgt_key_padding_mask=not_target,
    )
    np.testing.assert_allclose(output.detach(), expected, atol=1e-5)


def test_each_array_goes_where_its_name_says():
    state = drawn(torch_transformer())
    decoder = params_from_torch(transformer(), state)["decoder"]["layers_1"]
    stacked = state["decoder.layers.1.multihead_attn.in_proj_weight"]
    for place, name in enumerate(("query_proj", "key_proj", "value_proj")):
        np.testing.assert_array_equal(decoder["cross_attn"][name]["kernel"], stacked[place * D : place * D + D].T)
    for residual, name in (("self_attn", "norm1"), ("cross_attn", "norm2"), ("feed_forward", "norm3")):
        scale = decoder[f"{residual}_residual"]["norm"]["scale"]
        np.testing.assert_array_equal(scale, state[f"decoder.layers.1.{name}.weight"])


def test_imported_parameters_and_exported_tensors_are_copies():
    module = torch_encoder()
    state = drawn(module)
    params = params_from_torch(encoder(), state)
    back = params_to_torch(encoder(), params)
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.zero_()
    assert not any(tensor.any() for tensor in state.values())  # the module's own memory
    assert all(leaf.all() for leaf in jax.tree.leaves(params))
    for tensor in back.values():
        tensor.zero_()
    assert all(leaf.all() for leaf in jax.tree.leaves(params))


def test_arrays_serve_as_well_as_tensors():
    state = drawn(torch_encoder())
    params = params_from_torch(encoder(), {name: tensor.numpy() for name, tensor in state.items()})
    assert_same(params_to_torch(encoder(), params), state)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_serves_as_well_as_a_state_dict(tmp_path, zipped):
    state = drawn(torch_encoder())
    torch.save(state, tmp_path / "encoder.pt", _use_new_zipfile_serialization=zipped)
    for path in (tmp_path / "encoder.pt", str(tmp_path / "encoder.pt")):
        assert_same(params_to_torch(encoder(), params_from_torch(encoder(), path)), state)


def changed(change) -> dict[str, torch.Tensor]:
    state = {name: tensor.clone() for name, tensor in drawn(torch_encoder()).items()}
    change(state)
    return state


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("layers.1.linear2.bias"), "the state dict lacks layers.1.linear2.bias$"),
        (
            lambda s: [s.pop(name) for name in list(s) if name.startswith("layers.2.")],
            "lacks layers.2.linear2.bias, .* and 9 more arrays",
        ),
        (lambda s: s.update({"norm.weight": torch.ones(D)}), "has norm.weight, for which the model has no place"),
        (
            lambda s: s.update({"layers.1.linear1.weight": torch.ones(F + 4, D)}),
            r"layers.1.linear1.weight in the state dict has the shape \[17, 22\]; it must be \[13, 22\]",
        ),
        (
            lambda s: s.update({"layers.0.self_attn.in_proj_weight": torch.ones(D, 3 * D)}),
            r"in_proj_weight in the state dict has the shape \[22, 66\]; it must be \[66, 22\]",
        ),
        (
            lambda s: s.update({"layers.0.norm1.bias": torch.ones(D, dtype=torch.int32)}),
            "layers.0.norm1.bias .* has the type int32; it must be a floating-point type",
        ),
        (lambda s: s["layers.2.norm2.weight"][5:6].fill_(torch.nan), "layers.2.norm2.weight .* holds NaN or infinity"),
        (lambda s: s["layers.0.norm2.weight"][5:6].fill_(torch.inf), "layers.0.norm2.weight .* holds NaN or infinity"),
    ],
    ids=["missing", "fewer layers", "extra", "shape", "transposed", "type", "NaN", "infinity"],
)
def test_weights_of_another_model_are_refused_by_name(tmp_path, change, message):
    state = changed(change)
    with pytest.raises(InputError, match=message):
        params_from_torch(encoder(), state)
    torch.save(state, tmp_path / "encoder.pt")
    with pytest.raises(InputError, match=message.replace("the state dict", str(tmp_path / "encoder.pt"))):
        params_from_torch(encoder(), tmp_path / "encoder.pt")


def test_parameters_of_another_model_do_not_go_out():
    x = draw(B, S, D)
    params = drawn_params(encoder(), x)["params"]
    with pytest.raises(InputError, match="params lacks norm/"):
        params_to_torch(encoder(final_norm=True), params)
    with pytest.raises(InputError, match="params has layers_2/.* and 13 more arrays, for which"):
        params_to_torch(TransformerEncoder(L - 1, D, H, F), params)
    with pytest.raises(InputError, match="params has the key 'params' alone; it must be what is under that key"):
        params_to_torch(encoder(), {"params": params})
    params["layers_1"]["self_attn"]["key_proj"]["bias"] = np.full(D, np.nan)
    with pytest.raises(InputError, match="layers_1/self_attn/key_proj/bias in params holds NaN"):
        params_to_torch(encoder(), params)


def test_a_model_without_a_counterpart_is_an_error():
    with pytest.raises(InputError, match="model has a vocabulary, and torch.nn.Transformer no embeddings"):
        params_from_torch(Transformer(11, 17, model_dim=D, num_heads=H), {})
    # The types that the tests check at run time would refuse it first.
    with pytest.raises(Exception, match="TransformerPredictor"):
        params_from_torch(TransformerPredictor(D, 5, H, L), {})


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            MultiheadAttention(12, 4, num_kv_heads=2),
            "num_kv_heads is 2; it must be None, the only one with",
        ),
        (MultiheadAttention(12, 4, qk_norm=RMSNorm), "qk_norm is RMSNorm"),
        (MultiheadAttention(12, 4, positions=ALiBiPositions()), r"positions is ALiBiPositions\(\)"),
        (EncoderBlock(12, 4, 13, settings=BlockSettings(norm=RMSNorm)), "settings.norm is RMSNorm"),
        (
            TransformerEncoder(1, 12, 4, 13, settings=BlockSettings(feed_forward=GatedFeedForward)),
            "settings.feed_forward is GatedFeedForward",
        ),
        (
            Transformer(None, None, 12, 4, 1, 1, 13, settings=BlockSettings(positions=RelativePositions())),
            "settings.positions is RelativePositions.* that are not inside attention",
        ),
    ],
)
def test_parts_without_a_counterpart_are_errors_in_both_directions(model, message):
    with pytest.raises(InputError, match=message):
        params_from_torch(model, {})
    with pytest.raises(InputError, match=message):
        params_to_torch(model, {})


def test_settings_that_change_no_prediction_do_not_hinder():
    settings = BlockSettings(attention=AttentionSettings(num_kv_heads=4, dropout_prob=0.5, implementation="blockwise"))
    block = EncoderBlock(12, 4, 13, settings=settings)
    assert params_to_torch(block, block.init(jax.random.key(0), np.zeros((1, 1, 12), np.float32))["params"])
