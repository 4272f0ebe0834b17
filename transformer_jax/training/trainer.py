"""TrainerModule: trains a task's model, evaluates it, predicts with it."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import flax.linen as nn
import jax

from transformer_jax.argument_checks import check_arguments
from transformer_jax.config import TrainingConfig
from transformer_jax.data.fingerprint import fingerprint
from transformer_jax.data.loader import Loader
from transformer_jax.devices.processes import check_same
from transformer_jax.errors import MAX_SIZE, InputError
from transformer_jax.outside_files import Json
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.saved_model import card_of, save_model
from transformer_jax.runs.settings import FOLLOWING_EPOCHS, as_json, settings_of
from transformer_jax.training.checks import check_task, with_criterion
from transformer_jax.training.example_viewer import ExampleViewer
from transformer_jax.training.loop import TrainingLoop
from transformer_jax.training.programs import Programs, create_programs, report_initial
from transformer_jax.training.progress import quietly
from transformer_jax.training.results import announce, results_of, summary, versions, write_end
from transformer_jax.training.signals import StopRequest
from transformer_jax.training.throughput import profiled_steps
from transformer_jax.trees import Arrays, Params

Trainer = TypeVar("Trainer", bound="TrainerModule")


class TrainerModule(ExampleViewer):
    """Trains one model on one task. A subclass overrides the hooks of `Task`.

    Call `prepare_jax` before anything is computed, so that all CPU cores share the batches; `train_and_test` and the
    experiments do.

    Args:
        config: the task's settings.
        constants: pytree of arrays that lie on the devices once and that `prepare` gets at every step.
        model: in the place of the one that `create_model` makes.
    """

    inspected: Any  # of a run that `load_run` opened: an `inspection.Inspected`

    @check_arguments
    def __init__(self, config: TrainingConfig, constants: Arrays = None, model: nn.Module | None = None) -> None:
        check_task(type(self), config, TrainerModule, has_model=model is not None)
        super().__init__(config, constants, model)
        self.steps = 0  # number of steps trained
        self.results: Json = {}  # what `results.json` holds, after `test` or `load_run`
        self._made_at = time.monotonic()
        self._is_entered = False  # as a context manager, which keeps the run's directory until its end
        self._run: RunDirectory | None = None

    def __enter__(self: Trainer) -> Trainer:
        self._is_entered = True
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._is_entered = False
        self._close_run()

    def _close_run(self) -> None:
        if self._run is not None and not self._is_entered:
            self._run.close()

    @property
    def run(self) -> RunDirectory:
        """The directory of the run, after `fit` has begun.

        Raises:
            InputError: there is none yet.
        """
        if self._run is None:
            raise InputError(f"{self.name} has no run directory yet; call fit")
        return self._run

    def fit(self, train_loader: Loader, val_loader: Loader, *, initial_params: Params | None = None) -> None:
        """Train for `config.max_epochs`, or go on with an interrupted run, and take the best parameters.

        The run's directory is held until the end; in a `with trainer:` block until the end of the block.

        Args:
            train_loader, val_loader: from `make_loader`.
            initial_params: begin with these in the place of fresh ones; with `config.init_only` with a part of them.

        Raises:
            InputError: a loader is not from `make_loader`, the warm-up is too long, the initial parameters don't fit,
                the run's directory can't be used (see `RunDirectory`), or the config has `pretrained`, or `init_from`
                without initial parameters (`train_and_test` reads both).
            FloatingPointError: the loss, the gradient or every evaluation is not finite.
            Interrupted: at SIGTERM or SIGINT; everything is saved.
        """
        if self.config.pretrained is not None:
            raise InputError(f"pretrained is {self.config.pretrained}; fit only trains, without it")
        if self.config.seeds is not None or self.config.sweep:
            raise InputError("fit trains one run; train_and_test reads seeds and sweep, and trains one for each")
        with quietly(self.config), self.training(train_loader, val_loader, initial_params) as loop:
            loop.train()
            # One copy, where each device has all of them; split ones stay split.
            self.params = jax.device_put(loop.best_params(), None if self.devices.is_divided else self.first_device)
            self.steps = loop.step
        self._close_run()

    @contextlib.contextmanager
    @check_arguments
    def training(
        self, train_loader: Loader, val_loader: Loader, initial_params: Params | None = None
    ) -> Iterator[TrainingLoop]:
        """The loop of a training that has begun, or resumed; it closes the run's directory after an error.

        Raises:
            InputError: as `fit`.
        """
        if self._run is not None:  # of an earlier training, which a `with` block still holds
            self._run.close()
        self.stopwatch.reset()
        programs, run = self._prepare(train_loader, val_loader, initial_params)
        self._run = run
        try:
            for name, content in self.model_files().items():
                run.save_text(name, content)
            num_steps = len(train_loader) * self.config.max_epochs
            report_initial(self.config, programs.given, is_resumed=bool(run.checkpoints.steps))
            announce(self, programs.shapes.params, num_steps, run.path)
            with StopRequest() as request:
                is_trained = run.is_finished or max(run.checkpoints.steps, default=0) >= num_steps
                if not (is_trained or train_loader.has_groups):
                    programs.runner.begin_to_compile(self._local_samples(train_loader.example()))
                with TrainingLoop(
                    self,
                    programs.runner,
                    # Held by no variable here, so that the first state's memory is freed once the training has left it.
                    programs.initial_state(),
                    self._local_loader(train_loader),
                    val_loader,
                    run,
                    request,
                ) as loop:
                    request.synchronize()
                    request.raise_if_signalled(loop.step)
                    yield loop
                request.synchronize()
                request.raise_if_signalled(max(run.checkpoints.steps, default=0))  # it came after the last save
        except BaseException:
            run.close()
            raise

    def _prepare(
        self, train_loader: Loader, val_loader: Loader, initial_params: Params | None
    ) -> tuple[Programs, RunDirectory]:
        """Settle the config, begin to compile, and open the run's directory."""
        derived = frozenset(name for name in FOLLOWING_EPOCHS if getattr(self.config, name) is None)
        self.config = self.config.resolved(len(train_loader))
        num_steps = len(train_loader) * self.config.max_epochs
        if num_steps > MAX_SIZE:  # they are counted in 32 bits
            most = MAX_SIZE // len(train_loader)
            raise InputError(f"max_epochs is {self.config.max_epochs}; with these data it may be at most {most}")
        if self.config.profile is not None:
            profiled_steps(self.config.profile, num_steps)
        programs = create_programs(self, train_loader, num_steps, initial_params)
        self._begin_to_compile(programs, train_loader)
        self._stacked_shapes = programs.shapes.params if self.config.scan_layers else None
        files = self.model_files()
        data = fingerprint([train_loader.dataset, val_loader.dataset], self.constants, [*files.values()])
        check_same({"the data": data})
        initial = programs.given and programs.given.digest
        return programs, RunDirectory(self.config, self.name, data, initial, files, derived)

    def _begin_to_compile(self, programs: Programs, train_loader: Loader) -> None:
        """Begin to compile the evaluation, and settle the criterion, whose metrics are known then."""
        evaluated = (
            self.devices.shapes({"params": programs.shapes.params})["params"],
            self._pad(self._local_samples(train_loader.example())),
            self.shared_constants,
        )
        names = [*self._eval_step.trace(*evaluated).out_info, *self.dataset_metric_names]
        self.config = with_criterion(self.config, names)
        if not train_loader.has_groups:  # else the example has the shapes of one group
            self._eval_step.begin_to_compile(*evaluated)

    @check_arguments
    def save(self, directory: str | Path) -> None:
        """Write the model alone: settings, parameters as safetensors, a card with the metrics, and the files' digests.

        `load_run` opens it on any machine, and other programs read `model.safetensors`.

        Args:
            directory: for nothing but this model; one that was saved there before is replaced.

        Raises:
            InputError: there are no parameters yet, or the directory holds other files or can't be written.
        """
        files = self.model_files()
        kept: dict[str, Any] = {name: file for name, file in self.config.kept_files().items() if file in files}
        config = dataclasses.replace(
            self.config.without_neutral(), init_from=None, init_only=None, **kept
        )  # paths here
        settings = settings_of(self.name, config)
        card = card_of(settings, config.changed(), self.results, self.results.get("versions", versions()))
        results = as_json({name: value for name, value in self.results.items() if name != "settings"})  # other paths
        save_model(Path(directory), settings, self.params, card, results, files)

    def adopt(self, params: Params) -> None:
        """Take trained parameters in the place of training (`config.pretrained`).

        Raises:
            InputError: the run's directory can't be used (see `RunDirectory`).
        """
        self.params = jax.device_put(params)
        self._run = RunDirectory(self.config, self.name)

    def test(self, val_loader: Loader | None = None, test_loader: Loader | None = None, **more: object) -> Json:
        """Evaluate the best parameters on both sets, write `results.json` and the log's end, and print every metric.

        After `load_run` nothing is written.

        Args:
            val_loader, test_loader: from `make_loader`; the task's own data if None.
            **more: further results of the task's own.

        Returns:
            The content of `results.json`: metrics, accuracies as fractions, seconds, settings, versions, and `more`.

        Raises:
            InputError: there are no parameters yet, no loader and no `load_data`, or the directory can't be written.
            FloatingPointError: a metric is not finite.
        """
        if val_loader is None or test_loader is None:
            data = self.test_data
            val_loader, test_loader = val_loader or data.val_loader, test_loader or data.test_loader
        with self.stopwatch.during("eval"):
            metrics = {name: self.evaluate(loader) for name, loader in (("val", val_loader), ("test", test_loader))}
        results = results_of(self, metrics)
        results |= {"steps": self.steps, "total_seconds": time.monotonic() - self._made_at, **more}
        self.results = results
        if self._run is not None:
            write_end(self._run, self, metrics, results)
            self._close_run()
        with quietly(self.config):
            print(*summary(metrics, self.config.criterion.metric), sep="\n")
        return results
