"""Attention maps of one input, with what stands at each query's and each key's position."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.errors import InputError
from transformer_jax.plots import plot_attention_maps
from transformer_jax.training.inspected_example import InspectedExample, Label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIRST_WITHOUT_GLYPH = 0x530  # Latin, Greek and Cyrillic come before it


@dataclasses.dataclass(frozen=True, eq=False)
class LabelledMaps:
    """Attention weights of one input, by kind: `encoder`, and with a decoder also `decoder` and `cross`."""

    maps: Mapping[str, Sequence[Float[np.ndarray, "H _T _S"]]]  # [H T S] for each layer; T and S are those of the kind
    query_labels: Mapping[str, Sequence[Label]]  # T of them: what stands at each query's position
    key_labels: Mapping[str, Sequence[Label]]  # S of them

    @classmethod
    def of(
        cls, example: InspectedExample, maps: Mapping[str, Sequence[Float[ArrayLike, "1 H _T _S"]]]
    ) -> "LabelledMaps":
        """The maps of an example, of each kind those of its layers, without its padding."""
        cut, queries, keys = {}, {}, {}
        for kind, layers in maps.items():
            _, _, length, num_keys = np.shape(layers[0])
            queries[kind] = example.labels_of("decoder" if kind == "cross" else kind, length)
            keys[kind] = example.labels_of("encoder" if kind == "cross" else kind, num_keys)
            cut[kind] = [np.asarray(layer)[0, :, : len(queries[kind]), : len(keys[kind])] for layer in layers]
        return cls(cut, queries, keys)

    def plot(self, kind: str | None = None, layer: int | None = None) -> "Figure":
        """Draw the maps of one kind: rows are layers, columns are heads.

        Args:
            kind: one of those in `maps`; None for the last one, `cross` where there is a decoder.
            layer: number of the layer, from 0; None for all of them.

        Raises:
            InputError: there is no such kind or layer.
        """
        kinds = list(self.maps)
        kind = kinds[-1] if kind is None else kind
        if kind not in kinds:
            raise InputError(f"kind is {kind!r}; it must be one of {', '.join(kinds)}")
        layers = self.maps[kind]
        if layer is not None and layer not in range(len(layers)):
            raise InputError(f"layer is {layer!r}; it must be at least 0 and below {len(layers)}")
        chosen = layers if layer is None else [layers[layer]]
        keys, queries = (list(map(drawable, labels[kind])) for labels in (self.key_labels, self.query_labels))
        maps = [weights[None] for weights in chosen]
        return plot_attention_maps([keys], maps, query_data=[queries], first_layer=layer or 0)


def drawable(label: Label) -> str:
    """A label in matplotlib's font: code points for what has no glyph there, as control characters, and ␣ for a space.

    A label of several characters, a word, stays as it is.
    """
    text = str(label)
    if len(text) != 1:
        return text
    has_glyph = ord(text) < FIRST_WITHOUT_GLYPH and text.isprintable()
    return "␣" if text == " " else text if has_glyph else f"{ord(text):X}"
