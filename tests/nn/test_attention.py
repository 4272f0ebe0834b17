"""Attention: known answers, agreement with PyTorch, effects of masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from compiled_models import FLOAT16, compiled, draw, drawn, quick_jit

from transformer_jax import MultiheadAttention, params_from_torch, scaled_dot_product

B, H, T, S, D, D_MEMORY = 2, 3, 5, 7, 33, 17

# (q, k, v, output, weights, decimals that are given)
KNOWN_ANSWERS = [
    (
        [[-0.6613315, 0.70056266], [0.08239268, -1.7793142], [-0.04378588, 1.0965251]],
        [[1.7257481, 0.35568172], [1.3034704, 1.2873708], [1.6871481, -0.5714404]],
        [[1.5129997, 1.1050899], [0.27949408, -0.46224892], [-1.1003422, -1.1437942]],
        [[0.376226, -0.146562], [-0.427786, -0.598956], [0.436248, -0.116783]],
        [[0.279633, 0.540493, 0.179874], [0.221947, 0.067062, 0.710992], [0.279771, 0.583731, 0.136498]],
        6,
    ),
    (
        [[0.3367, 0.1288], [0.2345, 0.2303], [-1.1229, -0.1863]],
        [[2.2082, -0.6380], [0.4617, 0.2674], [0.5349, 0.8094]],
        [[1.1103, -1.6898], [-0.9890, 0.9580], [1.3221, 0.8172]],
        [[0.5697, -0.1520], [0.5379, -0.0265], [0.2246, 0.5556]],
        [[0.4028, 0.2886, 0.3086], [0.3538, 0.3069, 0.3393], [0.1303, 0.4630, 0.4067]],
        4,
    ),
    (
        [[0, 10, 0], [0, 0, 10], [10, 10, 0]],
        [[10, 0, 0], [0, 10, 0], [0, 0, 10], [0, 0, 10]],
        [[1, 0, 1], [10, 0, 2], [100, 5, 0], [1000, 6, 0]],
        [[10, 0, 2], [550, 5.5, 0], [5.5, 0, 1.5]],
        [[0, 1, 0, 0], [0, 0, 0.5, 0.5], [0.5, 0.5, 0, 0]],
        4,
    ),
]


def masks(num_keys: int = S) -> dict[str, np.ndarray]:
    """One mask of each rank; every query may attend to something."""
    rng = np.random.default_rng(7)
    drawn = {
        "T S": rng.random((T, num_keys)) < 0.6,
        "B T S": rng.random((B, T, num_keys)) < 0.6,
        "B 1 T S": rng.random((B, 1, T, num_keys)) < 0.6,
        "B H T S": rng.random((B, H, T, num_keys)) < 0.6,
        "B 1 1 S": rng.random((B, 1, 1, num_keys)) < 0.6,
    }
    for mask in drawn.values():
        mask[..., 0] = True
    return drawn


MASK_RANKS = [None, *masks()]


@pytest.mark.parametrize(("q", "k", "v", "output", "weights", "decimals"), KNOWN_ANSWERS)
def test_known_answers(q, k, v, output, weights, decimals):
    values, attention = scaled_dot_product(np.array(q), np.array(k), np.array(v))
    # Half a unit of the last given decimal, and float32's rounding of values up to 1000.
    np.testing.assert_allclose(values, output, atol=0.5 * 10.0**-decimals, rtol=2e-6)
    np.testing.assert_allclose(attention, weights, atol=0.5 * 10.0**-decimals, rtol=2e-6)


@pytest.mark.parametrize("rank", MASK_RANKS)
def test_values_and_gradients_agree_with_pytorch(rank):
    q, k, v = draw(B, H, T, 4), draw(B, H, S, 4, seed=1), draw(B, H, S, 6, seed=2)
    mask = masks()[rank] if rank else None
    cotangent = draw(B, H, T, 6, seed=3)

    @quick_jit
    def ours(q, k, v):
        def total(q, k, v):
            values, _ = scaled_dot_product(q, k, v, mask)
            return jnp.sum(values * cotangent), values

        return jax.value_and_grad(total, (0, 1, 2), has_aux=True)(q, k, v)

    tensors = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
    torch_mask = None if mask is None else torch.tensor(mask[:, None] if mask.ndim == 3 else mask)
    expected = torch.nn.functional.scaled_dot_product_attention(*tensors, attn_mask=torch_mask)
    (expected * torch.tensor(cotangent)).sum().backward()

    (_, values), gradients = ours(q, k, v)
    np.testing.assert_allclose(values, expected.detach(), atol=1e-5)
    for gradient, tensor in zip(gradients, tensors, strict=True):
        np.testing.assert_allclose(gradient, tensor.grad, atol=1e-5)


@pytest.mark.parametrize("rank", masks())
def test_the_content_of_a_masked_position_changes_nothing(rank):
    q, k, v = draw(B, H, T, 4), draw(B, H, S, 4, seed=1), draw(B, H, S, 6, seed=2)
    mask = masks()[rank].copy()
    mask[..., 3] = False
    other_k, other_v = k.copy(), v.copy()
    other_k[..., 3, :], other_v[..., 3, :] = 1e4, -1e4
    before, after = scaled_dot_product(q, k, v, mask), scaled_dot_product(q, other_k, other_v, mask)
    np.testing.assert_array_equal(before[0], after[0])
    np.testing.assert_array_equal(before[1], after[1])
    np.testing.assert_array_equal(after[1][..., 3], 0)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, FLOAT16])
def test_the_softmax_is_computed_in_float32_for_narrower_types_too(dtype):
    """257 equal keys: their weights' sum is off by over 1 % where it is accumulated in bfloat16."""
    q, k = jnp.zeros((1, 8), dtype), jnp.zeros((257, 8), dtype)
    _, attention = scaled_dot_product(q, k, jnp.ones((257, 1), dtype))
    np.testing.assert_allclose(np.asarray(attention, np.float32), 1 / 257, rtol=float(jnp.finfo(dtype).eps))
    # In float16 this product of the logits, 8 * 200 * 200, is infinite.
    q, k = jnp.full((1, 8), 200, dtype), jnp.full((2, 8), 200, dtype)
    np.testing.assert_array_equal(scaled_dot_product(q, k, jnp.ones((2, 1), dtype))[1], 0.5)


