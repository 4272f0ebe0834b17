"""Attention by every implementation: they agree, with PyTorch and with the formulas, and say which of them runs."""

import functools
import itertools
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import Case, cases, normal
from compiled_models import FLOAT16, assert_close
from hypothesis import HealthCheck, given, seed, settings
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax import (
    ALiBi,
    Causal,
    InputError,
    Padding,
    Prefix,
    RelativeBias,
    SoftCap,
    Window,
    dot_product_attention,
    scaled_dot_product,
)
from transformer_jax.attention import ArrayBias, AttentionDropout, BiasFunction, MaskFunction, block_layout, explain
from transformer_jax.attention.block_layout import BlockSizes
from transformer_jax.attention.blockwise import blockwise_attention
from transformer_jax.attention.formula import plain_attention
from transformer_jax.mesh_axis import partitioned_by_xla, with_value

B, H, T, S, D = 2, 3, 11, 13, 5
by_chance = functools.partial(
    settings, deadline=None, database=None, derandomize=False, suppress_health_check=list(HealthCheck)
)


def operands(*leading: int, dtype=np.float32, queries: int = T, keys: int = S) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    shapes = (queries, D), (keys, D), (keys, 7), (queries, 7)
    return [jnp.asarray(rng.normal(size=(*leading, *shape)), dtype) for shape in shapes]


def both(case: Case):
    """Values and gradients of a case, plain and blockwise."""

    def plain(q, k, v, bias):
        q, k, v = (x.reshape(-1, case.num_batch, *x.shape[1:]) for x in (q, k, v))
        return plain_attention(q, k, v, case.mask, bias, case.dropout)[0].reshape(case.cotangent.shape)

    def in_blocks(q, k, v, bias):
        return blockwise_attention(q, k, v, case.mask, bias, case.dropout, case.num_batch, case.sizes)

    def total(attend, *arguments):
        values = attend(*arguments)
        return jnp.sum(values * case.cotangent), values

    @jax.jit
    def run(*arguments):
        options = {"argnums": (0, 1, 2, 3), "has_aux": True, "allow_int": True}
        return [jax.value_and_grad(functools.partial(total, a), **options)(*arguments) for a in (plain, in_blocks)]

    leaves = map(jax.tree.leaves, run(case.q, case.k, case.v, case.bias))  # those of an offset are no numbers
    return [[np.asarray(leaf) for leaf in of_one if leaf.dtype != jax.dtypes.float0] for of_one in leaves]


def assert_the_same(case: Case) -> None:
    for plain, found in zip(*both(case), strict=True):
        np.testing.assert_allclose(found, plain, rtol=0, atol=1e-5 * max(1.0, np.abs(plain).max(initial=0)))


@given(cases())
@by_chance(max_examples=2, derandomize=True)
def test_blockwise_and_plain_agree_in_values_and_all_gradients(case):
    assert_the_same(case)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_blockwise_and_plain_agree_in_random_cases(number):
    """9 cases, each compiled; 500 with ATTENTION_CASES=500 in the environment, which take some ten minutes."""
    examples = int(os.environ.get("ATTENTION_CASES", "9")) // 3
    seed(number)(by_chance(max_examples=examples)(given(cases())(assert_the_same)))()


@pytest.mark.slow
def test_rows_computed_at_once_as_on_accelerators_give_the_same(monkeypatch):
    monkeypatch.setattr(block_layout, "rows_at_once", lambda num_rows: 3)
    rng = np.random.default_rng(0)
    q, k, v, cotangent = (normal(rng, B, H, length, 4) for length in (17, 19, 19, 17))
    valid = np.arange(19) < np.array([[4], [19]])
    bias = ArrayBias(jnp.asarray(normal(rng, B, 1, 17, 19))) + RelativeBias(jnp.asarray(normal(rng, 8, H)))
    assert_the_same(Case(q, k, v, cotangent, B, Padding(valid) & Causal(1), bias, None, BlockSizes(6, 5)))


def test_a_large_bias_does_not_reach_the_queries_that_fill_a_block():
    """exp(100) is beyond float32."""
    operands = [normal(np.random.default_rng(0), 1, 1, 5, width) for width in (3, 3, 2, 2)]
    assert_the_same(Case(*operands, 1, None, ArrayBias(jnp.full((1, 1), 100.0)), None, BlockSizes(2, 2)))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, FLOAT16])
