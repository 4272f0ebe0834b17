"""The training loop: gives batches to the step runner, evaluates, saves, and calls the callbacks between steps."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import NamedTuple

import jax

from transformer_jax.data.loader import Loader
from transformer_jax.devices.processes import any_of, is_first, whole
from transformer_jax.errors import InputError
from transformer_jax.nn.layer_stacks import stack_layers, unstack_layers
from transformer_jax.outside_files import Json
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.loggers import Logger, LogPosition
from transformer_jax.training.callbacks import (
    Callback,
    EarlyStopping,
    Evaluation,
    LogAttention,
    LogMetrics,
    Step,
    by_class,
    check_finite,
)
from transformer_jax.training.example_viewer import ExampleViewer
from transformer_jax.training.metrics import SumsOfSteps
from transformer_jax.training.progress import Progress, format_metric
from transformer_jax.training.results import open_loggers
from transformer_jax.training.runner import StepRunner
from transformer_jax.training.signals import StopRequest
from transformer_jax.training.step import TrainState, average_of
from transformer_jax.training.throughput import LogThroughput, Profile, ShowProgram
from transformer_jax.trees import Params


class Call(NamedTuple):
    """A compiled call of several steps that was started and is not waited for yet."""

    num_steps: int
    sums: SumsOfSteps  # on the devices
    waited: float  # seconds the host waited for its batches; the devices may still have run the call before


class TrainingLoop(contextlib.AbstractContextManager["TrainingLoop"]):
    """One training, from its first step or from its newest checkpoint to its last step.

    The devices work on one call while the host makes the next one's batches. A resumed run divides its steps into other
    calls and still ends with the same parameters, bit for bit. As a context manager it closes the loggers and the bar.

    Args:
        task: the task to train.
        runner: runs its steps.
        initial: the training state before the first step.
        loader: loader of the training set.
        val_loader: loader of the validation set.
        run: directory of the run.
        request: set when a signal asks to stop.

    Raises:
        InputError: at construction: none of the run's checkpoints can be read, or two callbacks or two loggers are of
            one class, so that their states would be mixed up.
    """

    def __init__(
        self,
        task: ExampleViewer,
        runner: StepRunner,
        initial: TrainState,
        loader: Loader,
        val_loader: Loader,
        run: RunDirectory,
        request: StopRequest,
    ) -> None:
        self._task, self.runner, self._loader, self._val_loader = task, runner, loader, val_loader
        self._run, self._request, self._stopwatch = run, request, task.stopwatch
        self._config = config = task.config
        self.steps_per_epoch = len(loader)
        self.num_steps = self.steps_per_epoch * config.max_epochs
        # Steps that are finished and logged; `self.state` may already include the call that still runs.
        self.step, initial, saved_progress = self._newest(initial)
        self.evaluated_step = saved_progress.get("evaluated_step", 0)
        if self.step > self.num_steps:
            raise InputError(f"{run.path} is at step {self.step}; these settings and data end at step {self.num_steps}")
        self.state = runner.devices.place(initial)
        self._was_stopped = bool(saved_progress.get("stopped", False))  # early, by a callback
        with contextlib.ExitStack() as opened:  # an error below closes them
            run.check()
            position = LogPosition(self.step, saved_progress.get("loggers", {}))
            loggers = opened.enter_context(open_loggers(run, task, position))
            self._loggers = by_class("loggers", loggers)
            bar = Progress(self.step, self.num_steps, quiet=config.quiet or not is_first())
            self._bar = opened.enter_context(contextlib.closing(bar))
            # The first process logs and decides for all.
            callbacks = self._create_callbacks(loggers, opened) if is_first() else []
            self._callbacks = by_class("callbacks", callbacks)
            self._saved_at = time.monotonic()
            if saved_progress:
                self._restore(saved_progress)
            self._opened = opened.pop_all()

    def _newest(self, initial: TrainState) -> tuple[int, TrainState, Json]:
        """Step, state and progress of the newest checkpoint; where there is none 0, the initial state and nothing."""
        checkpoints, like = self._run.checkpoints, unstack_layers(initial)
        checkpoint = checkpoints.newest(like)
        if checkpoint is None:
            return 0, initial, {}
        if checkpoints.best_step != checkpoint.step:
            checkpoints.best(like)  # a damaged one is noticed now, and the next best one kept from now on
        return checkpoint.step, stack_layers(checkpoint.state, initial), checkpoint.progress

    def _create_callbacks(self, loggers: Sequence[Logger], opened: contextlib.ExitStack) -> list[Callback]:
        """Those of every training, the task's own, pictures of attention, and the profile, which `opened` closes."""
        config, task = self._config, self._task
        callbacks: list[Callback] = [
            LogMetrics(self._log, config.log_every, self.steps_per_epoch, log_norms=config.log_norms),
            LogThroughput(self._log, config, self.runner),
            EarlyStopping(config.criterion, config.patience),
        ]
        if config.verbose:
            callbacks.append(ShowProgram(self._bar.write, self.runner))
        if config.profile is not None:
            profile = Profile(self._run.path, config.profile, self._bar.write)
            callbacks.append(opened.enter_context(contextlib.closing(profile)))
        callbacks += [self._bar, *task.create_callbacks(loggers)]
        if task.has_attention and any(type(logger).log_image is not Logger.log_image for logger in loggers):
            example = task.pictured_example(next(iter(self._val_loader))[0])
            callbacks.append(LogAttention(loggers, lambda params: task.maps_of(example, params)))
        return callbacks

    def _restore(self, progress: Json) -> None:
        self._stopwatch.restore(progress["seconds"])
        for name, state in progress["callbacks"].items():
            if name in self._callbacks:
                self._callbacks[name].restore(state)
        self._bar.write(f"Going on after step {self.step} of {self.num_steps}, from {self._run.path}")

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if isinstance(error, FloatingPointError):
            with contextlib.suppress(InputError):  # that it can't be written any more says less than the divergence
                self._run.mark_diverged(self.step, str(error))
        with self._run.writing():
            self._opened.close()

    def train(self) -> None:
        """Run until the last step and the evaluation after it, or until patience ends.

        Raises:
            InputError: the directory of the run can't be written any more.
            FloatingPointError: the loss or the gradient is not finite; the checkpoints stay as they were.
            Interrupted: at SIGTERM or SIGINT; everything is saved.
        """
        first_step = self.step
        if not self._was_stopped:
            self.train_until(self.num_steps)
        if self.step > first_step or not self._run.is_finished:
            for callback in self._callbacks.values():
                callback.on_end(self.step)

    def train_until(self, step: int) -> None:
        """Go on until this step is done, and those that came in one call with it; all are logged then."""
        while True:
            epoch, first_batch = divmod(self.step, self.steps_per_epoch)
            is_due = epoch % self._config.eval_every == 0 or epoch == self._config.max_epochs
            if first_batch == 0 and self.evaluated_step < self.step and is_due:
                self._evaluate_epoch(epoch)
            if self.step >= step or any_of(self._wants_to_stop):
                return
            self._train_epoch(epoch, first_batch, step)

    def best_params(self) -> Params:
        """The parameters of the best checkpoint, or their moving average where that is what makes it the best.

        Raises:
            FloatingPointError: no evaluation gave a finite number.
            InputError: the run's directory has vanished, or its checkpoints can't be read.
        """
        best = self._run.checkpoints.best(unstack_layers(self.state))
        if best is None:
            self._run.check()
            self._run.checkpoints.check_intact()
            raise FloatingPointError(f"val/{self._config.criterion.metric} was never a finite number")
        params: Params = average_of(best.state) if self._config.takes_average else best.state.params
        return whole(params) if jax.process_count() > 1 else params  # each evaluates with all of them

    @property
    def _wants_to_stop(self) -> bool:
        return any(callback.wants_to_stop for callback in self._callbacks.values())

    def _train_epoch(self, epoch: int, first_batch: int, last_step: int) -> None:
        started: Call | None = None
        loaded = self._loader.epoch(epoch, first_batch, lambda: self.runner.steps_per_call)
        with self._stopwatch.during("train"):
            finished_at = began_to_wait = self._stopwatch.seconds["train"]
            for samples in loaded:
                waited = self._stopwatch.seconds["train"] - began_to_wait
                self._request.synchronize()
                self.runner.agree_on_pace()
                is_save_asked_for = self._is_save_asked_for()
                batches, count = self.runner.stack(samples)
                self.state, sums = self.runner.run(self.state, batches, count)
                finished_at = self._finish(started, finished_at)
                started = Call(int(count), sums, waited)
                if is_save_asked_for or self._is_save_due(started.num_steps):
                    finished_at = self._finish(started, finished_at)
                    started = None
                    self._save()
                if self.step + (started.num_steps if started else 0) >= last_step:
                    break
                began_to_wait = self._stopwatch.seconds["train"]
            self._finish(started, finished_at)

    def _finish(self, call: Call | None, since: float) -> float:
        """Wait for a call and account for its steps; `since` and the result are seconds of training."""
        if call is None:
            return since
        all_sums = call.sums.of_each(call.num_steps)
        now = self._stopwatch.seconds["train"]
        self.runner.seconds_per_step = (now - since) / call.num_steps
        last = self.step + call.num_steps
        for sums in all_sums:
            self.step += 1
            per_second, waited = call.num_steps / (now - since), call.waited / call.num_steps
            step = Step(self.step, sums, per_second, waited, ends_call=self.step == last)
            check_finite(step)
            for callback in self._callbacks.values():
                callback.on_step(step)
        return now

    def _evaluate_epoch(self, epoch: int) -> None:
        with self._stopwatch.during("eval"):
            metrics = self._task.evaluate_state(self._val_loader, self.state)
        # Copies, since the next training step uses the memory of the state again.
        evaluation = Evaluation(self.step, epoch, metrics, unstack_layers(whole(self.state.params)))
        for callback in self._callbacks.values():
            callback.on_evaluation(evaluation)
        self.evaluated_step = self.step
        self._save(metrics)
        name = self._config.criterion.metric
        value = format_metric(name, metrics[name])
        line = f"Epoch {epoch}, step {self.step} of {self.num_steps}: validation {name} {value}"
        self._bar.write("; ".join(filter(None, (line, self._bar.status()))))

    def _is_save_asked_for(self) -> bool:
        """Whether a signal or the minutes of a process ask to save after the next call; all processes call this."""
        is_overdue = time.monotonic() - self._saved_at > 60 * self._config.checkpoint_minutes
        return self._request.signal_number is not None or any_of(is_overdue)

    def _is_save_due(self, num_steps: int) -> bool:
        """Whether a multiple of `checkpoint_every` is among the next steps, which come in one call."""
        every = self._config.checkpoint_every
        return every > 0 and (self.step + num_steps) // every > self.step // every

    def _save(self, metrics: Mapping[str, float] | None = None) -> None:
        self._request.synchronize()
        with self._stopwatch.during("save"):
            with self._run.writing():
                for logger in self._loggers.values():
                    logger.flush()
            self._run.check()
            progress = {
                "evaluated_step": self.evaluated_step,
                "stopped": self._wants_to_stop,
                "num_steps": self.num_steps,
                "criterion": str(self._config.criterion),
                "loggers": {name: logger.state() for name, logger in self._loggers.items()},
                "seconds": self._stopwatch.seconds,
                "callbacks": {name: callback.state() for name, callback in self._callbacks.items()},
            }
            self._run.checkpoints.save(self.step, unstack_layers(self.state), progress, metrics)
            self._saved_at = time.monotonic()
            if self._request.signal_number is not None:
                self._run.checkpoints.wait()
        self._request.raise_if_signalled(self.step)

    def _log(self, step: int, scalars: Mapping[str, float]) -> None:
        with self._run.writing():
            for logger in self._loggers.values():
                logger.log(step, scalars)
