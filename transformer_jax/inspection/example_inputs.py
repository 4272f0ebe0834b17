"""Inputs made up for a model of this package, to list its activations without data."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.errors import InputError
from transformer_jax.nn.attention import MultiheadAttention
from transformer_jax.nn.decoder import DecoderBlock, TransformerDecoder
from transformer_jax.nn.encoder import EncoderBlock, TransformerEncoder
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.nn.predictor import TransformerPredictor

LENGTH = 1  # as short as a model's `max_len` may be


def example_inputs(model: nn.Module) -> tuple[Any, ...]:
    """Shapes and types of the inputs of a call of this model.

    Raises:
        InputError: the model's fields do not say what its inputs are.
    """
    match model:
        case TransformerPredictor():
            return (_features(1),)
        case Transformer():
            sizes = model.source_vocabulary_size, model.target_vocabulary_size
            return tuple(_features(model.model_dim) if size is None else _tokens() for size in sizes)
        case TransformerDecoder() | DecoderBlock():
            return _features(model.input_dim), _features(model.input_dim)
        case TransformerEncoder() | EncoderBlock():
            return (_features(model.input_dim),)
        case MultiheadAttention():
            return (_features(model.embed_dim),)
    if isinstance(getattr(model, "vocabulary_size", None), int):  # a language model
        return (_tokens(),)
    raise InputError(f"{type(model).__name__} needs inputs: activation_names(model, *inputs)")


def _features(width: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((1, LENGTH, width), jnp.float32)


def _tokens() -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((1, LENGTH), jnp.int32)
