"""The keys of a `config.json`: a key that affects what the model computes is either honoured or raises an error."""

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.argument_checks import Size
from transformer_jax.errors import InputError, check_value, check_whole, shortened
from transformer_jax.outside_files import Json, read_json
from transformer_jax.setting_groups import MAX_LAYERS

# Keys that could change what a model computes, with the values that do not; a family takes the keys that it honours.
# No other key has an effect without dropout: `transformers` does not read it for the family, or reads it only for
# training, generation or its Python interface (checked by tests/weights/test_config_keys.py).
UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "attention_chunk_size": (),
    "auto_map": (),  # code in the directory, which is never run
    "decoder": (),  # configs of submodels, like the next two
    "fusion_config": (),
    "generator": (),
    "is_causal": (True,),
    "kv_sharing_modes": (),
    "layer_types": (),
    "original_max_position_embeddings": (),
    "partial_rotary_factor": (1,),
    "per_layer_config": ({},),
    "pruned_heads": ({},),
    "quantization": (),  # of MLX
    "quantization_config": (),
    "sliding_window": (),
    "text_config": (),
    "text_encoder": (),
    "transformers_weights": (),
}
Activation = Callable[[Array], Array]
ACTIVATIONS: dict[str, Activation] = {
    "gelu": functools.partial(nn.gelu, approximate=False),
    "gelu_new": nn.gelu,
    "gelu_pytorch_tanh": nn.gelu,
    "gelu_fast": nn.gelu,
    "relu": nn.relu,
    "silu": nn.silu,
    "swish": nn.silu,
    "tanh": nn.tanh,
}
# The word to write for an activation: the first one above. Any other activation is a `KeyError`.
WORDS = {activation: word for word, activation in reversed(ACTIVATIONS.items())}
IDENTITY = "torch.nn.modules.linear.Identity"
# Activations by the names of their classes in PyTorch, as `sentence-transformers` writes them.
TORCH_ACTIVATIONS: dict[str, Activation] = {
    "torch.nn.modules.activation.Tanh": nn.tanh,
    "torch.nn.modules.activation.Sigmoid": nn.sigmoid,
    "torch.nn.modules.activation.ReLU": nn.relu,
    "torch.nn.modules.activation.GELU": ACTIVATIONS["gelu"],
    IDENTITY: jnp.asarray,
}


def check_layers(name: str, number: int) -> None:
    """Raise an `InputError` for a number of layers that is not a whole number from 1 to `MAX_LAYERS`."""
    check_whole(name, number, 1)
    if number > MAX_LAYERS:  # tracing so many would seem to hang
        raise InputError(f"{name} is {number}; it may be at most {MAX_LAYERS}")


Layers = Annotated[int, check_layers]


class ConfigKeys:
    """A `config.json` whose keys are taken one by one.

    Args:
        config: content of the file.
        source: name of the file, for error messages.
    """

    def __init__(self, config: Json, source: str) -> None:
        self._all = config
        self._taken: set[str] = set()
        self.source = source

    @classmethod
    def of_file(cls, file: Path) -> "ConfigKeys":
        """The keys of a file, or no keys if it is missing."""
        return cls(read_json(file) if os.path.lexists(file) else {}, str(file))

    def take(self, name: str, hint: Any, default: Any = ...) -> Any:  # a type, and a value of it
        """Take the value of a key.

        Args:
            name: name of the key.
            hint: type of the value.
            default: value if the file lacks the key, as in `transformers`; without a default the key is required.

        Raises:
            InputError: the key is missing, or its value has another type.
        """
        self._taken.add(name)
        value = self._all.get(name, default)
        if value is ...:
            raise InputError(f"{self.source} lacks {name}")
        return value if value is default else check_value(f"{name} in {self.source}", value, hint)

    @property
    def architecture(self) -> str:
        """The model's class in `transformers`, which is the first of `architectures`; empty if there is none."""
        names = self.take("architectures", tuple[str, ...] | None, None)
        return names[0] if names else ""

    def sizes(
        self, names: Mapping[str, str], defaults: Mapping[str, object] = {}
    ) -> dict[str, Any]:
        """Take the fields of a model, which are whole numbers.

        Args:
            names: keys of the fields.
            defaults: values of keys that the file may lack.

        Raises:
            InputError: a key is missing, or is not a whole number above 0, or is a number of layers above `MAX_LAYERS`.
        """
        sizes = {}
        for field, name in names.items():
            hint = Layers if field.endswith("layers") else Size
            sizes[field] = self.take(name, hint, defaults.get(name, ...))
        return sizes

    def one_of(self, name: str, *allowed: Any) -> Any:  # a number, a text or None
        """Take the value of a key that must be one of `allowed`; the first of these is the default.

        Raises:
            InputError: the key has another value.
        """
        return self.take(name, Literal[allowed], allowed[0])

    def activation(self, name: str, default: str) -> Activation:
        """The activation that a key names."""
        return ACTIVATIONS[self.one_of(name, default, *ACTIVATIONS)]

    def same(self, name: str, other: str) -> None:
        """Check that a key, if present, has the value of another key, of which it is an alias in `transformers`.

        Raises:
            InputError: the values differ.
        """
        self.one_of(name, self._all.get(other), None)

    def others(self) -> Json:
        """The entries that were not taken; if `finish` accepts them, they do not affect what the model computes."""
        return {name: value for name, value in self._all.items() if name not in self._taken}

    def finish(self) -> None:
        """Raise an `InputError` if a key could change what the model computes and was not taken."""
        for name, value in self.others().items():
            if name in UNSUPPORTED and value not in (None, *UNSUPPORTED[name]):
                raise InputError(
                    f"{self.source} has {name} = {shortened(value)}, which is not supported: it could"
                    " change what the model computes"
                )
