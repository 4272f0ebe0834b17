"""Attention: known answers, agreement with PyTorch, effects of masks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from compiled_models import FLOAT16, compiled, draw

from transformer_jax import MultiheadAttention, params_from_torch, scaled_dot_product

B, H, T, S, D, D_MEMORY = 2, 3, 5, 7, 33, 17


def masks() -> dict[str, np.ndarray]:
    """One mask of each rank, which hides key 3; every query may attend to something."""
    rng = np.random.default_rng(7)
    drawn = {
        "T S": rng.random((T, S)) < 0.6,
        "B T S": rng.random((B, T, S)) < 0.6,
        "B 1 T S": rng.random((B, 1, T, S)) < 0.6,
        "B H T S": rng.random((B, H, T, S)) < 0.6,
        "B 1 1 S": rng.random((B, 1, 1, S)) < 0.6,
    }
    for mask in drawn.values():
        mask[..., 0], mask[..., 3] = True, False
    return drawn


def test_known_answers_of_whole_numbers():
    q, k = np.array([[0, 10, 0], [0, 0, 10], [10, 10, 0]]), np.array([[10, 0, 0], [0, 10, 0], [0, 0, 10], [0, 0, 10]])
    values, attention = scaled_dot_product(q, k, np.array([[1, 0, 1], [10, 0, 2], [100, 5, 0], [1000, 6, 0]]))
    np.testing.assert_allclose(values, [[10, 0, 2], [550, 5.5, 0], [5.5, 0, 1.5]], atol=1e-6, rtol=2e-6)
    np.testing.assert_allclose(attention, [[0, 1, 0, 0], [0, 0, 0.5, 0.5], [0.5, 0.5, 0, 0]], atol=1e-6)


def test_values_and_gradients_agree_with_pytorch():
    q, k, v, cotangent = draw(B, H, T, 4), draw(B, H, S, 4, seed=1), draw(B, H, S, 6, seed=2), draw(B, H, T, 6, seed=3)
    of_ranks = {"no mask": None, **masks()}

    @jax.jit
    def ours(q, k, v):
        def total(q, k, v, mask):
            values, attention = scaled_dot_product(q, k, v, mask)
            return jnp.sum(values * cotangent), (values, attention)

        gradients = jax.value_and_grad(total, (0, 1, 2), has_aux=True)
        return {rank: gradients(q, k, v, mask) for rank, mask in of_ranks.items()}

    results = ours(q, k, v)
    for rank, mask in of_ranks.items():
        tensors = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
        torch_mask = None if mask is None else torch.tensor(mask[:, None] if mask.ndim == 3 else mask)
        expected = torch.nn.functional.scaled_dot_product_attention(*tensors, attn_mask=torch_mask)
        (expected * torch.tensor(cotangent)).sum().backward()
        (_, (values, attention)), gradients = results[rank]
        np.testing.assert_allclose(values, expected.detach(), atol=1e-5, err_msg=rank)
        for gradient, tensor in zip(gradients, tensors, strict=True):
            np.testing.assert_allclose(gradient, tensor.grad, atol=1e-5, err_msg=rank)
        if mask is not None:
            np.testing.assert_array_equal(attention[..., 3], 0, err_msg=rank)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, FLOAT16])
def test_the_softmax_is_computed_in_float32_for_narrower_types_too(dtype):
    """With 257 equal keys, the sum of the weights is off by over 1 % if it is accumulated in bfloat16."""
    q, k = jnp.zeros((1, 8), dtype), jnp.zeros((257, 8), dtype)
    _, attention = scaled_dot_product(q, k, jnp.ones((257, 1), dtype))
    np.testing.assert_allclose(np.asarray(attention, np.float32), 1 / 257, rtol=float(jnp.finfo(dtype).eps))
    # In float16 this product of the logits, 8 * 200 * 200, is infinite.
    q, k = jnp.full((1, 8), 200, dtype), jnp.full((2, 8), 200, dtype)
    np.testing.assert_array_equal(scaled_dot_product(q, k, jnp.ones((2, 1), dtype))[1], 0.5)


def test_multihead_attention_and_its_maps_agree_with_pytorch():
    """For gradients and self-attention see test_encoder.py and test_encoder_decoder.py."""
    torch.manual_seed(3)
    module = torch.nn.MultiheadAttention(D, H, batch_first=True)
    torch.nn.init.normal_(module.in_proj_bias)  # zero by default, which would hide a forgotten bias
    torch.nn.init.normal_(module.out_proj.bias)
    x, memory, mask = draw(B, T, D), draw(B, S, D, seed=1), masks()["B H T S"]
    attend = MultiheadAttention(D, H)
    params = {"params": params_from_torch(attend, module.state_dict())}
    output, attention = compiled(attend, return_attention=True)(params, x, memory, mask)
    keys = torch.tensor(memory)
    torch_mask = torch.tensor(~mask.reshape(B * H, T, -1))  # PyTorch: True = may not attend, [B * H, T, S]
    expected, maps = module(torch.tensor(x), keys, keys, attn_mask=torch_mask, average_attn_weights=False)
    np.testing.assert_allclose(output, expected.detach(), atol=1e-5)
    np.testing.assert_allclose(attention, maps.detach(), atol=1e-5)


def test_the_input_and_the_memory_may_be_of_other_widths_than_the_embedding():
    run = functools.partial(MultiheadAttention(D, H).init_with_output, return_attention=True)
    shapes = jax.eval_shape(run, jax.random.key(0), draw(B, T, D + 4), draw(B, S, D_MEMORY))
    (output, attention), params = jax.tree.map(lambda leaf: leaf.shape, shapes)
    kernels = params["params"]["query_proj"]["kernel"], params["params"]["value_proj"]["kernel"]
    assert kernels == ((D + 4, D), (D_MEMORY, D))
    assert (output, attention) == ((B, T, D), (B, H, T, S))


def test_kernels_start_xavier_uniform_those_of_queries_keys_and_values_as_one_kernel_and_biases_at_zero():
    width = 256
    init = jax.jit(MultiheadAttention(width, 8).init)
    params = init(jax.random.key(0), np.zeros((1, 1, width), np.float32))["params"]
    assert set(params) == {"query_proj", "key_proj", "value_proj", "output_proj"}
    for name, dense in params.items():
        np.testing.assert_array_equal(dense["bias"], 0)
        bound = np.sqrt(6 / (width + width) * (1.0 if name == "output_proj" else 0.5))
        assert np.abs(dense["kernel"]).max() <= bound
        # The standard deviation of a uniform distribution; 256² draws determine it to 0.2 %.
        np.testing.assert_allclose(np.std(dense["kernel"]), bound / np.sqrt(3), rtol=0.01)
