"""Measures greedy decoding: with the cache, and rerunning the prefix for every token.

python benchmarks/decoding.py                     # a table for 32, 128 and 512 tokens: minutes on two CPU cores
python benchmarks/decoding.py --lengths 32 128    # half a minute

`cached` is `Transformer.decode_step` under `greedy_decode`, one compiled call; on a CPU its cores share the rows.
`rerun` is `Transformer.decode` of the whole prefix in the same way. Compiled shapes are fixed, so the prefix is padded,
to the next eighth of T: all in all 1/8 more positions than without. (`pretrained.py` compares with PyTorch.)

Both have the same weights and the same batch, and take turns in one process. A turn is one decoding off the clock, as
what the one before left in the processor's caches is of no use, and then as many on it as take about a second. The
median of the turns counts. No row ever ends, so that each gives T tokens. The time per token is that of one step, which
gives every row of the batch a token. The clock runs from the encoded source to the tokens on the host. Compiling is not
on the clock. The tokens of both are compared; were the first 32 not the same, that would be an error.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from transformer_jax import TrainingConfig
from transformer_jax.cli import parse, run
from transformer_jax.decoding.token_by_token import greedy_decode
from transformer_jax.devices.mesh import choose_devices
from transformer_jax.errors import InputError
from transformer_jax.fields import check_fields, setting
from transformer_jax.nn.encoder_decoder import DecodingCache, Transformer

TURN_SECONDS = 1.0  # on the clock, or one decoding where that takes longer
CHECKED_TOKENS = 32  # that must agree; much later, rounding may decide between two tokens all but equally probable

Decode = Callable[[], np.ndarray]  # what is measured: tokens [B, T] of a batch that is encoded already


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodingConfig:
    """Measure greedy decoding."""

    lengths: tuple[int, ...] = (32, 128, 512)  # T, tokens to decode
    batch_size: int = setting(16, least=1)  # B
    source_length: int = setting(32, least=1)  # S
    vocabulary_size: int = setting(259, least=1)  # V, of source and target
    model_dim: int = 128  # D
    num_heads: int = 4  # H
    num_layers: int = setting(2, least=1)  # blocks in each stack
    dim_feedforward: int = 256  # F
    repeats: int = setting(3, least=1)  # times that each contestant is measured; the median counts
    seed: int = setting(0, least=0)  # of the weights and the batch

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.lengths or min(self.lengths) < 1:
            raise InputError(f"lengths is {self.lengths}; it must be numbers of at least 1")

    def model(self) -> Transformer:
        sizes = self.model_dim, self.num_heads, self.num_layers, self.num_layers, self.dim_feedforward
        return Transformer(self.vocabulary_size, self.vocabulary_size, *sizes)


def prepare_cached(model: Transformer, params: Any, source: Array, length: int) -> Decode:
    """Our decoding: each token costs one position."""
    start = jax.jit(partial(model.apply, method="start_decoding"))
    step = partial(model.apply, method="decode_step")
    return _prepare(model, step, params, start(params, source), length, DecodingCache.grow)


class Prefix(NamedTuple):
    """What rerunning keeps between the tokens that it decodes."""

    tokens: Array  # [B T], beginning with the start token, 0
    memory: Array  # [B S D]


def prepare_rerun(model: Transformer, params: Any, source: Array, length: int) -> Decode:
    """Our model without its cache: each token costs all positions before it, and some padding."""
    block = math.ceil(length / 8)
    lengths = [min(end, length) for end in range(block, length + block, block)]

    def step(params: Any, tokens: Array, position: Array, prefix: Prefix) -> tuple[Array, Prefix]:
        prefix = prefix._replace(tokens=lax.dynamic_update_index_in_dim(prefix.tokens, tokens, position, axis=1))

        def next_logits(padded_length: int) -> Array:
            logits = model.apply(params, prefix.tokens[:, :padded_length], prefix.memory, method="decode")  # [B T V]
            return logits[:, position]  # which sees nothing of the padding after it

        return lax.switch(position // block, [partial(next_logits, end) for end in lengths]), prefix

    memory = jax.jit(partial(model.apply, method="encode"))(params, source)
    return _prepare(model, step, params, Prefix(jnp.zeros((len(source), length), jnp.int32), memory), length)


def _prepare(
    model: Transformer, step: Callable[..., Any], params: Any, cache: Any, length: int, grow: Any = None
) -> Decode:
    """Compile greedy decoding with a step function that takes the parameters first."""
    end_token = model.target_vocabulary_size  # one more than there are; it is never chosen
    devices = choose_devices(TrainingConfig(batch_size=len(jax.tree.leaves(cache)[0])))
    params, cache = devices.place(params), devices.place_rows(cache)

    def decode(params: Any, cache: Any) -> Array:
        def step_without_end(tokens: Array, position: Array, cache: Any) -> tuple[Array, Any]:
            logits, cache = step(params, tokens, position, cache)
            return jnp.pad(logits, ((0, 0), (0, 1)), constant_values=-jnp.inf), cache

        ends = {"start_token": 0, "end_token": end_token, "pad_token": end_token}
        num_rows = len(jax.tree.leaves(cache)[0])
        return greedy_decode(step_without_end, cache, num_rows, **ends, max_length=length, grow=grow).tokens

    compiled = jax.jit(devices.share(decode, returns_rows=True)).lower(params, cache).compile()
    return lambda: np.asarray(compiled(params, cache))


CONTESTANTS = {"cached": prepare_cached, "rerun": prepare_rerun}


def measure(config: DecodingConfig) -> dict[int, dict[str, float]]:
    """Milliseconds a token at each length, of each contestant; and the fraction of tokens that both agree on."""
    model = config.model()
    shape = config.batch_size, config.source_length
    source = jax.random.randint(jax.random.key(config.seed), shape, 0, config.vocabulary_size)
    params = jax.jit(model.init)(jax.random.key(config.seed), source, source)
    found = {}
    for length in config.lengths:
        contestants = {name: prepare(model, params, source, length) for name, prepare in CONTESTANTS.items()}
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        tokens = {}
        for _ in range(config.repeats):
            for name, decode in contestants.items():
                start = time.perf_counter()
                decode()
                calls = max(1, round(TURN_SECONDS / (time.perf_counter() - start)))
                start = time.perf_counter()
                for _ in range(calls):
                    tokens[name] = decode()
                seconds[name].append((time.perf_counter() - start) / calls)
        found[length] = {name: 1000 * median(each) / length for name, each in seconds.items()}
        found[length]["agreement"] = agreement(*tokens.values())
    return found


def agreement(tokens: np.ndarray, others: np.ndarray) -> float:
    """Fraction of the tokens that are the same.

    Raises:
        RuntimeError: they differ early.
    """
    same = tokens == others  # [B T]
    if not same[:, :CHECKED_TOKENS].all():
        raise RuntimeError(f"the contestants' first {CHECKED_TOKENS} tokens are not the same")
    return float(same.mean())


def main(config: DecodingConfig) -> None:
    with jax.default_matmul_precision("highest"):  # on GPUs, where rounding could choose other tokens
        found = measure(config)
    print("tokens  ms a token: cached     rerun   same tokens")
    for length, row in found.items():
        print(f"{length:6}{row['cached']:20.3f}{row['rerun']:10.3f}{row['agreement']:14.2%}")


if __name__ == "__main__":
    run(partial(parse, DecodingConfig), main)
