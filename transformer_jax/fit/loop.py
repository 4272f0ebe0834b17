"""The training loop: compiled calls of several steps each, with evaluations between epochs."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from transformer_jax.config import EMA, TrainingConfig
from transformer_jax.data.loader import Loader
from transformer_jax.devices.processes import any_of, whole
from transformer_jax.devices.stopwatch import Stopwatch
from transformer_jax.nn.layer_stacks import unstack_layers
from transformer_jax.training.callbacks import Evaluation, Step
from transformer_jax.training.metrics import Means, SumsOfSteps
from transformer_jax.training.optimizers import average_of
from transformer_jax.training.schedules import PLATEAU, after_evaluation
from transformer_jax.trees import Params, merged

if TYPE_CHECKING:  # the loop gets these ready made
    from transformer_jax.fit.journal import Journal
    from transformer_jax.fit.runner import StepRunner
    from transformer_jax.runs.checkpoints import Checkpoint
    from transformer_jax.runs.directory import RunDirectory


class Call(NamedTuple):
    """A compiled call of several steps that has been started, but not yet waited for."""

    num_steps: int
    sums: SumsOfSteps  # on the devices
    # seconds that the host waited for its batches, while the devices may have run the previous call
    waited: float


class TrainingLoop:
    """One training run, from its first step or its newest checkpoint to its last step.

    While the devices run one call, the host prepares the batches of the next. A resumed run may divide its steps into
    calls differently, and still ends with bitwise identical parameters.

    Args:
        config: settings of the run.
        run: its directory.
        loader: loader of the training set.
        runner: runs the steps.
        start: checkpoint from which training starts.
        evaluate: computes the metrics of parameters on the validation set.
        journal: calls the callbacks, logs and saves.
        stopwatch: times `train` and `eval`.
    """

    def __init__(
        self,
        config: TrainingConfig,
        run: "RunDirectory",
        loader: Loader,
        runner: "StepRunner",
        start: "Checkpoint",
        evaluate: Callable[[Params], Means],
        journal: "Journal",
        stopwatch: Stopwatch,
    ) -> None:
        self.config = config
        self.run = run
        self._loader = loader
        self.runner = runner
        self._evaluate = evaluate
        self._journal = journal
        self._stopwatch = stopwatch
        self.steps_per_epoch = len(loader)
        self.num_steps = config.num_steps(self.steps_per_epoch)
        # Steps that are finished and logged; `self.state` may already include the call that still runs.
        self.step = start.step
        self.state = start.state
        self._was_stopped = bool(start.progress.get("stopped", False))  # early, by a callback
        if config.schedule == PLATEAU and 0 < start.step == journal.evaluated_step:
            self._reduce_rate(run.checkpoints.metrics(start.step) or {})
        # when the latest call was finished
        self._finished_at = self._seconds_of_training()
        self._seconds_per_step = 0.0  # of the latest call

    def train(self) -> None:
        """Train until the last step and its evaluation, or until a callback stops early.

        Raises:
            InputError: the run's directory can no longer be written.
            FloatingPointError: the loss or the gradient is not finite; the checkpoints are kept.
            Interrupted: after SIGTERM or SIGINT; everything is saved.
        """
        first_step = self.step
        if not self._was_stopped:
            self.train_until(self.num_steps)
        self._journal.on_end(has_trained=self.step > first_step)

    def train_until(self, step: int) -> None:
        """Train until this step is done and logged."""
        while True:
            epoch, first_batch = divmod(self.step, self.steps_per_epoch)
            ends_epochs = first_batch == 0 and epoch % self.config.eval_every == 0
            is_due = ends_epochs or self.step == self.num_steps
            if is_due and self._journal.evaluated_step < self.step:
                self._evaluate_epoch(epoch + (first_batch > 0))  # from 1, also if it is unfinished
            if self.step >= step or any_of(self._journal.wants_to_stop):
                return
            self._train_epoch(epoch, first_batch, step - self.step)

    def _train_epoch(self, epoch: int, first_batch: int, num_steps: int) -> None:
        loaded = self._loader.epoch(
            epoch, first_batch, lambda: self.runner.steps_per_call, num_steps
        )
        unfinished: Call | None = None
        with self._stopwatch.during("train"):
            began_to_wait = self._seconds_of_training()
            for samples in loaded:
                waited = self._seconds_of_training() - began_to_wait
                # Asked before the next call: the processes agree by a computation, which would wait for it.
                is_save_asked_for = self._journal.is_save_asked_for()
                self.runner.agree_on_pace(self._seconds_per_step)
                batches, count = self.runner.stack(samples)
                self.state, sums = self.runner.run(self.state, batches, count)
                if unfinished is not None:
                    self._finish(unfinished)  # the previous call, while this one runs
                unfinished = Call(int(count), sums, waited)
                if is_save_asked_for or self._journal.is_save_due(unfinished.num_steps):
                    self._finish(unfinished)
                    unfinished = None
                    self._journal.save(self.state)
                began_to_wait = self._seconds_of_training()
            if unfinished is not None:
                self._finish(unfinished)

    def _seconds_of_training(self) -> float:
        return self._stopwatch.seconds["train"]

    def _finish(self, call: Call) -> None:
        """Wait for a call, and journal its steps."""
        sums_of_steps = call.sums.of_each(call.num_steps)
        finished_at = self._seconds_of_training()
        self._seconds_per_step = (finished_at - self._finished_at) / call.num_steps
        self._finished_at = finished_at
        last_step = self.step + call.num_steps
        for sums in sums_of_steps:
            self.step += 1
            step = Step(
                number=self.step,
                sums=sums,
                seconds=self._seconds_per_step,
                waited=call.waited / call.num_steps,
                ends_call=self.step == last_step,
                epoch=-(-self.step // self.steps_per_epoch),
            )
            self._journal.on_step(step)

    def _evaluate_epoch(self, epoch: int) -> None:
        with self._stopwatch.during("eval"):
            metrics = self._evaluate(self.state.params)
            if self.config.ema:
                metrics_of_average = self._evaluate(average_of(self.state))
                metrics |= {f"{EMA}{name}": value for name, value in metrics_of_average.items()}
        # Copies, since the next training step reuses the memory of the state.
        params = unstack_layers(whole(merged(self.state.params)))
        self._journal.on_evaluation(Evaluation(self.step, epoch, metrics, params), self.state)
        self._reduce_rate(metrics)

    def _reduce_rate(self, metrics: Means) -> None:
        """Reduce the learning rate on a plateau: after the checkpoint, which may be older than the evaluation."""
        opt_state = after_evaluation(self.state.opt_state, self.config, metrics)
        self.state = self.state.replace(opt_state=opt_state)
