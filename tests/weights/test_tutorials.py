"""The tutorials' files: the logits of the models that saved them, and errors that name the wrong array."""

import copy

import flax.serialization
import jax
import numpy as np
import pytest
import torch
from compiled_models import compiled
from tutorial_models import TorchPredictor, evaluate, flax_tree

from transformer_jax import TransformerPredictor, padding_mask
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
    "warmup": 50,
    "max_iters": 3900,
    "dropout": 0.1,
    "input_dropout": 0.05,
}


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.fixture(scope="module")
def trained() -> TorchPredictor:
    """As after a training, no bias is zero and no scale is one."""
    torch.manual_seed(7)
    module = TorchPredictor(**HYPERPARAMETERS)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return module.eval()


@pytest.fixture
def lightning_file(tmp_path, trained):
    """Saves a Lightning checkpoint, after a change."""

    def save(change=lambda checkpoint: None, **options):
        checkpoint = copy.deepcopy(trained.checkpoint())
        change(checkpoint)
        torch.save(checkpoint, tmp_path / "model.ckpt", **options)
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
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_a_lightning_model_gives_the_same_logits_here(lightning_file, trained, zipped, padded):
    model, params = load_tutorial_weights(lightning_file(_use_new_zipfile_serialization=zipped))
    x = draw(B, T, FEATURES)
    for positions in (True, False):
        mask = torch.tensor(VALID)[:, None, None] if padded else None
        expected = trained(torch.tensor(x), mask, positions).detach()
        mask = np.asarray(padding_mask(VALID)) if padded else None
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
    for positions in (True, False):
        logits = compiled(model, add_positional_encoding=positions)({"params": params}, x)
        np.testing.assert_allclose(logits, evaluate(tree, x, H, positions=positions), atol=1e-5)


@pytest.mark.slow
def test_the_number_of_heads_changes_the_model(flax_file):
    x = draw(B, T, FEATURES)
    models = [load_tutorial_weights(flax_file(), num_heads=num_heads) for num_heads in (1, 3, 7)]
    one, three, seven = (np.asarray(compiled(model)({"params": params}, x)) for model, params in models)
    assert min(np.abs(one - three).max(), np.abs(three - seven).max()) > 0.1


def test_a_state_dict_without_hyperparameters_needs_the_heads_alone(tmp_path, lightning_file, trained):
    torch.save(trained.state_dict(), tmp_path / "bare.pt")
    with pytest.raises(InputError, match="num_heads is None, and .*bare.pt does not contain it; it must divide 21"):
        load_tutorial_weights(tmp_path / "bare.pt")
    model, params = load_tutorial_weights(tmp_path / "bare.pt", num_heads=H)
    assert model == TransformerPredictor(D, C, H, L, settings=BlockSettings(layer_norm_epsilon=1e-5))
    jax.tree.map(np.testing.assert_array_equal, params, load_tutorial_weights(lightning_file())[1])


def test_heads_are_checked(flax_file, lightning_file):
    path = flax_file()
    with pytest.raises(InputError, match="num_heads is None, and .*model.ckpt does not contain it; it must divide 21"):
        load_tutorial_weights(path)
    for num_heads in (0, 2, -3, 22):
        allowed = "divide the model's width 21" if num_heads >= 1 else "it must be at least 1"
        with pytest.raises(InputError, match=rf"model.ckpt: num_heads is {num_heads}; .*{allowed}"):
            load_tutorial_weights(path, num_heads=num_heads)
    with pytest.raises(InputError, match=r"num_heads is 7; that of .*model.ckpt is 3"):
        load_tutorial_weights(lightning_file(), num_heads=7)
    assert load_tutorial_weights(path, num_heads=3)[0].num_heads == 3


