"""Good calls of the public functions and classes, and for each argument the values that must be refused."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

import transformer_jax as tj
from faults.call_decoding import DECODING_CALLS
from faults.call_models import MODEL_CALLS, NAN, SHAPES
from transformer_jax.trained.shipped import SHIPPED

TEXT: tuple[Any, ...] = ("x", None, [])
COUNTS = (0, -1, -(10**9), 1.5, NAN, float("inf"), *TEXT)  # wrong where at least 1 is meant
HUGE = (10**12, 2**63, 10**30)
SIZES = (*COUNTS, *HUGE)
PROBABILITIES = (1.0, 1.5, -0.1, NAN, float("inf"), *TEXT)
POSITIVE = (0, -1.0, NAN, float("inf"), -float("inf"), *TEXT)
ROWS = (*SHAPES, "text", None, [[1, 2], [3]])


class Call(NamedTuple):
    """A function, good arguments, and values that are wrong for each of them."""

    name: str
    function: Callable[..., Any]
    good: Callable[[], dict[str, Any]]
    wrong: Mapping[str, tuple[Any, ...]]
    also_named: Mapping[str, tuple[str, ...]] = {}  # other words by which a message may name an argument


def _call(
    name: str, good: dict[str, Any], also_named: Mapping[str, tuple[str, ...]] | None = None, **wrong: tuple[Any, ...]
) -> Call:
    face = next(face for face in (tj, tj.tasks, tj.training, tj.decoding, tj.plots) if name in dir(face))
    return Call(name, getattr(face, name), lambda: dict(good), wrong, also_named or {})


FLOATS = np.ones((2, 3, 4), np.float32)
VALID = np.ones((2, 3), bool)
LABELS = np.arange(12) % 3
IMAGES = np.ones((2, 3, 4, 4), np.float32)
MAPS = [np.ones((2, 1, 3, 3), np.float32)]

FUNCTIONS = [
    _call(
        "scaled_dot_product",
        {"q": FLOATS, "k": FLOATS, "v": FLOATS, "mask": None},
        q=ROWS,
        k=ROWS,
        v=ROWS,
        mask=(np.ones((5, 7), bool), np.ones(3, bool), FLOATS, "x", np.full((3, 3), 2)),
    ),
    _call("causal_mask", {"length": 3}, length=(-1, -100, 1.5, NAN, *TEXT, *HUGE)),
    _call(
        "padding_mask",
        {"valid": VALID},
        valid=(FLOATS, np.ones(3, bool), np.full((2, 3), 2), np.full((2, 3), -1), *TEXT),
    ),
    _call("expand_mask", {"mask": VALID}, mask=(FLOATS, np.ones(3, bool), np.full((2, 3), 2), *TEXT)),
    Call(
        "combine_masks",
        lambda first, second: tj.combine_masks(first, second),
        lambda: {"first": VALID, "second": VALID},
        {"first": (np.ones((5, 7), bool), FLOATS, "x"), "second": (np.ones((5, 7), bool), np.ones(3, bool), 3.5)},
        {"first": ("masks?",), "second": ("masks?",)},
    ),
    _call(
        "cosine_warmup_schedule",
        {"base_lr": 1e-3, "warmup": 2, "max_iters": 9},
        base_lr=(-1.0, NAN, float("inf"), "x", None),
        warmup=(-1, 9, 10, NAN, "x", None),
        max_iters=(0, -3, NAN, "x", None),
    ),
    _call(
        "warmup_then_cosine_schedule",
        {"base_lr": 1e-3, "warmup": 2, "max_iters": 9},
        base_lr=(-1.0, NAN, float("inf"), "x", None),
        warmup=(-1, 9, 10, NAN, "x", None),
        max_iters=(0, -3, NAN, "x", None),
    ),
    _call(
        "noam_schedule", {"d_model": 8, "warmup": 4}, d_model=(0, -1, NAN, "x", None), warmup=(0, -1, NAN, "x", None)
    ),
    _call(
        "stratified_split",
        {"labels": LABELS, "fraction": 0.5},
        fraction=(0, 1, -0.5, 2, NAN, "x", None),
        labels=(np.zeros((2, 2), int), "text", None, 3),
    ),
    _call(
        "SetAnomalyDataset",
        {"features": np.ones((12, 5), np.float32), "labels": LABELS, "set_size": 3, "seed": 0},
        features=(np.full((12, 5), NAN), np.ones((5, 5)), np.ones(12), "x", None),
        labels=(LABELS[:3], np.zeros(12, int), "x", None),
        set_size=(0, 1, -1, 50, 1.5, NAN, *TEXT),
        seed=(-1, 1.5, "x"),
        subset=(np.array([99]), np.array([], int), np.array([0.5]), "x"),
    ),
    _call(
        "ReverseDataset",
        {"num_categories": 3, "seq_len": 4, "size": 5, "seed": 0},
        num_categories=SIZES,
        seq_len=SIZES,
        size=SIZES,
        seed=(-1, 1.5, "x"),
    ),
    _call(
        "make_loader",
        {"dataset": tj.tasks.ReverseDataset(3, 4, 5, 0), "batch_size": 2},
        dataset=(None, 3, [], "", object()),
        batch_size=COUNTS,
        seed=(-1, 1.5, "x", None),
        num_workers=(-1, 1.5, "x", None),
        groups=(np.zeros(2, int), np.zeros((5, 2), int), "x"),
    ),
    _call(
        "numpy_collate",
        {"samples": [np.ones(2), np.ones(2)]},
        samples=([], [np.ones(2), np.ones(3)], [1, "x"], ["x", "y"], None, 3),
    ),
    _call(
        "plot_attention_maps",
        {"input_data": None, "attention_maps": MAPS, "idx": 0},
        input_data=([[1]], np.ones((2, 9)), "x", 3),
        attention_maps=([], None, "x", [np.ones(3)], np.ones((2, 3))),
        idx=(7, -9, 1.5, "x", None),
        query_data=([[1]], np.ones((2, 9)), 3),
    ),
    _call("plot_positional_encoding", {"d_model": 4, "length": 5}, d_model=COUNTS, length=COUNTS),
    _call(
        "plot_positional_curves",
        {"d_model": 4, "length": 5, "dimensions": (0, 1)},
        d_model=COUNTS,
        length=COUNTS,
        dimensions=((), (9,), (-7,), (0.5,), "x", None, 3),
    ),
    _call(
        "plot_schedules",
        {"schedules": {"a": float}, "num_steps": 4},
        schedules=({}, {"a": 3}, [], None, "x"),
        num_steps=COUNTS,
    ),
    _call(
        "plot_image_sets",
        {"images": IMAGES, "anomalies": np.array([0, 1])},
        images=(IMAGES[0], np.ones(3), np.ones((0, 3, 4, 4)), None, "x"),
        anomalies=(np.array([0]), np.array([9, 0]), np.array([0.5, 1]), None, "x"),
    ),
    _call(
        "plot_set_prediction",
        {"images": IMAGES[0], "probabilities": np.ones(3) / 3, "anomaly": 0, "attention_maps": [MAPS[0][0]]},
        images=(np.ones(3), np.ones((0, 4, 4)), None, "x"),
        probabilities=(np.ones(7), np.ones((3, 3)), None, "x"),
        anomaly=(9, -5, 0.5, None, "x"),
        attention_maps=([], None, "x", [np.ones(3)]),
    ),
    _call(
        "load_run",
        {"directory": SHIPPED / "reverse"},
        directory=("", "missing", "/dev/null", 3, None, "a\0b", "x" * 5000, b"x", "\udc80"),
    ),
    _call(
        "load_pretrained",
        {"what": "missing"},
        what=("", "missing", "/", "/dev/null", 3, None, "a\0b", "x" * 5000, "\udc80"),
        also_named={"what": ("pretrained",)},
    ),
    _call("BlockSettings", {}, dropout_prob=PROBABILITIES, layer_norm_epsilon=POSITIVE, activation=(None, 3, "relu")),
    Call(
        "Criterion.parse",
        tj.config.Criterion.parse,
        lambda: {"text": "val/loss:min"},
        {"text": ("", "x", "val/:min", "val/loss", "val/loss:mid", None, 3, b"x")},
        {"text": ("best_by",)},
    ),
    _call(
        "TrainingConfig",
        {},
        model_dim=COUNTS,
        num_heads=COUNTS,
        max_epochs=COUNTS,
        batch_size=COUNTS,
        lr=POSITIVE,
        dropout_prob=PROBABILITIES,
        adam_b1=PROBABILITIES,
        seed=(-1, 2**32, 1.5, NAN, "x", None),
        warmup=(-1, 1.5, NAN, "x", None),
        best_by=("", "x", 3),
        schedule=("x", None, 3),
        weight_decay=(-1.0, NAN, float("inf"), "x", None),
        checkpoint_dir=(3, None),
        gradient_clip=(0, -1.0, NAN, float("inf"), "x"),
        ema=(0.0, 1.0, 1.5, -0.1, NAN, "x"),
        freeze=(3, [], "a\0b"),
        init_from=(3, [], "a\0b"),
        init_only=(3, [], "a\0b"),
        patience=(-1, 1.5, "x", None),
        resume=("x", None, 3),
    ),
    _call(
        "ReverseConfig", {}, seq_len=SIZES, num_categories=SIZES, train_size=COUNTS, input_dropout_prob=PROBABILITIES
    ),
    _call(
        "TranslationConfig",
        {},
        max_bytes=SIZES,
        beam_width=SIZES,
        length_penalty=(-1.0, NAN, float("inf"), "x", None),
        dim_feedforward=COUNTS,
        data=(3, []),
    ),
    _call(
        "LanguageModelConfig",
        {},
        seq_len=(0, 1, *SIZES),
        stride=(0, -1, 257, 1.5, "x"),
        train_size=COUNTS,
        max_new=COUNTS,
        dim_feedforward=COUNTS,
        temperature=POSITIVE,
        top_k=(0, -1, 1.5, "x"),
        top_p=(0.0, 1.5, -0.1, NAN, "x"),
        prompt=("", 3, []),
        data=(3, []),
    ),
    _call(
        "DigitsConfig",
        {},
        set_size=(0, 1, -1, 1.5, NAN, "x", None),
        input_dropout_prob=PROBABILITIES,
        num_layers=COUNTS,
    ),
    _call(
        "params_from_torch",
        {"model": tj.MultiheadAttention(8, 2), "weights": torch.nn.MultiheadAttention(8, 2).state_dict()},
        {"weights": ("state dict",)},
        weights=({}, {"x": np.ones(3)}, "missing", 3, None, "/dev/null", {"in_proj_weight": 3}),
        model=(None, 3, "x"),
    ),
]
CALLS = [*FUNCTIONS, *(Call(*row) for row in (*MODEL_CALLS, *DECODING_CALLS))]
