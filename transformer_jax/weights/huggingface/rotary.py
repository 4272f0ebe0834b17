"""Rotary positions in a `config.json`: `rope_parameters`, or `rope_theta` and `rope_scaling` in older files."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import numpy as np

from transformer_jax.argument_checks import Positive, Size, check_fields
from transformer_jax.errors import InputError, check_value, shortened
from transformer_jax.nn.position_kinds import RotaryPositions
from transformer_jax.nn.positions import Positions
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
KINDS = ("default", *SCALINGS)


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
    older, newer = (
        keys.take(name, Mapping | None, None) for name in ("rope_scaling", "rope_parameters")
    )
    rope: Json = dict(older or newer or {})  # the older one wins in `transformers` too
    kind = rope.pop("rope_type", rope.pop("type", "default"))
    check_value(f"rope_type in {keys.source}", kind, Literal[KINDS])
    base = float(
        check_value(f"rope_theta in {keys.source}", rope.pop("rope_theta", base), int | float)
    )
    rotated = rope.pop("partial_rotary_factor", 1.0 if fraction is None else fraction)
    if fraction is None and rotated != 1:
        shown = f"partial_rotary_factor in {keys.source} is {shortened(rotated)}"
        raise InputError(f"{shown}; it must be 1, since models of this family rotate whole heads")
    scaling = None
    if kind != "default":
        names = [field.name for field in dataclasses.fields(SCALINGS[kind])]
        if missing := [name for name in names if name not in rope]:
            raise InputError(f"rope_parameters in {keys.source} lacks {missing[0]}")
        scaling = SCALINGS[kind](*(rope.pop(name) for name in names))
        check_fields(scaling)
    if rope:
        raise InputError(
            f"rope_parameters in {keys.source} has {next(iter(rope))}, which is not supported"
        )
    return RotaryPositions(base, rotated, in_halves=True, scaling=scaling)


def rope_parameters(positions: Positions) -> Json:
    """The entry of a config for these positions.

    Raises:
        InputError: they are not rotary.
        KeyError: their scaling is not in `SCALINGS`.
    """
    if not isinstance(positions, RotaryPositions):
        raise InputError(
            f"settings.positions is {positions}; it must be RotaryPositions(in_halves=True)"
        )
    entry: Json = {
        "rope_type": "default",
        "rope_theta": positions.base,
        "partial_rotary_factor": positions.fraction,
    }
    if positions.scaling is not None:
        names = {kind: name for name, kind in SCALINGS.items()}
        entry |= {"rope_type": names[type(positions.scaling)], **vars(positions.scaling)}
    return entry
