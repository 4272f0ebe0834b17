"""Export of whole models to PyTorch: equal logits and gradients, even in a process without this package; errors."""

import functools
import itertools
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from compiled_models import assert_close, compiled, draw, drawn
from flax.traverse_util import flatten_dict

from transformer_jax import (
    AttentionSettings,
    BlockSettings,
    RMSNorm,
    Transformer,
    TransformerPredictor,
    export_torch,
    load_run,
)
from transformer_jax.errors import InputError
from transformer_jax.nn import EmbeddingSettings, SinusoidalPositions
from transformer_jax.nn.encoder import EncoderBlock
from transformer_jax.weights.pytorch import LAYOUT

pytestmark = pytest.mark.slow

B, S, T, D, H, F, FEATURES, C, V = 5, 7, 11, 26, 2, 17, 3, 13, 19
VALID = np.arange(S) < np.array([[7], [4], [1], [0], [6]])  # the fourth row is padding alone
PRE_NORM = BlockSettings(norm_first=True, layer_norm_epsilon=1e-3, activation=nn.gelu)
POST_NORM = BlockSettings()


def tokens(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(V, size=shape).astype(np.int32)


def predictor(settings: BlockSettings = POST_NORM, num_layers: int = 2, **fields) -> TransformerPredictor:
    return TransformerPredictor(D, C, H, num_layers, settings=settings, **fields)


def transformer(settings: BlockSettings = POST_NORM, *, tied: bool = False, **fields) -> Transformer:
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 2, "dim_feedforward": F, "model_dim": D, "num_heads": H}
    return Transformer(V if tied else V + 4, V, settings=settings, tie_embeddings=tied, **{**sizes, **fields})


def exported(directory: Path, model: nn.Module, *inputs: np.ndarray) -> tuple[dict[str, Any], torch.nn.Module]:
    """Draw parameters, and return them with the exported module of the model, opened in this process."""
    variables = drawn(model, *inputs)
    return variables, loaded(export_torch(model, variables["params"], directory))


def loaded(path: Path) -> torch.nn.Module:
    return runpy.run_path(str(path))["load_model"]()


def run_torch(module: Callable[..., torch.Tensor], *inputs: Any) -> np.ndarray:
    with torch.no_grad():
        return module(*(torch.tensor(x) if isinstance(x, np.ndarray) else x for x in inputs)).numpy()


def padding(valid: np.ndarray) -> np.ndarray:
    return valid[:, None, None, :]


@pytest.mark.parametrize("settings", [PRE_NORM, POST_NORM], ids=["pre-norm", "post-norm"])
def test_a_predictor_gives_the_same_logits(tmp_path, settings):
    model, x = predictor(settings), draw(B, S, FEATURES)
    variables, module = exported(tmp_path, model, x)
    for positions, mask in itertools.product((True, False), (None, padding(VALID))):
        seen = np.ones_like(padding(VALID)) if mask is None else mask
        expected = compiled(model, add_positional_encoding=positions)(variables, x, seen)
        assert_close(run_torch(module, x, mask, positions), expected, 1e-5)


def translated(model: Transformer, directory: Path) -> tuple[Any, Any, torch.nn.Module]:
    """Inputs of an encoder-decoder with both masks, random variables, and the exported module."""
    source, target = tokens(B, S), tokens(B, T, seed=1)
    variables, module = exported(directory, model, source, target)
    target_mask = padding(np.arange(T) < np.array([[11], [3], [5], [7], [1]]))
    return (source, target, padding(VALID), target_mask), variables, module


def test_an_encoder_decoder_gives_the_same_logits(tmp_path):
    model = transformer(POST_NORM, tied=True, final_norm=True)
    inputs, variables, module = translated(model, tmp_path)
    all_seen = (*inputs[:2], *(np.ones_like(mask) for mask in inputs[2:]))
    for arguments, of_torch in ((inputs, inputs), (all_seen, inputs[:2])):
        assert_close(run_torch(module, *of_torch), compiled(model)(variables, *arguments), 1e-5)


MASKS = [(S, S), (B, S, S), (B, 1, S), (B, H, S, S), (1, H, S, 1), (B, 1, 1, S)]


def test_a_mask_of_any_rank_and_type_means_the_same(tmp_path):
    model, x = predictor(num_layers=1), draw(B, S, FEATURES)
    variables, module = exported(tmp_path, model, x)
    for shape, dtype in zip(MASKS, itertools.cycle((bool, np.int32)), strict=False):
        mask = (np.random.default_rng(2).random(shape) < 0.2).astype(dtype)
        assert not mask.any(-1).all()  # some queries see nothing
        assert_close(run_torch(module, x, mask), model.apply(variables, x, mask), 1e-5)


