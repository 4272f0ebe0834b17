"""`initialization="torch"`: each array has the moments of PyTorch's."""

import flax.linen as nn
import jax
import numpy as np
import pytest
import torch

from transformer_jax import (
    BlockSettings,
    InputError,
    TrainerModule,
    TrainingConfig,
    TransformerEncoder,
    params_to_torch,
)
from transformer_jax.nn.layer_stacks import unstack_layers

V, D, H, F, C = 211, 60, 3, 97, 53
IDS = np.zeros((2, 5), np.int32)


class Model(nn.Module):
    scan_layers: bool = False

    @nn.compact
    def __call__(self, ids, *, train=False):
        x = nn.Conv(D, (3,), name="conv")(nn.Embed(V, D, name="embed")(ids))
        settings = BlockSettings(scan_layers=self.scan_layers, norm_first=True)
        return nn.Dense(C, name="head")(TransformerEncoder(2, D, H, F, settings=settings, name="encoder")(x))


class Task(TrainerModule):
    name, config_class = "Task", TrainingConfig

    def create_model(self):
        return Model(self.config.scan_layers)

    def model_inputs(self, inputs):
        return (inputs,)

    def loss_function(self, params, batch, key, *, train):
        return {"loss": (self.apply(params, batch.inputs, key, train=train).mean(-1), 1.0)}


def torch_arrays() -> dict[str, np.ndarray]:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(D, H, F)
    encoder = torch.nn.TransformerEncoder(layer, 2, torch.nn.LayerNorm(D), enable_nested_tensor=False)
    modules = {"encoder": encoder, "embed": torch.nn.Embedding(V, D)}
    modules |= {"conv": torch.nn.Conv1d(D, D, 3), "head": torch.nn.Linear(D, C)}
    return {name: x.numpy() for name, x in torch.nn.ModuleDict(modules).state_dict().items()}


@pytest.mark.slow
@pytest.mark.parametrize("scan_layers", [False, True])
def test_every_array_has_the_moments_of_pytorchs(scan_layers):
    task = Task(TrainingConfig(initialization="torch", scan_layers=scan_layers, num_devices=1))
    params = unstack_layers(jax.jit(task.initial_params)(jax.random.key(0), IDS))
    encoder = TransformerEncoder(2, D, H, F, settings=BlockSettings(norm_first=True))
    ours = {f"encoder.{name}": x.numpy() for name, x in params_to_torch(encoder, params["encoder"]).items()}
    ours["embed.weight"] = params["embed"]["embedding"]
    for module in ("conv", "head"):
        ours |= {f"{module}.weight": params[module]["kernel"], f"{module}.bias": params[module]["bias"]}
    theirs = torch_arrays()
    assert ours.keys() == theirs.keys()
    drawn = {name: x for name, x in theirs.items() if x.std() > 0}
    assert len(drawn) == 17
    for name in theirs.keys() - drawn:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    for name, expected in drawn.items():
        array, size = np.asarray(ours[name]), expected.size
        assert array.size == size
        assert abs(array.mean()) < 5 * expected.std() / size**0.5, name
        assert array.std() == pytest.approx(expected.std(), rel=6 / size**0.5), name
        if name != "embed.weight":  # the others are uniform
            assert np.abs(array).max() == pytest.approx(np.abs(expected).max(), rel=10 / size), name


@pytest.mark.usefixtures("without_type_checks")
def test_without_the_setting_the_modules_own_distributions_remain():
    task = Task(TrainingConfig(num_devices=1))
    own = task.model.init(jax.random.key(0), IDS)["params"]
    jax.tree.map(np.testing.assert_array_equal, task.initial_params(jax.random.key(0), IDS), own)
    with pytest.raises(InputError, match="initialization is 'xavier'; it must be one of flax, torch"):
        TrainingConfig(initialization="xavier")
