"""Train a task: set up the run in the order in which things happen, run its loop, take the best parameters."""

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import flax.linen as nn
from flax.traverse_util import flatten_dict

from transformer_jax.config import TrainingConfig
from transformer_jax.data.fingerprint import fingerprint
from transformer_jax.data.loader import Loader
from transformer_jax.devices.processes import check_same, quietly
from transformer_jax.fit.journal import Journal
from transformer_jax.fit.loop import TrainingLoop
from transformer_jax.fit.programs import (
    InitialParams,
    best_params,
    create_programs,
    newest,
    report_initial,
)
from transformer_jax.fit.progress import announce
from transformer_jax.fit.signals import StopRequest
from transformer_jax.fitted.fitted import CompiledTask, Fitted
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.settings import description
from transformer_jax.training.checks import check_num_steps, with_criterion
from transformer_jax.training.metrics import Means
from transformer_jax.training.task import Task
from transformer_jax.trees import Params


def fit(
    compiled: CompiledTask, training: AbstractContextManager[TrainingLoop], config: TrainingConfig
) -> Fitted:
    """Train until the end, and return the model with the best parameters; raises the errors of `TrainerModule.fit`.

    Args:
        compiled: the task, on its devices.
        training: from `training`.
        config: whether to be quiet.
    """
    with quietly(config), training as loop:
        loop.train()
        best = best_params(loop.run, loop.config, loop.state, compiled.devices)
    return Fitted.of_training(compiled, best, loop.step)


@contextlib.contextmanager
def training(
    compiled: CompiledTask,
    loaders: tuple[Loader, Loader],
    initial_params: Params | None,
    *,
    evaluate: Callable[[Loader, Params], Means],
    opened: Callable[[RunDirectory, TrainingConfig], None],
) -> Iterator[TrainingLoop]:
    """Begin or resume a training run, and yield its loop; an error closes the run's directory.

    From here on, the programs of the initial state, the evaluation and the step are compiled in the background.

    Args:
        compiled: the task, with its config resolved for these data, on its devices.
        loaders: of the training set and of the validation set.
        initial_params: begin with these parameters, or with a part of them if `config.init_only` is set.
        evaluate: computes the metrics of parameters on the validation set.
        opened: gets the run's directory and its settings, before the task's hooks for loggers and callbacks are called.
    """
    task = compiled.task
    train_loader, val_loader = loaders
    num_steps = check_num_steps(task.config, train_loader)
    programs = create_programs(compiled, train_loader, num_steps, initial_params)
    shapes = programs.shapes_of_model
    # The example is of the validation set, whose batches may hold arrays that only metrics need.
    example = compiled.example_batch(val_loader)
    names = compiled.metric_names(shapes, example)
    if task.config.scan_layers:
        compiled.stacked_shapes = shapes
    if not val_loader.has_groups:  # else the example has the shapes of only one group
        compiled.begin_to_compile(shapes, example)
    config = with_criterion(task.config, names)
    run = _open_run(task, config, programs.chosen_params, loaders)
    try:
        opened(run, config)
        for name, content in task.model_files().items():
            run.save_text(name, content)
        report_initial(config, programs.chosen_params, is_resumed=bool(run.checkpoints.steps))
        announce(compiled, programs.shapes.params, num_steps, run.path)
        with StopRequest() as request:
            is_trained = run.is_finished or max(run.checkpoints.steps, default=0) >= num_steps
            runner = programs.runner
            if not (is_trained or train_loader.has_groups):
                samples = compiled.local_samples(train_loader.example())
                runner.program.begin_to_compile(*runner.arguments(samples))
            start = newest(run, programs.initial_state(), compiled.devices)
            del programs, initial_params  # they hold the initial arrays
            steps_per_epoch = len(train_loader)
            with Journal(
                compiled, config, runner, steps_per_epoch, val_loader, run, start, request
            ) as journal:
                request.synchronize()
                request.raise_if_signalled(start.step)
                yield TrainingLoop(
                    config,
                    run,
                    compiled.local_loader(train_loader),
                    runner,
                    start,
                    partial(evaluate, val_loader),
                    journal,
                    compiled.stopwatch,
                )
            request.synchronize()
            request.raise_if_signalled(max(run.checkpoints.steps, default=0))  # after the last save
    except BaseException:
        run.close()
        raise


def _open_run(
    task: Task,
    config: TrainingConfig,
    chosen: InitialParams,
    loaders: tuple[Loader, Loader],
) -> RunDirectory:
    """Open the run's directory for these data."""
    files = task.model_files()
    data = fingerprint([loader.dataset for loader in loaders], task.constants, [*files.values()])
    check_same({"the data": data})
    model = flatten_dict({"model": description(_model_of_run(task))}, sep=".")
    return RunDirectory(config, task.name, data, chosen.digest, files, model, task.place())


def _model_of_run(task: Task) -> nn.Module:
    """Return the model without the settings that may differ when a run is resumed."""
    if task.given_model is not None:
        return task.given_model
    resumable = copy.copy(task)
    resumable.config = dataclasses.replace(
        task.config, attention="auto", remat="none", scan_layers=False
    )
    return resumable.create_model()