def set_hyperparameter(name, value):
    return lambda checkpoint: checkpoint["hyper_parameters"].update({name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_hyperparameter("model_dim", 22), "model_dim in .* is 22, but its arrays have model_dim 21"),
        (set_hyperparameter("num_layers", 3), "num_layers in .* is 3, but its arrays have num_layers 2"),
        (set_hyperparameter("num_classes", 10), "num_classes in .* is 10, but its arrays have num_classes 13"),
        (set_hyperparameter("num_heads", 4), "num_heads is 4; .* divide the model's width 21"),
        (set_hyperparameter("num_heads", 3.0), "num_heads in .* is 3.0; it must be a whole number"),
        (set_hyperparameter("dropout", 1.5), "dropout in .* is 1.5; it must be at least 0 and below 1"),
    ],
)
def test_hyperparameters_that_do_not_fit_are_named(lightning_file, change, message):
    with pytest.raises(InputError, match=message):
        load_tutorial_weights(lightning_file(change))


def in_state(change):
    return lambda checkpoint: change(checkpoint["state_dict"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            in_state(lambda s: s.pop("input_net.1.weight")),
            "not a model of the tutorials: it has no matrix input_net.1.w",
        ),
        (in_state(lambda s: s.pop("output_net.1.bias")), "model.ckpt lacks output_net.1.bias"),
        (
            in_state(lambda s: [s.pop(name) for name in list(s) if ".layers.0." in name]),
            "lacks transformer.layers.0.* and 9 more arrays",
        ),
        (in_state(lambda s: s.update({"pe": torch.ones(3)})), "model.ckpt has pe, for which the model has no place"),
        (
            in_state(lambda s: s.update({"transformer.layers.1.linear_net.0.weight": torch.ones(84, D)})),
            r"transformer.layers.1.linear_net.0.weight in .* has the shape \[84, 21\]; it must be \[42, 21\]",
        ),
        (
            in_state(lambda s: s["transformer.layers.0.norm1.bias"][3:4].fill_(torch.nan)),
            "transformer.layers.0.norm1.bias in .* holds NaN",
        ),
    ],
)
def test_a_lightning_file_of_another_model_is_refused_by_name(lightning_file, change, message):
    def without_hyperparameters(checkpoint):
        change(checkpoint)
        checkpoint["hyper_parameters"] = {}

    with pytest.raises(InputError, match=message):
        load_tutorial_weights(lightning_file(without_hyperparameters), num_heads=H)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("output_net_4"), "not a model of the tutorials: it has no matrix output_net_4/kernel"),
        (lambda t: t["input_layer"].update(kernel=draw(0, D)), "it has no matrix input_layer/kernel"),
        (lambda t: t.pop("transformer"), "lacks transformer/layers_0/"),
        (lambda t: t["transformer"]["layers_1"].pop("norm2"), "lacks transformer/layers_1/norm2/bias, .*norm2/scale$"),
        (
            lambda t: t["transformer"].update(layers_7=t["transformer"].pop("layers_1")),
            "has transformer/layers_7/.* and 9 more arrays, for which the model has no place",
        ),
        (
            lambda t: t.update(output_net_1={"scale": draw(D), "bias": draw(D + 1)}),
            r"output_net_1/bias in .* has the shape \[22\]; it must be \[21\]",
        ),
        (
            lambda t: t["transformer"]["layers_0"]["self_attn"].update(
                qkv_proj={"kernel": draw(D, 62), "bias": draw(63)}
            ),
            r"transformer/layers_0/self_attn/qkv_proj/kernel in .* has the shape \[21, 62\]; .* \[21, 63\]",
        ),
        (lambda t: t["output_net_4"]["bias"].__setitem__(4, np.nan), "output_net_4/bias in .* holds NaN"),
        (
            lambda t: t["input_layer"].update(bias=np.zeros(D, complex)),
            "input_layer/bias in .* has the type complex128; it must be a floating-point type",
        ),
    ],
)
def test_a_flax_file_of_another_model_is_refused_by_name(flax_file, change, message):
    with pytest.raises(InputError, match=message):
        load_tutorial_weights(flax_file(change), num_heads=H)


def test_the_kind_of_a_file_is_recognized_from_its_content_and_not_its_name(flax_file, trained):
    path = flax_file()
    assert load_tutorial_weights(path, num_heads=H)[0].settings.layer_norm_epsilon == 1e-6
    torch.save(trained.checkpoint(), path)
    assert load_tutorial_weights(path)[0].settings.layer_norm_epsilon == 1e-5
