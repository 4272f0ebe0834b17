"""Set up a training run, in the order in which things happen."""

import contextlib
import copy
import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import flax.linen as nn
from flax.traverse_util import flatten_dict

from transformer_jax.data.fingerprint import fingerprint
from transformer_jax.data.loader import Loader
from transformer_jax.devices.processes import check_same
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.settings import description
from transformer_jax.training.checks import check_num_steps, with_criterion
from transformer_jax.training.evaluator import Evaluator
from transformer_jax.training.journal import Journal
from transformer_jax.training.loop import TrainingLoop
from transformer_jax.training.programs import InitialParams, create_programs, newest, report_initial
from transformer_jax.training.progress import announce
from transformer_jax.training.signals import StopRequest
from transformer_jax.trees import Params

if TYPE_CHECKING:
    from transformer_jax.training.trainer import TrainerModule


@contextlib.contextmanager
def training(
    task: "TrainerModule",
    evaluator: Evaluator,
    loaders: tuple[Loader, Loader],
    initial_params: Params | None,
) -> Iterator[TrainingLoop]:
    """Begin or resume a training run, and yield its loop; an error closes the run's directory.

    Sets `task.run` and, in `task.config`, the criterion and the numbers that follow from the data. From here on, the
    programs of the initial state, the evaluation and the step are compiled in the background. Raises the errors of
    `TrainerModule.fit`.
    """
    train_loader, val_loader = loaders
    task.stopwatch.reset()
    task.config = task.config.resolved(len(train_loader))
    num_steps = check_num_steps(task.config, train_loader)
    programs = create_programs(task, train_loader, num_steps, initial_params)
    names = evaluator.begin_to_compile(programs.shapes.params, train_loader)
    task.config = with_criterion(task.config, names)
    task.run = run = _open_run(task, programs.chosen_params, loaders)
    try:
        for name, content in task.model_files().items():
            run.save_text(name, content)
        report_initial(task.config, programs.chosen_params, is_resumed=bool(run.checkpoints.steps))
        announce(task, programs.shapes.params, num_steps, run.path)
        with StopRequest() as request:
            is_trained = run.is_finished or max(run.checkpoints.steps, default=0) >= num_steps
            runner, example = programs.runner, evaluator.local_samples(train_loader.example())
            if not (is_trained or train_loader.has_groups):
                runner.program.begin_to_compile(*runner.arguments(example))
            start = newest(run, programs.initial_state(), task.devices)
            del programs, initial_params  # they hold the initial arrays
            with Journal(task, runner, loaders, run, start, request) as journal:
                request.synchronize()
                request.raise_if_signalled(start.step)
                loader, evaluate = (
                    evaluator.local_loader(train_loader),
                    partial(task.evaluate, val_loader),
                )
                yield TrainingLoop(
                    task.config, loader, runner, start, evaluate, journal, task.stopwatch
                )
            request.synchronize()
            request.raise_if_signalled(max(run.checkpoints.steps, default=0))  # after the last save
    except BaseException:
        run.close()
        raise


def _open_run(
    task: "TrainerModule", chosen: InitialParams | None, loaders: tuple[Loader, Loader]
) -> RunDirectory:
    """Open the run's directory for these data."""
    files = task.model_files()
    data = fingerprint([loader.dataset for loader in loaders], task.constants, [*files.values()])
    check_same({"the data": data})
    model = flatten_dict({"model": description(_model_of_run(task))}, sep=".")
    return RunDirectory(task.config, task.name, data, chosen and chosen.digest, files, model)


def _model_of_run(task: "TrainerModule") -> nn.Module:
    """Return the model without the settings that may differ when a run is resumed."""
    if task.given_model is not None:
        return task.given_model
    task = copy.copy(task)
    task.config = dataclasses.replace(
        task.config, attention="auto", remat="none", scan_layers=False
    )
    return task.create_model()
