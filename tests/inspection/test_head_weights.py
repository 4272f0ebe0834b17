import dataclasses

import jax
import numpy as np
import pytest
from compiled_models import applied
from huggingface_models import ours
from tiny_models import SETTINGS, encoder_decoder, language_model, predictor

from transformer_jax import capture
from transformer_jax.errors import InputError
from transformer_jax.inspection import Factored, HeadWeights, composition_scores, fold_norms, head_weights
from transformer_jax.nn.attention import AttentionSettings
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.encoder_decoder import Transformer

pytestmark = pytest.mark.slow  # they compile

BARE = BlockSettings(attention=AttentionSettings(num_kv_heads=1, input_bias=False, output_bias=False))


@pytest.mark.parametrize("settings", [SETTINGS["post_norm"], BARE], ids=["biases", "shared keys, no biases"])
def test_queries_keys_and_what_heads_write_are_made_of_these_matrices(settings):
    case = predictor(settings)
    name = "encoder.layers.1.attention"
    names = ["encoder.layers.1.input", *(f"{name}.{end}" for end in ("logits", "weights", "output"))]
    _, seen = capture(case.model, case.variables, *case.inputs, names=names)
    x, logits, attention, output = seen.values()
    heads = head_weights(case.model, case.variables)[name]
    query = x[:, None] @ heads.query + heads.query_bias[:, None]
    key = x[:, None] @ heads.key + heads.key_bias[:, None]
    np.testing.assert_allclose(logits, query @ key.mT / 2, atol=1e-4)  # √d
    written = attention @ x[:, None] @ heads.ov.matrix + heads.value_bias[:, None] @ heads.output
    np.testing.assert_allclose(output, written.sum(1) + heads.output_bias, atol=1e-4)
    if settings is BARE:
        np.testing.assert_allclose(logits, x[:, None] @ heads.qk.matrix @ x[:, None].mT / 2, atol=1e-4)


def test_attentions_have_their_names_in_the_order_of_the_layers():
    case = predictor(BlockSettings(scan_layers=True), num_layers=11)
    assert list(head_weights(case.model, case.variables)) == [f"encoder.layers.{i}.attention" for i in range(11)]


def test_heads_of_a_decoder_may_be_others_than_those_of_the_encoder():
    model = Transformer(13, 13, 12, 3, 1, 1, 23, num_decoder_heads=2, decoder_dim_feedforward=7)
    variables = jax.eval_shape(model.init, jax.random.key(0), *np.zeros((2, 1, 5), int))
    variables = jax.tree.map(lambda leaf: np.zeros(leaf.shape), variables)
    found = {name: heads.query.shape for name, heads in head_weights(model, variables).items()}
    assert found == {
        "decoder.layers.0.attention": (2, 12, 6),
        "decoder.layers.0.cross_attention": (2, 12, 6),
        "encoder.layers.0.attention": (3, 12, 4),
    }
    assert variables["params"]["decoder"]["layers_0"]["feed_forward"]["expand"]["kernel"].shape == (12, 7)


def test_norms_and_eigenvalues_are_those_of_the_whole_matrix():
    rng = np.random.default_rng(0)
    low = Factored(*(jax.numpy.asarray(rng.normal(size=shape)) for shape in ((2, 7, 3), (2, 3, 7))))
    np.testing.assert_allclose(low.norms(), np.linalg.norm(low.matrix, axis=(1, 2)), rtol=1e-5)
    whole = np.linalg.eigvals(np.asarray(low.matrix))
    np.testing.assert_allclose(low.positivity(), whole.real.sum(-1) / np.abs(whole).sum(-1), atol=1e-4)
    copies = Factored(low.left, low.left.mT)
    np.testing.assert_allclose(copies.positivity(), 1, atol=1e-5)
    np.testing.assert_allclose(Factored(low.left, -low.left.mT).positivity(), -1, atol=1e-5)
    before, after = rng.normal(size=(5, 7)), rng.normal(size=(7, 11))
    np.testing.assert_allclose(low.between(before, after).matrix, before @ low.matrix @ after, rtol=1e-3, atol=1e-3)


