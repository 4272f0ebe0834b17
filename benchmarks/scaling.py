"""Memory, exchanges and step time of language models on 8, 64 and 256 devices; prints the tables of docs/scaling.md.

`python benchmarks/scaling.py` takes two minutes on two CPU cores, and 1 GiB of memory.

*Compiled*: for each model and mesh, a subprocess (`scaling_step.py`) lets XLA compile the package's training step for
that many CPU devices, from shapes alone. Memory is what the compiler has planned for each device. Matrix products and
collectives are counted in the per-device program that XLA's partitioner writes (`collectives.py`), before the CPU
backend converts bfloat16 to float32, and a `reduce-scatter` to an `all-reduce`. Collectives are assumed to run in a
ring, which determines how much of an array a device sends.

*Arithmetic*: closed formulas for comparison with the compiled numbers, and the times, from data sheets (`H100`) and
one assumption (`UTILISATION`). Nothing is measured.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from harness import markdown
from transformer_jax.attention.attention import Implementation, explain
from transformer_jax.attention.block_layout import choose_block_sizes
from transformer_jax.attention.masks.symbolic import Causal
from transformer_jax.cli import parse, run
from transformer_jax.fields import set_checked_fields


class Machine(NamedTuple):
    """A device and its links, from the vendor's data sheets."""

    flops: float  # per second, dense bfloat16
    memory: float  # bytes
    in_host: float  # bytes per second that a device sends to other devices of its host
    between_hosts: float  # bytes per second that a device sends through its network port


# Data sheets of the NVIDIA H100 SXM (80 GB; NVLink 900 GB/s in both directions together) and of the DGX H100 (eight of
# them, each with a port of 400 Gb/s).
H100 = Machine(flops=989e12, memory=80e9, in_host=450e9, between_hosts=50e9)
UTILISATION = 0.5  # assumed: the share of the peak that the products reach


@dataclasses.dataclass(frozen=True)
class Size:
    """Sizes of a language model and of its training batches."""

    model_dim: int  # D
    num_heads: int
    num_layers: int  # L
    seq_len: int = 2048  # T
    vocab_size: int = 16384  # V
    rows_per_device: int = 4


SIZES = {
    # for the tests
    "tiny": Size(64, num_heads=4, num_layers=3, seq_len=32, vocab_size=256, rows_per_device=1),
    "100 M": Size(768, num_heads=12, num_layers=12),
    "1 B": Size(2048, num_heads=16, num_layers=19),
    "10 B": Size(4096, num_heads=32, num_layers=48),
}
# Parameters are sharded over the devices of a host, which have fast links; the rows are divided among hosts.
MESHES = {8: {"data": 1, "fsdp": 8}, 64: {"data": 8, "fsdp": 8}, 256: {"data": 32, "fsdp": 8}}
# For comparison: parameters sharded over more devices, so that each holds fewer.
WIDER = {("10 B", 64): {"data": 1, "fsdp": 64}, ("10 B", 256): {"data": 4, "fsdp": 64}}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Compile training steps for many devices, and print what they take."""

    models: tuple[Literal[*SIZES], ...] = ("100 M", "1 B", "10 B")  # names of sizes
    devices: tuple[Literal[*MESHES], ...] = (8, 64, 256)  # numbers of devices, each with a mesh
    attention: Implementation = "auto"  # implementation of attention
    json: Path | None = None  # file for the numbers

    __post_init__ = set_checked_fields


class Case(NamedTuple):
    """A model on a mesh, and the figures of its compiled step (see `compiled` in `scaling_step.py`)."""

    model: str
    data: int
    fsdp: int
    attention: Implementation
    compiled: dict[str, Any]

    @property
    def parameters(self) -> int:
        return self.compiled["parameters"]

    @property
    def tokens(self) -> int:
        """Tokens of a step on each device."""
        size = SIZES[self.model]
        return size.rows_per_device * size.seq_len

    def sent(self, kind: str, key: str = "sent", where: str = "") -> float:
        """Sum over the collectives whose kind and place contain the given words."""
        return sum(
            one[key]
            for one in self.compiled["collectives"]
            if kind in one["kind"] and where in one["where"]
        )

    @property
    def arithmetic(self) -> dict[str, float]:
        """Bytes and FLOPs of a step on each device, from closed formulas.

        State: parameters and Adam's two moments in float32. Collectives in bfloat16: parameters are gathered in the
        forward and in the backward pass, gradients are reduce-scattered, and their parts summed over `data`; the
        gradient of the embedding is in float32. FLOPs: two forward passes (one recomputes) and one backward pass, 8
        per token and parameter, the embedding excepted, plus `attention_flops`.
        """
        size, count = SIZES[self.model], self.parameters
        parts, copies = (self.fsdp - 1) / self.fsdp, (self.data - 1) / self.data
        embedding = size.vocab_size * size.model_dim
        multiplied = count - embedding
        attention = attention_flops(size.seq_len, self.attention) * size.num_layers * size.model_dim
        return {
            "state": 12 * count / self.fsdp,
            "all-gather": 2 * 2 * count * parts,
            "reduce-scatter": 2 * (count + embedding) * parts,
            "all-reduce": 2 * 2 * (count + embedding) / self.fsdp * copies,
            "flops": (8 * multiplied + attention) * self.tokens,
        }

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of computation, and of communication over each of the two kinds of links."""
        return {
            "compute": self.arithmetic["flops"] / (H100.flops * UTILISATION),
            "in host": self.sent("", where="in a host") / H100.in_host,
            "between hosts": self.sent("", "through_port", "between hosts") / H100.between_hosts,
        }


