"""Good calls of models, of decoding and of `predict`, and values that must be refused."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import transformer_jax as tj
from transformer_jax.trained.shipped import SHIPPED

NAN = float("nan")
SHAPES = (
    np.float32(1),
    np.ones(3, np.float32),
    np.ones((0, 3, 4), np.float32),
    np.ones((2, 3, 0), np.float32),
    np.ones((2, 5, 7, 9)),
)
ODD = ("text", None, [[1, 2], [3]])
FEATURES = np.ones((2, 3, 5), np.float32)
SOURCE = np.ones((2, 4), np.int32)

Row = tuple[
    str, Callable[..., Any], Callable[[], dict[str, Any]], Mapping[str, tuple[Any, ...]], Mapping[str, tuple[str, ...]]
]


@functools.cache
def _variables(model: Any, *shapes: tuple[tuple[int, ...], str]) -> Any:
    inputs = [jnp.ones(shape, kind) for shape, kind in shapes]
    return jax.tree.map(
        lambda leaf: np.full(leaf.shape, 0.01, leaf.dtype), jax.eval_shape(model.init, jax.random.key(0), *inputs)
    )


PREDICTOR = tj.TransformerPredictor(model_dim=8, num_classes=3, num_heads=2, num_layers=1)
ATTENTION = tj.MultiheadAttention(8, 2)
TRANSLATOR = tj.Transformer(
    11, 11, model_dim=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=8
)


LANGUAGE_MODEL = tj.TransformerLM(11, model_dim=8, num_heads=2, num_layers=1, dim_feedforward=8)


def _predictor(x: Any, mask: Any = None) -> Any:
    return PREDICTOR.apply(_variables(PREDICTOR, ((2, 3, 5), "float32")), x, mask)


def _attention(x: Any, memory: Any = None, mask: Any = None) -> Any:
    return ATTENTION.apply(_variables(ATTENTION, ((2, 3, 5), "float32")), x, memory, mask)


def _transformer(source: Any, target: Any, source_mask: Any = None) -> Any:
    shapes = ((2, 4), "int32"), ((2, 4), "int32")
    return TRANSLATOR.apply(_variables(TRANSLATOR, *shapes), source, target, source_mask)


def _language_model(tokens: Any, mask: Any = None) -> Any:
    return LANGUAGE_MODEL.apply(_variables(LANGUAGE_MODEL, ((2, 4), "int32")), tokens, mask)


def _start_decoding(batch_size: Any, length: Any, prefix: Any) -> Any:
    variables = _variables(LANGUAGE_MODEL, ((2, 4), "int32"))
    return LANGUAGE_MODEL.apply(variables, batch_size, length, prefix=prefix, method="start_decoding")


def _positions(x: Any, d_model: Any = 4) -> Any:
    return tj.PositionalEncoding(d_model).apply({}, x)


def _built(model: type, good: dict[str, Any], inputs: tuple[Any, ...]) -> Callable[..., Any]:
    def build(**fields: Any) -> Any:
        return jax.eval_shape(model(**{**good, **fields}).init, jax.random.key(0), *inputs)

    return build


@functools.cache
def _shipped(name: str) -> Any:
    return tj.load_run(SHIPPED / name)


COUNTS = (0, -1, 1.5, NAN, "x", None, 10**12)
MASKS = (np.ones((5, 7), bool), np.ones(3, bool), FEATURES, "x", np.full((3, 3), 2))
IDS = (SOURCE * 11, SOURCE * -1, SOURCE[0], SOURCE * NAN, np.ones((2, 4)) * 0.5, np.zeros((2, 0), int), *ODD)
NO_NAMES: Mapping[str, tuple[str, ...]] = {}
INPUTS = {"x": ("input", "sequence", "features")}

MODEL_CALLS: list[Row] = [
    (
        "TransformerPredictor()",
        _predictor,
        lambda: {"x": FEATURES},
        {"x": (*SHAPES, *ODD, np.ones((2, 6000, 5), np.float32)), "mask": MASKS},
        INPUTS,
    ),
    (
        "MultiheadAttention()",
        _attention,
        lambda: {"x": FEATURES},
        {
            "x": (*SHAPES, *ODD),
            "memory": (*SHAPES, "x", np.ones((2, 3), bool), np.ones((2, 1, 1, 3), bool), np.ones((9, 3, 5))),
            "mask": MASKS,
        },
        INPUTS,
    ),
    (
        "Transformer()",
        _transformer,
        lambda: {"source": SOURCE, "target": SOURCE},
        {"source": IDS, "target": IDS, "source_mask": MASKS},
        {"source": ("tokens?",), "target": ("tokens?",), "source_mask": ("mask",)},
    ),
    (
        "TransformerLM()",
        _language_model,
        lambda: {"tokens": SOURCE},
        {"tokens": IDS, "mask": MASKS},
        {"tokens": ("token",)},
    ),
    (
        "TransformerLM.start_decoding",
        _start_decoding,
        lambda: {"batch_size": 2, "length": 5, "prefix": SOURCE},
        {"batch_size": (0, -1, 3, 1.5, "x"), "length": (-1, 1.5, NAN, "x", None), "prefix": IDS[:-3]},
        {"prefix": ("token",)},
    ),
    (
        "TransformerLM",
        _built(
            tj.TransformerLM,
            {"vocabulary_size": 11, "model_dim": 8, "num_heads": 2, "num_layers": 1, "dim_feedforward": 8},
            (SOURCE,),
        ),
        lambda: {},
        {
            "vocabulary_size": COUNTS,
            "model_dim": COUNTS,
            "num_heads": COUNTS,
            "num_layers": (0, -1, 1.5, "x", None),
            "dim_feedforward": COUNTS,
            "dropout_prob": (1.0, -0.1, NAN, "x"),
            "max_len": (0, -1, "x", None),
        },
        NO_NAMES,
    ),
    (
        "PositionalEncoding()",
        _positions,
        lambda: {"x": np.ones((2, 3, 4), np.float32)},
        {
            "x": (*SHAPES, *ODD, np.ones((2, 3, 4), int), np.ones((2, 6000, 4), np.float32)),
            "d_model": (0, -1, 1.5, 10**12, "x", None),
        },
        INPUTS,
    ),
    (
        "TransformerPredictor",
        _built(
            tj.TransformerPredictor, {"model_dim": 8, "num_classes": 3, "num_heads": 2, "num_layers": 1}, (FEATURES,)
        ),
        lambda: {},
        {
            "model_dim": COUNTS,
            "num_classes": COUNTS,
            "num_heads": COUNTS,
            "num_layers": (-1, 1.5, NAN, "x", None),
            "dropout_prob": (1.0, -0.1, NAN, "x"),
            "input_dropout_prob": (1.0, -0.1, NAN, "x"),
            "max_len": (0, -1, "x", None),
        },
        NO_NAMES,
    ),
    (
        "MultiheadAttention",
        _built(tj.MultiheadAttention, {"embed_dim": 8, "num_heads": 2}, (FEATURES,)),
        lambda: {},
        {"embed_dim": COUNTS, "num_heads": COUNTS},
        NO_NAMES,
    ),
    (
        "Transformer",
        _built(
            tj.Transformer,
            {
                "source_vocabulary_size": 11,
                "target_vocabulary_size": 11,
                "model_dim": 8,
                "num_heads": 2,
                "num_encoder_layers": 1,
                "num_decoder_layers": 1,
                "dim_feedforward": 8,
            },
            (SOURCE, SOURCE),
        ),
        lambda: {},
        {
            "model_dim": COUNTS,
            "num_heads": COUNTS,
            "dim_feedforward": COUNTS,
            "source_vocabulary_size": (0, -1, 1.5, "x"),
            "num_encoder_layers": (-1, 1.5, "x", None),
            "dropout_prob": (1.0, -0.1, NAN, "x"),
        },
        NO_NAMES,
    ),
    (
        "ReverseTrainer.predict",
        lambda inputs: _shipped("reverse").predict(inputs),
        lambda: {"inputs": np.ones((2, 16), int)},
        {
            "inputs": (
                np.full((2, 16), 10),
                np.full((2, 16), -1),
                np.ones((2, 16)),
                np.ones((2, 16, 1), int),
                np.zeros((0, 16), int),
                *ODD,
            )
        },
        NO_NAMES,
    ),
    (
        "TranslationTrainer.predict",
        lambda inputs: _shipped("dates").predict(inputs),
        lambda: {"inputs": ["1 May 2017"]},
        {"inputs": ("", [], [""], ["x" * 300], [3], [None], None, 3, ["\ud800"], [b"x"])},
        {"inputs": ("text",)},
    ),
    (
        "AnomalyTrainer.predict",
        lambda inputs: _shipped("digits").predict(inputs),
        lambda: {"inputs": np.ones((2, 10, 64), np.float32)},
        {
            "inputs": (
                np.ones((2, 10, 7)),
                np.full((2, 10, 64), NAN),
                np.zeros((0, 10, 64)),
                np.zeros((2, 0, 64)),
                *ODD,
            )
        },
        {"inputs": ("features?",)},
    ),
]
