"""The tutorials' files: they give the logits of the models that saved them, and errors name the wrong array."""

import copy

import flax.serialization
import jax
import numpy as np
import pytest
import torch
from compiled_models import compiled, draw
from tutorial_models import TorchPredictor, evaluate, flax_tree

from transformer_jax import TransformerPredictor
from transformer_jax.errors import InputError
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.weights.tutorials import load_tutorial_weights

B, T, FEATURES, D, H, L, C = 5, 7, 11, 21, 3, 2, 13
VALID = np.arange(T) < np.array([[7], [4], [1], [2], [6]])
HYPERPARAMETERS = {
    "input_dim": FEATURES,
    "model_dim": D,
    "num_classes": C,
    "num_heads": H,
    "num_layers": L,
    "lr": 5e-4,
    "dropout": 0.1,
    "input_dropout": 0.05,
}


@pytest.fixture(scope="module")
def trained() -> TorchPredictor:
    """Parameters as after training: no bias is zero and no scale is one."""
    torch.manual_seed(7)
    module = TorchPredictor(**HYPERPARAMETERS)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return module.eval()


@pytest.fixture
def lightning_file(tmp_path, trained):
    """Function that changes a Lightning checkpoint and saves it."""

    def save(change=lambda checkpoint: None):
        checkpoint = copy.deepcopy(trained.checkpoint())
        change(checkpoint)
        torch.save(checkpoint, tmp_path / "model.ckpt")
        return tmp_path / "model.ckpt"

    return save


@pytest.fixture
def flax_file(tmp_path):
    def save(change=lambda tree: None):
        tree = flax_tree(FEATURES, D, C, L)
        change(tree)
        (tmp_path / "model.ckpt").write_bytes(flax.serialization.msgpack_serialize(tree))
        return tmp_path / "model.ckpt"

    return save


@pytest.mark.slow
def test_a_lightning_model_gives_the_same_logits_here(lightning_file, trained):
    model, params = load_tutorial_weights(lightning_file())
    x = draw(B, T, FEATURES)
    for positions, mask in ((False, None), (True, VALID[:, None, None])):
        expected = trained(torch.tensor(x), None if mask is None else torch.tensor(mask), positions).detach()
        logits = compiled(model, add_positional_encoding=positions)({"params": params}, x, mask)
        np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_a_lightning_file_determines_its_model(lightning_file):
    model, params = load_tutorial_weights(lightning_file())
    settings = BlockSettings(dropout_prob=0.1, layer_norm_epsilon=1e-5)
    assert model == TransformerPredictor(D, C, H, L, input_dropout_prob=0.05, settings=settings)
    assert params["input_layer"]["kernel"].shape == (FEATURES, D)


def test_a_flax_model_gives_the_logits_of_the_formulas(flax_file):
    model, params = load_tutorial_weights(flax_file(), num_heads=H)
    assert model == TransformerPredictor(D, C, H, L)
    x, tree = draw(B, T, FEATURES), flax_tree(FEATURES, D, C, L)
    np.testing.assert_allclose(compiled(model)({"params": params}, x), evaluate(tree, x, H), atol=1e-5)


def test_a_state_dict_without_hyperparameters_needs_the_heads_alone(tmp_path, lightning_file, trained):
    torch.save(trained.state_dict(), tmp_path / "bare.pt")
    model, params = load_tutorial_weights(tmp_path / "bare.pt", num_heads=H)
    assert model == TransformerPredictor(D, C, H, L, settings=BlockSettings(layer_norm_epsilon=1e-5))
    jax.tree.map(np.testing.assert_array_equal, params, load_tutorial_weights(lightning_file())[1])


def set_number(name, value):
    return lambda checkpoint: checkpoint["hyper_parameters"].update({name: value})


def in_state(change):
    return lambda checkpoint: [checkpoint["hyper_parameters"].clear(), change(checkpoint["state_dict"])]


@pytest.mark.parametrize(
    ("num_heads", "change", "message"),
    [
        (7, lambda c: None, "num_heads is 7; that of .*model.ckpt is 3"),
        (None, set_number("num_heads", 4), "num_heads is 4; .* divide the model's width 21"),
        (None, set_number("num_heads", "3"), "num_heads is '3'; it must be a whole number"),
        (None, set_number("dropout", 1.5), "dropout_prob is 1.5; it must be at least 0 and below 1"),
        (H, in_state(lambda s: s.pop("input_net.1.weight")), "not a model of the tutorials: it has no matrix input_ne"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_a_lightning_file_that_does_not_fit_is_refused_by_name(lightning_file, num_heads, change, message):
    with pytest.raises(InputError, match=message):
        load_tutorial_weights(lightning_file(change), num_heads=num_heads)


@pytest.mark.parametrize(
    ("num_heads", "change", "message"),
    [
        (None, lambda t: None, "num_heads is None, and .*model.ckpt does not contain it; it must divide 21"),
        (2, lambda t: None, "num_heads is 2; .*divide the model's width 21"),
        (H, lambda t: t.pop("output_net_4"), "not a model of the tutorials: it has no matrix output_net_4/kernel"),
        (H, lambda t: t.pop("transformer"), "lacks transformer/layers_0/"),
        (  # the first array alone is wide: no other is made as wide
            H,
            lambda t: t["input_layer"].update(kernel=np.ones((1, 60_000), np.float32)),
            r"input_layer/bias in .* \[21\]; it must be \[60000\]",
        ),
    ],
)
def test_a_flax_file_that_does_not_fit_is_refused_by_name(flax_file, num_heads, change, message):
    with pytest.raises(InputError, match=message):
        load_tutorial_weights(flax_file(change), num_heads=num_heads)
