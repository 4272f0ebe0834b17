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
ORIGINAL_LENGTH = "original_max_position_embeddings"


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
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = np.clip(kept, 0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


@dataclasses.dataclass(frozen=True)
class YarnScaling:
    """Low frequencies divided by a factor, high ones kept, others interpolated by index (Peng et al. 2023, *YaRN*)."""

    factor: Positive
    original_max_position_embeddings: Size  # length of the sequences before scaling
    beta_fast: Positive | None = None  # fewest turns of a high frequency; None: 32
    beta_slow: Positive | None = None  # most turns of a low frequency; None: 1
    truncate: bool = True  # whether the indices of these two frequencies are rounded outwards

    def __call__(self, frequencies: np.ndarray) -> np.ndarray:
        if len(frequencies) == 1:  # the highest frequency, which is kept
            return frequencies

        def index(turns: float) -> float:
            longest = self.original_max_position_embeddings / (2 * np.pi * turns)
            return float(np.log(longest) / -np.log(frequencies[1]))

        high, low = index(self.beta_fast or 32), index(self.beta_slow or 1)
        if self.truncate:
            high, low = math.floor(high), math.ceil(low)
        high, low = max(high, 0), min(low, 2 * len(frequencies) - 1)
        width = 0.001 if low == high else low - high
        kept = 1 - np.clip((np.arange(len(frequencies)) - high) / width, 0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


@dataclasses.dataclass(frozen=True)
class DynamicPositions(RotaryPositions):
    """Rotary positions whose base grows with the sequence once it is longer than in training (dynamic NTK scaling).

    In cached decoding, a pass uses the base for the positions up to its last one, and the keys of earlier positions
    keep theirs, as in `transformers`.
    """

    factor: Positive = 1.0
    trained_len: Size = 2048  # length up to which the base is kept

    def turns(self, width: int, first: First, num: int, length: int) -> Float[Array, "*B num w"]:
        first = jnp.asarray(first)
        position = jnp.maximum(first[..., None] + jnp.arange(num), 0)
        excess = jnp.maximum((first + num) / self.trained_len - 1, 0)
        growth = (1 + self.factor * excess)[..., None, None]
        index = np.arange(width // 2)
        of_base = self.base ** (-index / (width // 2))
        frequency = of_base * growth ** (-index / max(width // 2 - 1, 1))
        angle = position[..., None] * frequency
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
        layer_type: key under which `rope_parameters` has the entries of layers of this type; None if it has one kind
            for all layers.

    Raises:
        InputError: the config has a kind of positions or an entry that is not supported, or that its family ignores.
    """
    older = keys.take("rope_scaling", Mapping | None, None) or {}
    newer = keys.take("rope_parameters", Mapping | None, None) or {}
    source = f"rope_parameters in {keys.source}"
    if layer_type is None:
        entries = dict(older or newer)  # the older one wins in `transformers` too
    else:
        of_types = ConfigKeys(newer, source)
        by_type = {
            name: of_types.take(name, Mapping | None, None) or {} for name in (FULL, SLIDING)
        }
        _check_all_taken(of_types)
        by_type[FULL] = {**by_type[FULL], **older}
        entries = dict(by_type[layer_type])
    if "type" in entries:
        entries.setdefault("rope_type", entries.pop("type"))
    rope = ConfigKeys(entries, source)
    positions = _positions(rope, base, fraction, keys.take("max_position_embeddings", Size))
    _check_all_taken(rope)
    return positions


def _positions(
    rope: ConfigKeys, base: int | float, fraction: float | None, max_len: int
) -> RotaryPositions:
    kind = rope.one_of("rope_type", "default", *SCALINGS, "dynamic")
    base = float(rope.take("rope_theta", int | float, base))
    if fraction is None:
        rotated = rope.one_of("partial_rotary_factor", 1.0)
    else:
        rotated = rope.take("partial_rotary_factor", int | float, fraction)
    if kind == "default":
        return RotaryPositions(base, rotated, in_halves=True)
    if kind == "dynamic":
        factor = rope.take("factor", Positive)
        return DynamicPositions(base, rotated, in_halves=True, factor=factor, trained_len=max_len)
    values = {}
    for field in dataclasses.fields(SCALINGS[kind]):
        default: Any = ... if field.default is dataclasses.MISSING else field.default
        if field.name == ORIGINAL_LENGTH:
            default = max_len
        values[field.name] = rope.take(field.name, field.type, default)
    amplitude = _amplitude(rope, values["factor"]) if kind == "yarn" else 1.0
    scaling = SCALINGS[kind](**values)
    return RotaryPositions(base, rotated, in_halves=True, scaling=scaling, amplitude=amplitude)


def _amplitude(rope: ConfigKeys, factor: float) -> float:
    """Factor of rotated queries and keys, which YaRN raises with the length."""
    given = rope.take("attention_factor", Positive | None, None)
    scales = [rope.take(name, int | float | None, None) for name in ("mscale", "mscale_all_dim")]
    if given is not None:
        return float(given)
    of_all, over = scales if all(scales) else (1, 0)
    growth = 0.1 * math.log(max(factor, 1))
    return (1 + of_all * growth) / (1 + over * growth)


def _check_all_taken(entries: ConfigKeys) -> None:
    for name in entries.others():
        raise InputError(f"{entries.source} has {name}, which is not supported")


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
        return entry | {"rope_type": "dynamic", "factor": positions.factor}
    if positions.scaling is not None:
        names = {kind: name for name, kind in SCALINGS.items()}
        entry |= {"rope_type": names[type(positions.scaling)], **vars(positions.scaling)}
    if isinstance(positions.scaling, YarnScaling):
        entry["attention_factor"] = positions.amplitude
    return entry
