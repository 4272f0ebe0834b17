"""The keys of a `config.json`: one that would change what the model computes is honoured, or an error that names it."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import flax.linen as nn
from jax import Array

from transformer_jax.argument_checks import Size
from transformer_jax.errors import InputError, check_value, shortened
from transformer_jax.outside_files import Json

# Keys that could change what a model computes, with the values that do not; a family takes those that it honours.
# Every other key has no effect without dropout: `transformers` does not read it for the family, or only for training,
# generation and Python, as tests/weights/test_config_keys.py finds.
UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "attention_chunk_size": (),
    "auto_map": (),  # code of the directory, which is never run
    "decoder": (),  # this and the next two: the config of a part
    "fusion_config": (),
    "generator": (),
    "is_causal": (True,),
    "kv_sharing_modes": (),
    "layer_types": (),
    "original_max_position_embeddings": (),
    "partial_rotary_factor": (1,),
    "per_layer_config": ({},),
    "pruned_heads": ({},),
    "quantization_config": (),
    "sliding_window": (),
    "text_config": (),
    "text_encoder": (),
    "transformers_weights": (),
}
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
        self._all = config
        self._taken: set[str] = set()
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
        self._taken.add(name)
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

    def same(self, name: str, other: str) -> None:
        """Check that a key has the value of another one, whose name it is too in `transformers`, if it is there.

        Raises:
            InputError: it has another one.
        """
        self.one_of(name, self._all.get(other), None)

    def others(self) -> Json:
        """The entries that were not taken, which change nothing in what the model computes."""
        return {name: value for name, value in self._all.items() if name not in self._taken}

    def finish(self) -> None:
        """Raise an `InputError` if a key could change what the model computes and was not taken."""
        for name, value in self.others().items():
            if name in UNSUPPORTED and value not in (None, *UNSUPPORTED[name]):
                shown = f"{self.source} has {name} = {shortened(value)}"
                raise InputError(f"{shown}, which is not supported: it could change what the model computes")
