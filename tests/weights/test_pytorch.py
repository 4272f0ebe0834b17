"""Import and export of PyTorch's weights: exact round trips, errors.

The tests of each model show that imported weights give PyTorch's outputs and gradients. Since the round trip is exact,
exported weights give ours.
"""

import compiled_models
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from transformer_jax import (
    AttentionSettings,
    GatedFeedForward,
    MultiheadAttention,
    RMSNorm,
    TransformerEncoder,
    params_from_torch,
    params_to_torch,
)
from transformer_jax.errors import InputError
from transformer_jax.nn import RelativePositions
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.encoder import EncoderBlock
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.nn.predictor import TransformerPredictor

D, H, F, L = 22, 2, 13, 3
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")  # nn.Transformer cannot turn it off


def torch_encoder() -> torch.nn.TransformerEncoder:
    layer = torch.nn.TransformerEncoderLayer(D, H, F, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, L, enable_nested_tensor=False)


def encoder() -> TransformerEncoder:
    return TransformerEncoder(L, D, H, F)


def drawn(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Draw a state dict with no two equal arrays."""
    torch.manual_seed(2)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module.state_dict()


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize(
    ("module", "model"),
    [
        (torch.nn.MultiheadAttention(D, H), MultiheadAttention(D, H)),
        (torch.nn.TransformerEncoderLayer(D, H, F), EncoderBlock(D, H, F)),
        (torch_encoder(), encoder()),
        (
            torch.nn.Transformer(D, H, 1, 2, F, batch_first=True),
            Transformer(None, None, D, H, 1, 2, F, final_norm=True),
        ),
    ],
    ids=["attention", "block", "stack", "pair with norms"],
)
def test_from_pytorch_and_back_is_exact(module, model):
    state = drawn(module)
    params = params_from_torch(model, state)
    assert_same(params_to_torch(model, params), state)
    assert_same(params_to_torch(model, jax.tree.map(jnp.asarray, params)), state)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_every_floating_type_stays_what_it_is(dtype):
    state = drawn(torch_encoder().to(dtype))
    params = params_from_torch(encoder(), state)
    kernel = params["layers_2"]["feed_forward"]["expand"]["kernel"]
    assert (kernel.shape, str(kernel.dtype)) == ((D, F), str(dtype).removeprefix("torch."))
    assert_same(params_to_torch(encoder(), params), state)


def test_imported_parameters_and_exported_tensors_are_copies():
    module = torch_encoder()
    state = drawn(module)
    params = params_from_torch(encoder(), state)
    back = params_to_torch(encoder(), params)
    for tensor in (*state.values(), *back.values()):
        tensor.zero_()
    assert not any(parameter.any() for parameter in module.parameters())  # their own memory
    assert all(leaf.all() for leaf in jax.tree.leaves(params))


def test_a_file_and_arrays_serve_as_well_as_a_state_dict(tmp_path):
    state = drawn(torch_encoder())
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    torch.save(state, tmp_path / "encoder.pt")
    for weights in (tmp_path / "encoder.pt", str(tmp_path / "encoder.pt"), arrays):
        assert_same(params_to_torch(encoder(), params_from_torch(encoder(), weights)), state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("layers.1.linear2.bias"), "the state dict lacks layers.1.linear2.bias$"),
        (lambda s: s.update({"norm.weight": torch.ones(D)}), "has norm.weight, for which the model has no place"),
        (
            lambda s: s.update({"layers.0.self_attn.in_proj_weight": torch.ones(D, 3 * D)}),
            r"in_proj_weight in the state dict has the shape \[22, 66\]; it must be \[66, 22\]",
        ),
        (
            lambda s: s.update({"layers.0.norm1.bias": torch.ones(D, dtype=torch.int32)}),
            "layers.0.norm1.bias .* has the type int32; it must be a floating-point type",
        ),
        (lambda s: s["layers.0.norm2.weight"][5:6].fill_(torch.inf), "layers.0.norm2.weight .* holds NaN or infinity"),
    ],
)
def test_weights_of_another_model_are_refused_by_name(change, message):
    state = {name: tensor.clone() for name, tensor in drawn(torch_encoder()).items()}
    change(state)
    with pytest.raises(InputError, match=message):
        params_from_torch(encoder(), state)


def test_parameters_of_another_model_are_not_exported():
    params = params_from_torch(encoder(), drawn(torch_encoder()))
    with pytest.raises(InputError, match="params has layers_2/.*, for which"):
        params_to_torch(TransformerEncoder(L - 1, D, H, F), params)
    with pytest.raises(InputError, match="params has only the key 'params'; it must be the dictionary under that key"):
        params_to_torch(encoder(), {"params": params})
    params["layers_1"]["self_attn"]["key_proj"]["bias"] = np.full(D, np.nan)
    with pytest.raises(InputError, match="layers_1/self_attn/key_proj/bias in params holds NaN"):
        params_to_torch(encoder(), params)


def test_a_model_without_a_counterpart_is_an_error():
    with pytest.raises(InputError, match="_vocabulary_size is .*; it must be None, the only value"):
        params_from_torch(Transformer(11, 17, model_dim=D, num_heads=H), {})
    # The types that the tests check at run time would refuse it first.
    with pytest.raises(Exception, match="TransformerPredictor"):
        params_from_torch(TransformerPredictor(D, 5, H, L), {})


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            MultiheadAttention(12, 4, settings=AttentionSettings(num_kv_heads=2)),
            "settings.num_kv_heads is 2; it must be None, the only value with",
        ),
        (MultiheadAttention(12, 4, settings=AttentionSettings(scale=0.5)), "settings.scale is 0.5; it must be None"),
        (EncoderBlock(12, 4, 13, settings=BlockSettings(norm=RMSNorm)), "settings.norm is RMSNorm"),
        (
            TransformerEncoder(1, 12, 4, 13, settings=BlockSettings(feed_forward=GatedFeedForward)),
            "settings.feed_forward is GatedFeedForward",
        ),
        (
            Transformer(None, None, 12, 4, 1, 1, 13, settings=BlockSettings(positions=RelativePositions())),
            "positions.is_in_attention is True; it must be False",
        ),
        (Transformer(None, None, 12, 4, 1, 1, 13, num_decoder_heads=3), "num_decoder_heads is 3; it must be None"),
    ],
)
def test_parts_without_a_counterpart_are_errors_in_both_directions(model, message):
    with pytest.raises(InputError, match=message):
        params_from_torch(model, {})
    with pytest.raises(InputError, match=message):
        params_to_torch(model, {})


def test_settings_that_do_not_change_predictions_are_accepted():
    settings = BlockSettings(attention=AttentionSettings(num_kv_heads=4, dropout_prob=0.5, implementation="blockwise"))
    block = EncoderBlock(12, 4, 13, settings=settings)
    assert params_to_torch(block, compiled_models.drawn(block, np.zeros((1, 1, 12), np.float32))["params"])
