"""A number that is not finite never becomes an answer, and what stands in padding changes no answer."""

import contextlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from huggingface_models import WORDS, drawn_of_31_tokens, saved_with_words

from transformer_jax import InputError, load_transformers
from transformer_jax.nn.encoder import EncoderBlock
from transformer_jax.tasks.padded_texts import SHORTEST

pytestmark = pytest.mark.slow  # they compile

TEXT = "w9 [MASK] w4"
KINDS = {  # family and head
    "language model": ("gpt2", ""), "translator": ("t5", ""), "masked": ("bert", "ForMaskedLM"),
    "classifier": ("bert", "ForSequenceClassification"), "encoder": ("bert", "Model"),
}  # fmt: skip


def made(kind):
    """Draw a model of a kind with a token for each word."""
    return drawn_of_31_tokens(*KINDS[kind], least_layers=2)


def answer(run, kind):
    if kind == "encoder":
        return run.embed(TEXT, normalize=False)
    return run.predict(TEXT, **({"max_new": 3} if kind in ("language model", "translator") else {}))


@contextlib.contextmanager
def poisoned(is_padding):
    """Put NaN into the padding of a text at the input of each block of a stack that reads padding."""

    def intercept(call, args, kwargs, context):
        if isinstance(context.module, EncoderBlock) and context.method_name == "__call__":
            x, *more = args
            if x.shape[1] == SHORTEST:
                return call(jnp.where(is_padding[:, None], jnp.nan, x), *more, **kwargs)
        return call(*args, **kwargs)

    with nn.intercept_methods(intercept):
        yield


@pytest.mark.parametrize("kind", KINDS)
def test_padding_that_overflows_changes_no_answer_and_parameters_of_nan_give_none(kind, tmp_path):
    run = load_transformers(saved_with_words(made(kind), tmp_path))
    expected, count = answer(run, kind), len(TEXT.split())
    is_padding = np.arange(SHORTEST) >= count
    again = load_transformers(tmp_path)  # nothing is compiled yet
    with poisoned(is_padding[::-1] if kind == "language model" else is_padding):
        found = answer(again, kind)
    if kind == "encoder":
        np.testing.assert_allclose(found, expected, atol=1e-5)
    else:
        assert found == expected
    run.params = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), run.params)
    with pytest.raises(InputError, match="returned .* that are NaN or .*, for row 0; they must be finite"):
        answer(run, kind)


def test_a_classifier_in_float16_whose_padding_overflows_answers_as_for_the_text_alone(tmp_path):
    model = made("classifier")
    base, first = model.base_model, model.base_model.encoder.layer[0]
    with torch.no_grad():
        base.embeddings.word_embeddings.weight[:, 0] = 0.0
        base.embeddings.word_embeddings.weight[0, 0] = 99.0  # the token that fills up
        first.output.dense.weight[:, 0] = 1e-4
        [*model.parameters()][-1][3] += 9  # the bias of a class that argmax does not give for NaN
        ids = torch.tensor([[WORDS.index(word) for word in TEXT.split()]])
        largest = first.attention(base.embeddings(ids))[0][..., 0].abs().max()
        first.intermediate.dense.weight[0] = 0.0
        first.intermediate.dense.weight[0, 0] = 6e4 / largest
        of_text, of_padding = (
            first.intermediate.dense(first.attention(base.embeddings(each))[0]).abs().max()
            for each in (ids, torch.tensor([[0]]))
        )
        assert float(of_text) < float(np.finfo(np.float16).max) < float(of_padding)
        assert int(model(ids).logits.argmax()) == 3
    run = load_transformers(saved_with_words(model.half(), tmp_path))
    assert {leaf.dtype for leaf in jax.tree.leaves(run.params)} == {np.dtype(np.float16)}
    assert run.predict([TEXT, f"{TEXT} w30"])[0] == run.predict(TEXT) == "LABEL_3"
