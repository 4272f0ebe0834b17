"""Train a classifier of texts: `python experiments/classify.py --help` explains the settings.

Without `--data` it learns which of 40 languages a phrase is in. `--data FILE` takes a CSV or TSV file with the columns
`text` and `label`, or JSON lines. `--init-from DIRECTORY` fine-tunes a published encoder, such as BERT.
"""

if __name__ == "__main__":  # the imports below take seconds
    from transformer_jax.fit.signals import end_at_signals

    end_at_signals()

from functools import partial

from transformer_jax.cli import parse, run
from transformer_jax.tasks.classification.task import (
    ClassificationConfig,
    ClassificationTrainer,
    train_classification,
)

if __name__ == "__main__":
    run(partial(parse, ClassificationConfig, task=ClassificationTrainer.name), train_classification)
