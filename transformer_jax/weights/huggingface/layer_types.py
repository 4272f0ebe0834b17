"""Kinds of attention by layer in a `config.json`: `layer_types`, `sliding_window`, and the keys of older files.

A function for each scheme reads the kinds of all layers; `entries` writes them.
"""

from collections.abc import Callable, Collection
from typing import Literal

from transformer_jax.argument_checks import Count, Size
from transformer_jax.errors import InputError
from transformer_jax.nn.causal import AttentionKind
from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.nn.positions import NoPositions
from transformer_jax.outside_files import Json
from transformer_jax.weights.huggingface.config_keys import ConfigKeys
from transformer_jax.weights.huggingface.rotary import (
    FULL,
    SLIDING,
    rope_parameters,
    rotary_positions,
)

Windows = list[Size | None]  # of all layers
Kinds = list[AttentionKind]


def all_full(keys: ConfigKeys, num_layers: int) -> Kinds:
    """Full attention in all layers."""
    keys.take("layer_types", tuple[Literal[FULL], ...] | None, None)
    return [AttentionKind()] * num_layers


def all_sliding(keys: ConfigKeys, num_layers: int) -> Kinds:
    """Mistral: `sliding_window` in all layers, or in none."""
    window = keys.take("sliding_window", Size | None, 4096)
    only = FULL if window is None else SLIDING
    keys.take("layer_types", tuple[Literal[only], ...] | None, None)  # type: ignore[valid-type]
    return [AttentionKind(window)] * num_layers


def sliding_from_layer(keys: ConfigKeys, num_layers: int) -> Kinds:
    """Qwen: windows from layer `max_window_layers` on, if there are any."""
    is_used = keys.take("use_sliding_window", bool, False)
    window = keys.take("sliding_window", Size | None, 4096)
    first = keys.take("max_window_layers", Count, 28)
    sliding = range(first, num_layers) if window and is_used else ()
    return list(
        map(AttentionKind, _windows(keys, window if is_used else None, num_layers, sliding))
    )


def without_positions(keys: ConfigKeys, num_layers: int) -> Kinds:
    """SmolLM3: layers without positions, by default each fourth, in which there may be windows."""
    interval = keys.take("no_rope_layer_interval", Size, 4)
    default = tuple(int((number + 1) % interval != 0) for number in range(num_layers))
    given = keys.take("no_rope_layers", tuple[Literal[0, 1], ...] | None, None)
    rotated = default if given is None else given
    if len(rotated) < num_layers:
        raise InputError(
            f"no_rope_layers in {keys.source} has {len(rotated)} entries; it must have"
            f" {num_layers}, one for each layer"
        )
    is_used = keys.take("use_sliding_window", bool, False)
    window = keys.take("sliding_window", Size | None, None)
    unrotated = [number for number in range(num_layers) if not rotated[number]]
    windows = _windows(keys, window, num_layers, unrotated if window and is_used else ())
    return [
        AttentionKind(window, NoPositions() if number in unrotated else None)
        for number, window in enumerate(windows)
    ]


def alternating(keys: ConfigKeys, num_layers: int) -> Kinds:
    """Gemma 2: windows in every second layer by default, and soft caps."""
    window = keys.take("sliding_window", Size | None, 4096)
    cap = keys.take("attn_logit_softcapping", float | None, 50.0)
    windows = _windows(keys, window, num_layers, range(0, num_layers, 2))
    return [AttentionKind(window, soft_cap=cap) for window in windows]


def local_positions(keys: ConfigKeys, num_layers: int) -> Kinds:
    """Gemma 3: windows in all but each sixth layer by default, with rotary positions of another base."""
    keys.one_of("attn_logit_softcapping", None)  # which `transformers` ignores
    window = keys.take("sliding_window", Size | None, 4096)
    pattern = keys.take("sliding_window_pattern", Size, 6)
    base = keys.take("rope_local_base_freq", int | float, 10_000.0)
    local = rotary_positions(keys, base, layer_type=SLIDING)
    sliding = [number for number in range(num_layers) if (number + 1) % pattern]
    windows = _windows(keys, window, num_layers, sliding)
    return [AttentionKind(window, local if window else None) for window in windows]


def _windows(
    keys: ConfigKeys, window: int | None, num_layers: int, sliding: Collection[int]
) -> Windows:
    """The window of each layer: that of `layer_types`, or of the `sliding` layers if the file has no types."""
    types = keys.take("layer_types", tuple[Literal[FULL, SLIDING], ...] | None, None)
    if types is None:
        types = [SLIDING if number in sliding else FULL for number in range(num_layers)]
    if len(types) != num_layers:
        raise InputError(
            f"layer_types in {keys.source} has {len(types)} entries; it must have {num_layers},"
            " one for each layer"
        )
    if SLIDING in types and window is None:
        raise InputError(
            f"{keys.source} has layers of {SLIDING} and no sliding_window; it must be a whole"
            " number above 0, with use_sliding_window if the family has this key"
        )
    return [window if kind == SLIDING else None for kind in types]


def pattern_of(kinds: Kinds) -> tuple[AttentionKind, ...]:
    """Return the shortest sequence that gives these kinds if it is repeated."""
    for length in range(1, len(kinds)):
        if all(kind == kinds[number % length] for number, kind in enumerate(kinds)):
            return tuple(kinds[:length])
    return tuple(kinds)


def entries(scheme: Callable[[ConfigKeys, int], Kinds], model: TransformerLM) -> Json:
    """Config entries from which a scheme, one of the functions above, reads the model's kinds of attention."""
    pattern = model.attention_kinds
    kinds = [pattern[number % len(pattern)] for number in range(model.num_layers)]
    window = max((kind.window or 0 for kind in kinds), default=0)
    if scheme is all_full:
        return {}
    if scheme is all_sliding:
        return {"sliding_window": window or None}
    config: Json = {"layer_types": [SLIDING if kind.window else FULL for kind in kinds]}
    if window:
        config["sliding_window"] = window
    if scheme in (sliding_from_layer, without_positions):
        config["use_sliding_window"] = bool(window)
    if scheme is without_positions:
        config["no_rope_layers"] = [int(kind.positions is None) for kind in kinds]
    if scheme is alternating:
        config["attn_logit_softcapping"] = kinds[0].soft_cap
    if scheme is local_positions:
        config["rope_parameters"] = {FULL: rope_parameters(model.settings.positions)}
        for kind in kinds:
            if kind.positions is not None:
                config["rope_parameters"][SLIDING] = rope_parameters(kind.positions)
    return config
