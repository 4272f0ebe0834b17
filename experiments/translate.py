"""Train a translator: `python experiments/translate.py --help` explains the settings.

Without `--data` it learns dates, in about 3 minutes on two CPU cores. `--data pairs.tsv` takes any file of sentence
pairs. `--interactive` translates what is typed, or stands on standard input, with the run that was trained.
"""

if __name__ == "__main__":  # the imports below take seconds
    from transformer_jax.training.signals import end_at_signals

    end_at_signals()

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from transformer_jax.cli import parse, run
from transformer_jax.errors import InputError
from transformer_jax.tasks.translation.task import TranslationConfig, train_translation
from transformer_jax.trained.load import load_run


@dataclass(frozen=True)
class Interactive:
    """Translate line by line with a trained run."""

    checkpoint_dir: Path = Path("checkpoints")  # parent of the run's directory


def translate_lines(config: Interactive) -> None:
    """Translate each line of standard input."""
    trainer = load_run(config.checkpoint_dir / "TranslationTask")
    if sys.stdin.isatty():
        print("Type a text and Enter; Ctrl-D ends.", file=sys.stderr)
    for line in sys.stdin:
        try:
            print(trainer.predict([line.rstrip("\n")])[0], flush=True)
        except InputError as error:
            print(error, file=sys.stderr)


if __name__ == "__main__":
    if "--interactive" in sys.argv:
        sys.argv.remove("--interactive")
        run(partial(parse, Interactive), translate_lines)
    else:
        run(partial(parse, TranslationConfig), train_translation)