@pytest.mark.parametrize("cross", [False, True])
def test_multihead_attention_and_its_maps_agree_with_pytorch(cross):
    """With gradients: test_encoder.py and test_encoder_decoder.py."""
    torch.manual_seed(3)
    module = torch.nn.MultiheadAttention(D, H, batch_first=True)
    torch.nn.init.normal_(module.in_proj_bias)  # zero by default, which would hide a forgotten bias
    torch.nn.init.normal_(module.out_proj.bias)
    x, memory = draw(B, T, D), draw(B, S, D, seed=1) if cross else None
    mask = masks(S if cross else T)["B H T S"]
    attend = MultiheadAttention(D, H)
    params = {"params": params_from_torch(attend, module.state_dict())}
    output, attention = compiled(attend, return_attention=True)(params, x, memory, mask)
    keys = torch.tensor(memory if cross else x)
    torch_mask = torch.tensor(~mask.reshape(B * H, T, -1))  # PyTorch: True = may not attend, [B * H, T, S]
    expected, maps = module(torch.tensor(x), keys, keys, attn_mask=torch_mask, average_attn_weights=False)
    np.testing.assert_allclose(output, expected.detach(), atol=1e-5)
    np.testing.assert_allclose(attention, maps.detach(), atol=1e-5)


def test_the_input_and_the_memory_may_be_of_other_widths_than_the_embedding():
    x, memory = draw(B, T, D + 4), draw(B, S, D_MEMORY)
    attend = MultiheadAttention(D, H)
    params = drawn(attend, x, memory)
    output, attention = compiled(attend, return_attention=True)(params, x, memory)
    shapes = jax.tree.map(np.shape, params["params"])
    assert (shapes["query_proj"]["kernel"], shapes["value_proj"]["kernel"]) == ((D + 4, D), (D_MEMORY, D))
    assert output.shape == (B, T, D)
    assert attention.shape == (B, H, T, S)


def test_kernels_start_xavier_uniform_and_biases_at_zero():
    width = 512
    params = MultiheadAttention(width, 8).init(jax.random.key(0), np.zeros((1, 1, width), np.float32))["params"]
    assert set(params) == {"query_proj", "key_proj", "value_proj", "output_proj"}
    for dense in params.values():
        np.testing.assert_array_equal(dense["bias"], 0)
        bound = np.sqrt(6 / (width + width))
        assert np.abs(dense["kernel"]).max() <= bound
        # The standard deviation of a uniform distribution; 512² draws determine it to 0.1 %.
        np.testing.assert_allclose(np.std(dense["kernel"]), bound / np.sqrt(3), rtol=5e-3)
