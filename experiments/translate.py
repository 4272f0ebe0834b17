"""Train a translator: `python experiments/translate.py --help` explains the settings.

Without `--data` it learns to translate dates, in about 3 minutes on two CPU cores. `--data pairs.tsv` takes any file of
sentence pairs. `--interactive` translates standard input line by line with the trained run; add `--pretrained dates` to
use the included model, or the directory of any run.
"""

if __name__ == "__main__":  # the imports below take seconds
    from transformer_jax.fit.signals import end_at_signals

    end_at_signals()

import dataclasses

from transformer_jax.cli import answer_lines, parse, parse_known, run
from transformer_jax.errors import InputError
from transformer_jax.flags import naming_flags
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
    changed = config.changed()
    for name, value in changed.items():
        if name not in OF_MODEL + OF_SEARCH:
            flags = ", ".join(map(_flag, OF_MODEL + OF_SEARCH))
            raise InputError(
                f"{_flag(name)} is {value}, but --interactive does not train; it reads {flags}"
            )
    path = run_path(config, TranslationTrainer.name)
    if config.pretrained is None and not path.is_dir():
        raise InputError(
            f"{path} holds no run: train one first, or translate with --pretrained dates"
        )
    trainer = load_run(path if config.pretrained is None else config.pretrained)
    if not isinstance(trainer, TranslationTrainer):
        raise InputError(
            f"--pretrained is {config.pretrained}, a model of the task {trainer.name}, which does"
            " not translate"
        )
    chosen = {name: changed[name] for name in OF_SEARCH if name in changed}
    search = dataclasses.replace(trainer.config, **chosen)
    with naming_flags(TranslationConfig):
        search.check_idle()
    translator = TranslationTrainer(search)
    translator.params = trainer.params
    return translator


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


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
