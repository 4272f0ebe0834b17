"""StepRunner: several training steps per compiled call, compiled in the background; their duration sets the number."""

import functools
from typing import Any, TypeAlias

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
from transformer_jax.devices.processes import largest
from transformer_jax.devices.sharing import Devices, Function
from transformer_jax.fitted.fitted import CompiledTask
from transformer_jax.training.metrics import Sums, SumsOfSteps
from transformer_jax.training.step import (
    TrainState,
    UpdateRule,
    gradients_and_sums,
    train_step,
    update,
)
from transformer_jax.trees import Arrays

AfterSteps: TypeAlias = tuple[TrainState, SumsOfSteps]  # the state, and the sums of each step

MAX_STEPS_PER_CALL = 32
# target duration of a call of several steps: signals and the progress bar wait for its end
CALL_SECONDS = 0.2
MAX_STACK_BYTES = 64 * 2**20  # of the batches of one call


def max_steps_per_call(loader: Loader, config: TrainingConfig) -> int:
    """Return K, the maximum number of steps per call: at most an epoch's, and 1 if batches differ in shape."""
    if loader.has_groups:
        return 1
    max_steps = config.steps_per_call
    if not max_steps:
        row_bytes = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(loader.example()))
        max_steps = min(MAX_STEPS_PER_CALL, MAX_STACK_BYTES // (row_bytes * config.batch_size))
    return max(1, min(max_steps, len(loader)))


class StepRunner:
    """Runs training steps: stacks their batches, compiles them, distributes them over devices.

    The result of a step does not depend on the number of steps in its call.

    Args:
        compiled: the task to train, with its constants.
        devices: share the steps.
        rule: how a gradient changes the parameters.
        state: shapes and dtypes of the training state.
        loader: loader of the training set.
    """

    def __init__(
        self,
        compiled: CompiledTask,
        devices: Devices,
        rule: UpdateRule,
        state: TrainState,
        loader: Loader,
    ) -> None:
        config = compiled.task.config
        self.devices = devices
        self._config = config
        self.rule = rule
        self._constants = compiled.constants
        self._token_batches = loader.token_batches
        # Average number of rows in a batch.
        self.rows_per_step: float = config.batch_size
        if self._token_batches is not None:
            self.rows_per_step = len(loader.dataset) / len(loader)
        self._state_shapes = self.devices.shapes(state)
        self._loss_function = compiled.task.batch_loss
        if devices.partitioned_by_xla:
            from transformer_jax.devices.divided import with_gathered_params  # only for such states

            self._loss_function = with_gathered_params(self._loss_function, devices, config.remat)
        self._max_steps = max_steps_per_call(loader, config)
        # of the next call
        self.steps_per_call = self._max_steps if config.steps_per_call else 1
        # explanations of which attention a step runs, if the config is verbose
        self.attention: list[object] = []
        # If batches differ in shape, one update serves all shapes: it is half of a small model's program.
        is_separate = self.compiles_update_separately = loader.has_groups
        function = self.gradients_of_first if is_separate else self.run_stacked
        stopwatch = compiled.stopwatch
        # compiled for each batch shape: whole steps, or only their gradients
        self.program: BackgroundProgram[Any] = BackgroundProgram(
            self._shared(function), donate_state=not is_separate, stopwatch=stopwatch
        )
        self._update = BackgroundProgram(self.update_once, donate_state=True, stopwatch=stopwatch)

    def _shared(self, function: Function) -> Function:
        """Share a function of stacked batches over the devices; if verbose, note the attention that it runs."""
        shared = self.devices.share(function, rows_axis=1)
        if not self._config.verbose:
            return shared
        from transformer_jax.attention.request import recording_attention  # only if asked for

        @functools.wraps(shared)
        def noted(*arguments: Any) -> Any:
            with recording_attention() as explanations:
                result = shared(*arguments)
            self.attention.extend(explanations)
            return result

        return noted  # type: ignore[return-value]  # of the same signature

    @property
    def flops_per_step(self) -> float | None:
        """FLOPs of a step's matrix products on all devices; None if batches differ in shape."""
        flops = None if self.compiles_update_separately else self.program.flops
        if flops is None or self.devices.partitioned_by_xla:  # one program for all devices
            return flops
        return flops * self.devices.mesh.size  # each runs a copy, for its rows

    def arguments(self, example: Samples | LocalSamples) -> tuple[Any, ...]:
        """Return the arguments of `program`: shapes of the state, a batch of this example's shapes, the constants."""
        return self._state_shapes, *self.stack(example), self._constants

    def run(self, state: TrainState, batches: Batch, count: ArrayLike) -> AfterSteps:
        """Start a step for each of the first `count` stacked batches, without waiting for the devices.

        Args:
            state: on the devices; its buffers are donated.
            batches, count: from `stack`.

        Returns:
            The state after the steps, and the sums of each step.
        """
        result = self.program(state, batches, count, self._constants)
        return self._update(state, result) if self.compiles_update_separately else result

    def agree_on_pace(self, seconds_per_step: float) -> None:
        """Set the steps of the next call from the duration of one, unless configured; all processes call it."""
        if self._config.steps_per_call or self._max_steps == 1:
            return
        seconds = largest(seconds_per_step)
        if seconds > 0:  # else nothing was measured yet
            self.steps_per_call = max(1, min(self._max_steps, int(CALL_SECONDS / seconds)))

    def run_stacked(
        self, state: TrainState, batches: Batch, count: ArrayLike, constants: Arrays
    ) -> AfterSteps:
        """Run a step for each of the first `count` stacked batches, and return the sums of each step; compiled."""
        # Traced once, for both the loop and the shapes of the metrics. A new function object, since JAX would reuse
        # this trace for another `jit` of the same function.
        step_of_batch = jax.jit(
            functools.partial(train_step, loss_function=self._loss_function, rule=self.rule)
        )

        def step(i: Array, carry: AfterSteps) -> AfterSteps:
            state, sums = carry
            batch = jax.tree.map(
                lambda stacked: lax.dynamic_index_in_dim(stacked, i, keepdims=False), batches
            )
            state, sums_of_step = step_of_batch(state, batch, constants)
            return self.devices.keep_split(state), sums.with_step(i, sums_of_step)

        first_batch = jax.tree.map(lambda stacked: stacked[0], batches)
        _, shapes_of_sums = jax.eval_shape(step_of_batch, state, first_batch, constants)
        sums = SumsOfSteps.zeros(self._max_steps, shapes_of_sums)
        # A GPU would wait for the host at each condition of a loop; a CPU's compiler gathers parameters once inside
        # one, and twice outside.
        if self._max_steps == 1 and jax.default_backend() != "cpu":
            state, sums = step(jnp.int32(0), (state, sums))
        else:
            state, sums = lax.fori_loop(0, count, step, (state, sums))
        return self.devices.keep_split(state), sums

    def gradients_of_first(
        self, state: TrainState, batches: Batch, count: ArrayLike, constants: Arrays
    ) -> tuple[Arrays, Sums]:
        """Compute gradients and sums of a step without its update; compiled for each batch shape if they differ."""
        batch = jax.tree.map(lambda stacked: stacked[0], batches)
        rule = self.rule
        return gradients_and_sums(
            state, batch, constants, self._loss_function, rule.num_parts, rule.loss_terms
        )

    def update_once(self, state: TrainState, gradients_and_sums: tuple[Arrays, Sums]) -> AfterSteps:
        """Apply the update; compiled once for all batch shapes."""
        state, sums = update(state, *gradients_and_sums, self.rule)
        sums_of_steps = SumsOfSteps.zeros(1, sums).with_step(jnp.int32(0), sums)
        return self.devices.keep_split(state), sums_of_steps

    def stack(self, samples: Samples | LocalSamples) -> tuple[Batch, np.int32]:
        """Return consecutive rows as padded arrays `[K, B, ...]`, and the number of batches that are not padding.

        With several processes, the arrays are on the devices already.
        """
        if isinstance(samples, LocalSamples):
            batches, count = samples.stacked(self._max_steps)
            return self.devices.place_rows(batches, rows_axis=1), count
        return stack_batches(samples, self._padded_rows(samples), self._max_steps)

    def _padded_rows(self, samples: Samples) -> int:
        """Number of rows, with padding, of a batch of these shapes."""
        if self._token_batches is None:
            return self._config.batch_size
        num_parts = self._config.accumulate  # the devices share each part
        rows_of_part = -(-self._token_batches.rows_like(samples) // num_parts)
        return num_parts * self.devices.rows_that_divide(rows_of_part)
