"""TrainerModule: one model on one task. What a task gives, the pure steps, training, evaluation, prediction."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import psutil
from jax import Array

from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.training.compilation import CompiledStep, begin_to_run_once, keep_compiled_programs
from transformer_jax.training.loop import TrainingLoop
from transformer_jax.training.metrics import Batch, Elements, Sums, means, pad_batch, weighted_sums
from transformer_jax.training.packing import pack, unpack
from transformer_jax.training.parallel import (
    batch_mesh,
    on_all_devices,
    on_first_device,
    provide_cpu_devices,
    sum_over_devices,
)
from transformer_jax.training.schedules import noam_schedule, warmup_then_cosine_schedule


class TrainState(flax.struct.PyTreeNode):
    """Everything that a step changes, and the key that it draws from: arrays alone."""

    step: Any  # number of updates so far
    params: Any  # of the model
    opt_state: Any  # of the optimizer
    key: Any  # folded with the step for each step's draws, itself never changed


class TrainerModule:
    """Trains one model on one task. A subclass names the task and gives its model, model inputs and loss.

    A batch's way: the loader gives arrays, a short batch is padded to full size, `prepare` joins it with the constants
    inside the compiled step, `loss_function` gives each element's loss, `train_step` updates the state.

    Args:
        config: the task's settings.
        constants: pytree of arrays that lie on the device once and that `prepare` gets at every step.
    """

    name: str  # of the task, and of the run's directory
    config_class: ClassVar[type[TrainingConfig]]  # of its settings

    def __init__(self, config: TrainingConfig, constants: Any = None) -> None:
        if config.compilation_cache is not None:
            keep_compiled_programs(config.compilation_cache)
        provide_cpu_devices()
        self.config = config
        self.mesh = batch_mesh(config.batch_size, config.num_devices)
        self.shared_constants = on_all_devices(constants, self.mesh)
        self.model = self.create_model()
        self.params: Any = None  # the best ones, after `fit` or `adopt`; `evaluate`, `forward` and `predict` use them
        self.run: RunDirectory | None = None  # after `fit` has begun
        self._eval_step = CompiledStep(self.eval_step, self.mesh)
        self._forward = jax.jit(self._forward_step, static_argnames="return_attention")

    @classmethod
    def config_class_of(cls, name: str) -> type[TrainingConfig]:
        """The class of the settings of a run of this name."""
        return cls.config_class

    @property
    def constants(self) -> Any:
        """What `prepare` gets, on the first device; the steps that devices share get `shared_constants`."""
        return on_first_device(self.shared_constants)

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
            data: a batch as `prepare` gives it; where devices share the batch, the rows of one of them.
            key: for dropout, the same on all devices; None where `train` is False. Draws of your own take
                `jax.random.fold_in(key, device_number())`, from `transformer_jax.nn.mesh_axis`.
            train: whether dropout is applied.

        Returns:
            For each metric its values `[B, ...]` and their weights, of the same shape or one for all (0 leaves an
            element out). There must be a `loss`, whose weighted mean is minimised, and an `accuracy`, whose highest
            value on the validation set chooses the best model.
        """
        raise NotImplementedError

    def prepare(self, data: Any, constants: Any) -> Any:
        """What the loss sees of a batch, computed inside the compiled step: the batch itself, if not overridden."""
        return data

    def apply(self, params: Any, data: Any, key: Array | None = None, *, train: bool = False, **options: Any) -> Any:
        """What the model returns for a batch from `prepare`; `options` are further arguments of its call."""
        rngs = {"dropout": key} if train else None
        return self.model.apply({"params": params}, *self.model_inputs(data), train=train, rngs=rngs, **options)

    # The pure steps, which are compiled.

    def initial_params(self, key: Array, example_batch: Any, constants: Any = None) -> Any:
        """The parameters of a new model."""
        return self.model.init(key, *self.model_inputs(self.prepare(example_batch, constants)))["params"]

    def initial_state(self, example_batch: Any, num_steps: int) -> TrainState:
        """The state before the first of `num_steps` steps: a function of the seed.

        Raises:
            InputError: the warm-up is not shorter than the training.
        """
        _, finish = self.begin_initial_state(example_batch, num_steps)
        return finish()

    def begin_initial_state(self, example_batch: Any, num_steps: int) -> tuple[TrainState, Callable[[], TrainState]]:
        """`initial_state`, compiled in the background: its shapes, and what waits for the compiler and gives it.

        Raises:
            InputError: the warm-up is not shorter than the training.
        """
        config = self.config
        if config.schedule == "noam":
            self.schedule = noam_schedule(config.model_dim, config.warmup)
        else:
            self.schedule = warmup_then_cosine_schedule(config.lr, config.warmup, num_steps)
        self.optimizer = optax.adam(self.schedule)

        def init(seed, data, constants):
            params_key, step_key = jax.random.split(jax.random.key(seed))
            params = self.initial_params(params_key, data, constants)
            return TrainState(jnp.zeros((), jnp.int32), params, self.optimizer.init(pack(params)), step_key)

        return begin_to_run_once(init, np.uint32(config.seed), example_batch, self.constants)

    def train_step(self, state: TrainState, batch: Batch, constants: Any = None) -> tuple[TrainState, Sums]:
        """One update of the state."""
        key = jax.random.fold_in(state.key, state.step)
        data = self.prepare(batch.data, constants)

        def total_loss(params):
            sums = weighted_sums(self.loss_function(params, data, key, train=True), batch.valid)
            return sums["loss"][0], sums

        gradients, sums = jax.grad(total_loss, has_aux=True)(state.params)
        gradients, sums = sum_over_devices((pack(gradients), sums))
        _, weight = sums["loss"]
        norm = optax.tree.norm(gradients) / weight
        # One factor for mean and clipping: as divisions, XLA would do them element by element, and store the mean.
        scale = jnp.minimum(1, self.config.gradient_clip / norm) / weight
        gradients = jax.tree.map(lambda gradient: gradient * scale, gradients)
        sums["gradient_norm"] = (norm, jnp.ones(()))
        sums["learning_rate"] = (jnp.asarray(self.schedule(state.step)), jnp.ones(()))
        updates, opt_state = self.optimizer.update(gradients, state.opt_state)
        params = optax.apply_updates(state.params, unpack(updates, state.params))
        return state.replace(step=state.step + 1, params=params, opt_state=opt_state), sums

    def eval_step(self, params: Any, batch: Batch, constants: Any = None) -> Sums:
        """The metrics of one batch, without dropout."""
        data = self.prepare(batch.data, constants)
        return sum_over_devices(weighted_sums(self.loss_function(params, data, None, train=False), batch.valid))

    def _forward_step(self, params: Any, data: Any, constants: Any, *, return_attention: bool) -> Any:
        return self.apply(params, self.prepare(data, constants), return_attention=return_attention)

    # Training, evaluation, prediction.

    def fit(self, train_loader: Iterable, val_loader: Iterable) -> None:
        """Train for `config.max_epochs`, or go on with an interrupted run, and take the best parameters.

        The run's directory is held until `test` has written the results.

        Args:
            train_loader: from `make_loader`, with an order by epochs.
            val_loader: from `make_loader`.

        Raises:
            InputError: a loader gives no batch, the warm-up is not shorter than the training, the run's directory
                can't be used (see `RunDirectory`), or the config has `pretrained`, for which there is `fit_or_adopt`.
            FloatingPointError: the loss or the gradient is no longer finite; the checkpoints stay as they were.
            Interrupted: at SIGTERM or SIGINT; everything is saved.
        """
        if self.config.pretrained is not None:
            raise InputError(f"pretrained is {self.config.pretrained}; {self.name} can only be trained, without it")
        loop = TrainingLoop(self, train_loader, val_loader)
        self.run = loop.run
        try:
            loop.train()
            best = self.run.checkpoints.read(self.run.checkpoints.best_step, loop.state)
            self.params = on_first_device(best.state.params)
        except BaseException:
            self.run.close()
            raise
        self.steps, self.seconds = loop.step, loop.seconds

    def adopt(self, model: nn.Module, params: Any) -> None:
        """Take a trained model and its parameters in the place of training (`config.pretrained`).

        Raises:
            InputError: the run's directory can't be used (see `RunDirectory`).
        """
        self.model, self.params = model, jax.device_put(params)
        self.run = RunDirectory(self.config, self.name)
        self.steps, self.seconds = 0, {"train": 0.0, "eval": 0.0, "compile": 0.0}

    def evaluate(self, loader: Iterable, params: Any = None) -> dict[str, float]:
        """Mean of each metric over all elements of a loader; a short last batch counts for what it holds.

        Args:
            loader: of batches.
            params: the best ones if None.

        Raises:
            InputError: the loader gives no batch.
        """
        params = on_all_devices(self.params if params is None else params, self.mesh)
        steps = [self._eval_step(params, self._pad(data), self.shared_constants) for data in loader]
        if not steps:
            raise InputError("the loader gives no batch; evaluation needs at least one")
        return means(jax.device_get(steps))

    def _pad(self, data: Any) -> Batch:
        """To the size of a batch; a larger one, to what the devices can share."""
        rows = len(jax.tree.leaves(data)[0])
        return pad_batch(data, max(self.config.batch_size, -(-rows // self.mesh.size) * self.mesh.size))

    def forward(self, data: Any, *, return_attention: bool = False) -> Any:
        """What the model returns, without dropout, for a batch as the loaders give it: NumPy arrays."""
        return jax.device_get(self._forward(self.params, data, self.constants, return_attention=return_attention))

    def predict(self, inputs: Any) -> Any:
        """The task's answer to inputs of its own kind, by the best parameters."""
        raise NotImplementedError

    def test(self, val_loader: Iterable, test_loader: Iterable, **more: Any) -> dict[str, Any]:
        """Evaluate the best parameters, print the accuracies and write `results.json`.

        Returns:
            What `results.json` holds: accuracies as fractions, seconds, and `more` of the task's own.
        """
        start, compiling = time.perf_counter(), self._eval_step.seconds
        val_acc, test_acc = (self.evaluate(loader)["accuracy"] for loader in (val_loader, test_loader))
        compiling = self._eval_step.seconds - compiling
        print(f"Val accuracy:  {val_acc:.2%}\nTest accuracy: {test_acc:.2%}")
        results = {
            "val_acc": val_acc,
            "test_acc": test_acc,
            "steps": self.steps,
            "train_seconds": self.seconds["train"],
            "compile_seconds": self.seconds["compile"] + compiling,
            "eval_seconds": self.seconds["eval"] + time.perf_counter() - start - compiling,
            "total_seconds": time.time() - psutil.Process().create_time(),
            "device": self.mesh.devices[0].device_kind,
            "num_devices": self.mesh.size,
            "seed": self.config.seed,
            **more,
        }
        self.run.write_results(results)
        self.run.close()
        return results
