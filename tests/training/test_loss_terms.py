"""A loss of several terms: each is a mean of its own, over all devices and all parts of a batch, as in PyTorch."""

import csv

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from compiled_models import needs_three
from flax import linen as nn

from transformer_jax import InputError, TrainerModule, TrainingConfig, make_loader
from transformer_jax.data import ArrayDataset
from transformer_jax.training.metrics import means_of_steps, with_loss

B, T, F = 12, 5, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(3 * B, T, F)).astype(np.float32)
MASK = np.arange(T) < RNG.integers(1, T + 1, size=(3 * B, 1))
MASK[: B // 3] = np.arange(T) < 1  # the first device, and the first part, have fewer positions
ENERGY = RNG.normal(size=(3 * B, F)).astype(np.float32)
VAL = slice(0, 7)  # a batch that is padded


class Masked(TrainerModule):
    """Masked regression of a series, of its energy, and a penalty of the weights."""

    name, config_class = "Masked", TrainingConfig
    loss_terms = {"mse": 1.0, "energy": 0.5, "penalty": 0.01}  # noqa: RUF012

    def create_model(self):
        return nn.Dense(F)

    def model_inputs(self, inputs):
        return (inputs["x"],)

    def apply(self, params, inputs, key=None, *, train=False):
        return self.call_model(params, self.model_inputs(inputs))

    def loss_function(self, params, batch, key, *, train):
        output, mask = self.apply(params, batch.inputs), batch.inputs["mask"]
        return {
            "mse": (jnp.square(output - batch.inputs["x"][:, ::-1]), mask[..., None]),
            "energy": (jnp.square(output.mean(1) - batch.targets), 1.0),
            "penalty": (jnp.square(params["kernel"]).sum(), 1.0),
            "error": (jnp.abs(output).mean(-1), mask),
        }


def rows(part):
    return ArrayDataset({"x": X[part], "mask": MASK[part]}, ENERGY[part])


def trained(directory, **settings):
    """Return the trainer after three steps of gradient descent, and its curves by name and step."""
    config = TrainingConfig(
        batch_size=B, max_epochs=1, lr=0.1, warmup=0, schedule="constant", optimizer="sgd", gradient_clip=None,
        logger="csv", log_every=1, checkpoint_dir=directory, quiet=True, **settings,
    )  # fmt: skip
    trainer = Masked(config)
    trainer.fit(make_loader(rows(slice(None)), B, drop_last=True), make_loader(rows(VAL), B))
    with (trainer.run.path / "metrics.csv").open() as stream:
        curves = {(name, int(step)): float(value) for step, name, value in list(csv.reader(stream))[1:]}
    return trainer, curves


def losses_of_torch(layer, part):
    x, mask = torch.from_numpy(X[part]), torch.from_numpy(MASK[part])
    output = layer(x)
    mse = torch.nn.functional.mse_loss(output[mask], x.flip(1)[mask])
    energy = torch.nn.functional.mse_loss(output.mean(1), torch.from_numpy(ENERGY[part]))
    penalty = layer.weight.square().sum()
    return {"mse": mse, "energy": energy, "penalty": penalty, "loss": mse + 0.5 * energy + 0.01 * penalty}


@pytest.mark.slow
@needs_three
@pytest.mark.parametrize("settings", [{"num_devices": 3}, {"accumulate": 2}, {"num_devices": 3, "accumulate": 2}])
def test_terms_are_those_of_pytorch_however_a_batch_is_divided(tmp_path, settings):
    trainer, curves = trained(tmp_path, **{"num_devices": 1} | settings)
    key, _ = jax.random.split(jax.random.key(trainer.config.seed))
    params = jax.tree.map(np.array, trainer.initial_params(key, {"x": X[:1]}))
    layer = torch.nn.Linear(F, F)
    layer.load_state_dict({"weight": torch.from_numpy(params["kernel"].T), "bias": torch.from_numpy(params["bias"])})
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for step in range(3):
        losses = losses_of_torch(layer, slice(step * B, (step + 1) * B))
        for name, value in losses.items():
            assert curves[f"train/{name}", step + 1] == pytest.approx(value.item(), rel=1e-5), (name, step)
        optimizer.zero_grad()
        losses["loss"].backward()
        optimizer.step()
    np.testing.assert_allclose(trainer.params["kernel"], layer.weight.detach().numpy().T, rtol=1e-5, atol=1e-6)
    for name, value in losses_of_torch(layer, VAL).items():
        assert curves[f"val/{name}", 3] == pytest.approx(value.item(), rel=1e-5), name
    output = layer(torch.from_numpy(X[VAL])).abs().mean(-1)[torch.from_numpy(MASK[VAL])]
    assert curves["val/error", 3] == pytest.approx(output.mean().item(), rel=1e-5)


def test_over_steps_the_loss_is_the_sum_of_the_terms_and_a_term_without_elements_counts_as_zero():
    terms = {"a": 2.0, "b": 1.0}
    steps = [with_loss({"a": (3.0, 1.0), "b": (0.0, 0.0)}, terms), with_loss({"a": (3.0, 2.0), "b": (5.0, 1.0)}, terms)]
    assert [tuple(map(float, step["loss"])) for step in steps] == [(6.0, 1.0), (8.0, 1.0)]
    assert means_of_steps(steps, terms) == {"a": 2.0, "b": 5.0, "loss": 9.0}
    assert float(with_loss({"a": (0.0, 0.0), "b": (0.0, 0.0)}, terms)["loss"][1]) == 0


@pytest.mark.parametrize("returned", [{"a": (1.0, 1.0)}, {"a": (1.0, 1.0), "b": (1.0, 1.0), "loss": (1.0, 1.0)}])
def test_a_loss_function_returns_each_term_and_no_loss(returned):
    with pytest.raises(
        InputError, match=r"it must return each of loss_terms \(a, b\), and no loss, which is their sum"
    ):
        with_loss(returned, {"a": 2.0, "b": 1.0})
