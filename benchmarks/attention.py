"""Measures attention, forward and backward: plain, blockwise, and PyTorch's `scaled_dot_product_attention`.

python benchmarks/attention.py                        # a table for T 256 … 16 384: many minutes on two CPU cores
python benchmarks/attention.py --lengths 256 2048     # half a minute

All contestants have the same operands, take turns in one process, and use the same cores. A turn is one
call off the clock, and as many on it as take half a second. The median of the turns counts. Compiling is not on the
clock. Plain attention needs memory of T², and is measured up to `max_plain` alone. The times of the processor, summed
over its cores, stand beside those of the clock: on a machine that is shared they vary less. PyTorch takes part on CPUs.
"""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import torch
from tqdm import tqdm

from transformer_jax.attention.attention import Implementation, dot_product_attention
from transformer_jax.attention.masks.kinds import Window
from transformer_jax.attention.masks.symbolic import AttentionMask, Causal
from transformer_jax.cli import parse, run
from transformer_jax.errors import InputError
from transformer_jax.fields import check_fields, setting

TURN_SECONDS = 0.5  # on the clock, or one call where that takes longer
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
    seed: int = setting(0, least=0)  # of the operands
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the operands

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.lengths or min(self.lengths) < 1:
            raise InputError(f"lengths is {self.lengths}; it must be numbers of at least 1")


Operands = list[np.ndarray]  # q, k, v and the cotangent of the values
Contestant = Callable[[], object]


def ours(operands: Operands, implementation: Implementation, mask: AttentionMask | None) -> tuple[Contestant, int]:
    """A call that gives values' gradients, and the bytes of its temporaries."""

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
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal).backward(cotangent)

    return call


def contestants(config: AttentionConfig, length: int) -> tuple[dict[str, Contestant], dict[str, int]]:
    """All that are measured at a length, and the bytes of the temporaries of ours."""
    rng = np.random.default_rng(config.seed)
    shape = config.batch_size, config.num_heads, length, config.head_width
    operands = [rng.normal(size=shape).astype(jnp.dtype(config.dtype)) for _ in range(4)]
    calls, sizes = {}, {}
    for name, mask in (("", None), (" causal", Causal()), (" window", Window(WINDOW, 0))):
        for implementation in ("plain", "blockwise", "auto"):
            is_long = implementation == "plain" and length > config.max_plain
            if not is_long and (name != " window" or implementation == "blockwise"):
                calls[implementation + name], sizes[implementation + name] = ours(operands, implementation, mask)
    if jax.default_backend() == "cpu" and config.dtype == "float32":
        calls["pytorch"], calls["pytorch causal"] = pytorch(operands, False), pytorch(operands, True)
    return calls, sizes


def measure(config: AttentionConfig) -> list[dict[str, Any]]:
    """Milliseconds of the clock and of the processor of each contestant at each length, taking turns."""
    rows = []
    for length in tqdm(config.lengths, leave=False, disable=None):
        calls, sizes = contestants(config, length)
        clock: dict[str, list[float]] = {name: [] for name in calls}
        processor: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(config.repeats):
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                number = max(1, round(TURN_SECONDS / (time.perf_counter() - start)))
                start, start_processor = time.perf_counter(), time.process_time()
                for _ in range(number):
                    call()
                clock[name].append(1000 * (time.perf_counter() - start) / number)
                processor[name].append(1000 * (time.process_time() - start_processor) / number)
        rows.append({"length": length, "clock_ms": clock, "processor_ms": processor, "temporary_bytes": sizes})
    return rows


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with medians, and the ratios that are claimed."""
    for row in rows:
        typical = {name: median(times) for name, times in row["clock_ms"].items()}
        row["ms"] = typical
        row["processor"] = {name: median(times) for name, times in row["processor_ms"].items()}
        others = "blockwise causal", "plain", "pytorch"
        row["ratios"] = [typical.get(name, float("nan")) / typical["blockwise"] for name in others]
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    """Time of each contestant, and of the processor where they differ in that; memory; ratios."""
    names = list(rows[0]["ms"])
    for title, key in (("milliseconds, forward and backward", "ms"), ("of the processor, all cores", "processor")):
        print(title)
        print("     T" + "".join(f"{name:>18}" for name in names))
        for row in rows:
            print(f"{row['length']:6}" + "".join(f"{row[key].get(name, float('nan')):18.2f}" for name in names))
    print("MiB of temporaries, and ratios of times")
    print("     T       plain   blockwise   causal/full   plain/blockwise   pytorch/blockwise")
    for row in rows:
        sizes = (row["temporary_bytes"].get(name, float("nan")) / 2**20 for name in ("plain", "blockwise"))
        causal, plain, pytorch = row["ratios"]
        print(f"{row['length']:6}{next(sizes):12.1f}{next(sizes):12.1f}{causal:14.2f}{plain:18.2f}{pytorch:20.2f}")


def main(config: AttentionConfig) -> None:
    print_table(summarize(measure(config)))


if __name__ == "__main__":
    run(partial(parse, AttentionConfig), main)
