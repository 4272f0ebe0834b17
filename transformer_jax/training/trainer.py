"""TrainerModule: trains a task's model, evaluates it, predicts with it."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
from jax.typing import ArrayLike

from transformer_jax.config import TrainingConfig
from transformer_jax.data.batch import Batch, Samples, num_rows, pad_batch
from transformer_jax.data.fingerprint import fingerprint
from transformer_jax.data.loader import Loader, import_pytorch
from transformer_jax.errors import InputError
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.training.checks import check_loaders, check_metrics
from transformer_jax.training.compilation import CompiledStep, begin_to_run_once
from transformer_jax.training.hooks import Task
from transformer_jax.training.loop import TrainingLoop, parameter_table
from transformer_jax.training.metrics import Sums, means, weighted_sums
from transformer_jax.training.parallel import Replicated, sum_over_devices
from transformer_jax.training.process_age import process_age
from transformer_jax.training.runner import Pace, StepRunner
from transformer_jax.training.signals import StopRequest
from transformer_jax.training.step import TrainState, initial_state
from transformer_jax.training.stopwatch import Stopwatch
from transformer_jax.trees import Arrays, Inputs, Params


class TrainerModule(Task):
    """Trains one model on one task. A subclass overrides the hooks of `Task`.

    Call `prepare_jax` before anything is computed, so that all CPU cores share the batches; `train_and_test` and the
    experiments do.

    Args:
        config: the task's settings.
        constants: pytree of arrays that lie on the devices once and that `prepare` gets at every step.
        model: in the place of the one that `create_model` makes.
    """

    def __init__(self, config: TrainingConfig, constants: Arrays = None, model: nn.Module | None = None) -> None:
        super().__init__(config, model)
        self.strategy = Replicated(config.batch_size, config.num_devices)
        self.shared_constants = self.strategy.place(constants)
        self.stopwatch = Stopwatch("train", "eval", "compile", "save")
        self.steps = 0  # that were trained
        self._params: Params | None = None
        self._run: RunDirectory | None = None
        self._eval_step = CompiledStep(self.eval_step, self.strategy, stopwatch=self.stopwatch)
        self._forward = jax.jit(self._forward_step, static_argnames="return_attention")

    @property
    def params(self) -> Params:
        """The best parameters: after `fit`, or set by hand. `evaluate`, `forward` and `predict` use them.

        Raises:
            InputError: there are none yet.
        """
        if self._params is None:
            raise InputError(f"{self.name} is not trained yet; call fit, or open a trained run with load_run")
        return self._params

    @params.setter
    def params(self, params: Params) -> None:
        self._params = params

    @property
    def run(self) -> RunDirectory:
        """The directory of the run, after `fit` has begun.

        Raises:
            InputError: there is none yet.
        """
        if self._run is None:
            raise InputError(f"{self.name} has no run directory yet; call fit")
        return self._run

    @property
    def constants(self) -> Arrays:
        """The constants on the first device."""
        return self.strategy.take(self.shared_constants)

    # Pure functions that are compiled.

    def initial_state(self, example_batch: Samples, num_steps: int) -> TrainState:
        """The state before the first of `num_steps` steps: a function of the seed.

        Raises:
            InputError: the warm-up is not shorter than the training.
        """
        _, finish = self._begin_initial_state(example_batch, self.create_optimizer(num_steps))
        return finish()

    def eval_step(self, params: Params, batch: Batch, constants: Arrays = None) -> Sums:
        """Sums of the metrics of one batch, without dropout."""
        return sum_over_devices(
            weighted_sums(self.batch_loss(params, batch, constants, None, train=False), batch.valid)
        )

    def _forward_step(self, params: Params, inputs: Inputs, constants: Arrays, *, return_attention: bool) -> Any:
        return self.apply(params, self.prepare(inputs, constants), return_attention=return_attention)

    # Training, evaluation, prediction.

    def fit(self, train_loader: Loader, val_loader: Loader) -> None:
        """Train for `config.max_epochs`, or go on with an interrupted run, and take the best parameters.

        The run's directory is held until `test` has written the results.

        Args:
            train_loader: from `make_loader`.
            val_loader: from `make_loader`.

        Raises:
            InputError: a loader is not from `make_loader`, the warm-up is not shorter than the training, the run's
                directory can't be used (see `RunDirectory`), or the config has `pretrained` (see `train_and_test`).
            FloatingPointError: the loss, the gradient or every evaluation is not finite.
            Interrupted: at SIGTERM or SIGINT; everything is saved.
        """
        if self.config.pretrained is not None:
            raise InputError(f"pretrained is {self.config.pretrained}; fit only trains, without it")
        with self.training(train_loader, val_loader) as loop:
            loop.train()
            self.params = jax.device_put(loop.best_params())
            self.steps = loop.step

    @contextlib.contextmanager
    def training(self, train_loader: Loader, val_loader: Loader) -> Iterator[TrainingLoop]:
        """The loop of a training that has begun, or resumed; it closes the run's directory after an error.

        Raises:
            InputError: as `fit`.
        """
        check_loaders(train_loader=train_loader, val_loader=val_loader)
        self.stopwatch.reset()
        config, num_steps, example = self.config, len(train_loader) * self.config.max_epochs, train_loader.example()
        rule = self.update_rule(num_steps)
        shapes, finish_state = self._begin_initial_state(example, rule.optimizer)
        runner = StepRunner(
            self.train_step,
            self.batch_loss,
            rule,
            self.strategy,
            self.shared_constants,
            shapes,
            batch_size=config.batch_size,
            pace=Pace.choose(
                example, config.batch_size, len(train_loader), config.steps_per_call, train_loader.has_groups
            ),
            stopwatch=self.stopwatch,
        )
        evaluated = self.strategy.shapes(shapes.params), self._pad(example), self.shared_constants
        check_metrics(self._eval_step.result_shapes(*evaluated), config.criterion)
        if not train_loader.has_groups:  # else the example has the shapes of one group
            self._eval_step.begin_to_compile(*evaluated)
        data = fingerprint([train_loader.dataset, val_loader.dataset], self.constants)
        self._run = run = RunDirectory(config, self.name, data)
        try:
            print(parameter_table(shapes.params))
            with StopRequest() as request:
                is_trained = run.is_finished or max(run.checkpoints.steps, default=0) >= num_steps
                if not (is_trained or train_loader.has_groups):
                    runner.begin_to_compile(example)
                import_pytorch()  # while the compiler works
                with TrainingLoop(
                    runner,
                    finish_state(),
                    train_loader,
                    lambda params: self.evaluate(val_loader, params),
                    run,
                    config,
                    request,
                    self.stopwatch,
                ) as loop:
                    request.raise_if_signalled(loop.step)
                    yield loop
                request.raise_if_signalled(max(run.checkpoints.steps, default=0))  # it came after the last save
        except BaseException:
            run.close()
            raise

    def _begin_initial_state(
        self, example: Samples, optimizer: optax.GradientTransformation
    ) -> tuple[TrainState, Callable[[], TrainState]]:
        """`initial_state`, compiled in the background: its shapes, and a function that waits for it."""

        def init(seed: ArrayLike, inputs: Inputs, constants: Arrays) -> TrainState:
            params_key, step_key = jax.random.split(jax.random.key(seed))
            return initial_state(self.initial_params(params_key, inputs, constants), optimizer, step_key)

        inputs, _ = example
        return begin_to_run_once(init, np.uint32(self.config.seed), inputs, self.constants)

    def adopt(self, params: Params) -> None:
        """Take trained parameters in the place of training (`config.pretrained`).

        Raises:
            InputError: the run's directory can't be used (see `RunDirectory`).
        """
        self.params = jax.device_put(params)
        self._run = RunDirectory(self.config, self.name)

    def evaluate(self, loader: Iterable[Samples], params: Params | None = None) -> dict[str, float]:
        """Mean of each metric over all elements of a loader; a short last batch counts for what it holds.

        Args:
            loader: of batches.
            params: the best ones if None.

        Raises:
            InputError: the loader gives no batch.
        """
        params = self.strategy.place(self.params if params is None else params)
        steps = [self._eval_step(params, self._pad(samples), self.shared_constants) for samples in loader]
        if not steps:
            raise InputError("the loader gives no batch; evaluation needs at least one")
        return means(jax.device_get(steps))

    def _pad(self, samples: Samples) -> Batch:
        """To the size of a batch; a larger one to what the devices can share."""
        return pad_batch(samples, max(self.config.batch_size, self.strategy.rows_that_divide(num_rows(samples))))

    def forward(self, inputs: Inputs, *, return_attention: bool = False) -> Any:  # Any: the model's output
        """The model's output for a batch of inputs, without dropout: NumPy arrays."""
        return jax.device_get(self._forward(self.params, inputs, self.constants, return_attention=return_attention))

    def test(self, val_loader: Loader, test_loader: Loader, **more: Any) -> dict[str, Any]:  # Any: JSON
        """Evaluate the best parameters, print the accuracy, write `results.json`, and close the run's directory.

        Without an accuracy the metric of `config.criterion` is printed.

        Returns:
            The content of `results.json`: metrics, accuracies as fractions, seconds, and `more` of the task's own.
        """
        with self.stopwatch.during("eval"):
            metrics = {name: self.evaluate(loader) for name, loader in (("val", val_loader), ("test", test_loader))}
        shown = next(name for name in ("accuracy", self.config.criterion.metric, "loss") if name in metrics["val"])
        for name, of_set in metrics.items():
            label = f"{name.capitalize()} {shown}:".ljust(len(f"Test {shown}:"))
            print(label, f"{of_set[shown]:.2%}" if shown == "accuracy" else f"{of_set[shown]:.4f}")
        seconds = self.stopwatch.seconds
        results = {
            **{f"{name}_acc": of_set["accuracy"] for name, of_set in metrics.items() if "accuracy" in of_set},
            **metrics,
            "steps": self.steps,
            "train_seconds": seconds["train"],
            "compile_seconds": seconds["compile"],
            "eval_seconds": seconds["eval"],
            "total_seconds": process_age(),
            "device": self.strategy.device_kind,
            "num_devices": self.strategy.num_devices,
            "seed": self.config.seed,
            **more,
        }
        self.run.write_results(results)
        self.run.close()
        return results
