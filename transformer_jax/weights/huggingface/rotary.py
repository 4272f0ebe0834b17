"""Rotary positions in a `config.json`: `rope_parameters`, or `rope_theta` and `rope_scaling` in older files."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from transformer_jax.argument_checks import Positive, Size
from transformer_jax.errors import InputError
from transformer_jax.nn.position_kinds import RotaryPositions
from transformer_jax.nn.positions import First
from transformer_jax.outside_files import Json
from transformer_jax.weights.huggingface.config_keys import ConfigKeys

FULL, SLIDING = "full_attention", "sliding_attention"  # types of layers
# Entries that change the positions: an error if nothing took them. `transformers` ignores all others too.
UNSUPPORTED = {"factor", "mscale", "mscale_all_dim", FULL, SLIDING}


@dataclasses.dataclass(frozen=True)
class LinearScaling:
    """All frequencies divided by a factor (Chen et al. 2023, *Extending Context Window*)."""

    factor: Positive

    def __call__(self, frequencies: np.ndarray) -> np.ndarray:
        return frequencies / self.factor


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
    """Low frequencies divided by a factor, high ones kept, others interpolated (Llama 3.1, Dubey et al. 2024)."""

    factor: Positive
    low_freq_factor: Positive  # most turns of a low frequency within the original length
    high_freq_factor: Positive  # fewest turns of a high frequency within the original length
    original_max_position_embeddings: Size  # length of the sequences before scaling

    def __call__(self, frequencies: np.ndarray) -> np.ndarray:
        turns = self.original_max_position_embeddings * frequencies / (2 * np.pi)
        place = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept_share = np.clip(place, 0, 1)  # 0 for low frequencies, 1 for high ones
        return frequencies * (kept_share + (1 - kept_share) / self.factor)


@dataclasses.dataclass(frozen=True)
class YarnScaling:
    """Low frequencies divided by a factor, high ones kept, others interpolated by index (Peng et al. 2023, *YaRN*)."""

    factor: Positive
    original_max_position_embeddings: Size  # length of the sequences before scaling
    attention_factor: Positive | None = None  # the amplitude; None: 1 + 0.1 ln(factor)
    beta_fast: Positive = 32.0  # fewest turns of a high frequency within the original length
    beta_slow: Positive = 1.0  # most turns of a low frequency within the original length
    truncate: bool = True  # whether the range of interpolated indices is extended to whole numbers

    @property
    def amplitude(self) -> float:
        """Factor of rotated queries and keys."""
        return self.attention_factor or 1 + 0.1 * math.log(max(self.factor, 1))

    def __call__(self, frequencies: np.ndarray) -> np.ndarray:
        if len(frequencies) == 1:  # the highest one
            return frequencies
        # Frequency i is `frequencies[1]` to the power i. At `first` it makes `beta_fast` turns, at `last` `beta_slow`.
        turns = np.array([self.beta_fast, self.beta_slow])
        wavelengths = self.original_max_position_embeddings / turns
        first, last = -np.log(wavelengths / (2 * np.pi)) / np.log(frequencies[1])
        if self.truncate:
            first = np.floor(first)
            last = np.ceil(last)
        first = max(first, 0)
        last = min(last, 2 * len(frequencies) - 1)
        width = last - first or 0.001  # not 0
        place = (np.arange(len(frequencies)) - first) / width
        kept_share = 1 - np.clip(place, 0, 1)  # 1 for high frequencies, which come first
        return frequencies * (kept_share + (1 - kept_share) / self.factor)


@dataclasses.dataclass(frozen=True)
class DynamicPositions(RotaryPositions):
    """Rotary positions whose base grows with the sequence once it is longer than in training (dynamic NTK scaling).

    In cached decoding, each pass has the base for its last position, and cached keys keep theirs, as in `transformers`.
    """

    factor: Positive = 1.0
    trained_len: Size = 2048  # length up to which the base is kept

    def turns(self, width: int, first: First, num: int, length: int) -> Float[Array, "*B num w"]:
        """Cosines and sines of the angles at `num` positions from `first` on, for heads of this width."""
        first = jnp.asarray(first)
        position = first if first.ndim == 2 else first + np.arange(num)  # [*B num]
        end = position[..., -1:] + 1  # [*B 1]
        growth = 1 + self.factor * jnp.maximum(end / self.trained_len - 1, 0)
        index = np.arange(0, width, 2)
        # [*B w/2]
        frequency = self.base ** (-index / width) * growth ** (-index / max(width - 2, 1))
        angle = jnp.maximum(position, 0)[..., None] * frequency[..., None, :]  # [*B num w/2]
        return jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=-1)


SCALINGS = {"linear": LinearScaling, "llama3": Llama3Scaling, "yarn": YarnScaling}


def rotary_positions(
    keys: ConfigKeys,
    base: int | float,
    fraction: float | None = None,
    layer_type: str | None = None,
) -> RotaryPositions:
    """The rotary positions that a config describes.

    Args:
        keys: keys of the config.
        base: the default of `rope_theta` in `rope_parameters`.
        fraction: the default of `partial_rotary_factor`; None for a family that ignores it and rotates whole heads.
        layer_type: the type of layers whose entries to read, in a family with `rope_parameters` by type.

    Raises:
        InputError: the config has a kind of positions or an entry that is not supported, or that its family ignores.
    """
    rope = _rope_keys(keys, layer_type)
    kind = rope.one_of("rope_type", "default", "dynamic", *SCALINGS)
    base = float(rope.take("rope_theta", int | float, base))
    if fraction is None:
        rotated_fraction = rope.one_of("partial_rotary_factor", 1.0)
    else:
        rotated_fraction = rope.take("partial_rotary_factor", int | float, fraction)
    positions = RotaryPositions(base, rotated_fraction, in_halves=True)
    if kind == "dynamic":
        factor = rope.take("factor", Positive)
        max_len = keys.take("max_position_embeddings", Size)
        positions = DynamicPositions(**vars(positions), factor=factor, trained_len=max_len)
    elif kind != "default":
        values = {}
        for field in dataclasses.fields(SCALINGS[kind]):
            default: Any = ... if field.default is dataclasses.MISSING else field.default
            if field.name == "original_max_position_embeddings":
                default = keys.take("max_position_embeddings", Size)
            values[field.name] = rope.take(field.name, field.type, default)
        positions = dataclasses.replace(positions, scaling=SCALINGS[kind](**values))
    for name in sorted(UNSUPPORTED & rope.others().keys()):
        raise InputError(f"{rope.source} has {name}, which is not supported")
    return positions


def _rope_keys(keys: ConfigKeys, layer_type: str | None) -> ConfigKeys:
    """The entries of `rope_parameters`, for one type of layers if it is given, or of the older `rope_scaling`."""
    older = keys.take("rope_scaling", Mapping | None, None) or {}
    newer = keys.take("rope_parameters", Mapping | None, None) or {}
    source = f"rope_parameters in {keys.source}"
    if layer_type is not None:
        newer = ConfigKeys(newer, source).take(layer_type, Mapping | None, None)
        newer = newer or {"rope_type": "default"}
        older = {**newer, **older} if layer_type == FULL else {}
    entries = dict(older or newer)  # the older one wins in `transformers` too
    if "type" in entries:
        entries.setdefault("rope_type", entries.pop("type"))
    return ConfigKeys(entries, source)


def rope_parameters(positions: Any) -> Json:
    """The entry of a config for these positions.

    Raises:
        AttributeError: they are not rotary.
        KeyError: their scaling is not in `SCALINGS`.
    """
    entry: Json = {
        "rope_type": "default",
        "rope_theta": positions.base,
        "partial_rotary_factor": positions.fraction,
    }
    if isinstance(positions, DynamicPositions):
        entry |= {"rope_type": "dynamic", "factor": positions.factor}
    elif positions.scaling is not None:
        names = {kind: name for name, kind in SCALINGS.items()}
        entry |= {"rope_type": names[type(positions.scaling)], **vars(positions.scaling)}
    return entry
