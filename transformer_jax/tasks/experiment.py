"""The protocol of every experiment: load the data, train or take a trained model, report, test."""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax

from transformer_jax.argument_checks import check_arguments
from transformer_jax.config import TrainingConfig
from transformer_jax.devices.compilation import prepare_jax
from transformer_jax.devices.processes import quietly, say
from transformer_jax.errors import InputError, check_value, in_one_line, visible
from transformer_jax.fit.trainer import TrainerModule
from transformer_jax.outside_files import Json
from transformer_jax.runs.directory import run_path
from transformer_jax.runs.settings import settings_of
from transformer_jax.runs.tensorboard import tensorboard_command
from transformer_jax.tasks.sweep import SUMMARY, lines, members, write_summary
from transformer_jax.tasks.task_data import TaskData
from transformer_jax.trained.named import (
    check_fits,
    find_initial,
    find_trained,
    settings_of_initial,
)
from transformer_jax.training.inspected_example import Answer, InspectedExample, prediction_table

Config = TypeVar("Config", bound=TrainingConfig)
Trainer = TypeVar("Trainer", bound=TrainerModule)
Data = TypeVar("Data", bound=TaskData)

Results = Json  # what `results.json` holds
# answers to the first examples of the test set, in a run's directory
PREDICTIONS = "predictions.tsv"
MAX_PREDICTIONS = 1_000
MAX_MISTAKES = 10  # that are printed


def chosen_config(
    config: Config | None, default: Config, settings: Mapping[str, Any], task: str
) -> Config:
    """Replace settings in a config. The default config also takes the settings of the model that `init_from` names.

    Args:
        config: the config; None for the default config.
        default: the default config.
        settings: fields to replace, with values of the fields' types.
        task: name of the task.
    """
    if config is not None:
        return dataclasses.replace(config, **settings)
    initial = settings_of_initial(type(default), task, settings)
    return dataclasses.replace(default, **(initial | dict(settings)))


@check_arguments
def train_and_test(
    trainer_class: type[Trainer],
    config: Config,
    load_data: Callable[[Config], Data],
    report: Callable[[Trainer, Data], Results] | None = None,
) -> tuple[Trainer, Results]:
    """Train a task and test it; leave a run directory with checkpoints and results.

    With `config.init_from`, training starts from the parameters of that model. With `config.pretrained`, that model is
    tested without training, and the results go to a separate directory.

    With `config.seeds` or `config.sweep`, many runs are trained and tested one after another, each in a directory
    below `<checkpoint_dir>/<name>/`, which also gets `summary.json` (`transformer_jax.tasks.sweep.write_summary`).
    Finished runs are only tested, interrupted runs are resumed, and a run that diverges does not stop the others.

    Args:
        trainer_class: trainer of the task.
        config: settings of the task.
        load_data: loads the data sets for these settings.
        report: examines the trained model, saves pictures in the run's directory, and returns further results.

    Returns:
        The trainer, with the best parameters in `trainer.params`, and the content of `results.json`. For many runs,
        the trainer of the last one and the content of `summary.json`.

    Raises:
        FloatingPointError: as `TrainerModule.fit`; for many runs, after the last one, when `summary.json` is written.
        InputError: the model that `pretrained` or `init_from` names does not fit the task; or as `TrainerModule.fit`.
            After an error in the report or the test, repeat the command without `--no-resume` to score the model.
    """
    config.check_idle()
    prepare_jax(config)
    train_one = functools.partial(_train_one, trainer_class, load_data, report)
    if config.seeds is not None or config.sweep:
        return _train_all(run_path(config, trainer_class(config).name), config, train_one)
    trainer, results = train_one(config)
    with quietly(config):
        say(f"Written to {trainer.run.path}")
        say(f"Next: {tensorboard_command(config.checkpoint_dir)}")
    return trainer, results