def attention_flops(length: int, attention: Implementation) -> float:
    """FLOPs of causal attention per token, layer and unit of width, for two forward passes and one backward pass.

    A product of all queries and keys takes 2 T. Plain attention has two products in a forward and four in a backward
    pass. Blockwise attention recomputes the logits, five products in a backward pass, but computes only a staircase
    of the logits, up to the diagonal.
    """
    # fewest rows and heads of the sizes, except tiny
    row = jax.ShapeDtypeStruct((4, 12, length, 64), jnp.bfloat16)
    chosen = (
        attention
        if attention != "auto"
        else explain(row, row, row, Causal(), backend="cpu").implementation
    )
    if chosen == "plain":
        return (2 * 2 + 4) * 2 * length
    num_stairs = -(-length // choose_block_sizes(Causal(), length, length).stair)
    return (2 * 2 + 5) * 2 * length * (num_stairs + 1) / (2 * num_stairs)


def compile_case(model: str, mesh: dict[str, int], attention: Implementation) -> Case:
    """Compile a step in a subprocess that has as many devices as the mesh."""
    size, devices = SIZES[model], mesh["data"] * mesh["fsdp"]
    settings = {
        name: value for name, value in dataclasses.asdict(size).items() if name != "rows_per_device"
    }
    settings |= {
        "batch_size": size.rows_per_device * devices,
        "mesh": f"data={mesh['data']},fsdp={mesh['fsdp']}",
    }
    settings["attention"] = attention
    with tempfile.TemporaryDirectory() as directory:
        flags = (
            f"--xla_force_host_platform_device_count={devices} --xla_dump_to={directory}"
            " --xla_dump_hlo_as_text --xla_dump_hlo_module_re=run_stacked"
            " --xla_dump_hlo_pass_re=spmd-partitioning"
        )
        command = [
            sys.executable,
            str(Path(__file__).with_name("scaling_step.py")),
            json.dumps(settings),
        ]
        # Without the cache, because XLA dumps only the programs that it compiles.
        chosen = {
            "XLA_FLAGS": flags,
            "JAX_PLATFORMS": "cpu",
            "JAX_ENABLE_COMPILATION_CACHE": "false",
        }
        printed = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | chosen
        ).stdout
    return Case(model, mesh["data"], mesh["fsdp"], attention, json.loads(printed.splitlines()[-1]))


