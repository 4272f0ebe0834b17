"""StepRunner: several training steps in one compiled call, compiled in the background, paced by their duration."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from transformer_jax.config import TrainingConfig
from transformer_jax.data.batch import Batch, Samples, stack_batches
from transformer_jax.data.loader import Loader
from transformer_jax.data.local_rows import LocalSamples
from transformer_jax.devices.compilation import BackgroundProgram
from transformer_jax.devices.divided import keep_split, with_gathered_params
from transformer_jax.devices.processes import largest
from transformer_jax.mesh_axis import sum_over_devices
from transformer_jax.training.evaluator import Evaluator
from transformer_jax.training.hooks import Task
from transformer_jax.training.metrics import Sums, SumsOfSteps
from transformer_jax.training.step import TrainState, UpdateRule, gradients_and_sums, update
from transformer_jax.trees import Arrays

MAX_STEPS_PER_CALL = 32
CALL_SECONDS = 0.2  # a call of several steps should take about this long: signals and the progress bar wait for it
MAX_STACK_BYTES = 64 * 2**20  # of the batches that one call gets, at most


def max_steps_per_call(loader: Loader, config: TrainingConfig) -> int:
    """K, the most steps of one call: at most an epoch's, and one where batches differ in shape."""
    if loader.has_groups:
        return 1
    row_bytes = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(loader.example()))
    most = config.steps_per_call or min(MAX_STEPS_PER_CALL, MAX_STACK_BYTES // (row_bytes * config.batch_size))
    return max(1, min(most, len(loader)))


class StepRunner:
    """Runs training steps: stacks their batches, compiles them, shares them out over devices.

    The result of a step does not depend on how many steps its call has.

    Args:
        task: the task to train: its step, its loss, its constants on its devices.
        rule: how a gradient changes the parameters.
        state: shapes and types of the training state.
        loader: loader of the training set.
    """

    def __init__(self, task: Evaluator, rule: UpdateRule, state: TrainState, loader: Loader) -> None:
        self.devices, self._config, self._constants = task.devices, task.config, task.shared_constants
        self._step, self._rule, self._state_shapes = task.train_step, rule, task.devices.shapes(state)
        self._loss_function = with_gathered_params(task.batch_loss, task.devices, task.config.remat)
        self._has_groups, self._max_steps = loader.has_groups, max_steps_per_call(loader, task.config)
        self.steps_per_call = self._max_steps if task.config.steps_per_call else 1  # of the next call
        self.seconds_per_step = 0.0  # of the latest call
        self._update: BackgroundProgram[tuple[TrainState, SumsOfSteps]] | None = None
        self.compiled: BackgroundProgram[Any]  # the state and sums after the steps, or gradients and sums
        has_own_update = self._has_groups and type(task).train_step is Task.train_step
        step_of_rows = self.devices.share(self.gradients_of_first if has_own_update else self.run_stacked, rows_axis=1)
        self.compiled = BackgroundProgram(step_of_rows, donate_state=not has_own_update, stopwatch=task.stopwatch)
        if has_own_update:
            self._update = BackgroundProgram(self.update_once, donate_state=True, stopwatch=task.stopwatch)

    @property
    def flops_per_step(self) -> float | None:
        """FLOPs of a step on all devices, as it is written; None where they are not known.

        They are not where batches differ in shape, nor where the step has a loop inside, over parts of a batch or over
        layers: its rounds are not counted.
        """
        is_unknown = self._has_groups or self._config.accumulate > 1 or self._config.scan_layers
        flops = None if is_unknown else self.compiled.flops
        copies = 1 if self.devices.is_divided else self.devices.mesh.size  # of the step, each with its rows
        return None if flops is None else flops * copies

    def begin_to_compile(self, example: Samples | LocalSamples) -> None:
        """Compile in the background for batches of this example's shapes."""
        self.compiled.begin_to_compile(self._state_shapes, *self.stack(example), self._constants)

    def trace(self, example: Samples | LocalSamples) -> jax.stages.Traced:
        """The steps as they are written, for batches of this example's shapes."""
        return self.compiled.trace(self._state_shapes, *self.stack(example), self._constants)

    def run(self, state: TrainState, batches: Batch, count: ArrayLike) -> tuple[TrainState, SumsOfSteps]:
        """Start the first `count` of the stacked batches, a step each, and do not wait for the devices.

        Args:
            state: on the devices; its memory is used again.
            batches, count: as `stack` gives them.

        Returns:
            The state after the steps, and the sums of each.
        """
        result = self.compiled(state, batches, count, self._constants)
        return result if self._update is None else self._update(state, result)

    def agree_on_pace(self) -> None:
        """Choose the steps of the next call by the duration of one, unless the settings do; all processes call it."""
        if self._config.steps_per_call or self._max_steps == 1:
            return
        seconds = largest(self.seconds_per_step)
        if seconds > 0:  # else nothing was measured yet
            self.steps_per_call = max(1, min(self._max_steps, int(CALL_SECONDS / seconds)))

    def run_stacked(
        self, state: TrainState, batches: Batch, count: ArrayLike, constants: Arrays
    ) -> tuple[TrainState, SumsOfSteps]:
        """Compiled: the first `count` of the stacked batches, a step each, and the sums of each."""
        # Traced once, for the loop and for the shapes of the metrics; a function of our own, since JAX would give
        # another `jit` of the same function its trace.
        step_of_batch = jax.jit(
            lambda *arguments: self._step(*arguments, loss_function=self._loss_function, rule=self._rule)
        )

        def step(i: Array, carry: tuple[TrainState, SumsOfSteps]) -> tuple[TrainState, SumsOfSteps]:
            state, sums = carry
            batch = jax.tree.map(lambda stacked: lax.dynamic_index_in_dim(stacked, i, keepdims=False), batches)
            state, new = step_of_batch(state, batch, constants)
            return keep_split(state, self.devices), sums.with_step(i, new)

        first = jax.tree.map(lambda stacked: stacked[0], batches)
        one_step = jax.eval_shape(step_of_batch, state, first, constants)[1]
        sums = SumsOfSteps.zeros(self._max_steps, one_step)
        state, sums = lax.fori_loop(0, count, step, (state, sums))
        return keep_split(state, self.devices), sums

    def gradients_of_first(
        self, state: TrainState, batches: Batch, count: ArrayLike, constants: Arrays
    ) -> tuple[Arrays, Sums]:
        """Compiled for each shape of batch, where these differ: gradients and sums of a step, without its update."""
        batch = jax.tree.map(lambda stacked: stacked[0], batches)
        return sum_over_devices(gradients_and_sums(state, batch, constants, self._loss_function, self._rule.num_parts))

    def update_once(self, state: TrainState, gradients_and_sums: tuple[Arrays, Sums]) -> tuple[TrainState, SumsOfSteps]:
        """Compiled once, whatever the shapes of batches: the update, whose programs are half of a small model's."""
        state, sums = update(state, *gradients_and_sums, self._rule)
        return keep_split(state, self.devices), SumsOfSteps.zeros(1, sums).with_step(jnp.int32(0), sums)

    def stack(self, samples: Samples | LocalSamples) -> tuple[Batch, np.int32]:
        """Consecutive rows as arrays `[K, B, ...]`, padded, and the number of batches among them that are real.

        Those of several processes are on the devices already.
        """
        if isinstance(samples, LocalSamples):
            batches, count = samples.stacked(self._max_steps)
            return self.devices.place_rows(batches, rows_axis=1), count
        return stack_batches(samples, self._config.batch_size, self._max_steps)
