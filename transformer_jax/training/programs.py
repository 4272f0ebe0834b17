"""Compiled programs of a training, which another one uses again where only the seed differs."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import optax
from jax.typing import ArrayLike

from transformer_jax.config import TrainingConfig
from transformer_jax.data.batch import Samples
from transformer_jax.data.loader import Loader
from transformer_jax.devices.compilation import begin_to_run_once
from transformer_jax.devices.divided import with_gathered_params
from transformer_jax.training.evaluator import Evaluator
from transformer_jax.training.hooks import Task
from transformer_jax.training.runner import Pace, StepRunner
from transformer_jax.training.step import TrainState, UpdateRule, initial_state, train_step
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
) -> tuple[TrainState, Callable[..., TrainState]]:
    """The state before the first step, compiled in the background.

    Returns:
        Its shapes, and a function of seed, inputs and constants, which without them takes the task's and the example's.
    """

    def init(seed: ArrayLike, inputs: Inputs, constants: Arrays) -> TrainState:
        params_key, step_key = jax.random.split(jax.random.key(seed))
        return initial_state(task.initial_params(params_key, inputs, constants), optimizer, step_key)

    arguments = np.uint32(task.config.seed), example[0], task.constants
    # Made in its place where it is split, so that no device ever holds it whole.
    shardings = task.devices.shardings(jax.eval_shape(init, *arguments)) if task.devices.is_divided else None
    return begin_to_run_once(init, *arguments, shardings=shardings)


def without_seed(config: TrainingConfig) -> TrainingConfig:
    """The settings without those by which runs of the same programs may differ: seed, directory, criterion."""
    return dataclasses.replace(config, seed=0, name=None, checkpoint_dir=Path(), best_by=None)
