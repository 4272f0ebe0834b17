"""Attention of a user's own: a subclass that computes its projections, and a function that computes the values."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_models import applied, draw, drawn
from part_choices import Temperature

from transformer_jax import (
    ALiBi,
    ALiBiPositions,
    AttentionSettings,
    BlockSettings,
    InputError,
    MultiheadAttention,
    RotaryPositions,
    SoftCap,
    TransformerLM,
    capture,
    dot_product_attention,
    patch,
)
from transformer_jax.attention import apply_bias, mask_array
from transformer_jax.inspection import zero
from transformer_jax.nn import AttentionCall, CausalBlock, RelativePositions
from transformer_jax.nn.attention_maps import attention_maps

B, T, D, H, F, V = 2, 5, 12, 3, 13, 11
X = draw(B, T, D)
TOKENS = np.random.default_rng(1).integers(V, size=(B, T))


def by_position(query, key, value, mask, bias):
    return AttentionCall(query, key, value, mask, bias, None)


def by_name(query, key, value, mask, bias):
    return AttentionCall(value=value, key=key, query=query, bias=bias, mask=mask)


class OwnAttention(MultiheadAttention):
    """Self-attention whose second argument is the mask, with projections and a call that are written out."""

    make_call = staticmethod(by_position)

    def __call__(self, x, mask=None, *, train=False, bias=None):
        query, key, value = (
            projection(x).reshape(B, -1, H, D // H).swapaxes(1, 2)
            for projection in (self.query_proj, self.key_proj, self.value_proj)
        )
        query = self.attention_positions.encode(x=query, first=0, length=x.shape[1])
        key = self.attention_positions.encode(key, 0, length=x.shape[1])
        bias = self.attention_positions.bias()
        values = self.attend(self.make_call(query, key, value, mask, bias))
        return self.output_proj(x=values.swapaxes(1, 2).reshape(B, -1, D))


class OwnAttentionByName(OwnAttention):
    make_call = staticmethod(by_name)


def block_with(kind: type[MultiheadAttention]) -> type[CausalBlock]:
    class OwnBlock(CausalBlock):
        attention_class = kind

        def __call__(self, x, mask=None, *, train=False):
            x = self.self_attn_residual(x, lambda h: self.self_attn(h, mask), train=train)
            return self.feed_forward_residual(x, lambda h: self.feed_forward(h, train=train), train=train)

    return OwnBlock


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "positions"), [(OwnAttention, ALiBiPositions()), (OwnAttentionByName, RotaryPositions())]
)
def test_maps_capture_patch_and_decoding_work_with_a_subclass_that_projects_for_itself(kind, positions):
    settings = BlockSettings(positions=positions)
    plain = TransformerLM(V, D, H, 1, F, settings=settings)
    own = plain.clone(block=block_with(kind))
    variables, weights = drawn(plain, TOKENS), "decoder.layers.0.attention.weights"

    def of(model):
        logits, found = capture(model, variables, TOKENS, names=[weights])
        blind = patch(model, variables, TOKENS, patches={weights: zero(heads=1)})
        results, maps = capture(model, variables, TOKENS, names=["*.output", "*.head_results"])[1], {}
        maps["all"] = model.apply(variables, TOKENS, method="get_attention_maps")
        maps["rows"] = model.apply(variables, TOKENS, queries=[3], heads=[2], method="get_attention_maps")
        prefix = {"prefix": TOKENS[:, :2], "padding": np.array([0, 1]), "length": T}
        cache = model.apply(variables, method="start_decoding", **prefix)
        steps = []
        for position in range(2, T):
            step = functools.partial(model.apply, variables, TOKENS[:, position], position, cache)
            steps.append(capture(model, variables, *step.args[1:], names=[weights], method="decode_step")[1])
            last, cache = step(method="decode_step")
        return logits, found, blind, results["decoder.layers.0.attention.head_results"], maps, steps, last

    expected, found = jax.jit(lambda: (of(plain), of(own)))()
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), found, expected)
    assert np.abs(expected[0] - expected[2]).max() > 1e-2


def softmax_of(q, k, v, mask, bias, dropout):
    logits = jnp.einsum("bhtd,bhsd->bhts", q, k) / np.sqrt(q.shape[-1]) + bias
    if mask is not None:
        logits = jnp.where(mask_array(mask, logits.shape), logits, -jnp.inf)
    return jax.nn.softmax(logits) @ v


def bias_first(q, k, v, mask, bias, dropout):
    logits = bias + jnp.einsum("bhtd,bhsd->bhts", q, k) / np.sqrt(q.shape[-1])
    return jax.nn.softmax(logits) @ v


def function_of_jax(q, k, v, mask, bias, dropout):
    by_length = (x.swapaxes(1, 2) for x in (q, k, v))
    return jax.nn.dot_product_attention(*by_length, bias=jnp.asarray(bias)).swapaxes(1, 2)


def passed_on(q, k, v, mask, bias, dropout):
    return dot_product_attention(q, k, v, mask, bias, dropout, implementation="blockwise")


FUNCTIONS = softmax_of, bias_first, function_of_jax, passed_on, jax.checkpoint(softmax_of), jax.jit(passed_on)


RELATIVE = RelativePositions(4, 5)


def attention_by(function, positions=RELATIVE) -> MultiheadAttention:
    return MultiheadAttention(D, H, settings=AttentionSettings(implementation=function), positions=positions)


@pytest.mark.slow
def test_a_function_adds_the_bias_of_the_positions_as_an_array():
    for positions in (RelativePositions(4, 5), ALiBiPositions()):
        variables = drawn(attention_by("plain", positions), X)

        def value_and_gradient(function, variables=variables, positions=positions):
            module = attention_by(function, positions)
            return jax.value_and_grad(lambda variables: jnp.sin(module.apply(variables, X)).sum())(variables)

        run = jax.jit(lambda functions=FUNCTIONS: [value_and_gradient(each) for each in ("plain", *functions)])
        expected, *found = run()
        assert all(jnp.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(expected) if leaf.shape == (4, H))
        for each in found:
            jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5, rtol=1e-6), each, expected)


@pytest.mark.slow
def test_a_language_model_decodes_with_a_function_that_adds_its_bias():
    plain, own = (
        TransformerLM(V, D, H, 1, F, settings=BlockSettings(positions=RelativePositions(4, 5, True), attention=kind))
        for kind in (AttentionSettings(), AttentionSettings(implementation=softmax_of))
    )
    variables = drawn(plain, TOKENS)

    @jax.jit
    def in_full_and_by_step():
        cache = own.apply(variables, prefix=TOKENS[:, :-1], length=T, method="start_decoding")
        step, _ = own.apply(variables, TOKENS[:, -1], T - 1, cache, method="decode_step")
        return [plain.apply(variables, TOKENS)[:, -1], own.apply(variables, TOKENS)[:, -1], step]

    expected, *found = in_full_and_by_step()
    for each in found:
        np.testing.assert_allclose(each, expected, atol=1e-5)


def with_weights(q, k, v, mask, bias, dropout):
    return dot_product_attention(q, k, v, mask, bias, return_attention=True)


def test_a_function_that_returns_weights_too_has_maps_that_can_be_captured_and_patched():
    plain, own = attention_by("plain"), attention_by(with_weights)
    variables = drawn(plain, X)

    @jax.jit
    def of(module=plain):
        values, weights = module.apply(variables, X, return_attention=True)
        blind = patch(module, variables, X, patches={"weights": zero(heads=1)})
        captured = capture(module, variables, X, names=["weights", "output"])[1]
        return values, weights, attention_maps(module.bind(variables), X), blind, captured

    expected, found = of(), jax.jit(lambda: of.__wrapped__(own))()
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), found, expected)
    assert np.abs(found[0] - found[3]).max() > 1e-2
    assert np.abs(found[1].sum(-1) - 1).max() < 1e-6


@pytest.mark.slow
def test_a_learned_temperature_divides_the_logits_of_each_head_before_the_bias_of_the_positions():
    settings = AttentionSettings(logit_change=Temperature)
    module = MultiheadAttention(D, H, settings=settings, positions=ALiBiPositions())
    variables = drawn(module, X)
    temperatures = np.exp(variables["params"]["logit_change"]["log_temperature"])
    assert temperatures.shape == (H,)

    def output_and_seen(variables, **fields):
        return capture(module.clone(**fields), variables, X, names=["queries", "keys", "weights"])

    gradient = jax.grad(lambda variables: jnp.sin(output_and_seen(variables)[0]).sum())
    blockwise = dataclasses.replace(settings, implementation="blockwise")
    output, seen = output_and_seen(variables)
    logits = seen["queries"] @ seen["keys"].swapaxes(-1, -2) / np.sqrt(D // H) / temperatures[:, None, None]
    expected = jax.nn.softmax(apply_bias(logits, ALiBi(H)))
    np.testing.assert_allclose(seen["weights"], expected, atol=1e-6)
    np.testing.assert_allclose(applied(module.clone(settings=blockwise), variables, X), output, atol=1e-6)
    assert jnp.abs(gradient(variables)["params"]["logit_change"]["log_temperature"]).min() > 1e-3


def ignoring(q, k, v, mask, bias, dropout):
    return jax.nn.softmax(q @ k.swapaxes(-1, -2)) @ v


def test_a_function_that_ignores_the_bias_of_the_positions_is_an_error():
    message = r"implementation is ignoring, which ignores the bias RelativeBias\(.*; it must compute logits \+ bias"
    with pytest.raises(InputError, match=message):
        jax.eval_shape(attention_by(ignoring).init, jax.random.key(0), X)
    for positions in (RotaryPositions(), RelativePositions(is_shared=True)):  # whose bias is the stack's
        jax.eval_shape(attention_by(ignoring, positions).init, jax.random.key(0), X)


def test_a_function_applies_a_soft_cap_with_apply_bias():
    def capped(q, k, v, mask, bias, dropout):
        return jax.nn.softmax(apply_bias(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), bias)) @ v

    variables = drawn(attention_by("plain"), X)
    expected, found = (applied(attention_by(each), variables, X, bias=SoftCap(0.5)) for each in ("plain", capped))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.abs(expected - applied(attention_by("plain"), variables, X)).max() > 1e-3
    with pytest.raises(InputError, match=r"bias is SoftCap\(0.5\), which .*; call apply_bias\(logits, bias\)"):
        jax.eval_shape(lambda: attention_by(softmax_of).apply(variables, X, bias=SoftCap(0.5)))