EXACT_GELU, TANH_GELU = (functools.partial(nn.gelu, approximate=is_tanh) for is_tanh in (False, True))


@pytest.mark.parametrize(
    "activation", [nn.relu, nn.gelu, nn.silu, nn.tanh, nn.elu, nn.leaky_relu, EXACT_GELU, TANH_GELU]
)
def test_an_activation_computes_the_same(tmp_path, activation):
    x = draw(B, S, FEATURES)
    _, module = exported(tmp_path, predictor(BlockSettings(activation=activation), num_layers=1), x)
    found = run_torch(module.encoder.layers[0].activation, x)
    np.testing.assert_allclose(found, activation(x), rtol=0, atol=3e-6)


def test_an_odd_width_no_layers_and_bfloat16_are_exported(tmp_path):
    model, x = TransformerPredictor(7, 2, 1, 0), draw(B, S, FEATURES)
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), drawn(model, x)["params"])
    module = loaded(export_torch(model, params, tmp_path))
    assert {str(weight.dtype) for weight in module.parameters()} == {"torch.float32"}
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
    assert_close(run_torch(module, x), model.apply({"params": wide}, x), 1e-5)


def test_logits_and_gradients_are_the_same_also_where_a_row_is_padding_alone(tmp_path):
    model = transformer(PRE_NORM, final_norm=False)  # against the order's default
    inputs, variables, module = translated(model, tmp_path)
    weights = draw(B, T, V, seed=2)

    def loss(params):
        logits = model.apply({"params": params}, *inputs)
        return (logits * weights).mean(), logits

    expected, logits = jax.jit(jax.grad(loss, has_aux=True))(variables["params"])
    found = module(*map(torch.tensor, inputs))
    assert_close(found.detach().numpy(), logits, 1e-5)
    (found * torch.tensor(weights)).mean().backward()
    named = LAYOUT.to_theirs(flatten_dict(expected, sep="/"))
    assert named.keys() == dict(module.named_parameters()).keys()
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(parameter.grad, named[name], rtol=0, atol=1e-5, err_msg=name)
        assert parameter.grad.isfinite().all(), name
    assert abs(named["decoder.layers.1.multihead_attn.in_proj_weight"][2 * D :]).max() > 1e-4


def test_dropout_is_off_and_has_the_models_rates_where_it_is_turned_on(tmp_path):
    model = predictor(BlockSettings(dropout_prob=0.25), num_layers=1, input_dropout_prob=0.125)
    _, module = exported(tmp_path, model, draw(B, S, FEATURES))
    rates = {name: part.p for name, part in module.named_modules() if isinstance(part, torch.nn.Dropout)}
    block = "encoder.layers.0"
    in_block = (f"{block}.{name}" for name in ("dropout", "dropout1", "dropout2"))
    assert rates == {"input_dropout": 0.125, "output_dropout": 0.25, **dict.fromkeys(in_block, 0.25)}
    assert not module.training


def test_dropout_of_the_attention_weights_is_that_of_the_training(tmp_path):
    settings = BlockSettings(attention=AttentionSettings(dropout_prob=0.5))
    _, module = exported(tmp_path, predictor(settings, num_layers=1), draw(B, S, FEATURES))
    attention = module.train().encoder.layers[0].self_attn
    attention.in_proj_weight.data[2 * D :] = 0  # all values are the bias, which remains the sum where nothing drops
    attention.in_proj_bias.data[2 * D :] = torch.arange(1.0, D + 1)
    attention.out_proj.weight.data = torch.eye(D)
    attention.out_proj.bias.data.zero_()
    x = torch.ones(4, 500, D)
    for hidden in (None, torch.zeros(500, 500, dtype=torch.bool)):
        kept = attention(x, x, x, attn_mask=hidden, need_weights=False)[0] / attention.in_proj_bias[2 * D :]
        assert abs(kept.mean() - 1) < 0.01  # what is kept is doubled
        assert abs(kept.std() * 500**0.5 - 1) < 0.1


def test_a_sequence_may_be_as_long_as_max_len(tmp_path):
    model, x = predictor(num_layers=1, max_len=S), draw(B, S + 1, FEATURES)
    _, module = exported(tmp_path, model, x[:, :S])
    assert run_torch(module, x[:, :S]).shape == (B, S, C)
    assert run_torch(module, x, None, False).shape == (B, S + 1, C)
    with pytest.raises(ValueError, match="the sequence has 8 positions; max_len is 7"):
        run_torch(module, x)


# A shipped model, in a process where this package, JAX and Flax can't be imported.

