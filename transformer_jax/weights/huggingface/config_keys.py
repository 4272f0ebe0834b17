"""The keys of a `config.json`, of which none is passed over: what is not honoured is an error that names it."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
from jax import Array

from transformer_jax.errors import InputError, check_value, shortened
from transformer_jax.outside_files import Json

# Keys without an effect on what a model computes without dropout: of training, of generation, of Python.
WITHOUT_EFFECT = frozenset({
    "_name_or_path", "activation_dropout", "architectures", "attention_dropout", "attention_probs_dropout_prob",
    "attn_pdrop", "bos_token_id", "classifier_dropout", "decoder_layerdrop", "decoder_start_token_id", "dropout",
    "dropout_rate", "dtype", "embd_pdrop", "encoder_layerdrop", "eos_token_id", "forced_eos_token_id",
    "gradient_checkpointing", "hidden_dropout", "hidden_dropout_prob", "id2label", "init_std", "initializer_factor",
    "initializer_range", "is_encoder_decoder", "label2id", "model_type", "pad_token_id", "problem_type",
    "resid_pdrop", "return_dict", "task_specific_params", "torch_dtype", "transformers_version", "use_cache",
})  # fmt: skip
ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "gelu": functools.partial(nn.gelu, approximate=False),
    "gelu_new": nn.gelu,
    "gelu_pytorch_tanh": nn.gelu,
    "gelu_fast": nn.gelu,
    "relu": nn.relu,
    "silu": nn.silu,
    "swish": nn.silu,
    "tanh": nn.tanh,
}


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

    def take(self, name: str, hint: Any, default: Any = ...) -> Any:  # Any: a type, and a value of it
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

    def sizes(self, names: Mapping[str, str]) -> dict[str, Any]:  # Any: whole numbers
        """Fields of a model by the names of their keys, which the config must have.

        Raises:
            InputError: a key is missing, or no whole number.
        """
        return {field: self.take(name, int) for field, name in names.items()}

    def one_of(self, name: str, *allowed: object) -> object:
        """The value of a key that may have few; the first of them is that of a file without the key.

        Raises:
            InputError: it has another one.
        """
        self._left.pop(name, None)
        value = self._all.get(name, allowed[0])
        if not any(value == other and type(value) is type(other) for other in allowed):
            shown = " or ".join(map(repr, allowed))
            raise InputError(f"{name} in {self.source} is {shortened(value)}; only {shown} is supported")
        return value

    def activation(self, name: str, default: str) -> Callable[[Array], Array]:
        """The activation that a key names."""
        word = self.take(name, str, default)
        if word not in ACTIVATIONS:
            raise InputError(f"{name} in {self.source} is {word!r}; it must be one of {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[word]

    def without_effect(self, *names: str) -> None:
        """Take keys that change nothing in this family."""
        for name in names:
            self._left.pop(name, None)

    def finish(self) -> None:
        """Raise an `InputError` if a key was not taken, unless it has no value."""
        left = [name for name, value in self._left.items() if value is not None]
        if left:
            raise InputError(
                f"{self.source} has {left[0]} = {shortened(self._left[left[0]])}, which is not supported: it could "
                "change what the model computes"
            )


def activation_name(activation: Callable[[Array], Array]) -> str:
    """The word for an activation in a `config.json`.

    Raises:
        InputError: there is none.
    """
    for word, known in ACTIVATIONS.items():
        if known is activation:
            return word
    raise InputError(f"activation is {activation}; a config.json has a word for {', '.join(ACTIVATIONS)} alone")