def test_in_half_precision_both_are_within_its_rounding_of_float32(dtype):
    q, k, v, cotangent = operands(B, H, dtype=dtype)

    def outcome(implementation, *operands):
        def total(q, k, v):
            values = dot_product_attention(q, k, v, Causal(2), ALiBi(H), implementation=implementation)
            return jnp.sum(values.astype(jnp.float32) * cotangent.astype(jnp.float32)), values

        gradients, values = jax.grad(total, (0, 1, 2), has_aux=True)(*operands)
        assert values.dtype == operands[0].dtype
        return [x.astype(jnp.float32) for x in (values, *gradients)]

    wide = [x.astype(jnp.float32) for x in (q, k, v)]
    run = jax.jit(lambda wide, *half: (outcome("plain", *wide), outcome("plain", *half), outcome("blockwise", *half)))
    expected, *results = run(wide, q, k, v)
    for found, whole in (pair for result in results for pair in zip(result, expected, strict=True)):
        assert_close(found, whole, 4 * float(jnp.finfo(dtype).eps))  # a few roundings of the largest number


@pytest.mark.parametrize("implementation", [pytest.param("plain", marks=pytest.mark.slow), "blockwise"])
def test_a_query_that_sees_nothing_gets_zeros_and_zero_gradients(implementation):
    q, k, v, _ = operands(B, H)
    bias = ArrayBias(jnp.zeros((T, S)).at[4].set(-jnp.inf))  # hides all keys from one query

    def total(q, k, v, bias):
        values = dot_product_attention(q, k, v, Causal(-3), bias, implementation=implementation)
        return values.sum(), values

    with jax.debug_nans(True):  # not even on the way
        gradients, values = jax.grad(total, (0, 1, 2, 3), has_aux=True)(q, k, v, bias)
    blind = [0, 1, 2, 4]
    np.testing.assert_array_equal(values[:, :, blind], 0)
    np.testing.assert_array_equal(gradients[0][:, :, blind], 0)
    for gradient in jax.tree.leaves(gradients):
        assert np.isfinite(gradient).all()


def test_dropout_drops_the_same_weights_in_every_implementation_and_keeps_the_mean():
    q, k, _, _ = operands(B, H)
    v = jnp.broadcast_to(jnp.eye(S), (B, H, S, S))  # so that the values are the weights
    dropout = AttentionDropout(0.25, jax.random.key(4))
    attend = jax.jit(functools.partial(dot_product_attention, return_attention=True))
    plain, weights = attend(q, k, v, dropout=dropout)
    in_blocks = jax.jit(lambda *qkv: blockwise_attention(*qkv, None, None, dropout, B, BlockSizes(4, 5)))(q, k, v)
    np.testing.assert_allclose(in_blocks, plain, atol=1e-6)
    np.testing.assert_array_equal(plain, weights)
    assert np.mean(np.asarray(weights) == 0) == pytest.approx(0.25, abs=0.05)  # 858 weights: 0.015 is one deviation
    whole, _ = attend(q, k, v)
    is_kept = np.asarray(weights) != 0
    np.testing.assert_allclose(np.asarray(weights)[is_kept], np.asarray(whole)[is_kept] / 0.75, rtol=1e-5)
    other, _ = attend(q, k, v, dropout=AttentionDropout(0.25, jax.random.key(5)))
    with jax.default_prng_impl("rbg"):  # whose raw keys have four numbers
        raw, _ = attend(q, k, v, dropout=AttentionDropout(0.25, jax.random.PRNGKey(4)))
    assert np.mean(np.asarray(raw) == 0) == pytest.approx(0.25, abs=0.05)
    assert abs(np.corrcoef(is_kept.ravel(), (np.asarray(other) != 0).ravel())[0, 1]) < 0.15


def test_fewer_heads_of_keys_and_values_are_read_by_groups_of_query_heads():
    q, k, v, _ = operands(B, 6)
    k, v = k[:, :2], v[:, :2]

    @jax.jit
    def attended(q, k, v):
        calls = (k, v, "plain"), (k, v, "blockwise"), (*(jnp.repeat(x, 3, axis=1) for x in (k, v)), "plain")
        return [dot_product_attention(q, *pair, Causal(2), ALiBi(6), implementation=name) for *pair, name in calls]

    *results, expected = attended(q, k, v)
    np.testing.assert_allclose(results, [expected, expected], atol=1e-6)
    with pytest.raises(InputError, match="k and v have 4 heads, which must divide the number of heads of q, 6"):
        dot_product_attention(q, q[:, :4], q[:, :4])


