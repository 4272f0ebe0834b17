"""Good calls of the decoding functions, and values that must be refused."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import transformer_jax as tj
from faults.call_models import COUNTS, NAN, NO_NAMES, Row


def _decode(search: str, **arguments: Any) -> Any:
    logits = arguments.pop("logits", np.zeros((2, 5), np.float32))
    if search == "sample":
        arguments["key"] = jax.random.key(0)

    def step(tokens: Any, position: Any, cache: Any) -> tuple[Any, Any]:
        rows = len(tokens) // 2 if np.shape(logits) == (2, 5) else 1  # of each of the two, in beam search
        return jnp.repeat(jnp.asarray(logits), rows, axis=0), cache

    return getattr(tj, search)(step, **arguments)


DECODING = {"cache": {}, "batch_size": 2, "start_token": 0, "end_token": 1, "pad_token": 2, "max_length": 3}
TOKENS = (-1, 5, 10**9, 1.5, "x", None)
DECODING_WRONG = {
    "logits": (
        np.full((2, 5), NAN, np.float32),
        np.zeros((3, 5), np.float32),
        np.zeros(5, np.float32),
        np.zeros((2, 0), np.float32),
    ),
    "batch_size": COUNTS,
    "max_length": COUNTS,
    "start_token": TOKENS,
    "end_token": TOKENS,
    "pad_token": (1.5, "x", None),
    "cache": ({"a": np.zeros(3)}, {"a": np.float32(0)}),
}

DECODING_CALLS: list[Row] = [
    (
        "greedy_decode",
        functools.partial(_decode, "greedy_decode"),
        lambda: dict(DECODING),
        DECODING_WRONG,
        {"logits": ("NaN",)},
    ),
    (
        "sample",
        functools.partial(_decode, "sample"),
        lambda: dict(DECODING),
        {
            **DECODING_WRONG,
            "temperature": (0, -1.0, NAN, float("inf"), "x"),
            "top_k": (0, -1, 1.5, "x"),
            "top_p": (0, 1.5, -0.1, NAN, "x"),
        },
        NO_NAMES,
    ),
    (
        "beam_search",
        functools.partial(_decode, "beam_search"),
        lambda: {**DECODING, "beam_width": 2},
        {
            **DECODING_WRONG,
            "beam_width": COUNTS,
            "length_penalty": (-1.0, NAN, float("inf"), "x"),
            "n_best": (0, -1, 5, 1.5, "x"),
        },
        NO_NAMES,
    ),
]
