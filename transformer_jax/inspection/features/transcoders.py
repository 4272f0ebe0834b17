"""Transcoders of several layers, per layer or across layers, and the pass in which they replace the feed-forwards."""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jax import Array
from jax.typing import ArrayLike

from transformer_jax.errors import InputError
from transformer_jax.inspection.features.dictionary import Features, SparseDictionary
from transformer_jax.inspection.features.folded import FoldedDictionary, folded
from transformer_jax.inspection.patches import Change
from transformer_jax.trees import pytree_class, static_field


@pytree_class
class Transcoders:
    """Transcoders of a model's feed-forwards, the first layer first: `Transcoders.of` and `load_transcoders` make them.

    Each reads one activation. Per-layer transcoders write one; a cross-layer transcoder (Ameisen et al. 2025) writes
    those of its own layer and of all after it, side by side in its output.
    """

    layers: tuple[FoldedDictionary, ...]
    reads: tuple[str, ...] = static_field()  # names of the activations that they read
    writes: tuple[str, ...] = static_field()  # names of the activations that they replace

    @classmethod
    def of(
        cls,
        dictionaries: Sequence[SparseDictionary | FoldedDictionary],
        reads: Sequence[str],
        writes: Sequence[str],
    ) -> "Transcoders":
        """Collect transcoders, in the order of the layers, with the activations that each reads and replaces.

        Raises:
            InputError: the numbers differ or are 0, or a dictionary is an autoencoder or not bound.
        """
        layers = tuple(map(folded, dictionaries))
        if not 0 < len(layers) == len(reads) == len(writes):
            raise InputError(
                f"dictionaries, reads and writes have {len(layers)}, {len(reads)} and {len(writes)}"
                " entries; they must have the same number, at least one"
            )
        if not all(layer.is_transcoder for layer in layers):
            raise InputError("dictionaries has an autoencoder; all must be transcoders")
        return cls(layers, tuple(reads), tuple(writes))

    def encode(self, activations: Mapping[str, Array]) -> list[Features]:
        """Encode the activations that are read, given by name."""
        return [
            layer.encode(activations[name])
            for layer, name in zip(self.layers, self.reads, strict=True)
        ]

    def decode(
        self, features: Sequence[ArrayLike], activations: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        """Decode features of all layers to the activations that are replaced, by name.

        Args:
            features: as from `encode`, possibly changed.
            activations: those that were encoded.
        """
        written: defaultdict[str, Any] = defaultdict(float)
        for layer, name in enumerate(self.reads):
            output = self.layers[layer].decode(features[layer], activations[name])
            for target, part in self.parts(layer, output):
                written[target] += part
        return written

    def patches(self, outputs: Callable[[int, Array], Array] | None = None) -> dict[str, Change]:
        """Return patches with which a pass continues with the transcoders' outputs: the replacement model.

        Each transcoder reads what the pass has computed with the replaced layers before it.

        Args:
            outputs: function from a transcoder's number and what it reads to its output; None for its own output.
        """
        # filled and emptied in the order of the pass
        written: defaultdict[str, Any] = defaultdict(float)

        def read(layer: int, x: Array) -> Array:
            output = self.layers[layer](x).output if outputs is None else outputs(layer, x)
            for target, part in self.parts(layer, output):
                written[target] += part
            return x

        def write(name: str, x: Array) -> Array:
            if name not in written:
                raise InputError(
                    f"nothing was read for {name}; reads are {', '.join(self.reads)}, which must be"
                    " activations before it; activation_names(model) lists all"
                )
            return written.pop(name)

        patches: defaultdict[str, Any] = defaultdict(list)
        for layer, name in enumerate(self.reads):
            patches[name].append(functools.partial(read, layer))
        for name in self.writes:
            patches[name].append(functools.partial(write, name))
        return patches

    def parts(self, layer: int, output: Array) -> Iterator[tuple[str, Array]]:
        """Split the output of one transcoder by the activations that it replaces, with their names."""
        width = len(self.layers[-1].decoder_bias)
        for number in range(output.shape[-1] // width):
            yield self.writes[layer + number], output[..., number * width : (number + 1) * width]