@pytest.mark.parametrize("leading", [(), (B,), (2, B, H)])
def test_leading_axes_are_those_of_scaled_dot_product(leading):
    q, k, v, _ = operands(*leading)
    mask = np.random.default_rng(1).random((T, S)) < 0.7
    as_value, as_array = mask & (Causal(1) | Prefix(2)), mask & (np.tri(T, S, 1, dtype=bool) | (np.arange(S) < 2))
    values = jax.jit(functools.partial(dot_product_attention, implementation="blockwise"))(q, k, v, as_value)
    pairs = jax.jit(lambda *masks: [scaled_dot_product(q, k, v, mask)[0] for mask in masks])(as_array, as_value)
    for plain in pairs:
        np.testing.assert_allclose(values, plain, atol=1e-6)


def test_a_traced_offset_gives_what_a_known_one_gives():
    """The queries of a cached decoding: positions 7 and 8 of 13."""
    q, k, v, _ = operands(B, H, queries=2)
    attend = jax.jit(
        lambda position: dot_product_attention(
            q, k, v, Causal(position) & Window(3, None, position), ALiBi(H, position), implementation="blockwise"
        )
    )
    full = operands(B, H, queries=S)[0].at[:, :, 7:9].set(q)
    expected = jax.jit(dot_product_attention)(full, k, v, Causal() & Window(3, None), ALiBi(H))[:, :, 7:9]
    np.testing.assert_allclose(attend(7), expected, atol=1e-6)


def test_a_bias_without_a_derivative_at_hidden_keys_has_one_at_the_others():
    """Forward mode; the logarithm is not a number for the keys that the mask hides."""
    q, k, v, _ = operands(1, 1, keys=T)

    def values(rate):
        bias = BiasFunction(lambda logit, b, h, query, key, rate: logit - rate * jnp.log(query - key + 1.0), (rate,))
        return dot_product_attention(q, k, v, Causal(), bias)

    rate, step, run = jnp.float32(0.3), 1e-2, jax.jit(values)
    _, tangent = jax.jit(lambda rate: jax.jvp(values, (rate,), (jnp.ones_like(rate),)))(rate)
    expected = (run(rate + step) - run(rate - step)) / (2 * step)
    np.testing.assert_allclose(tangent, expected, atol=1e-3)  # of a difference of float32, and its second order


def test_attention_can_be_vmapped_with_masks_as_arguments():
    q, k, v, _ = operands(4, B, H)
    valid = np.random.default_rng(3).random((4, B, S)) < 0.7

    def attend(q, k, v, mask):
        return dot_product_attention(q, k, v, mask, implementation="blockwise")

    mapped = jax.jit(jax.vmap(attend))(q, k, v, jax.vmap(Padding)(valid))
    map_over_sites = [attend(*(x[n] for x in (q, k, v)), Padding(valid[n])) for n in range(4)]
    np.testing.assert_allclose(mapped, map_over_sites, atol=1e-6)


def test_a_product_beyond_float32_is_nan_in_every_implementation_at_the_queries_that_see_it():
    q, k = (jnp.full((1, 1, 2, 4), size) for size in (-1.5e19, 1.2e19))
    k = k.at[..., 0, :].set(1)
    cases = [*itertools.product([None, Causal()], [None, SoftCap(9.0)], ["plain", "blockwise"])]
    run = jax.jit(lambda q: [dot_product_attention(q, k, k, *rules, implementation=name) for *rules, name in cases])
    for (mask, *_), values in zip(cases, run(q), strict=True):
        np.testing.assert_array_equal(np.isnan(values[0, 0, :, 0]), [mask is None, True])


NO_KERNEL = "cuDNN takes float16 and" if jax.default_backend() == "gpu" else "there is no kernel"


def shapes(*shape: int, dtype=jnp.float32) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(shape, dtype)] * 3


