"""Random cases of attention: shapes, mask expressions, biases, dropout and block sizes, for hypothesis."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from transformer_jax import ALiBi, ArrayMask, Causal, Padding, Prefix, RelativeBias, Segments, SoftCap, Window
from transformer_jax.attention import ArrayBias, AttentionDropout, BiasFunction, MaskFunction
from transformer_jax.attention.block_layout import BlockSizes
from transformer_jax.attention.masks.symbolic import reach


@dataclasses.dataclass(frozen=True)
class Case:
    """Operands `[N, H, T, d]`, and all other arguments of attention."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    cotangent: np.ndarray
    num_batch: int
    mask: Any
    bias: Any
    dropout: Any
    sizes: BlockSizes


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def every_third(batch, head, query, key):
    return (batch + head + query - key) % 3 == 0


def decayed(logit, batch, head, query, key, rates, shift):
    return logit - rates[head] * jnp.sqrt(jnp.abs(query - key) + 1.0) + shift * batch


def masks_of_positions() -> st.SearchStrategy:
    offsets = st.integers(-9, 9)
    reach = st.none() | st.integers(0, 9)
    return st.one_of(
        st.builds(Causal, offsets), st.builds(Window, reach, reach, offsets), st.builds(Prefix, st.integers(0, 12))
    )


def mask_leaves(rng: np.random.Generator, num_batch: int, num_heads: int, T: int, S: int) -> st.SearchStrategy:  # noqa: N803
    rows = st.sampled_from([1, num_batch])
    of_arrays = st.one_of(
        rows.map(lambda b: Padding(rng.random((b, S)) < 0.7)),
        rows.map(lambda b: Padding(np.arange(S) < rng.integers(0, S + 1, (b, 1)))),
        rows.map(lambda b: Segments(np.sort(rng.integers(0, 4, (b, T))), np.sort(rng.integers(0, 4, (b, S))))),
        st.tuples(rows, st.sampled_from([1, num_heads]), st.sampled_from([1, T]), st.sampled_from([1, S])).map(
            lambda shape: ArrayMask(rng.random(shape) < 0.6)
        ),
        rows.map(lambda b: Prefix(rng.integers(0, S + 1, b))),
        st.builds(MaskFunction, st.just(every_third), st.just(()), st.integers(-4, 4)),
    )
    return masks_of_positions() | of_arrays


def expressions(leaves: st.SearchStrategy) -> st.SearchStrategy:
    def combined(children: st.SearchStrategy) -> st.SearchStrategy:
        pairs = st.tuples(children, children)
        return pairs.map(lambda p: p[0] & p[1]) | pairs.map(lambda p: p[0] | p[1]) | children.map(lambda mask: ~mask)

    return st.recursive(leaves, combined, max_leaves=4)


def biases(rng: np.random.Generator, num_batch: int, num_heads: int, T: int, S: int) -> st.SearchStrategy:  # noqa: N803
    offsets = st.integers(-5, 5) | st.integers(-5, 5).map(jnp.int32)
    of_heads = st.sampled_from([1, num_heads])
    leaves = st.one_of(
        st.builds(ALiBi, st.just(num_heads), offsets),
        st.builds(
            RelativeBias,
            st.sampled_from([8, 12]).map(lambda n: jnp.asarray(normal(rng, n, num_heads))),
            st.booleans(),
            st.sampled_from([9, 20]),
            offsets,
        ),
        st.sampled_from([1.5, 4.0]).map(lambda cap: SoftCap(jnp.float32(cap))),
        st.tuples(st.sampled_from([1, num_batch]), of_heads, st.sampled_from([1, T]), st.just(S)).map(
            lambda shape: ArrayBias(jnp.asarray(normal(rng, *shape)))
        ),
        offsets.map(
            lambda offset: BiasFunction(decayed, (jnp.asarray(normal(rng, num_heads)), jnp.float32(0.3)), offset)
        ),
    )
    return st.none() | leaves | st.tuples(leaves, leaves).map(lambda pair: pair[0] + pair[1])


@st.composite
def cases(draw) -> Case:
    """A case with up to 4 batch elements, 4 heads, 23 queries and 29 keys; some queries may see no key."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    num_batch, more = draw(st.integers(1, 2)), draw(st.sampled_from([1, 1, 2]))
    num_groups, group = draw(st.integers(1, 2)), draw(st.sampled_from([1, 1, 2]))
    T = draw(st.integers(1, 23))  # noqa: N806
    S = T if draw(st.booleans()) else draw(st.integers(1, 29))  # noqa: N806
    width, width_v = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    num_rows, num_heads = num_batch * more, num_groups * group
    masks = expressions(mask_leaves(rng, num_batch, num_heads, T, S))
    mask = draw(draw(st.sampled_from([st.none(), st.just(Causal()), masks, masks])))
    bias = draw(biases(rng, num_batch, num_heads, T, S))
    rate = draw(st.sampled_from([0.0, 0.0, 0.3]))
    return Case(
        normal(rng, num_rows, num_heads, T, width),
        normal(rng, num_rows, num_groups, S, width),
        normal(rng, num_rows, num_groups, S, width_v),
        normal(rng, num_rows, num_heads, T, width_v),
        num_batch,
        mask,
        bias,
        AttentionDropout(rate, jax.random.key(3)) if rate else None,
        draw(sizes_of_blocks(mask, T, S)),
    )


def sizes_of_blocks(mask, T: int, S: int) -> st.SearchStrategy:  # noqa: N803
    """Any block sizes, or a staircase if the mask allows one."""
    sizes = st.builds(BlockSizes, st.integers(1, min(T, 12)), st.integers(1, min(S, 12)))
    left, right = (None, None) if mask is None else reach(mask) or (None, None)
    if T != S or right != 0:
        return sizes
    fills = [size for size in range(2, T + 1) if T % size == 0 and (left is None or size == T)]
    stairs = [BlockSizes(size, size, num_stairs=number) for size in fills for number in range(2, size + 1)]
    return st.sampled_from(stairs) if stairs else sizes
