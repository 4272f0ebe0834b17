"""Variables that are not parameters, such as running averages: trained, evaluated, saved and resumed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from compiled_models import needs_three
from flax import linen as nn

from transformer_jax import InputError, TrainerModule, TrainingConfig, load_run, make_loader
from transformer_jax.data import ArrayDataset

B, D, C = 12, 5, 3
RNG = np.random.default_rng(0)
X = (RNG.normal(size=(4 * B, D)) * [1, 2, 3, 4, 5] + 1).astype(np.float32)
Y = RNG.normal(size=(4 * B, C)).astype(np.float32)
KERNELS = RNG.normal(size=(D, D)).astype(np.float32), RNG.normal(size=(D, C)).astype(np.float32)


class Normalised(nn.Module):
    """Two dense layers with BatchNorm between them, as in PyTorch; `calls` counts the training steps."""

    @nn.compact
    def __call__(self, x, *, train=False):
        calls = self.variable("counts", "calls", lambda: jnp.zeros((), jnp.int32))
        if train:
            calls.value += 1
        x = nn.Dense(D, kernel_init=lambda *_: KERNELS[0])(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        return nn.Dense(C, kernel_init=lambda *_: KERNELS[1])(nn.relu(x))


class Trainer(TrainerModule):
    name, config_class = "Normalised", TrainingConfig

    def create_model(self):
        return Normalised()

    def model_inputs(self, inputs):
        return (inputs,)

    def loss_function(self, params, batch, key, *, train):
        output = self.apply(params, batch.inputs, key, train=train)
        return {"loss": (jnp.square(output - batch.targets), 1.0)}


def loaders():
    train, val = ArrayDataset(X, Y), ArrayDataset(X[:7], Y[:7])
    return make_loader(train, B, drop_last=True), make_loader(val, B)


def trainer_for(directory, **settings):
    config = TrainingConfig(
        batch_size=B, max_epochs=1, lr=0.1, warmup=0, schedule="constant", checkpoint_dir=directory, quiet=True,
        num_devices=1, eval_every=1, optimizer="sgd", gradient_clip=None,
    )  # fmt: skip
    return Trainer(dataclasses.replace(config, **settings))


def fit(trainer):
    trainer.fit(*loaders())
    return trainer


def torch_model(num_parts):
    """PyTorch's model after the four steps, with the gradients of parts accumulated, and its loss on the last rows."""
    layers = torch.nn.Linear(D, D), torch.nn.BatchNorm1d(D), torch.nn.ReLU(), torch.nn.Linear(D, C)
    for layer, kernel in ((layers[0], KERNELS[0]), (layers[3], KERNELS[1])):
        layer.load_state_dict({"weight": torch.from_numpy(kernel.T.copy()), "bias": torch.zeros(kernel.shape[1])})
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in zip(torch.from_numpy(X).split(B), torch.from_numpy(Y).split(B), strict=True):
        optimizer.zero_grad()
        parts = zip(inputs.split(B // num_parts), targets.split(B // num_parts), strict=True)
        for rows, of_rows in parts:
            (torch.nn.functional.mse_loss(model(rows), of_rows) / num_parts).backward()
        optimizer.step()
    return model.eval()


@pytest.mark.slow
@needs_three
@pytest.mark.parametrize(
    "settings",
    [
        {"num_devices": 3}, {"accumulate": 2}, {"num_devices": 3, "accumulate": 2},
        {"mesh": "data=1,fsdp=3", "num_devices": 0},
    ],
)  # fmt: skip
def test_batch_norm_trains_as_in_pytorch_over_the_rows_of_all_devices(tmp_path, settings):
    trainer = fit(trainer_for(tmp_path, **settings))
    expected = torch_model(settings.get("accumulate", 1))
    found = trainer.variables
    norm = expected[1]
    assert found["counts"]["calls"] == 4 * settings.get("accumulate", 1)
    assert found["batch_stats"].keys() == {"BatchNorm_0"}
    # PyTorch's running variance is unbiased, Flax's is not.
    np.testing.assert_allclose(found["batch_stats"]["BatchNorm_0"]["mean"], norm.running_mean, rtol=1e-5, atol=1e-6)
    for name, weight in (("scale", norm.weight), ("bias", norm.bias)):
        np.testing.assert_allclose(found["params"]["BatchNorm_0"][name], weight.detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        found["params"]["Dense_1"]["kernel"], expected[3].weight.detach().T, rtol=1e-4, atol=1e-5
    )
    norm.running_var = torch.from_numpy(np.array(found["batch_stats"]["BatchNorm_0"]["var"]))
    outputs = expected(torch.from_numpy(X[:7])).detach().numpy()
    np.testing.assert_allclose(trainer.forward(X[:7]), outputs, rtol=1e-4, atol=1e-4)
    assert trainer.evaluate(loaders()[1])["loss"] == pytest.approx(np.square(outputs - Y[:7]).mean(), rel=1e-4)


@pytest.mark.slow
def test_variables_are_resumed_to_the_bit_saved_and_begun_with(tmp_path):
    settings = {"accumulate": 2, "ema": 0.9, "best_by": "val/ema_loss:min", "log_norms": True}
    whole = fit(trainer_for(tmp_path / "whole", **settings))
    begun = trainer_for(tmp_path / "begun", **settings, checkpoint_every=2, steps_per_call=2)
    with begun, begun.training(*loaders()) as loop:
        loop.train_until(2)
    resumed = fit(trainer_for(tmp_path / "begun", **settings))
    whole.test(loaders()[1], loaders()[1])
    loaded = load_run(whole.run.path, Trainer)
    loaded.save(tmp_path / "saved")
    saved = load_run(tmp_path / "saved", Trainer)
    for trainer in (resumed, loaded, saved):
        jax.tree.map(np.testing.assert_array_equal, trainer.variables, whole.variables)
    np.testing.assert_array_equal(saved.forward(X), whole.forward(X))
    np.testing.assert_allclose(loaded.inspected.capture(X, names=[])[0], whole.forward(X), rtol=1e-6)
    tuned = trainer_for(tmp_path / "tuned", init_only="BatchNorm_0", max_steps=1, lr=1e-30)
    tuned.fit(*loaders(), initial_params=whole.params)
    found, given = tuned.variables["batch_stats"]["BatchNorm_0"], whole.variables["batch_stats"]["BatchNorm_0"]
    fresh = fit(trainer_for(tmp_path / "fresh", max_steps=1, lr=1e-30)).variables["batch_stats"]["BatchNorm_0"]
    np.testing.assert_allclose(found["mean"], fresh["mean"] + 0.9 * given["mean"], rtol=1e-4)


@pytest.mark.slow
def test_in_bfloat16_running_averages_stay_float32(tmp_path):
    trainer = fit(trainer_for(tmp_path, dtype="bfloat16"))
    found = trainer.variables["batch_stats"]["BatchNorm_0"]["mean"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, torch_model(1)[1].running_mean, rtol=0.1, atol=0.05)


class Sowing(Normalised):
    @nn.compact
    def __call__(self, x, *, train=False):
        self.sow("losses", "square", jnp.square(x).mean())
        return nn.Dense(C)(x)


def test_what_cannot_be_trained_is_an_error(tmp_path):
    trainer = trainer_for(tmp_path)
    with pytest.raises(InputError, match="train_loader has 48 samples in 7 batches of at most 7; .* drop_last=True"):
        Trainer(TrainingConfig(batch_size=7, warmup=0, checkpoint_dir=tmp_path)).fit(
            make_loader(ArrayDataset(X, Y), 7), loaders()[1]
        )
    trainer.model = Sowing()
    with pytest.raises(InputError, match="the model adds arrays to its collection losses; .* sow into"):
        fit(trainer)