ELSEWHERE = """
import sys

class Absent:
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in ("transformer_jax", "jax", "jaxlib", "flax"):
            raise ImportError(f"{name} is not to be imported")

sys.meta_path.insert(0, Absent)

import runpy
import numpy as np
import torch

inputs = {name: torch.tensor(array) for name, array in np.load("inputs.npz", allow_pickle=False).items()}
with torch.no_grad():
    np.save("logits.npy", runpy.run_path("model.py")["load_model"]()(**inputs).numpy())
"""


def test_a_shipped_model_gives_the_same_logits_in_a_process_without_this_package(tmp_path):
    run = load_run("dates")
    assert export_torch(run.model, run.params, tmp_path) == tmp_path / "model.py"
    inputs = {"source": tokens(B, S), "target": tokens(B, T, seed=1), "source_mask": padding(VALID)}
    np.savez(tmp_path / "inputs.npz", **inputs)
    command = [sys.executable, "-I", "-c", ELSEWHERE]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    expected = compiled(run.model)({"params": run.params}, **inputs)
    assert_close(np.load(tmp_path / "logits.npy"), expected, 1e-5)


# The file.


def test_a_translation_ends_with_the_end_token_or_at_max_length(tmp_path):
    model, source = transformer(PRE_NORM, tied=True), tokens(B, S)
    variables, module = exported(tmp_path, model, source, source)
    start, never = 1, V
    mask = padding(VALID)
    free = run_torch(module.translate, source, start, never, T, mask)
    seen = np.insert(free[:, :-1], 0, start, axis=1)  # [B T]
    np.testing.assert_array_equal(compiled(model)(variables, source, seen, mask).argmax(-1), free)
    end = free[1, 5]
    has_end = (free == end).any(1)
    assert 0 < has_end.sum() < B
    ended = np.maximum.accumulate(free == end, axis=1)
    found = run_torch(module.translate, source, start, int(end), T, mask)
    np.testing.assert_array_equal(found, np.where(ended, end, free))
    first = np.flatnonzero(has_end)[:1]  # alone it is as short as it can be
    alone = run_torch(module.translate, source[first], start, int(end), T, mask[first])
    np.testing.assert_array_equal(alone, free[first, : ended[first].argmax() + 1])


def test_an_export_replaces_an_earlier_one_and_no_other_file(tmp_path):
    model, x = predictor(num_layers=1), draw(B, S, FEATURES)
    params = drawn(model, x)["params"]
    for directory in (tmp_path / "new" / "er", str(tmp_path / "new" / "er")):
        path = export_torch(model, params, directory)
    assert sorted(file.name for file in path.parent.iterdir()) == ["model.py", "weights.pt"]
    path.write_text("my own")
    with pytest.raises(InputError, match=r"new/er, which holds model.py; it must be empty, or hold a model.py of"):
        export_torch(model, params, path.parent)
    assert path.read_text() == "my own"
    for directory in (path, "a\0b"):
        with pytest.raises(InputError, match="directory is .*; it must be a directory that can be written"):
            export_torch(model, params, directory)


class Subclass(TransformerPredictor):
    """May compute something else."""


class OwnBlock(EncoderBlock):
    """May compute something else."""


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Subclass(D, C, H, 1), "model is a Subclass; it must be a TransformerPredictor or a Transformer"),
        (predictor(block=OwnBlock), "block is OwnBlock; it must be EncoderBlock"),
        (transformer(decoder_block=OwnBlock), "decoder_block is OwnBlock; it must be DecoderBlock"),
        (Transformer(), "source_vocabulary_size is None; it must be a size"),
        (transformer(decoder_dim_feedforward=7), "decoder_dim_feedforward is 7; it must be None"),
        (predictor(BlockSettings(positions=SinusoidalPositions(in_halves=True))), r"positions is .*in_halves=True"),
        (
            transformer(embeddings=EmbeddingSettings(is_scaled=False)),
            "embeddings is .*is_scaled=False",
        ),
        (transformer(BlockSettings(norm=RMSNorm)), "settings.norm is RMSNorm; it must be LayerNorm, the only value"),
        (predictor(BlockSettings(share_layers=True)), "settings.share_layers is True; it must be False"),
        (predictor(BlockSettings(activation=jnp.sin)), "activation is .*sin.*; it must be one of .*relu"),
    ],
    ids=lambda value: value.split(" is ")[0] if isinstance(value, str) else type(value).__name__,
)
def test_a_model_that_cannot_be_exported_is_an_error(tmp_path, model, message):
    with pytest.raises(InputError, match=message):
        export_torch(model, drawn(predictor(), draw(B, S, FEATURES))["params"], tmp_path / "new")
    assert not (tmp_path / "new").exists()