def test_composition_is_the_norm_of_the_product_and_nothing_between_heads_that_do_not_meet():
    case = predictor(num_layers=2)
    first, second = head_weights(case.model, case.variables).values()
    scores = composition_scores(first, second)
    norm = np.linalg.norm
    ov, qk, ov_after = (np.asarray(each.matrix) for each in (first.ov, second.qk, second.ov))
    for name, read in (("queries", qk), ("keys", qk.swapaxes(1, 2)), ("values", ov_after)):
        expected = [[norm(a @ b) / (norm(a) * norm(b)) for b in read] for a in ov]
        np.testing.assert_allclose(scores[name], expected, rtol=1e-4)
    blind = HeadWeights(*second)._replace(value=second.value.at[:, 3:].set(0))
    writes = first._replace(output=first.output.at[:, :, :3].set(0))
    np.testing.assert_allclose(composition_scores(writes, blind)["values"], 0, atol=1e-6)


@pytest.mark.parametrize(
    "case",
    [
        predictor(SETTINGS["pre_rms_grouped"]),
        language_model(SETTINGS["scanned_alibi"], tied=False),
        encoder_decoder(SETTINGS["pre_norm"]),
    ],
    ids=["rms, gated, shared keys", "stacked layers", "encoder-decoder"],
)
def test_folded_norms_leave_the_logits_and_have_nothing_learned(case):
    model, params = fold_norms(case.model, case.variables["params"])
    (expected, before), (found, seen) = (
        jax.jit(lambda v, model=each: capture(model, v, *case.inputs, names=["*.layers.*.input"]))(variables)
        for each, variables in ((case.model, case.variables), (model, {"params": params}))
    )
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    for name, stream in before.items():  # which no norm stands in
        np.testing.assert_allclose(seen[name], stream, atol=1e-4)
    stack = params["encoder" if "encoder" in params else "decoder"]
    norm = stack["layers_1"]["self_attn_residual"]["norm"]
    assert (norm["scale"] == 1).all()
    kernel = stack["layers_1"]["self_attn"]["key_proj"]["kernel"]
    if "bias" in norm:
        assert not norm["bias"].any()
        np.testing.assert_allclose(kernel.mean(0), 0, atol=1e-6)


@pytest.mark.parametrize(
    ("family", "seed"), [("gpt2", 0), ("gpt_neox", 2), ("llama", 0), ("gemma2", 0), ("t5", 0), ("vit", 1)]
)
def test_real_models_are_folded_too_and_their_heads_write_by_ov(family, seed):
    model, variables, inputs = ours(family, seed)
    folded, params = fold_norms(model, variables["params"])
    expected = applied(model, variables, *inputs)
    names = ["*attention_norm.normalized", "*.attention.weights", "*.attention.output"]
    found, seen = jax.jit(lambda v: capture(folded, v, *inputs, names=names))({"params": params})
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    for name, heads in head_weights(folded, {"params": params}).items():
        if not name.endswith("cross_attention"):
            written = seen[f"{name}.weights"] @ seen[f"{name}_norm.normalized"][:, None] @ heads.ov.matrix
            output = (written + heads.value_bias[:, None] @ heads.output).sum(1) + heads.output_bias
            scale = np.abs(output).max()
            np.testing.assert_allclose(seen[f"{name}.output"], output, rtol=0, atol=1e-5 * scale)


def test_what_cannot_be_folded_is_refused():
    case = predictor()
    with pytest.raises(InputError, match="model has no pre-norm"):
        fold_norms(case.model, case.variables["params"])
    settings = dataclasses.replace(SETTINGS["pre_norm"], attention=AttentionSettings(input_bias=False))
    case = predictor(settings)
    with pytest.raises(InputError, match="encoder/layers_0/self_attn/query_proj has no bias, so the bias of .* cannot"):
        fold_norms(case.model, case.variables["params"])
