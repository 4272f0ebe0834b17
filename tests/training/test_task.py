"""One door leads from parameters to the model: what a task changes there, training, forward passes and maps get."""

import jax
import numpy as np
import pytest
from flax import linen as nn

from transformer_jax import TrainerModule, TrainingConfig, make_loader
from transformer_jax.data import ArrayDataset
from transformer_jax.data.batch import Batch

B, C = 3, 5
X = np.random.default_rng(0).normal(size=(B, C)).astype(np.float32)
BATCH = Batch(X, X[:, ::-1].copy(), np.ones(B, bool))


class Routed(nn.Module):
    """A dense layer that sows what an auxiliary loss needs."""

    @nn.compact
    def __call__(self, x, *, train=False):
        self.sow("intermediates", "router", (x**2).mean(-1))
        return nn.Dense(C)(x)


class Regression(TrainerModule):
    """Squared errors, and a tenth of what the model's routers have sown."""

    name, config_class = "Regression", TrainingConfig

    def create_model(self):
        return Routed()

    def model_inputs(self, inputs):
        return (inputs,)

    def loss_function(self, params, batch, key, *, train):
        output, sown = self.apply(params, batch.inputs, key, train=train, mutable=["intermediates"])
        (router,) = sown["intermediates"]["router"]
        return {"loss": (((output - batch.targets) ** 2).mean(-1) + 0.1 * router, 1.0)}


class Adapted(Regression):
    """Adds a product of two narrow matrices to the kernel of the dense layer."""

    def initial_params(self, key, inputs, constants=None):
        params = super().initial_params(key, inputs, constants)
        return params | {"adapter": {"down": jax.random.normal(key, (C, 2)), "up": np.zeros((2, C), np.float32)}}

    def call_model(self, params, arguments, **options):
        adapter, dense = params["adapter"], params["Dense_0"]
        adapted = dense | {"kernel": dense["kernel"] + adapter["down"] @ adapter["up"]}
        return super().call_model({"Dense_0": adapted}, arguments, **options)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 3e-2)])
def test_what_a_model_sows_reaches_the_loss(dtype, tolerance):
    task = Regression(TrainingConfig(dtype=dtype, num_devices=1))
    params = task.initial_params(jax.random.key(0), X)
    losses, _ = task.batch_loss(params, BATCH, None, None, train=True)["loss"]
    output = X @ params["Dense_0"]["kernel"]
    expected = ((output - BATCH.targets) ** 2).mean(-1) + 0.1 * (X**2).mean(-1)
    np.testing.assert_allclose(losses, expected, rtol=tolerance)


def test_adapters_are_an_override_of_one_method_and_alone_have_gradients_where_the_rest_is_frozen():
    task = Adapted(TrainingConfig(freeze="Dense_0", num_devices=1))
    params = task.initial_params(jax.random.key(0), X)
    dense = params["Dense_0"]
    np.testing.assert_allclose(task.forward(X, params=params), X @ dense["kernel"], rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda p: task.batch_loss(p, BATCH, None, None, train=True)["loss"][0].sum())(params)
    assert not np.any(gradient["Dense_0"]["kernel"])
    assert np.abs(gradient["adapter"]["up"]).min() > 1e-4
    params["adapter"]["up"] = np.ones((2, C), np.float32)
    expected = X @ (dense["kernel"] + params["adapter"]["down"].sum(-1, keepdims=True))
    np.testing.assert_allclose(task.forward(X, params=params), expected, rtol=1e-5, atol=1e-6)


class Ranked(TrainerModule):
    """Regression whose validation batches alone hold candidates, among which the targets are ranked."""

    name, config_class = "Ranked", TrainingConfig

    def create_model(self):
        return nn.Dense(C)

    def model_inputs(self, inputs):
        return (inputs,)

    def apply(self, params, inputs, key=None, *, train=False):
        return self.call_model(params, self.model_inputs(inputs))

    def loss_function(self, params, batch, key, *, train):
        output = self.apply(params, batch.inputs)
        elements = {"loss": (((output - batch.targets["next"]) ** 2).mean(-1), 1.0)}
        if "candidates" in batch.targets:
            elements["rank"] = (batch.targets["candidates"].argmax(-1), 1.0)
        return elements


@pytest.mark.slow
def test_the_best_model_is_chosen_by_a_metric_that_only_validation_batches_hold(tmp_path):
    config = TrainingConfig(
        batch_size=B, max_epochs=1, warmup=0, best_by="val/rank:max", num_devices=1, checkpoint_dir=tmp_path, quiet=True
    )
    targets = {"next": X, "candidates": np.eye(C, dtype=np.float32)[[0, 3, 4]]}
    trainer = Ranked(config)
    trainer.fit(make_loader(ArrayDataset(X, {"next": X}), B), make_loader(ArrayDataset(X, targets), B))
    assert trainer.run.checkpoints.metrics(1)["rank"] == pytest.approx(7 / 3)
    assert trainer.run.checkpoints.best_step == 1
