"""The training loop: a pure, compiled step; evaluation; the best model kept. It knows no task."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import psutil
from jax import Array
from tqdm import tqdm

from transformer_jax.compilation import CompiledStep
from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError
from transformer_jax.metrics import Batch, Elements, Sums, means, pad_batch, weighted_sums
from transformer_jax.parameters import parameter_table
from transformer_jax.run_directory import RunDirectory
from transformer_jax.schedules import warmup_then_cosine_schedule


class TrainState(flax.struct.PyTreeNode):
    """Everything that a step changes, and the key that it draws from: arrays alone."""

    step: Any  # number of updates so far
    params: Any  # of the model
    opt_state: Any  # of the optimizer
    key: Any  # folded with the step for each step's draws, itself never changed


class TrainerModule:
    """Trains one model on one task. A subclass names the task and gives its model, model inputs and loss.

    A batch's way: the loader gives arrays, `pad_batch` brings a short one to full size, `train_step` computes the
    loss and updates the state, its metrics wait on the device until they are logged.

    Args:
        config: the task's settings.
        example_batch: a batch as the loaders give it, for the shapes of the parameters.
        num_steps: training steps in all, at whose end the learning rate reaches 0.
        constants: pytree of arrays that lie on the device once and that `prepare` gets at every step.

    Raises:
        InputError: the warm-up is not shorter than the training.
    """

    name: str  # of the task, and of the run's directory

    def __init__(self, config: TrainingConfig, example_batch: Any, num_steps: int, constants: Any = None) -> None:
        self.config = config
        self.constants = jax.device_put(constants)
        self.num_steps = num_steps
        self.schedule = warmup_then_cosine_schedule(config.lr, config.warmup, num_steps)
        self.optimizer = optax.chain(optax.clip_by_global_norm(config.gradient_clip), optax.adam(self.schedule))
        self.model = self.create_model()
        self.state = self._initial_state(example_batch)
        self._train_step = CompiledStep(self.train_step, donate_state=True)
        self._eval_step = CompiledStep(self.eval_step)
        self._predict = jax.jit(self._predict_step, static_argnames="return_attention")
        self.train_seconds = 0.0  # spent in training steps, compilation apart
        self.eval_seconds = 0.0  # spent in evaluations, compilation apart

    # What a task gives.

    def create_model(self) -> nn.Module:
        """The model, from `self.config`."""
        raise NotImplementedError

    def model_inputs(self, data: Any) -> Sequence[Any]:
        """The positional arguments with which the model is called on a batch that `prepare` gave."""
        raise NotImplementedError

    def loss_function(self, params: Any, data: Any, key: Array | None, *, train: bool) -> Elements:
        """Loss and metrics of a batch, each element by itself.

        Args:
            params: of the model.
            data: a batch as `prepare` gives it.
            key: for dropout; None where `train` is False.
            train: whether dropout is applied.

        Returns:
            For each metric its values `[B, ...]` and their weights, which broadcast to them (0 leaves an element out).
            The weighted mean of `loss` is minimised, `accuracy` chooses the best model.
        """
        raise NotImplementedError

    def prepare(self, data: Any, constants: Any) -> Any:
        """What the loss sees of a batch, computed inside the compiled step: the batch itself, if not overridden.

        Args:
            data: a batch as the loaders give it.
            constants: `self.constants`, arrays that lie on the device once for all steps (a feature table, say).
        """
        return data

    def apply(self, params: Any, data: Any, key: Array | None = None, *, train: bool = False, **options: Any) -> Any:
        """What the model returns for a batch from `prepare`; `options` are further arguments of its call."""
        rngs = {"dropout": key} if train else None
        return self.model.apply({"params": params}, *self.model_inputs(data), train=train, rngs=rngs, **options)

    # The compiled steps.

    def train_step(self, state: TrainState, batch: Batch, constants: Any = None) -> tuple[TrainState, Sums]:
        """One update of the state, a pure function."""
        key = jax.random.fold_in(state.key, state.step)
        data = self.prepare(batch.data, constants)

        def mean_loss(params):
            sums = weighted_sums(self.loss_function(params, data, key, train=True), batch.valid)
            total, weight = sums["loss"]
            return total / weight, sums

        gradients, sums = jax.grad(mean_loss, has_aux=True)(state.params)
        sums["gradient_norm"] = (optax.tree.norm(gradients), 1.0)
        sums["learning_rate"] = (self.schedule(state.step), 1.0)
        updates, opt_state = self.optimizer.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return state.replace(step=state.step + 1, params=params, opt_state=opt_state), sums

    def eval_step(self, params: Any, batch: Batch, constants: Any = None) -> Sums:
        """The metrics of one batch, without dropout, a pure function."""
        data = self.prepare(batch.data, constants)
        return weighted_sums(self.loss_function(params, data, None, train=False), batch.valid)

    # The loop.

    def fit(self, train_loader: Iterable, val_loader: Iterable) -> None:
        """Train for `config.max_epochs`, then put the best parameters into `state`.

        Raises:
            InputError: the run's directory can't be written, or the validation loader gives no batch.
            FloatingPointError: the loss or the gradient is no longer finite; the best checkpoint stays as it was.
        """
        config = self.config
        self.run = RunDirectory(config, self.name)
        print(parameter_table(self.state.params))
        with tqdm(total=self.num_steps, unit="step", disable=None) as progress:
            for epoch in range(config.max_epochs):
                self._train_epoch(train_loader, epoch, progress)
                if (epoch + 1) % config.eval_every == 0 or epoch + 1 == config.max_epochs:
                    self._validate(val_loader, epoch)
        self.state = self.state.replace(params=self.run.best.restore(self.state.params))

    def evaluate(self, loader: Iterable) -> dict[str, float]:
        """Mean of each metric over all elements of a loader; a short last batch counts for what it holds.

        Raises:
            InputError: the loader gives no batch.
        """
        start = self._clock()
        steps = [
            self._eval_step(self.state.params, pad_batch(data, self.config.batch_size), self.constants)
            for data in loader
        ]
        if not steps:
            raise InputError("the loader gives no batch; evaluation needs at least one")
        metrics = means(jax.device_get(steps))
        self.eval_seconds += self._clock() - start
        return metrics

    def predict(self, data: Any, *, return_attention: bool = False) -> Any:
        """What the model returns, without dropout, for a batch as the loaders give it: NumPy arrays."""
        return jax.device_get(self._predict(self.state.params, data, self.constants, return_attention=return_attention))

    def test(self, val_loader: Iterable, test_loader: Iterable, **more: Any) -> dict[str, Any]:
        """Evaluate the parameters in `state`, print the accuracies and write `results.json`.

        Returns:
            What `results.json` holds: accuracies as fractions, seconds, and `more` of the task's own.
        """
        val_acc, test_acc = (self.evaluate(loader)["accuracy"] for loader in (val_loader, test_loader))
        print(f"Val accuracy:  {val_acc:.2%}\nTest accuracy: {test_acc:.2%}")
        results = {
            "val_acc": val_acc,
            "test_acc": test_acc,
            "steps": int(self.state.step),
            "train_seconds": self.train_seconds,
            "compile_seconds": self.compile_seconds,
            "eval_seconds": self.eval_seconds,
            "total_seconds": time.time() - psutil.Process().create_time(),
            "device": jax.devices()[0].device_kind,
            "seed": self.config.seed,
            **more,
        }
        self.run.write_results(results)
        return results

    @property
    def compile_seconds(self) -> float:
        """Seconds spent compiling until now."""
        return self._train_step.seconds + self._eval_step.seconds

    def _predict_step(self, params: Any, data: Any, constants: Any, *, return_attention: bool) -> Any:
        return self.apply(params, self.prepare(data, constants), return_attention=return_attention)

    def _initial_state(self, example_batch: Any) -> TrainState:
        params_key, step_key = jax.random.split(jax.random.key(self.config.seed))

        def init(key, data, constants):
            return self.model.init(key, *self.model_inputs(self.prepare(data, constants)))["params"]

        params = jax.jit(init)(params_key, example_batch, self.constants)
        return TrainState(jnp.zeros((), jnp.int32), params, self.optimizer.init(params), step_key)

    def _train_epoch(self, loader: Iterable, epoch: int, progress: tqdm) -> None:
        loader.batch_sampler.set_epoch(epoch)
        pending = []  # metrics of the steps since the last entry, on the device
        start = self._clock()
        for step, data in enumerate(loader, start=epoch * len(loader) + 1):
            batch = pad_batch(data, self.config.batch_size)
            self.state, sums = self._train_step(self.state, batch, self.constants)
            pending.append(sums)
            progress.update()
            if step % self.config.log_every == 0 or step % len(loader) == 0:
                metrics = self._finite_means(step, jax.device_get(pending))
                seconds = self._clock() - start
                metrics["steps_per_second"] = len(pending) / seconds
                self.run.log(step, {f"train/{name}": value for name, value in metrics.items()})
                progress.set_postfix(loss=f"{metrics['loss']:.4f}", accuracy=f"{metrics['accuracy']:.2%}")
                self.train_seconds += seconds
                pending, start = [], self._clock()

    def _finite_means(self, last_step: int, steps: Sequence[Sums]) -> dict[str, float]:
        for step, sums in enumerate(steps, start=last_step - len(steps) + 1):
            for name in ("loss", "gradient_norm"):
                total, weight = sums[name]
                if not np.isfinite(total / weight):
                    raise FloatingPointError(f"{name} is {total / weight} at step {step}; training stops there")
        return means(steps) | {"learning_rate": float(steps[-1]["learning_rate"][0])}  # that of the last step

    def _validate(self, loader: Iterable, epoch: int) -> None:
        metrics = self.evaluate(loader)
        step = int(self.state.step)
        self.run.log(step, {f"val/{name}": value for name, value in metrics.items()})
        self.run.best.save(step, self.state.params, metrics["accuracy"])
        tqdm.write(f"Epoch {epoch + 1}, step {step}: validation accuracy {metrics['accuracy']:.2%}")

    def _clock(self) -> float:
        """Seconds, those spent compiling apart."""
        return time.perf_counter() - self.compile_seconds
