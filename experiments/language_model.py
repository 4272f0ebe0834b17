"""Train a language model over bytes: `python experiments/language_model.py --help` explains the settings.

Without `--data` it learns the docstrings of Python's standard library, in about 5 minutes on two CPU cores, and then
needs fewer bits per byte of other docstrings than gzip and xz. `--data FILE` takes any file. `--pretrained RUN --prompt
TEXT` without `--data` only continues the text; nothing is trained or evaluated.
"""

if __name__ == "__main__":  # the imports below take seconds
    from transformer_jax.fit.signals import end_at_signals

    end_at_signals()

from functools import partial

from transformer_jax.cli import parse, run
from transformer_jax.errors import InputError
from transformer_jax.tasks.language_model.task import (
    LanguageModelConfig,
    LanguageModelTrainer,
    train_language_model,
)
from transformer_jax.tasks.registry import load_run


def carry_out(config: LanguageModelConfig) -> None:
    """Train, and continue the prompt; with `--pretrained` and without `--data`, only continue the prompt."""
    only_continues = (
        config.pretrained is not None and config.prompt is not None and config.data is None
    )
    trainer = load_run(config.pretrained) if only_continues else train_language_model(config)[0]
    if not isinstance(trainer, LanguageModelTrainer):
        raise InputError(
            f"--pretrained is {config.pretrained}, a model of the task {trainer.name}; it must be a"
            " language model"
        )
    is_shown = config.quiet and config.prompt is not None  # the report prints nothing
    if only_continues or is_shown:
        names = "max_new", "seed", "temperature", "top_k", "top_p"
        print(trainer.predict(config.prompt, **{name: getattr(config, name) for name in names}))


if __name__ == "__main__":
    run(partial(parse, LanguageModelConfig, task=LanguageModelTrainer.name), carry_out)
