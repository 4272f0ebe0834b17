"""Sentences, two by two of the same meaning, and their vectors by an encoder."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

import transformer_jax as tj
from transformer_jax.tasks.pretrained import PretrainedText

SENTENCES = [
    "The train was two hours late.",
    "We had to wait ages for the railway.",
    "She plays the violin beautifully.",
    "Her performance on the fiddle is lovely.",
    "The bank of the river is muddy.",
    "The soil beside the stream is wet.",
    "The bank raised its interest rates.",
    "Borrowing money became more expensive.",
]


def embed(encoder: PretrainedText, texts: Sequence[str]) -> Float[np.ndarray, "B D"]:
    """The mean of the last vectors over the tokens of each text, of length 1."""
    ids = [encoder.tokenizer.encode(text).ids for text in texts]
    valid = np.arange(max(map(len, ids))) < np.array([[len(row)] for row in ids])
    tokens = np.zeros(valid.shape, int)
    tokens[valid] = np.concatenate(ids)
    vectors, _ = encoder.inspected.capture((tokens, tj.padding_mask(valid)), [])
    means = (np.asarray(vectors) * valid[..., None]).sum(1) / valid.sum(1, keepdims=True)
    return means / np.linalg.norm(means, axis=1, keepdims=True)
