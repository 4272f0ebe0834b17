"""all-MiniLM-L6-v2 computes the same as in `transformers`."""

import numpy as np
import pytest
import torch
from compiled_models import applied, assert_close
from transformers import AutoModel, AutoTokenizer

from transformer_jax import load_transformers, padding_mask

pytestmark = pytest.mark.slow

SENTENCES = "A man is eating food.", "The girl is carrying a baby, unbelievably carefully.", "Food!"


def test_the_last_vectors_of_padded_sentences_are_those_of_transformers(minilm):
    batch = AutoTokenizer.from_pretrained(minilm)(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = AutoModel.from_pretrained(minilm)(**batch).last_hidden_state.numpy()
    run = load_transformers(minilm)
    ids, valid = batch.input_ids.numpy(), batch.attention_mask.numpy().astype(bool)
    for sentence, row, is_token in zip(SENTENCES, ids, valid, strict=True):
        np.testing.assert_array_equal(run.tokenizer.encode(sentence).ids, row[is_token])
    found = applied(run.model, {"params": run.params}, ids, padding_mask(valid))
    assert_close(found[valid], expected[valid], 1e-5)  # float32 in 6 layers
