"""The training loop: gives batches to the step runner, evaluates, saves, and calls the actions between steps."""

import contextlib
from collections.abc import Callable, Mapping
from types import TracebackType

import jax

from transformer_jax.config import TrainingConfig
from transformer_jax.data.loader import Loader
from transformer_jax.errors import InputError
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.tensorboard import EventLog
from transformer_jax.training.actions import Action, CheckFinite, EarlyStopping, LogMetrics, ProgressBar, SaveTimes
from transformer_jax.training.runner import Call, StepRunner
from transformer_jax.training.signals import StopRequest
from transformer_jax.training.step import TrainState
from transformer_jax.training.stopwatch import Stopwatch
from transformer_jax.trees import Params

Evaluate = Callable[[Params], dict[str, float]]  # mean metrics of parameters on the validation set


def parameter_table(params: Params) -> str:
    """One line for each array of the parameters: its path, its shape and its size; then the total."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    rows = [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf.shape, leaf.size) for path, leaf in leaves]
    rows.append(("total", "", sum(size for *_, size in rows)))
    width = max(len(path) for path, *_ in rows)
    return "\n".join(f"{path:{width}}  {shape!s:>12}  {size:>12,}" for path, shape, size in rows)


class TrainingLoop:
    """One training, from its first step or from its newest checkpoint to its last step.

    The devices work on one call while the host makes the next one's batches. A resumed run divides its steps into other
    calls and still ends with the same parameters, bit for bit.

    As a context manager it closes the event file and the progress bar.

    Args:
        runner: runs the steps.
        initial: the state before the first step.
        loader: of the training set.
        evaluate: on the validation set.
        run: the directory of the run.
        config: settings of the training.
        request: to stop.
        stopwatch: times `train`, `eval`, `save`.

    Raises:
        InputError: at construction, if the run has checkpoints and none can be read (see `Checkpoints.newest`).
    """

    def __init__(
        self,
        runner: StepRunner,
        initial: TrainState,
        loader: Loader,
        evaluate: Evaluate,
        run: RunDirectory,
        config: TrainingConfig,
        request: StopRequest,
        stopwatch: Stopwatch,
    ) -> None:
        self.runner, self._loader, self._evaluate = runner, loader, evaluate
        self._run, self._config, self._request, self._stopwatch = run, config, request, stopwatch
        self.steps_per_epoch = len(loader)
        self.num_steps = self.steps_per_epoch * config.max_epochs
        checkpoint = run.checkpoints.newest(initial)
        if checkpoint is not None:
            if run.checkpoints.best_step != checkpoint.step:
                run.checkpoints.best(initial)  # a damaged one is noticed now, and the next best one kept from now on
            self._check_step(checkpoint.step)
        self.step = 0 if checkpoint is None else checkpoint.step  # done and logged; the state may be one call ahead
        self.evaluated_step = 0 if checkpoint is None else checkpoint.progress["evaluated_step"]
        self.state = runner.place(initial if checkpoint is None else checkpoint.state)
        with contextlib.ExitStack() as opened:  # an error below closes them
            run.check()
            with run.writing():
                files = None if checkpoint is None else checkpoint.progress["event_files"]
                self._events = opened.enter_context(EventLog(run.path, self.step, self.evaluated_step, files))
            self._bar = opened.enter_context(ProgressBar(self.step, self.num_steps))
            log_metrics = LogMetrics([self._log_event, self._bar.log], config.log_every, self.steps_per_epoch)
            self._actions: dict[str, Action] = {
                "check_finite": CheckFinite(),
                "log_metrics": log_metrics,
                "progress_bar": self._bar,
                "early_stopping": EarlyStopping(config.criterion, config.patience),
            }
            self._save_times = SaveTimes(config.checkpoint_every, config.checkpoint_minutes)
            if checkpoint is not None:
                stopwatch.restore(checkpoint.progress["seconds"])
                for name, state in checkpoint.progress["actions"].items():
                    if name in self._actions:
                        self._actions[name].restore(state)
                print(f"Going on after step {self.step} of {self.num_steps}, from {run.path}")
            self._opened = opened.pop_all()

    def __enter__(self) -> "TrainingLoop":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        with self._run.writing():
            self._opened.close()

    def train(self) -> None:
        """Run until the last step and the evaluation after it, or until patience ends.

        Raises:
            InputError: the directory of the run can't be written any more.
            FloatingPointError: the loss or the gradient is not finite; the checkpoints stay as they were.
            Interrupted: at SIGTERM or SIGINT; everything is saved.
        """
        self.train_until(self.num_steps)

    def train_until(self, step: int) -> None:
        """Go on until this step is done, and those that came in one call with it; all are logged then."""
        while True:
            epoch, first_batch = divmod(self.step, self.steps_per_epoch)
            if first_batch == 0 and self.evaluated_step < self.step and self._ends_with_evaluation(epoch):
                self._evaluate_epoch(epoch)
            if self.step >= step or any(action.wants_to_stop for action in self._actions.values()):
                return
            self._train_epoch(epoch, first_batch, step)

    def best_params(self) -> Params:
        """The parameters of the best checkpoint.

        Raises:
            FloatingPointError: no evaluation gave a finite number, or there was none.
        """
        best = self._run.checkpoints.best(self.runner.collect(self.state))
        if best is None:
            raise FloatingPointError(f"val/{self._config.criterion.metric} was never a finite number")
        params: Params = best.state.params
        return params

    def _check_step(self, step: int) -> None:
        if step > self.num_steps:
            raise InputError(
                f"{self._run.path} is at step {step}; these settings and data end at step {self.num_steps}, "
                "so it is another run's"
            )

    def _ends_with_evaluation(self, epoch: int) -> bool:
        return epoch % self._config.eval_every == 0 or epoch == self._config.max_epochs

    def _train_epoch(self, epoch: int, first_batch: int, last_step: int) -> None:
        started: Call | None = None
        batches = self._loader.epoch(epoch, first_batch, lambda: self.runner.steps_per_call)
        with self._stopwatch.during("train"):
            finished_at = self._stopwatch.seconds["train"]
            for samples in batches:
                self.state, call = self.runner.start(self.state, samples)
                finished_at = self._finish(started, finished_at)
                started = call
                if self._save_is_due(call.num_steps):
                    finished_at = self._finish(started, finished_at)
                    started = None
                    self._save(self.runner.collect(self.state))
                if self.step + (started.num_steps if started else 0) >= last_step:
                    break
            self._finish(started, finished_at)

    def _finish(self, call: Call | None, since: float) -> float:
        """Wait for a call and account for its steps; `since` and the result are seconds of training."""
        if call is None:
            return since
        all_sums = self.runner.wait(call)
        now = self._stopwatch.seconds["train"]
        self.runner.keep_pace(call.num_steps, now - since)
        for sums in all_sums:
            self.step += 1
            for action in self._actions.values():
                action.on_step(self.step, sums, call.num_steps / (now - since))
        return now

    def _evaluate_epoch(self, epoch: int) -> None:
        state = self.runner.collect(self.state)
        with self._stopwatch.during("eval"):
            metrics = self._evaluate(state.params)
        for action in self._actions.values():
            action.on_evaluation(self.step, metrics)
        self.evaluated_step = self.step
        self._save(state, metrics)
        name = self._config.criterion.metric
        value = f"{metrics[name]:.2%}" if name == "accuracy" else f"{metrics[name]:.4f}"
        self._bar.write(f"Epoch {epoch}, step {self.step}: validation {name} {value}")

    def _save_is_due(self, count: int) -> bool:
        return self._request.signal_number is not None or self._save_times.is_due(self.step, self.step + count)

    def _save(self, state: TrainState, metrics: Mapping[str, float] | None = None) -> None:
        with self._stopwatch.during("save"):
            with self._run.writing():
                self._events.flush()
            self._run.check()
            progress = {
                "evaluated_step": self.evaluated_step,
                "event_files": self._events.files,
                "seconds": self._stopwatch.seconds,
                "actions": {name: action.state() for name, action in self._actions.items()},
            }
            self._run.checkpoints.save(self.step, state, progress, metrics)
            self._save_times.restart()
            if self._request.signal_number is not None:
                self._run.checkpoints.wait()
        self._request.raise_if_signalled(self.step)

    def _log_event(self, step: int, scalars: Mapping[str, float]) -> None:
        with self._run.writing():
            self._events.log(step, scalars)
