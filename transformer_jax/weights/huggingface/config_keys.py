"""The keys of a `config.json`, of which none is passed over: what is not honoured is an error that names it."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import flax.linen as nn
from jax import Array

from transformer_jax.argument_checks import Size
from transformer_jax.errors import InputError, check_value, shortened
from transformer_jax.outside_files import Json

# Keys without an effect on what a model computes without dropout: of training, of generation, of Python.
WITHOUT_EFFECT = frozenset({
    "_name_or_path", "activation_dropout", "architectures", "attention_dropout", "attention_probs_dropout_prob",
    "attn_pdrop", "bos_token_id", "classifier_dropout", "decoder_layerdrop", "decoder_start_token_id", "dropout",
    "dropout_rate", "dtype", "embd_pdrop", "encoder_layerdrop", "eos_token_id", "forced_eos_token_id",
    "gradient_checkpointing", "hidden_dropout", "hidden_dropout_prob", "id2label", "init_std", "initializer_factor",
    "initializer_range", "is_decoder", "is_encoder_decoder", "label2id", "model_type", "pad_token_id", "problem_type",
    "resid_pdrop", "return_dict", "task_specific_params", "torch_dtype", "transformers_version", "use_cache",
    # Of single families; of Qwen's windows `use_sliding_window` tells whether there are any.
    "_num_labels", "bad_words_ids", "classif_dropout", "encoder_stride", "extra_pos_embeddings", "max_length",
    "max_window_layers", "n_ctx", "n_positions", "num_beams", "output_past", "pooler_output_size",
    "pretraining_tp", "sliding_window", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
    "summary_type", "summary_use_proj",
})  # fmt: skip
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": functools.partial(nn.gelu, approximate=False),
    "gelu_new": nn.gelu,
    "gelu_pytorch_tanh": nn.gelu,
    "gelu_fast": nn.gelu,
    "relu": nn.relu,
    "silu": nn.silu,
    "swish": nn.silu,
    "tanh": nn.tanh,
}
# The word that is written, the first one; of another activation there is none, a `KeyError`.
WORDS = {activation: word for word, activation in reversed(ACTIVATIONS.items())}


class ConfigKeys:
    """A `config.json` whose keys are taken one by one.

    Args:
        config: its content.
        source: its name, for error messages.
    """

    def __init__(self, config: Json, source: str) -> None:
        self._left = {name: value for name, value in config.items() if name not in WITHOUT_EFFECT}
        self._all = config
        self.source = source

    def take(self, name: str, hint: Any, default: Any = ...) -> Any:  # a type, and a value of it
        """The value of a key.

        Args:
            name: of the key.
            hint: its type.
            default: where the file lacks it, as in `transformers`; without a default it must be there.

        Raises:
            InputError: it is missing, or of another type.
        """
        self._left.pop(name, None)
        value = self._all.get(name, default)
        if value is ...:
            raise InputError(f"{self.source} lacks {name}")
        return value if value is default else check_value(f"{name} in {self.source}", value, hint)

    def sizes(self, names: Mapping[str, str]) -> dict[str, Any]:  # whole numbers
        """Fields of a model by the names of their keys, which the config must have.

        Raises:
            InputError: a key is missing, or no whole number above 0.
        """
        return {field: self.take(name, Size) for field, name in names.items()}

    def one_of(self, name: str, *allowed: Any) -> Any:  # a number, a text or None
        """The value of a key that may have few; the first of them is that of a file without the key.

        Raises:
            InputError: it has another one.
        """
        return self.take(name, Literal[allowed], allowed[0])

    def activation(self, name: str, default: str) -> Callable[[Array], Array]:
        """The activation that a key names."""
        return ACTIVATIONS[self.one_of(name, default, *ACTIVATIONS)]

    def finish(self) -> None:
        """Raise an `InputError` if a key was not taken, unless it has no value."""
        for name, value in self._left.items():
            if value is not None:
                shown = f"{self.source} has {name} = {shortened(value)}"
                raise InputError(f"{shown}, which is not supported: it could change what the model computes")
