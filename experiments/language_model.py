"""Train a language model over bytes: `python experiments/language_model.py --help` explains the settings.

Without `--data` it learns the docstrings of Python's standard library, in about 6 minutes on two CPU cores, and then
needs fewer bits for each byte of other docstrings than gzip and xz. `--data FILE` takes any file.
"""

if __name__ == "__main__":  # the imports below take seconds
    from transformer_jax.training.signals import end_at_signals

    end_at_signals()

from functools import partial

from transformer_jax.cli import parse, run
from transformer_jax.tasks.language_model.task import LanguageModelConfig, LanguageModelTrainer, train_language_model

if __name__ == "__main__":
    run(partial(parse, LanguageModelConfig, task=LanguageModelTrainer.name), train_language_model)
