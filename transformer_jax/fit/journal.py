"""Callbacks, logs and checkpoints of a training run."""

import contextlib
import json
import time
from collections.abc import Sequence

import jax

from transformer_jax.config import TrainingConfig, format_metric
from transformer_jax.data.loader import Loader
from transformer_jax.devices.processes import any_of, is_first, say
from transformer_jax.errors import InputError, shortened
from transformer_jax.fit.progress import Progress
from transformer_jax.fit.runner import StepRunner
from transformer_jax.fit.signals import StopRequest
from transformer_jax.fit.standard_callbacks import (
    EarlyStopping,
    EndsOfEpochs,
    LogMetrics,
    LogThroughput,
    by_class,
    check_finite,
)
from transformer_jax.fitted.fitted import CompiledTask
from transformer_jax.nn.layer_stacks import unstack_layers
from transformer_jax.outside_files import Json
from transformer_jax.runs.checkpoints import Checkpoint
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.loggers import Logger, LogPosition, open_loggers
from transformer_jax.training.callbacks import Callback, Evaluation, Step
from transformer_jax.training.checks import check_result
from transformer_jax.training.metrics import Means
from transformer_jax.training.step import TrainState
from transformer_jax.trees import Params, merged


class Journal(contextlib.AbstractContextManager["Journal"]):
    """Callbacks, loggers and checkpoints of a training run; a context manager that closes loggers and progress bar.

    Args:
        compiled: the task to train; its hooks determine what is logged.
        config: settings of the run.
        runner: runs the steps.
        steps_per_epoch: number of steps in an epoch.
        val_loader: loader of the validation set, whose first example is pictured.
        run: directory of the run.
        start: checkpoint whose progress restores callbacks and loggers.
        request: set when a signal asks to stop.

    Raises:
        InputError: the run is past the last step of these settings and data; two callbacks or two loggers are of the
            same class, so that their states would be mixed up; or the directory can't be written.
    """

    def __init__(
        self,
        compiled: CompiledTask,
        config: TrainingConfig,
        runner: StepRunner,
        steps_per_epoch: int,
        val_loader: Loader,
        run: RunDirectory,
        start: Checkpoint,
        request: StopRequest,
    ) -> None:
        self._run = run
        self._request = request
        self._config = config
        self._stopwatch = compiled.stopwatch
        self._step = start.step
        self._num_steps = config.num_steps(steps_per_epoch)
        self.evaluated_step: int = start.progress.get("evaluated_step", 0)
        if start.step > self._num_steps:
            raise InputError(
                f"{run.path} is at step {start.step}; these settings and data end at step"
                f" {self._num_steps}"
            )
        with contextlib.ExitStack() as opened:  # an error below closes them
            run.check()
            position = LogPosition(start.step, start.progress.get("loggers", {}))
            create = compiled.task.create_loggers
            with run.writing():
                loggers = opened.enter_context(
                    open_loggers(create, run.path, position, run.settings)
                )
            self._loggers = by_class("loggers", loggers)
            bar = Progress(start.step, self._num_steps, quiet=config.quiet or not is_first())
            self._bar = opened.enter_context(contextlib.closing(bar))
            callbacks: list[Callback] = []
            if is_first():  # it alone logs and decides
                callbacks += self._standard_callbacks(runner, steps_per_epoch, opened)
                callbacks += _own_callbacks(compiled, loggers)
                params = jax.eval_shape(lambda p: unstack_layers(merged(p)), start.state.params)
                callbacks += _attention_pictures(compiled, val_loader, loggers, params)
                callbacks += self._ends_of_epochs(callbacks, steps_per_epoch, runner)
            self._callbacks = by_class("callbacks", callbacks)
            self._saved_at = time.monotonic()
            if start.progress:
                self._restore(start.progress)
            self._opened = opened.pop_all()

    def _standard_callbacks(
        self, runner: StepRunner, steps_per_epoch: int, opened: contextlib.ExitStack
    ) -> list[Callback]:
        """Create the standard callbacks, and the profile, which `opened` closes."""
        config = self._config
        metrics = LogMetrics(
            self._log,
            config.log_every,
            steps_per_epoch,
            log_norms=config.log_norms,
            num_steps=self._num_steps,
            loss_terms=runner.rule.loss_terms,
        )
        throughput = LogThroughput(self._log, metrics.is_due, runner)
        stopping = EarlyStopping(config.criterion, config.patience)
        callbacks: list[Callback] = [metrics, throughput, stopping]
        if config.verbose:
            from transformer_jax.fit.profile import ShowProgram  # only if asked for

            callbacks.append(ShowProgram(self._bar.write, runner))
        if config.profile is not None:
            from transformer_jax.fit.profile import Profile  # only if asked for

            profile = Profile(self._run.path, config.profile, self._bar.write)
            callbacks.append(opened.enter_context(contextlib.closing(profile)))
        return [*callbacks, self._bar]

    def _ends_of_epochs(
        self, callbacks: Sequence[Callback], steps_per_epoch: int, runner: StepRunner
    ) -> list[Callback]:
        """Return the callback that calls `on_epoch` of the others, if one of them has it."""
        if all(type(callback).on_epoch is Callback.on_epoch for callback in callbacks):
            return []
        terms = runner.rule.loss_terms
        return [EndsOfEpochs([*callbacks], steps_per_epoch, self._is_evaluated, terms)]

    def _is_evaluated(self, last: Step) -> bool:
        """Whether an evaluation follows the last step of an epoch."""
        return last.epoch % self._config.eval_every == 0 or last.number == self._num_steps

    def _restore(self, progress: Json) -> None:
        self._stopwatch.restore(progress["seconds"])
        # early runs of format 4 have none
        for name, state in progress.get("callbacks", {}).items():
            if name in self._callbacks:
                self._callbacks[name].restore(state)
        is_trained = self._run.is_finished or self._step >= self._num_steps
        end = ", the end of training" if is_trained else ""
        step = f"step {self._step} of {self._num_steps}{end}"
        self._bar.write(f"Going on after {step}, from {self._run.path}")

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if isinstance(error, FloatingPointError):
            with contextlib.suppress(InputError):  # the divergence is the more important error
                self._run.mark_diverged(self._step, str(error))
        with self._run.writing():
            self._opened.close()

    @property
    def wants_to_stop(self) -> bool:
        """Whether a callback wants training to end after the current evaluation."""
        return any(callback.wants_to_stop for callback in self._callbacks.values())

    def on_step(self, step: Step) -> None:
        """Call the callbacks after a step.

        Raises:
            FloatingPointError: the loss or the gradient of the step is not finite.
        """
        self._step = step.number
        check_finite(step)
        for callback in self._callbacks.values():
            callback.on_step(step)

    def on_evaluation(self, evaluation: Evaluation, state: TrainState) -> None:
        """Call the callbacks after an evaluation, save the evaluated state, and print the criterion's metric.

        Raises:
            InputError, Interrupted: see `save`.
        """
        for callback in self._callbacks.values():
            callback.on_evaluation(evaluation)
        self.evaluated_step = evaluation.step
        self.save(state, evaluation.metrics)
        name = self._config.criterion.metric
        value = format_metric(name, evaluation.metrics[name])
        done = f"Epoch {evaluation.epoch}, step {evaluation.step} of {self._num_steps}"
        status = self._bar.status()
        training = f"; training {status}" if status else ""
        self._bar.write(f"{done}: validation {name} {value}{training}")

    def on_end(self, *, has_trained: bool) -> None:
        """Call the callbacks after the last step and its evaluation, unless an earlier process has done so."""
        if has_trained or not self._run.is_finished:
            for callback in self._callbacks.values():
                callback.on_end(self._step)

    def is_save_asked_for(self) -> bool:
        """Whether to save after the next call: after a signal, or every `checkpoint_minutes`; all processes call it."""
        self._request.synchronize()
        is_overdue = time.monotonic() - self._saved_at > 60 * self._config.checkpoint_minutes
        return self._request.signal_number is not None or any_of(is_overdue)

    def is_save_due(self, num_steps: int) -> bool:
        """Whether a multiple of `checkpoint_every` is among the next `num_steps` steps, which run in one call."""
        every = self._config.checkpoint_every
        return every > 0 and (self._step + num_steps) // every > self._step // every

    def save(self, state: TrainState, metrics: Means | None = None) -> None:
        """Write a checkpoint of the state after the last step, with its metrics if it was evaluated.

        Raises:
            InputError: the directory can't be written.
            Interrupted: a signal asked to stop; the checkpoint is written.
        """
        self._request.synchronize()
        with self._stopwatch.during("save"):
            with self._run.writing():
                for logger in self._loggers.values():
                    logger.flush()
            self._run.check()
            progress = {
                "evaluated_step": self.evaluated_step,
                "stopped": self.wants_to_stop,
                "num_steps": self._num_steps,
                "criterion": str(self._config.criterion),
                "loggers": {name: logger.state() for name, logger in self._loggers.items()},
                "seconds": self._stopwatch.seconds,
                "callbacks": {
                    name: _as_json(name, callback.state())
                    for name, callback in self._callbacks.items()
                },
            }
            self._run.checkpoints.save(self._step, unstack_layers(state), progress, metrics)
            self._saved_at = time.monotonic()
            if self._request.signal_number is not None:
                self._run.checkpoints.wait()
        self._request.raise_if_signalled(self._step)

    def _log(self, step: int, scalars: Means) -> None:
        with self._run.writing():
            for logger in self._loggers.values():
                logger.log(step, scalars)


