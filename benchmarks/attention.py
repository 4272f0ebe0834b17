"""Measure attention, forward and backward: plain, blockwise, and PyTorch's `scaled_dot_product_attention`.

python benchmarks/attention.py                        # a table for T 256 … 16 384: many minutes on two CPU cores
python benchmarks/attention.py --lengths 256 2048     # half a minute

All contestants have the same operands, use the same cores, and take turns of half a second (`harness.py`). Plain
attention needs O(T²) memory, so it is measured only up to `max_plain`. PyTorch is measured only on CPUs, in float32.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import torch
from tqdm import tqdm

from harness import markdown, measure_turns
from transformer_jax.attention.attention import Implementation, dot_product_attention
from transformer_jax.attention.masks.symbolic import AttentionMask, Causal, Window
from transformer_jax.cli import parse, run
from transformer_jax.fields import set_checked_fields, setting

TURN_SECONDS = 0.5  # timed duration of a turn, which has at least one call
WINDOW = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """Measure attention."""

    lengths: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192, 16384)  # T, of queries and keys
    batch_size: int = setting(1, least=1)  # B
    num_heads: int = setting(4, least=1)  # H
    head_width: int = setting(64, least=1)  # d
    max_plain: int = setting(4096, least=1)  # longest T at which plain attention is measured
    repeats: int = setting(5, least=1)  # times that each contestant is measured; the median counts
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the operands

    __post_init__ = set_checked_fields


Operands = list[np.ndarray]  # q, k, v and the cotangent of the values
Contestant = Callable[[], object]


def ours(
    operands: Operands, implementation: Implementation, mask: AttentionMask | None
) -> tuple[Contestant, int]:
    """Return a compiled call of attention's forward and backward pass, and the bytes of its temporaries."""

    def gradients(q: Any, k: Any, v: Any, cotangent: Any) -> Any:
        attend = partial(dot_product_attention, mask=mask, implementation=implementation)
        return jax.vjp(attend, q, k, v)[1](cotangent)

    arrays = [jnp.asarray(x) for x in operands]
    compiled = jax.jit(gradients).lower(*arrays).compile()
    size = compiled.memory_analysis().temp_size_in_bytes
    return lambda: jax.block_until_ready(compiled(*arrays)), size


def pytorch(operands: Operands, is_causal: bool) -> Contestant:
    q, k, v, cotangent = (torch.tensor(x) for x in operands)
    for x in (q, k, v):
        x.requires_grad_(True)

    def call() -> None:
        for x in (q, k, v):
            x.grad = None
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal).backward(
            cotangent
        )

    return call


def contestants(
    config: AttentionConfig, length: int
) -> tuple[dict[str, Contestant], dict[str, int]]:
    """All that are measured at a length, and the bytes of the temporaries of ours."""
    rng = np.random.default_rng(0)
    shape = config.batch_size, config.num_heads, length, config.head_width
    operands = [rng.normal(size=shape).astype(jnp.dtype(config.dtype)) for _ in range(4)]
    calls, sizes = {}, {}
    for name, mask in (("", None), (" causal", Causal()), (" window", Window(WINDOW, 0))):
        for implementation in ("plain", "blockwise", "auto"):
            is_long = implementation == "plain" and length > config.max_plain
            if not is_long and (name != " window" or implementation == "blockwise"):
                calls[implementation + name], sizes[implementation + name] = ours(
                    operands, implementation, mask
                )
    if jax.default_backend() == "cpu" and config.dtype == "float32":
        calls["pytorch"], calls["pytorch causal"] = (
            pytorch(operands, False),
            pytorch(operands, True),
        )
    return calls, sizes


def measure(config: AttentionConfig) -> list[dict[str, Any]]:
    """Milliseconds of each contestant at each length, bytes of temporaries, and the ratios for the documentation."""
    rows = []
    for length in tqdm(config.lengths, leave=False, disable=None):
        calls, sizes = contestants(config, length)
        found = measure_turns(calls, config.repeats, TURN_SECONDS)
        others = "blockwise causal", "plain", "pytorch"
        ratios = [found.get(name, float("nan")) / found["blockwise"] for name in others]
        rows.append({"length": length, "ms": found, "temporary_bytes": sizes, "ratios": ratios})
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print the tables of times, and of memory and ratios."""
    names = list(rows[0]["ms"])
    cells = (
        [row["length"], *(f"{row['ms'].get(name, float('nan')):.2f}" for name in names)]
        for row in rows
    )
    print("Milliseconds, forward and backward", "", markdown(["T", *names], cells), "", sep="\n")
    header = [
        "T",
        "MiB of plain",
        "of blockwise",
        "causal/full",
        "plain/blockwise",
        "pytorch/blockwise",
    ]
    found = []
    for row in rows:
        sizes = (
            row["temporary_bytes"].get(name, float("nan")) / 2**20
            for name in ("plain", "blockwise")
        )
        found.append(
            [
                row["length"],
                *(f"{size:.1f}" for size in sizes),
                *(f"{ratio:.2f}" for ratio in row["ratios"]),
            ]
        )
    print("Temporaries, and ratios of times", "", markdown(header, found), sep="\n")


if __name__ == "__main__":
    run(partial(parse, AttentionConfig), lambda config: print_table(measure(config)))
