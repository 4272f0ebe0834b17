"""SmolLM2-135M-Instruct computes the same as in `transformers`, and generates the same text."""

import numpy as np
import pytest
import torch
from compiled_models import applied, assert_close
from transformers import AutoModelForCausalLM, AutoTokenizer

from transformer_jax import load_transformers

pytestmark = pytest.mark.slow

TEXT = (
    "The mitochondrion is an organelle. A language model gives each next token a probability: "
    "P(x_t | x_1 … x_{t-1}).\n\n    def f(n):\n        return 1 if n < 2 else n * f(n - 1)\n"
)
PROMPTS = "The capital of France is", "Once upon a time,", "2 + 2 ="  # of five tokens each: one program continues them


@pytest.fixture(scope="module")
def run(smollm2):
    return load_transformers(smollm2)


@pytest.fixture(scope="module")
def theirs(smollm2):
    return AutoModelForCausalLM.from_pretrained(smollm2, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def tokenizer(smollm2):
    return AutoTokenizer.from_pretrained(smollm2)


def test_logits_are_those_of_transformers(run, theirs, tokenizer):
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    np.testing.assert_array_equal(run.tokenizer.encode(TEXT).ids, ids[0])
    with torch.no_grad():
        expected = theirs(ids).logits.numpy()
    found = applied(run.model, {"params": run.params}, ids.numpy())
    assert_close(found, expected, 1e-5)  # float32 in 30 layers: 3e-6 were seen
    np.testing.assert_array_equal(found.argmax(-1), expected.argmax(-1))


def test_the_most_probable_continuations_are_those_of_transformers(run, theirs, tokenizer):
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt")
        with torch.no_grad():
            expected = theirs.generate(**ids, do_sample=False, max_new_tokens=23)[0, ids.input_ids.shape[1] :]
        found = run.predict(prompt, max_new=23)
        assert found == tokenizer.decode(expected, skip_special_tokens=True)
        assert found.strip()
