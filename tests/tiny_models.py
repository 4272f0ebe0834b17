"""The tiny models of the tests: one table of settings, with parameters and inputs."""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from compiled_models import draw, drawn

from transformer_jax.attention.masks.arrays import padding_mask
from transformer_jax.nn.attention import AttentionSettings
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.nn.layer_kinds import GatedFeedForward, RMSNorm
from transformer_jax.nn.position_kinds import ALiBiPositions, LearnedPositions, RotaryPositions
from transformer_jax.nn.predictor import TransformerPredictor
from transformer_jax.trees import Variables

SETTINGS = {
    "post_norm": BlockSettings(),
    "pre_norm": BlockSettings(norm_first=True),
    "post_rms": BlockSettings(norm=RMSNorm, positions=LearnedPositions()),
    "pre_rms_grouped": BlockSettings(
        norm=RMSNorm,
        norm_first=True,
        feed_forward=GatedFeedForward,
        positions=RotaryPositions(),
        attention=AttentionSettings(num_kv_heads=1, qk_norm=RMSNorm),
    ),
    "scanned_alibi": BlockSettings(norm_first=True, scan_layers=True, positions=ALiBiPositions()),
}


class Case(NamedTuple):
    """A model with inputs and random parameters, including biases."""

    model: nn.Module
    variables: Variables
    inputs: tuple[Any, ...]


def case(model: nn.Module, *inputs: Any) -> Case:
    """Make a case with norm scales around 1, like those of a trained model."""
    variables = drawn(model, *inputs)
    moved = jax.tree_util.tree_map_with_path(lambda path, leaf: leaf + (path[-1].key == "scale"), variables)
    return Case(model, moved, inputs)


@functools.cache
def predictor(settings: BlockSettings = SETTINGS["post_norm"], seed: int = 0, **fields: Any) -> Case:
    """Predictor with 2 layers, 3 heads of width 4, 5 classes; inputs of 2 rows, 7 positions, 11 features."""
    sizes = {"model_dim": 12, "num_classes": 5, "num_heads": 3, "num_layers": 2} | fields
    model = TransformerPredictor(**sizes, settings=settings, max_len=7)
    x = draw(2, 7, 11, seed=seed)
    return case(model, x)


@functools.cache
def encoder_decoder(settings: BlockSettings = SETTINGS["post_norm"], *, tied: bool = True, num_layers: int = 2) -> Case:
    """Model with 2 + 2 layers, 3 heads of width 4, 13 tokens; sources of 7 (one with 2 of padding), targets of 5."""
    sizes = 13, 13, 12, 3, num_layers, num_layers, 23
    model = Transformer(*sizes, settings=settings, max_len=7, tie_embeddings=tied)
    rng = np.random.default_rng(1)
    source, target = rng.integers(13, size=(2, 7)), rng.integers(13, size=(2, 5))
    inputs = source, target, padding_mask(np.arange(7) < np.array([[7], [5]]))
    return case(model, *inputs)


@functools.cache
def language_model(settings: BlockSettings = SETTINGS["post_norm"], *, tied: bool = True) -> Case:
    """Language model with 2 layers, 3 heads of width 4, 13 tokens; inputs of 2 rows, 7 positions."""
    model = TransformerLM(13, 12, 3, 2, 23, settings=settings, max_len=7, tie_embeddings=tied)
    tokens = np.random.default_rng(1).integers(13, size=(2, 7))
    return case(model, tokens)


def clean_and_corrupted(settings: BlockSettings = SETTINGS["post_norm"], **fields: Any) -> tuple[Case, tuple[Any, ...]]:
    """A predictor with clean and corrupted inputs; call it inside `jax.enable_x64`."""
    return in_float64(predictor(settings, **fields)), in_float64(predictor(seed=5)).inputs


def logit_difference(logits: jax.Array) -> jax.Array:
    """Metric of a predictor, for each of two rows, from the logits at position 3."""
    return logits[:, 3, 1] - logits[:, 3, 4]


def in_float64(case: Case) -> Case:
    """Convert to float64; call it inside `jax.enable_x64`."""

    def wide(leaf: Any) -> Any:
        return jnp.asarray(leaf, jnp.float64) if jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating) else leaf

    return Case(case.model, jax.tree.map(wide, case.variables), tuple(jax.tree.map(wide, x) for x in case.inputs))
