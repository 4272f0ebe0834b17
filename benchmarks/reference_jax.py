"""Reference loop: the tutorial's procedure in plain JAX. It shares no code with `transformer_jax`.

One jitted step per batch, and a loader that stacks samples in Python.
"""

import time
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from jax import Array

from reference_loop import ReferenceLoop
from reference_tasks import ReferenceTask, positions


class SelfAttention(nn.Module):
    """Multi-head self-attention, its three input projections fused into one."""

    num_heads: int  # H

    @nn.compact
    def __call__(self, x: Array) -> Array:
        B, T, D = x.shape  # noqa: N806
        qkv = nn.Dense(3 * D, kernel_init=nn.initializers.xavier_uniform())(x)  # [B T 3D]
        qkv = qkv.reshape(B, T, self.num_heads, -1).transpose(0, 2, 1, 3)  # [B H T 3d]
        query, key, value = jnp.split(qkv, 3, axis=-1)  # [B H T d] each
        logits = query @ key.swapaxes(-2, -1) / np.sqrt(query.shape[-1])  # [B H T T]
        values = nn.softmax(logits) @ value  # [B H T d]
        values = values.transpose(0, 2, 1, 3).reshape(B, T, D)
        return nn.Dense(D, kernel_init=nn.initializers.xavier_uniform())(values)


class EncoderBlock(nn.Module):
    """Self-attention and feed-forward network, each followed by dropout, residual connection and LayerNorm."""

    num_heads: int  # H
    dropout_prob: float

    @nn.compact
    def __call__(self, x: Array, *, train: bool) -> Array:
        def dropout(y: Array) -> Array:
            return nn.Dropout(self.dropout_prob, deterministic=not train)(y)

        D = x.shape[-1]  # noqa: N806
        x = nn.LayerNorm()(x + dropout(SelfAttention(self.num_heads)(x)))
        hidden = dropout(nn.relu(nn.Dense(2 * D)(x)))  # [B T F]
        return nn.LayerNorm()(x + dropout(nn.Dense(D)(hidden)))


class Predictor(nn.Module):
    """Input layer, encoder, and an output network that predicts for every element."""

    task: ReferenceTask

    @nn.compact
    def __call__(self, x: Array, *, train: bool) -> Array:
        task = self.task
        x = nn.Dropout(task.input_dropout_prob, deterministic=not train)(x)
        x = nn.Dense(task.model_dim)(x)  # [B T D]
        if task.is_sequence:
            x = x + positions(x.shape[1], task.model_dim)
        for _ in range(task.num_layers):
            x = EncoderBlock(task.num_heads, task.dropout_prob)(x, train=train)
        x = nn.relu(nn.LayerNorm()(nn.Dense(task.model_dim)(x)))
        x = nn.Dropout(task.dropout_prob, deterministic=not train)(x)
        return nn.Dense(task.num_classes)(x)  # [B T C]


def numpy_collate(samples: Sequence[tuple]) -> list[np.ndarray]:
    """Stack samples field by field."""
    return [np.stack(field) for field in zip(*samples, strict=True)]


class ReferenceJax(ReferenceLoop):
    """The loop in JAX."""

    collate = staticmethod(numpy_collate)

    def __init__(self, task: ReferenceTask, seed: int) -> None:
        super().__init__(task, seed)
        self.model = Predictor(task)
        params_key, self.key = jax.random.split(jax.random.key(seed))
        batch = numpy_collate([task.dataset(seed)[0]] * task.batch_size)  # only its shapes matter
        initialize = jax.jit(self.model.init, static_argnames="train")
        params = initialize(params_key, self._inputs_and_labels(batch)[0], train=False)["params"]
        schedule = optax.warmup_cosine_decay_schedule(0.0, task.lr, task.warmup, self.num_steps)
        optimizer = optax.chain(optax.clip_by_global_norm(task.gradient_clip), optax.adam(schedule))
        self.state = TrainState.create(apply_fn=self.model.apply, params=params, tx=optimizer)
        self._train_step = jax.jit(self._pure_train_step)
        start = time.perf_counter()
        # the result is discarded
        jax.block_until_ready(self._train_step(self.state, self.key, batch))
        self.compile_seconds = time.perf_counter() - start

    def train_step(self, batch: Sequence[np.ndarray]) -> tuple[Array, Array]:
        self.state, self.key, metrics = self._train_step(self.state, self.key, batch)
        return metrics

    def fetch(self, metrics: Sequence[tuple[Array, ...]]) -> np.ndarray:
        return np.array(jax.device_get(metrics))

    def synchronize(self) -> None:
        jax.block_until_ready(self.state)

    def _pure_train_step(
        self, state: TrainState, key: Array, batch: Sequence[Array]
    ) -> tuple[TrainState, Array, tuple[Array, Array]]:
        key, dropout_key = jax.random.split(key)
        inputs, labels = self._inputs_and_labels(batch)

        def loss_and_accuracy(params: Any) -> tuple[Array, Array]:
            rngs = {"dropout": dropout_key}
            logits = self.model.apply({"params": params}, inputs, train=True, rngs=rngs)  # [B T C]
            if not self.task.is_sequence:
                logits = logits[..., 0]  # [B T], the classes are the elements of the set
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return losses.mean(), (logits.argmax(-1) == labels).mean()

        metrics, gradients = jax.value_and_grad(loss_and_accuracy, has_aux=True)(state.params)
        return state.apply_gradients(grads=gradients), key, metrics

    def _inputs_and_labels(self, batch: Sequence[Array]) -> tuple[Array, Array]:
        if self.task.is_sequence:
            numbers, labels = batch
            return jax.nn.one_hot(numbers, self.task.input_dim), labels
        features, _, labels = batch
        return features, labels
