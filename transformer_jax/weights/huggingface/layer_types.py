"""Kinds of attention by layer in a `config.json`: `layer_types`, `sliding_window`, and their older forms."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal

from transformer_jax.argument_checks import Count, Positive, Size
from transformer_jax.errors import InputError
from transformer_jax.nn.causal import AttentionKind, kinds_of
from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.nn.positions import NoPositions
from transformer_jax.outside_files import Json
from transformer_jax.weights.huggingface.config_keys import ConfigKeys
from transformer_jax.weights.huggingface.decoder_keys import take
from transformer_jax.weights.huggingface.rotary import (
    FULL,
    SLIDING,
    rope_parameters,
    rotary_positions,
)

Numbers = Sequence[int]  # of layers


def attention_kinds(kind: str, keys: ConfigKeys, num_layers: int) -> tuple[AttentionKind, ...]:
    """The kinds of attention of the layers, as the shortest sequence that gives them if it is repeated."""
    key = functools.partial(take, kind, keys)  # the value of a key
    numbers = range(num_layers)

    def layers_with(
        name: str, allowed: tuple[object, ...], value: object, default: Numbers
    ) -> Numbers:
        """Numbers of the layers with this value in a list by layer; the default if there is no list."""
        entry: Any = Literal[allowed]
        entries = key(name, tuple[entry, ...] | None)
        if entries is None:
            return default
        if len(entries) != num_layers:
            raise InputError(
                f"{name} in {keys.source} has {len(entries)} entries; it must have {num_layers},"
                " one for each layer"
            )
        return [number for number in numbers if entries[number] == value]

    # Layers without rotary positions: every n-th one.
    interval = key("no_rope_layer_interval", Size) or num_layers + 1
    unrotated = layers_with("no_rope_layers", (0, 1), 0, numbers[interval - 1 :: interval])

    # Layers with a window: from one on, or all but every n-th one.
    sliding: Numbers = numbers[key("max_window_layers", Count) or 0 :]
    pattern = 2 if kind == "gemma2" else key("sliding_window_pattern", Size)
    if kind == "smollm3":
        sliding = unrotated
    elif pattern is not None:
        sliding = [number for number in numbers if (number + 1) % pattern]
    window = key("sliding_window", Size | None)
    if key("use_sliding_window", bool) is False:
        window = None
    allowed = (FULL, SLIDING) if window else (FULL,)
    sliding = layers_with("layer_types", allowed, SLIDING, sliding)

    local_base = key("rope_local_base_freq", int | float)
    local_positions = None
    if local_base is not None:
        local_positions = rotary_positions(keys, local_base, layer_type=SLIDING)
    soft_cap = key("attn_logit_softcapping", Positive | None)
    kinds = [AttentionKind(soft_cap=soft_cap)] * num_layers
    for number in sliding:
        kinds[number] = AttentionKind(window, local_positions, soft_cap)
    for number in unrotated:
        kinds[number] = dataclasses.replace(kinds[number], positions=NoPositions())
    return shortest_pattern(kinds)


def shortest_pattern(kinds: list[AttentionKind]) -> tuple[AttentionKind, ...]:
    """Return the shortest sequence that gives these kinds if it is repeated."""
    length = 1
    while any(kind != kinds[number % length] for number, kind in enumerate(kinds)):
        length += 1
    return tuple(kinds[:length])


def entries_of(kind: str, model: TransformerLM) -> Json:
    """Config entries for the positions and kinds of attention of a model, under the keys of all decoders."""
    kinds = kinds_of(model)
    windows = [layer.window for layer in kinds if layer.window is not None]
    rope = rope_parameters(model.settings.positions)
    if kind == "gemma3_text":
        rope = {FULL: rope}
        for layer in kinds:
            if layer.positions is not None:
                rope[SLIDING] = rope_parameters(layer.positions)
    entries = {
        "attn_logit_softcapping": kinds[0].soft_cap,
        "layer_types": [FULL if layer.window is None else SLIDING for layer in kinds],
        "no_rope_layers": [int(layer.positions is None) for layer in kinds],
        "rope_parameters": rope,
        "use_sliding_window": bool(windows),
    }
    if windows or kind == "mistral":  # Gemma in `transformers` fails without a window
        entries["sliding_window"] = max(windows, default=None)
    return entries
