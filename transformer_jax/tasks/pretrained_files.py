"""Load a text model of HuggingFace Transformers with its tokenizer."""

import os
from pathlib import Path
from typing import Any

from transformer_jax.argument_checks import check_arguments
from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError
from transformer_jax.inspection.inspected import Inspected
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.nn.masked_language_model import TransformerMLM
from transformer_jax.tasks.generation import read_generation
from transformer_jax.tasks.pretrained import PretrainedText
from transformer_jax.tasks.pretrained_classifier import PretrainedClassifier
from transformer_jax.tasks.sentencepiece_files import SOURCE, SentencePieces
from transformer_jax.tasks.tokenization import read_pieces
from transformer_jax.weights.huggingface.hub import local_directory
from transformer_jax.weights.huggingface.pretrained import TOKENIZER, from_transformers


@check_arguments
def load_transformers(directory: str | Path) -> PretrainedText:
    """Load a text model with its tokenizer, ready to `predict`: `load_transformers("gpt2").predict("Once upon")`.

    The result has the `model`, `variables` and `tokenizer` of the directory, and `inspected`, the model bound to its
    variables. For images, and for tokens without a tokenizer, use `from_transformers`.

    Args:
        directory: directory written by `save_pretrained`, or name of a model on HuggingFace's hub, to download.

    Raises:
        InputError: as `from_transformers`; the directory has neither a `tokenizer.json` nor the files of
            `SentencePieces`; or the model does not take texts.
    """
    directory = local_directory(directory)
    model, variables = from_transformers(directory)
    if not isinstance(model, TransformerLM | TransformerMLM | Transformer):
        raise InputError(
            f"{directory} has a {type(model).__name__}, which takes no texts; use from_transformers"
        )
    tokenizer: Any  # of the library `tokenizers`, or its like
    if os.path.lexists(directory / SOURCE) and not os.path.lexists(directory / TOKENIZER):
        tokenizer = SentencePieces(directory)
    else:
        tokenizer = read_pieces(directory / TOKENIZER)
    kind = PretrainedClassifier if getattr(model, "classifies", False) else PretrainedText
    run = kind(TrainingConfig(), model, tokenizer, directory, read_generation(directory))
    run.params = variables["params"]
    run.inspected = Inspected(model, variables)
    return run
