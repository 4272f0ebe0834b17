"""Names of TransformerLens, and texts, lead to what is meant."""

import re

import jax
import numpy as np
import pytest
from repository import REPOSITORY
from tiny_models import SETTINGS, encoder_decoder, language_model, predictor

from transformer_jax import InputError, capture, patch
from transformer_jax.inspection import Inspected, logit_lens, zero
from transformer_jax.inspection.names import TRANSFORMER_LENS


def test_the_table_of_names_is_that_of_the_document():
    document = (REPOSITORY / "docs" / "pretrained.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.*?)` \| (.*) \|$", document.partition("## Names of activations")[2], re.MULTILINE)
    assert {theirs: ours for ours, cell in rows for theirs in re.findall("`(.*?)`", cell)} == TRANSFORMER_LENS


@pytest.mark.parametrize(
    ("case", "theirs", "ours"),
    [
        (language_model, "blocks.1.attn.hook_z", "decoder.layers.1.attention.head_outputs"),
        (predictor, "blocks.1.attn.hook_z", "encoder.layers.1.attention.head_outputs"),
        (encoder_decoder, "blocks.0.hook_resid_post", "decoder.layers.0.output"),
        (language_model, "blocks.*.attn.hook_pattern", r"decoder.layers.\*.attention.weights"),
        (predictor, "blocks.?.hook_resid_post", r"encoder.layers.\?.output"),
        (language_model, "decoder.layers.*.attention.weigths", r"decoder.layers.\*.attention.weights"),
        (language_model, "blocks.1.ln1.hook_out", "decoder.layers.1.attention_norm.normalized"),
        (language_model, "hook_in", "decoder.layers.0.input"),
        (language_model, "hook_embed", "token_embeddings"),
    ],
)
def test_a_name_of_transformer_lens_is_an_error_with_ours(case, theirs, ours):
    model, variables, inputs = case()
    for options in ({"patches": {}, "names": [theirs]}, {"patches": {theirs: zero()}}):
        with pytest.raises(InputError, match=rf"is not an activation of this pass; .*; did you mean {ours}\?"):
            jax.eval_shape(lambda options=options: patch(model, variables, *inputs, **options))


@pytest.mark.parametrize("text", ["a text", ["a text", "another"]])
def test_a_text_in_the_place_of_tokens_is_an_error_that_says_how_to_encode_it(text):
    model, variables, _ = language_model(SETTINGS["pre_norm"])
    bound = Inspected(model, variables)
    for call in (
        lambda: capture(model, variables, text, names=["logits"]),
        lambda: bound.capture(text, ["logits"]),
        lambda: bound.patch(text, {}),
        lambda: bound.apply(logit_lens, text),
    ):
        with pytest.raises(InputError, match=r"input is .*a text.*load_transformers\(directory\).capture\(text, names"):
            call()
    assert np.shape(bound.capture(np.zeros((1, 3), int), ["logits"])[0]) == (1, 3, 13)