def _train_one(
    trainer_class: type[Trainer],
    load_data: Callable[[Config], Data],
    report: Callable[[Trainer, Data], Results] | None,
    config: Config,
) -> tuple[Trainer, Results]:
    """Train and test one run."""
    config, trained = find_trained(trainer_class, config)
    data = check_value("the result of load_data", load_data(config), TaskData)
    if trained is not None:
        config = config.resolved(len(data.train_loader))  # as `fit` does
    trainer = trainer_class(config, data.constants)
    with quietly(config), trainer:  # the run's directory is held until the end
        example = data.train_loader.example()
        if trained is None:
            # The parameters are not bound to a name here, so that `fit` can free them.
            trainer.fit(
                data.train_loader,
                data.val_loader,
                initial_params=find_initial(trainer, example),
            )
        else:
            origin = settings_of(trained.task.name, trained.task.config)
            check_fits("pretrained", trained.params, origin, trainer, example)
            trainer.adopt(trained.params)
            trainer.trained_length = trained.task.trained_length
            say(f"No training: evaluating {config.pretrained}, results in {trainer.run.path}")
        trainer.test_data = data
        more = {} if report is None else report(trainer, data)
        _save_answers(trainer)
        return trainer, trainer.test(data.val_loader, data.test_loader, **more)


def _save_answers(trainer: TrainerModule) -> None:
    """Write the answers to the first examples of the test set, and a picture of the attention of the first one.

    The mistakes among the answers are printed.

    If one of them fails, e.g. because an own `predict` gives something other than answers, a message is printed.
    """
    examples: list[InspectedExample] = []
    with _saying("answers to the test set"):
        count = MAX_PREDICTIONS if trainer.writes_predictions else 1
        examples = trainer.test_examples(range(min(count, len(trainer.test_set))))
        if trainer.writes_predictions:
            answered = list(zip(examples, trainer.answers(examples), strict=True))
            trainer.run.save_text(PREDICTIONS, prediction_table(answered))
            _print_mistakes(answered)
    if examples and trainer.has_attention and trainer.attention_picture is not None:
        with _saying("picture of attention"):
            trainer.run.save_figure(trainer.attention_picture, trainer.maps_of(examples[0]).plot())


@contextlib.contextmanager
def _saying(what: str) -> Iterator[None]:
    """Print a message that there is none of this if the block fails."""
    try:
        yield
    except Exception as error:  # of any class: the model's output may be anything
        reason = in_one_line(error, with_class=not isinstance(error, InputError))
        say(f"No {what}: {reason}")


def _print_mistakes(answered: Sequence[tuple[InspectedExample, Answer]]) -> None:
    """Print the number of wrong answers and the most probable of them; nothing if no right answer is known."""
    wrong = []
    num_known = 0
    for example, answer in answered:
        is_right = example.is_right(answer)
        if is_right is not None:
            num_known += 1
        if is_right is False:
            wrong.append((example, answer))
    if num_known == 0:
        return
    wrong.sort(key=lambda pair: -(pair[1].probability or 0))
    say(f"Mistakes: {len(wrong)} of the first {num_known} examples of the test set")
    for example, answer in wrong[:MAX_MISTAKES]:
        chance = "" if answer.probability is None else f" ({answer.probability:.3g})"
        told = f"predicted {answer.text}{chance}, expected {example.expected}"
        say(visible(f"  {example.title}: {told}"))


def _train_all(
    directory: Path, config: Config, train_one: Callable[..., tuple[Trainer, Results]]
) -> tuple[Trainer, Results]:
    """Train and test the runs of a sweep, one after another in this process, and write their summary."""
    runs = members(config, directory)
    # runs that differ in the seed have the same programs
    if not jax.config.values["jax_compilation_cache_dir"]:
        prepare_jax(dataclasses.replace(config, compilation_cache=directory / "compiled"))
    outcomes: list[Results | FloatingPointError] = []
    trainer: Trainer | None = None
    for number, run in enumerate(runs, 1):
        with quietly(config):
            say(f"Run {number} of {len(runs)}: {run.config.name}")
        try:
            trainer, results = train_one(run.config)
            outcomes.append(results)
        except FloatingPointError as error:
            print(f"Run {run.config.name} diverged: {error}", file=sys.stderr)
            outcomes.append(error)
    summary = write_summary(directory, runs, outcomes)
    with quietly(config):
        say(*lines(summary, config.criterion.metric))
        say(f"Summary: {directory / SUMMARY}")
        say(f"Next: {tensorboard_command(directory)}")
    diverged = [run["name"] for run in summary["runs"] if run["results"] is None]
    if diverged or trainer is None:
        raise FloatingPointError(
            f"{len(diverged)} of {len(runs)} runs diverged: {', '.join(diverged)}"
        )
    return trainer, summary