def table(header: str, cases: list[Case], cells: Callable[[Case], list[str]]) -> str:
    """Format a table whose rows begin with the case."""
    rows = []
    for case in cases:
        mesh = ",".join(
            f"{axis}={size}"
            for axis, size in (("data", case.data), ("fsdp", case.fsdp))
            if size > 1
        )
        rows.append([case.model, case.data * case.fsdp, f"`{mesh}`", *cells(case)])
    return markdown(["model", "devices", "mesh", *header.split(" | ")], rows)


def number(value: float) -> str:
    """Format with three significant digits, or as an integer from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 1e-3 else "0"


def memory(case: Case) -> list[str]:
    """Cells of the memory table."""
    held, temporary = case.compiled["held"], case.compiled["temporary"]
    sizes = (
        number(size / 1e9) for size in (held, case.arithmetic["state"], temporary, held + temporary)
    )
    return [f"{number(case.parameters / 1e6)} M", *sizes]


def exchanges(case: Case) -> list[str]:
    """Cells of the communication table."""
    cells = []
    for kind in ("all-gather", "reduce-scatter", "all-reduce"):
        cells += [case.sent(kind, "times"), case.sent(kind) / 1e9, case.arithmetic[kind] / 1e9]
    return [*map(number, cells), number(case.sent("", "through_port", "between hosts") / 1e9)]


def times(case: Case) -> list[str]:
    """Cells of the table of step times."""
    seconds = case.seconds
    sending = seconds["in host"] + seconds["between hosts"]
    steps = max(seconds["compute"], sending), seconds["compute"] + sending
    flops = case.compiled["flops"] / 1e12, case.arithmetic["flops"] / 1e12
    tokens = case.tokens * case.data * case.fsdp
    rates = " to ".join(number(tokens / step / 1e6) for step in reversed(steps))
    return [*map(number, (*flops, *(1000 * part for part in (*seconds.values(), *steps)))), rates]


def main(settings: Settings) -> None:
    """Compile each case, and print the tables."""
    chosen = [(model, MESHES[devices]) for model in settings.models for devices in settings.devices]
    chosen += [
        (model, mesh)
        for (model, devices), mesh in WIDER.items()
        if (model, MESHES[devices]) in chosen
    ]
    cases = []
    for model, mesh in chosen:
        cases.append(compile_case(model, mesh, settings.attention))
        print(
            f"{model}, {mesh}: {cases[-1].compiled['seconds']:.0f} s", file=sys.stderr, flush=True
        )
    if settings.json:
        results = [
            case._asdict() | {"arithmetic": case.arithmetic, "seconds": case.seconds}
            for case in cases
        ]
        settings.json.write_text(json.dumps(results, indent=1))
    show(cases)


def show(cases: list[Case]) -> None:
    """Print the tables."""
    c, a = "*compiled*", "*arithmetic*"
    print(f"GB of memory on each device, which has {H100.memory / 1e9:.0f}:\n")
    header = f"parameters | state {c} | 12 N / fsdp {a} | temporaries {c} | together {c}"
    print(table(header, cases, memory), "", sep="\n")
    print("GB that each device sends in a step:\n")
    kinds = (
        f"{name} {c} | GB {c} | GB {a}" for name in ("gathers", "scattered sums", "whole sums")
    )
    print(table(f"{' | '.join(kinds)} | GB through its port {c}", cases, exchanges), "", sep="\n")
    print(f"Milliseconds of a step, {a}, {UTILISATION:.0%} of the peak assumed:\n")
    header = (
        f"TFLOP {c} | TFLOP {a} | computing | NVLink | network | step, overlapped | step, one after"
        " another"
    )
    print(table(f"{header} | million tokens a second", cases, times))


if __name__ == "__main__":
    run(partial(parse, Settings), main)
