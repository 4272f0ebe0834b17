"""Rotary positions in a `config.json`: `rope_parameters`, or `rope_theta` and `rope_scaling` in older files."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from transformer_jax.argument_checks import Positive, Size
from transformer_jax.errors import InputError
from transformer_jax.nn.position_kinds import RotaryPositions
from transformer_jax.outside_files import Json
from transformer_jax.weights.huggingface.config_keys import ConfigKeys


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


SCALINGS = {"linear": LinearScaling, "llama3": Llama3Scaling}


def rotary_positions(
    keys: ConfigKeys, base: int | float, fraction: float | None = None
) -> RotaryPositions:
    """The rotary positions that a config describes.

    Args:
        keys: keys of the config.
        base: the default of `rope_theta` in `rope_parameters`.
        fraction: the default of `partial_rotary_factor`; None for a family that ignores it and rotates whole heads.

    Raises:
        InputError: the config has a kind of positions or an entry that is not supported, or that its family ignores.
    """
    older = keys.take("rope_scaling", Mapping | None, None)
    newer = keys.take("rope_parameters", Mapping | None, None)
    entries = dict(older or newer or {})  # the older one wins in `transformers` too
    if "type" in entries:
        entries.setdefault("rope_type", entries.pop("type"))
    rope = ConfigKeys(entries, f"rope_parameters in {keys.source}")
    kind = rope.one_of("rope_type", "default", *SCALINGS)
    base = float(rope.take("rope_theta", int | float, base))
    if fraction is None:
        rotated = rope.one_of("partial_rotary_factor", 1.0)
    else:
        rotated = rope.take("partial_rotary_factor", int | float, fraction)
    scaling = None
    if kind != "default":
        fields = dataclasses.fields(SCALINGS[kind])
        scaling = SCALINGS[kind](*(rope.take(field.name, field.type) for field in fields))
    for name in rope.others():
        raise InputError(f"{rope.source} has {name}, which is not supported")
    return RotaryPositions(base, rotated, in_halves=True, scaling=scaling)


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
    if positions.scaling is not None:
        names = {kind: name for name, kind in SCALINGS.items()}
        entry |= {"rope_type": names[type(positions.scaling)], **vars(positions.scaling)}
    return entry
