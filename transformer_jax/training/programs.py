"""Compiled programs of a training."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import optax
from jax.typing import ArrayLike

from transformer_jax.data.batch import Samples
from transformer_jax.data.loader import Loader
from transformer_jax.devices.compilation import RUN_ONCE_OPTIONS, CompiledStep
from transformer_jax.devices.divided import with_gathered_params
from transformer_jax.training.evaluator import Evaluator
from transformer_jax.training.hooks import Task
from transformer_jax.training.initial_params import InitialParams
from transformer_jax.training.runner import Pace, StepRunner
from transformer_jax.training.step import TrainState, UpdateRule, initial_state, train_step
from transformer_jax.trees import Arrays, Inputs


class Programs(NamedTuple):
    """Compiled programs of a training."""

    rule: UpdateRule
    shapes: TrainState  # and types
    fresh_state: Callable[[], TrainState]
    runner: StepRunner

    def initial_state(self, given: InitialParams | None) -> TrainState:
        """The state before the first step, with given parameters in the place of fresh ones."""
        state = self.fresh_state()
        return state if given is None else given.state_like(state, self.rule.optimizer)


def create_programs(task: Evaluator, train_loader: Loader, num_steps: int) -> Programs:
    """The programs of a training of `num_steps` steps; the first state's is compiled in the background from now on."""
    config, example, steps_per_epoch = task.config, train_loader.example(), len(train_loader)
    rule = task.update_rule(num_steps)
    shapes, finish_state = begin_initial_state(task, example, rule.optimizer)
    runner = StepRunner(
        train_step if type(task).train_step is Task.train_step else task.train_step,
        with_gathered_params(task.batch_loss, task.devices, config.remat),
        rule,
        task.devices,
        task.shared_constants,
        shapes,
        batch_size=config.batch_size,
        pace=Pace.choose(example, config.batch_size, steps_per_epoch, config.steps_per_call, train_loader.has_groups),
        stopwatch=task.stopwatch,
    )
    return Programs(rule, shapes, finish_state, runner)


def begin_initial_state(
    task: Evaluator, example: Samples, optimizer: optax.GradientTransformation
) -> tuple[TrainState, Callable[[], TrainState]]:
    """The state before the first step, compiled in the background: its shapes, and a function that waits for it."""

    @jax.jit  # traced once, for the shapes and for the program
    def init(seed: ArrayLike, inputs: Inputs, constants: Arrays) -> TrainState:
        params_key, step_key = jax.random.split(jax.random.key(seed))
        return initial_state(task.initial_params(params_key, inputs, constants), optimizer, step_key)

    arguments = np.uint32(task.config.seed), example[0], task.constants
    shapes = init.eval_shape(*arguments)
    # Made in its place where it is split, so that no device ever holds it whole.
    shardings = task.devices.shardings(shapes) if task.devices.is_divided else None
    compiled = CompiledStep(init, options=RUN_ONCE_OPTIONS, shardings=shardings, stopwatch=task.stopwatch)
    compiled.begin_to_compile(*arguments)
    return shapes, lambda: compiled(*arguments)
