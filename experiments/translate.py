"""Train a translator: `python experiments/translate.py --help` explains the settings.

Without `--data` it learns to translate dates, in about 3 minutes on two CPU cores. `--data pairs.tsv` takes any file of
sentence pairs. `--interactive` translates standard input line by line with the trained run; add `--pretrained dates` to
use the included model, or the directory of any run.
"""

if __name__ == "__main__":  # the imports below take seconds
    from transformer_jax.training.signals import end_at_signals

    end_at_signals()

import dataclasses

from transformer_jax.cli import answer_lines, parse, parse_known, run
from transformer_jax.errors import InputError
from transformer_jax.runs.directory import run_path
from transformer_jax.tasks.registry import load_run
from transformer_jax.tasks.translation.task import (
    TranslationConfig,
    TranslationTrainer,
    train_translation,
)
from transformer_jax.training.inspected_example import in_one_cell

# Settings that --interactive reads: which model to load, and how to search for a translation.
OF_MODEL, OF_SEARCH = ("pretrained", "checkpoint_dir", "name"), ("beam_width", "length_penalty")


@dataclasses.dataclass(frozen=True)
class Mode:
    """Whether to train, or to translate."""

    # translate standard input line by line, with the run of --checkpoint-dir and --name, or with --pretrained
    interactive: bool = False


@dataclasses.dataclass(frozen=True)
class Interactive:
    """Translate line by line with a trained model."""

    config: TranslationConfig  # made from the flags


def read_command(arguments: list[str]) -> TranslationConfig | Interactive:
    """Return the settings for training, or for interactive translation."""
    mode, others = parse_known(Mode(), arguments)
    config = parse(TranslationConfig, others, choices=Mode, task=TranslationTrainer.name)
    return Interactive(config) if mode.interactive else config


def trained_translator(config: TranslationConfig) -> TranslationTrainer:
    """Load the trained model that the settings name.

    Raises:
        InputError: a training setting is given, the model does not exist, or it is of another task.
    """
    given = {
        f.name: getattr(config, f.name)
        for f in dataclasses.fields(config)
        if getattr(config, f.name) != f.default
    }
    if idle := [name for name in given if name not in OF_MODEL + OF_SEARCH]:
        idle_flag, *flags = [
            f"--{name.replace('_', '-')}" for name in (idle[0], *OF_MODEL, *OF_SEARCH)
        ]
        raise InputError(
            f"{idle_flag} is {given[idle[0]]}, but --interactive does not train; it reads"
            f" {', '.join(flags)}"
        )
    if config.pretrained is not None:
        trainer = load_run(config.pretrained)
    elif (path := run_path(config, TranslationTrainer.name)).is_dir():
        trainer = load_run(path)
    else:
        raise InputError(
            f"{path} holds no run: train one first, or translate with --pretrained dates"
        )
    if not isinstance(trainer, TranslationTrainer):
        raise InputError(
            f"--pretrained is {config.pretrained}, a model of the task {trainer.name}, which does"
            " not translate"
        )
    chosen = {name: given[name] for name in OF_SEARCH if name in given}
    search = dataclasses.replace(trainer.config, **chosen)
    search.check_idle()
    translator = TranslationTrainer(search)
    translator.params = trainer.params
    return translator


def translate_lines(config: TranslationConfig) -> None:
    """Translate each line of standard input."""
    translator = trained_translator(config)
    answer_lines(lambda line: in_one_cell(translator.predict(line)))


def carry_out(command: TranslationConfig | Interactive) -> None:
    """Train, or translate interactively."""
    if isinstance(command, Interactive):
        translate_lines(command.config)
    else:
        train_translation(command)


if __name__ == "__main__":
    run(read_command, carry_out)