def _as_json(name: str, state: object) -> object:
    """Copy a callback's state, which may change while the checkpoint is being written.

    Raises:
        InputError: it is not JSON.
    """
    try:
        return json.loads(json.dumps(state, default=float))  # float: of NumPy and JAX scalars
    except (TypeError, ValueError):
        raise InputError(
            f"{name}.state returned {shortened(state)}; it may only hold numbers, strings, lists"
            " and dictionaries"
        ) from None


def _own_callbacks(compiled: CompiledTask, loggers: Sequence[Logger]) -> Sequence[Callback]:
    callbacks = compiled.task.create_callbacks(loggers)
    checked: Sequence[Callback] = check_result(
        compiled.task, "create_callbacks", callbacks, tuple[Callback, ...]
    )
    return checked


def _attention_pictures(
    compiled: CompiledTask, val_loader: Loader, loggers: Sequence[Logger], params: Params
) -> list[Callback]:
    """Return the callback that pictures attention, if the model has maps and a logger takes pictures.

    If a function of the user returns no weights to picture, a line says so.
    """
    takes_pictures = any(type(logger).log_image is not Logger.log_image for logger in loggers)
    if not (compiled.task.has_attention and takes_pictures):
        return []
    # only for models with attention
    from transformer_jax.fit.attention_pictures import LogAttention

    example = compiled.task.pictured_example(next(iter(val_loader))[0])
    try:
        compiled.viewer.check_maps(example, params)
    except InputError as error:
        say(f"No maps of attention: {error}")
        return []
    return [LogAttention(loggers, lambda params: compiled.viewer.maps_of(example, params))]
