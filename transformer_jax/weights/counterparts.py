"""Settings of models that PyTorch's modules, and the exported ones, have no counterpart of."""

from transformer_jax.errors import InputError
from transformer_jax.nn.attention import MultiheadAttention
from transformer_jax.nn.block_settings import BlockSettings
from transformer_jax.nn.layers import FeedForward, LayerNorm
from transformer_jax.nn.position_kinds import SinusoidalPositions


def check_attention(attention: MultiheadAttention) -> None:
    """Raise an `InputError` unless `torch.nn.MultiheadAttention` computes the same.

    Dropout of the weights may be any, since it changes no parameter and no prediction.
    """
    _check("num_kv_heads", attention.num_kv_heads, attention.num_kv_heads in (None, attention.num_heads), "None")
    _check("qk_norm", attention.qk_norm, attention.qk_norm is None, "None")
    _check("positions", attention.positions, not attention.positions.is_in_attention, "NoPositions()")


def check_blocks(settings: BlockSettings, num_heads: int) -> None:
    """Raise an `InputError` unless PyTorch's encoder and decoder layers compute the same with these settings."""
    attention = settings.attention
    groups, positions = attention.num_kv_heads, settings.positions
    _check("settings.norm", settings.norm, settings.norm is LayerNorm, "LayerNorm")
    _check("settings.feed_forward", settings.feed_forward, settings.feed_forward is FeedForward, "FeedForward")
    _check("settings.attention.num_kv_heads", groups, groups in (None, num_heads), "None")
    _check("settings.attention.qk_norm", attention.qk_norm, attention.qk_norm is None, "None")
    _check("settings.positions", positions, not positions.is_in_attention, "positions that are not inside attention")


def check_exported(settings: BlockSettings, num_heads: int) -> None:
    """Raise an `InputError` unless the modules of `export_torch` compute the same with these settings."""
    check_blocks(settings, num_heads)
    is_sinusoidal = type(settings.positions) is SinusoidalPositions
    _check("settings.positions", settings.positions, is_sinusoidal, "SinusoidalPositions()")


def _check(name: str, value: object, fits: bool, allowed: str) -> None:
    if not fits:
        shown = value.__name__ if isinstance(value, type) else repr(value)
        raise InputError(f"{name} is {shown}; it must be {allowed}, the only one with a counterpart in PyTorch")
