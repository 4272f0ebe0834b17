"""The training loop around a trainer's pure step: several steps a call, logging, validation, checkpoints, resuming."""

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from tqdm import tqdm

from transformer_jax.data.loader import import_pytorch
from transformer_jax.errors import InputError
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.training.compilation import CompiledStep
from transformer_jax.training.metrics import Batch, Sums, means, stack_batches
from transformer_jax.training.parallel import on_all_devices, shapes_on_all_devices
from transformer_jax.training.parameter_table import parameter_table
from transformer_jax.training.signals import Interrupted, InterruptionRequest

MOST_STEPS_PER_CALL = 32
CALL_SECONDS = 0.2  # a call of several steps should take about so long: signals and the progress bar wait for it
STACK_BYTES = 64 * 2**20  # of the batches that one call gets, at most


class TrainingLoop:
    """One training of a trainer, from its first step or from its newest checkpoint to its last step.

    The device works on one call while the host makes the next one's batches. What a step computes does not depend on
    how many of them a call has, so that a resumed run, which divides the steps into other calls, ends as it would have.

    Args:
        trainer: a `TrainerModule`.
        train_loader: from `make_loader`, with an order by epochs.
        val_loader: from `make_loader`.
    """

    def __init__(self, trainer: Any, train_loader: Iterable, val_loader: Iterable) -> None:
        self.trainer, self.config = trainer, trainer.config
        self.train_loader, self.val_loader = train_loader, val_loader
        self.sampler = getattr(train_loader, "batch_sampler", None)
        if not hasattr(self.sampler, "set_epoch"):
            raise InputError("train_loader has no order by epochs; make_loader makes such a loader")
        self.steps_per_epoch = len(self.sampler)
        if not self.steps_per_epoch or not len(val_loader):
            raise InputError("a loader gives no batch; training and validation need at least one")
        self.num_steps = self.steps_per_epoch * self.config.max_epochs
        self.example_batch = train_loader.collate_fn([train_loader.dataset[0]])
        self._shapes, self._finish_initial_state = trainer.begin_initial_state(self.example_batch, self.num_steps)
        self.state: Any = None  # before it is running
        self.step = 0  # steps that are done and logged; the state may be one call ahead
        self.evaluated_step = 0
        self.window: list[Sums] = []  # metrics since the last entry in TensorBoard
        self.seconds = {"train": 0.0, "eval": 0.0, "compile": 0.0}
        self.call_began = 0.0
        self.most_steps = self._most_steps()
        self.sampler.steps_per_call = self.most_steps if self.config.steps_per_call else 1  # then as time allows
        self._train_steps = CompiledStep(self.train_steps, trainer.mesh, rows_axis=1, donate_state=True)
        self.run = RunDirectory(self.config, trainer.name)

    def train_steps(self, state: Any, batches: Batch, count: Array, constants: Any) -> tuple[Any, Sums]:
        """The first `count` of the stacked batches, a step each; the metrics of every step come back `[K]`."""
        # One trace for the loop and for the shapes of the metrics; of a function of our own, since JAX would give
        # another `jit` of the same method its trace.
        train_step = jax.jit(lambda *arguments: self.trainer.train_step(*arguments))

        def step(i, carry):
            state, sums = carry
            batch = jax.tree.map(lambda stacked: lax.dynamic_index_in_dim(stacked, i, keepdims=False), batches)
            state, new = train_step(state, batch, constants)
            return state, jax.tree.map(lambda all_steps, one: all_steps.at[i].set(one), sums, new)

        first = jax.tree.map(lambda stacked: stacked[0], batches)
        one_step = jax.eval_shape(train_step, state, first, constants)[1]
        sums = jax.tree.map(lambda leaf: jnp.zeros((self.most_steps, *leaf.shape), leaf.dtype), one_step)
        return lax.fori_loop(0, count, step, (state, sums))

    def train(self) -> None:
        """Run until the last step and the validation after it."""
        with self.running():
            self.train_until(self.num_steps)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Begin to compile, resume where there is something to resume; show the progress, heed signals to the end."""
        print(parameter_table(self._shapes.params))
        with InterruptionRequest() as self.request:
            if max(self.run.checkpoints.steps, default=0) < self.num_steps and not self._has_groups:
                self._begin_to_compile()
            import_pytorch()  # while the compiler works
            self.state = on_all_devices(self._finish_initial_state(), self.trainer.mesh)
            self._resume()
            self.seconds["compile"] += self._train_steps.seconds
            if self.request.signal_number is not None:
                raise Interrupted(self.request.signal_number, self.step)
            self.run.open_events(self.step, self.evaluated_step)
            self.saved_at = time.monotonic()
            with tqdm(total=self.num_steps, initial=self.step, unit="step", disable=None) as self.bar:
                yield

    def train_until(self, step: int) -> None:
        """Go on until this step is done, and those that came in one call with it; all are logged then."""
        while True:
            epoch, first_batch = divmod(self.step, self.steps_per_epoch)
            due = first_batch == 0 and (epoch % self.config.eval_every == 0 or epoch == self.config.max_epochs)
            if due and self.evaluated_step < self.step:
                self._validate(epoch)
            if self.step >= step:
                return
            self._train_epoch(epoch, first_batch, step)

    def _train_epoch(self, epoch: int, first_batch: int, last_step: int) -> None:
        self.sampler.set_epoch(epoch, first_batch)
        in_flight = None
        loading = iter(self.train_loader)  # its processes start off the clock of the steps
        self.call_began = time.perf_counter()
        for data in loading:
            batches, count = stack_batches(data, self.config.batch_size, self.most_steps)
            compiling = self._train_steps.seconds
            self.state, sums = self._train_steps(self.state, batches, count, self.trainer.shared_constants)
            compiling = self._train_steps.seconds - compiling
            self.seconds["compile"] += compiling
            self.call_began += compiling  # the clock of the steps stands still
            self._finish(in_flight)
            in_flight = (int(count), sums)
            if self._save_is_due(int(count)):
                self._finish(in_flight)
                in_flight = None
                self._save()
            if self.step + (in_flight[0] if in_flight else 0) >= last_step:
                break
        self._finish(in_flight)

    def _finish(self, in_flight: tuple[int, Sums] | None) -> None:
        """Wait for a call's metrics, account for its time, check and log its steps."""
        if in_flight is None:
            return
        count, sums = in_flight
        sums = jax.device_get(sums)
        now = time.perf_counter()
        seconds, self.call_began = now - self.call_began, now
        self.seconds["train"] += seconds
        if not self.config.steps_per_call and self.most_steps > 1:
            self.sampler.steps_per_call = max(1, min(self.most_steps, int(CALL_SECONDS * count / seconds)))
        for i in range(count):
            self._account(jax.tree.map(lambda leaf: leaf[i], sums), count / seconds)  # noqa: B023
        self.bar.update(count)

    def _account(self, sums: Sums, steps_per_second: float) -> None:
        self.step += 1
        for name in ("loss", "gradient_norm"):
            total, weight = sums[name]
            if not np.isfinite(total / weight):
                raise FloatingPointError(f"{name} is {total / weight} at step {self.step}; training stops there")
        self.window.append(sums)
        if self.step % self.config.log_every == 0 or self.step % self.steps_per_epoch == 0:
            metrics = means(self.window) | {
                "learning_rate": float(sums["learning_rate"][0]),  # of this step, no mean
                "steps_per_second": steps_per_second,
            }
            self.window = []
            self.run.log(self.step, {f"train/{name}": value for name, value in metrics.items()})
            self.bar.set_postfix(loss=f"{metrics['loss']:.4f}", accuracy=f"{metrics['accuracy']:.2%}")

    def _validate(self, epoch: int) -> None:
        start, compiling = time.perf_counter(), self.trainer._eval_step.seconds
        metrics = self.trainer.evaluate(self.val_loader, self.state.params)
        compiling = self.trainer._eval_step.seconds - compiling
        self.seconds["compile"] += compiling
        self.seconds["eval"] += time.perf_counter() - start - compiling
        self.run.log(self.step, {f"val/{name}": value for name, value in metrics.items()})
        self.evaluated_step = self.step
        self._save(metrics["accuracy"])
        tqdm.write(f"Epoch {epoch}, step {self.step}: validation accuracy {metrics['accuracy']:.2%}")

    def _save_is_due(self, count: int) -> bool:
        every, done = self.config.checkpoint_every, self.step + count
        return (
            self.request.signal_number is not None
            or time.monotonic() - self.saved_at > 60 * self.config.checkpoint_minutes
            or (every > 0 and done // every > self.step // every)
        )

    def _save(self, val_accuracy: float | None = None) -> None:
        start = time.perf_counter()
        self.run.flush()
        progress = {
            "evaluated_step": self.evaluated_step,
            "seconds": self.seconds,
            "window": [jax.tree.map(float, sums) for sums in self.window],
        }
        self.run.checkpoints.save(self.step, self.state, progress, val_accuracy)
        self.saved_at = time.monotonic()
        self.call_began += time.perf_counter() - start  # the clock of the steps stands still
        if self.request.signal_number is not None:
            self.run.checkpoints.wait()
            raise Interrupted(self.request.signal_number, self.step)

    def _resume(self) -> None:
        checkpoint = self.run.checkpoints.newest(self.state)
        if checkpoint is None:
            return
        self.step, self.state = checkpoint.step, checkpoint.state
        self.evaluated_step = checkpoint.progress["evaluated_step"]
        self.seconds = dict(checkpoint.progress["seconds"])
        self.window = [{name: tuple(pair) for name, pair in sums.items()} for sums in checkpoint.progress["window"]]
        print(f"Going on after step {self.step} of {self.num_steps}, from {self.run.path}")

    @property
    def _has_groups(self) -> bool:
        return getattr(self.sampler, "groups", None) is not None

    def _begin_to_compile(self) -> None:
        batches, count = stack_batches(self.example_batch, self.config.batch_size, self.most_steps)
        state = shapes_on_all_devices(self._shapes, self.trainer.mesh)
        self._train_steps.begin_to_compile(state, batches, count, self.trainer.shared_constants)

    def _most_steps(self) -> int:
        """K, the steps for which one call has room."""
        if self._has_groups:
            return 1  # batches of different shapes can't be stacked
        row_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(self.example_batch))
        fitting = STACK_BYTES // (row_bytes * self.config.batch_size)
        most = self.config.steps_per_call or min(MOST_STEPS_PER_CALL, fitting)
        return max(1, min(most, self.steps_per_epoch))