@pytest.mark.usefixtures("without_type_checks")
def test_explain_says_which_runs_and_why_the_others_do_not():
    many = shapes(11, 3, 320, 16)
    for few in (shapes(10, 3, 320, 16), shapes(32, 3, 319, 16)):  # all of them, and those of one head
        assert explain(*few).implementation == "plain"
    assert explain(*many, Causal()).implementation == "blockwise"
    assert explain(*many, return_attention=True).implementation == "plain"
    assert str(explain(*many, return_attention=True)) == (
        "plain attention of 320 × 320 logits: the weights are requested; not blockwise: it returns no weights; "
        "attention_rows computes chosen rows; not fused: it returns no weights"
    )
    with pytest.raises(InputError, match="backend is 'tpuu'; it must be one of cpu, gpu, cuda, rocm, tpu or None"):
        explain(*many, backend="tpuu")
    assert "no kernel for the backend cpu" in explain(*many, backend="cpu").others["fused"]
    assert explain(*shapes(11, 3, 320, 16, dtype=jnp.int32)).implementation == "blockwise"  # in float32


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"implementation": "flash"}, "implementation is 'flash'; it must be one of auto, plain, blockwise, fused"),
        ({"implementation": "fused"}, f"fused attention cannot run: {NO_KERNEL}"),
        ({"implementation": "blockwise", "return_attention": True}, "blockwise attention cannot run: it returns no"),
        ({"mask": Padding(np.ones((5, S), bool))}, r"Padding\(bool\[5, 13\]\) does not broadcast"),
        ({"mask": MaskFunction(lambda b, h, q, k: q - k)}, r"returned .*int32\[1, 1, 11, 13\]; it must return boo"),
        ({"mask": MaskFunction(lambda b, h, q, k: jnp.ones(4, bool))}, r"returned .*bool\[4\]; .* broadcasts to"),
        ({"q": np.zeros((B, H, T, D), complex)}, "q has type complex128; it must hold real numbers"),
        ({"q": np.zeros((1, H, T, D), np.float32)}, "the same leading axes except the heads"),
        ({"bias": ALiBi(4)}, "num_heads of the bias is 4; it must be 3, as in the attention"),
        ({"bias": np.zeros((T, T), np.float32)}, "bias of shape .* does not broadcast"),
        ({"bias": max}, r"bias is max; it must be an array, or an object such as BiasFunction\(f\)"),
        ({"bias": np.zeros((T, S), bool)}, "bias has type bool; it must be of a floating-point type"),
        ({"dropout": 0.1}, "dropout is 0.1; it must be AttentionDropout or None"),
    ],
)
def test_invalid_arguments_are_named(options, message):
    q, k, v, _ = operands(B, H)
    for implementation in ("plain", "blockwise"):
        with pytest.raises(InputError, match=message):
            dot_product_attention(**{"q": q, "k": k, "v": v, "implementation": implementation} | options)


@pytest.mark.slow
def test_where_the_compiler_divides_the_program_blockwise_needs_no_communication(monkeypatch):
    """On a mesh that splits the batch or the heads, every device computes its own part, here of 3 × 3 blocks."""
    q, k, v, cotangent = operands(3, 3, queries=320, keys=320)
    monkeypatch.setattr(block_layout, "LARGE", 128)
    monkeypatch.setattr(block_layout, "STAIR", 32)
    mesh = Mesh(np.array(jax.devices()[:3]), ("devices",))

    def gradients(q, k, v, cotangent, implementation="blockwise"):
        dropout = AttentionDropout(0.3, jax.random.key(5))

        def attend(q, k, v):
            return dot_product_attention(q, k, v, Causal(), ALiBi(3), dropout=dropout, implementation=implementation)

        values, pullback = jax.vjp(attend, q, k, v)
        return values, *pullback(cotangent)

    def divided(q, k, v, cotangent):
        with with_value(partitioned_by_xla, True):
            return gradients(q, k, v, cotangent)

    expected = jax.jit(functools.partial(gradients, implementation="plain"))(q, k, v, cotangent)
    for spec in (PartitionSpec("devices"), PartitionSpec(None, "devices")):
        split = NamedSharding(mesh, spec)
        arguments = [jax.device_put(x, split) for x in (q, k, v, cotangent)]
        program = jax.jit(divided, out_shardings=split).lower(*arguments).compile()
        collectives = re.findall(r"\b(all-\w+|reduce-scatter|collective-\w+)(?:-start)?\(", program.as_text())
        assert collectives == []
        for actual, whole in zip(program(*arguments), expected, strict=True):
            np.testing.assert_allclose(actual, whole, atol=1e-5)  # float32 sums of 320 terms in another order


def test_a_kernel_that_the_compiler_cannot_divide_is_not_taken():
    with with_value(partitioned_by_xla, True):
        on_tpu = explain(*3 * [jax.ShapeDtypeStruct((4, 4, 512, 128), jnp.bfloat16)], backend="tpu")
    assert on_tpu.implementation == "blockwise"
    assert "the compiler cannot partition the kernel" in str(on_tpu)
