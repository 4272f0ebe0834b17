"""Reference: the training step of a GPT-2 in plain JAX, in one file without a framework, as fast as its author could.

Pre-norm blocks with learned positions, ReLU and biases, tied embeddings, cuDNN's attention on GPUs; parameters in
float32, products in bfloat16, logits in bfloat16 with a loss in float32; Adam.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from gpt_sizes import GPTSizes

Params = dict[str, Any]


def initial_params(sizes: GPTSizes, key: Array) -> Params:
    """Normal weights with standard deviation 0.02; zero biases."""
    D, F = sizes.model_dim, sizes.dim_feedforward  # noqa: N806
    shapes = {"qkv": (D, 3 * D), "output": (D, D), "expand": (D, F), "contract": (F, D)}
    keys = iter(jax.random.split(key, 2 + len(shapes) * sizes.num_layers))

    def weights(*shape: int) -> Array:
        return 0.02 * jax.random.normal(next(keys), shape)

    def layer() -> Params:
        products = {name: (weights(*shape), jnp.zeros(shape[1])) for name, shape in shapes.items()}
        norms = {name: (jnp.ones(D), jnp.zeros(D)) for name in ("norm_1", "norm_2")}
        return products | norms

    return {
        "embedding": weights(sizes.vocabulary, D),
        "positions": weights(sizes.length, D),
        "layers": [layer() for _ in range(sizes.num_layers)],
        "norm": (jnp.ones(D), jnp.zeros(D)),
    }


def norm(x: Array, scale: Array, bias: Array) -> Array:
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    normed = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return (normed * scale + bias).astype(x.dtype)


def loss(params: Params, tokens: Array, sizes: GPTSizes) -> Array:
    """Mean cross-entropy of the tokens `[B, T + 1]` after the first."""
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    B, T = inputs.shape  # noqa: N806
    x = half["embedding"][inputs] + half["positions"][:T]
    on_gpu = jax.default_backend() == "gpu"
    for number, layer in enumerate(half["layers"]):
        norms = params["layers"][number]

        def dense(x: Array, name: str, layer: Params = layer) -> Array:
            kernel, bias = layer[name]
            return x @ kernel + bias

        qkv = dense(norm(x, *norms["norm_1"]), "qkv").reshape(B, T, 3, sizes.num_heads, -1)
        query, key, value = (qkv[:, :, part] for part in range(3))
        kind = "cudnn" if on_gpu else "xla"
        values = jax.nn.dot_product_attention(
            query, key, value, is_causal=True, implementation=kind
        )
        x = x + dense(values.reshape(x.shape), "output")
        hidden = jax.nn.relu(dense(norm(x, *norms["norm_2"]), "expand"))
        x = x + dense(hidden, "contract")
    logits = norm(x, *params["norm"]) @ half["embedding"].T
    losses = optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), targets)
    return losses.mean()


def training(sizes: GPTSizes) -> tuple[Any, Callable[..., Any]]:
    """The initial state, and a jitted step `(state, tokens) -> state, loss`."""
    optimizer = optax.adam(1e-3)
    params = jax.jit(initial_params, static_argnums=0)(sizes, jax.random.key(0))

    def step(state: Any, tokens: Array) -> tuple[Any, Array]:
        params, moments = state
        value, gradient = jax.value_and_grad(loss)(params, tokens, sizes)
        updates, moments = optimizer.update(gradient, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    return (params, optimizer.init(params)), jax.jit(step, donate_argnums=0)
