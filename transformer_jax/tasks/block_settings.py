"""The settings of a model's blocks, made from those of a run."""

from collections.abc import Callable, Mapping

import flax.linen as nn

from transformer_jax.argument_checks import ModuleFactory, check_arguments
from transformer_jax.config import TrainingConfig
from transformer_jax.nn.attention import AttentionSettings
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.layer_kinds import GatedFeedForward, RMSNorm
from transformer_jax.nn.layers import ActivationFunction, FeedForward, LayerNorm
from transformer_jax.nn.position_kinds import (
    ALiBiPositions,
    LearnedPositions,
    RelativePositions,
    RotaryPositions,
    SinusoidalPositions,
)
from transformer_jax.nn.positions import NoPositions, Positions

# By value of the flag. These are called without arguments; `block_settings` creates learned positions itself.
POSITIONS: Mapping[str, Callable[[], Positions]] = {
    "sinusoidal": SinusoidalPositions,
    "learned": LearnedPositions,
    "rotary": RotaryPositions,
    "alibi": ALiBiPositions,
    "relative": RelativePositions,
    "none": NoPositions,
}
NORMS: Mapping[str, ModuleFactory] = {"layer": LayerNorm, "rms": RMSNorm}
FEED_FORWARDS: Mapping[str, tuple[ModuleFactory, ActivationFunction]] = {
    "relu": (FeedForward, nn.relu),
    "gelu": (FeedForward, nn.gelu),
    "swiglu": (GatedFeedForward, nn.silu),
    "geglu": (GatedFeedForward, nn.gelu),
}


@check_arguments
def block_settings(config: TrainingConfig, max_len: int | None = None) -> BlockSettings:
    """Create the settings of a model's blocks from a run's config, for `create_model`.

    Args:
        config: the run's settings.
        max_len: number of learned positions with `positions="learned"`: the length of the task's longest sequence.
            None for as many as the model accepts.
    """
    if config.positions == "learned":
        positions: Positions = LearnedPositions(max_len)
    else:
        positions = POSITIONS[config.positions]()
    feed_forward, activation = FEED_FORWARDS[config.feed_forward]
    attention = AttentionSettings(
        num_kv_heads=config.num_kv_heads,
        qk_norm=RMSNorm if config.qk_norm else None,
        dropout_prob=config.attention_dropout,
        implementation=config.attention,
    )
    return BlockSettings(
        dropout_prob=config.dropout_prob,
        norm_first=config.norm_first,
        activation=activation,
        remat=config.remat,
        scan_layers=config.scan_layers,
        share_layers=config.share_layers,
        positions=positions,
        norm=NORMS[config.norm],
        feed_forward=feed_forward,
        attention=attention,
    )
