"""Compiled programs of a training, which another one uses again where only the seed differs."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import PRNGKeyArray

from transformer_jax.config import TrainingConfig
from transformer_jax.data.batch import Samples
from transformer_jax.data.loader import Loader
from transformer_jax.devices.compilation import begin_to_run_once
from transformer_jax.nn.layer_scan import recording_scanned_stacks
from transformer_jax.training.alike_results import in_loops
from transformer_jax.training.evaluator import Evaluator
from transformer_jax.training.layer_stacks import LayerStacks, StackedStates
from transformer_jax.training.runner import Pace, StepRunner
from transformer_jax.training.step import TrainState, UpdateRule, initial_state
from transformer_jax.trees import Arrays, Inputs


class Programs(NamedTuple):
    """Compiled programs of a training; they depend on neither the seed nor the run's directory."""

    rule: UpdateRule
    shapes: TrainState  # and types
    initial_state: Callable[..., TrainState]  # of seed, inputs and constants
    runner: StepRunner


def create_programs(task: Evaluator, train_loader: Loader, num_steps: int) -> Programs:
    """The programs of a training of `num_steps` steps; the first state's is compiled in the background from now on."""
    config, example, steps_per_epoch = task.config, train_loader.example(), len(train_loader)
    rule = task.update_rule(num_steps)
    shapes, finish_state, stacked = begin_initial_state(task, example, rule.optimizer)
    runner = StepRunner(
        task.train_step,
        task.batch_loss,
        rule,
        task.strategy,
        task.shared_constants,
        shapes,
        batch_size=config.batch_size,
        pace=Pace.choose(example, config.batch_size, steps_per_epoch, config.steps_per_call, train_loader.has_groups),
        stopwatch=task.stopwatch,
        stacked=stacked,
    )
    return Programs(rule, shapes, finish_state, runner)


def begin_initial_state(
    task: Evaluator, example: Samples, optimizer: optax.GradientTransformation
) -> tuple[TrainState, Callable[..., TrainState], StackedStates | None]:
    """The state before the first step, compiled in the background.

    Returns:
        Its shapes; a function of seed, inputs and constants, which without them takes the task's and the example's; and
        the form that the state has inside the steps, where the model loops over its layers.
    """

    def keys(seed: ArrayLike) -> tuple[PRNGKeyArray, PRNGKeyArray]:
        params_key, step_key = jax.random.split(jax.random.key(seed))
        return params_key, step_key

    def init(seed: ArrayLike, inputs: Inputs, constants: Arrays) -> TrainState:
        params_key, step_key = keys(seed)
        return initial_state(task.initial_params(params_key, inputs, constants), optimizer, step_key)

    arguments = np.uint32(task.config.seed), example[0], task.constants
    with recording_scanned_stacks() as scanned:
        shapes = jax.eval_shape(init, *arguments)
    stacks = LayerStacks(shapes.params, scanned)
    if not stacks:
        shardings = task.strategy.shardings(shapes) if task.strategy.splits_state else None
        return *begin_to_run_once(init, *arguments, shardings=shardings), None
    stacked = StackedStates(stacks, shapes.params, optimizer)

    def init_stacked(seed: ArrayLike, inputs: Inputs, constants: Arrays) -> TrainState:
        params_key, step_key = keys(seed)
        params = in_loops(task.initial_params, stacks.stack, params_key, inputs, constants)
        return initial_state(params, stacked.optimizer, step_key)

    like = jax.eval_shape(stacked.stack, shapes)
    shardings = task.strategy.shardings(like) if task.strategy.splits_state else None
    _, finish = begin_to_run_once(init_stacked, *arguments, shardings=shardings)
    return shapes, lambda *others: stacked.unstack(finish(*others)), stacked


def without_seed(config: TrainingConfig) -> TrainingConfig:
    """The settings without those by which runs of the same programs may differ: seed, directory, criterion."""
    return dataclasses.replace(config, seed=0, name=None, checkpoint_dir=Path(), best_by=None)
