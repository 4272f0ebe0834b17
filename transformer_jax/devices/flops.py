"""FLOPs of a program, counted from its trace on any backend, and the peaks of devices."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax

# FLOP/s of dense products in bfloat16 (float16 if a card has no bfloat16), from the makers' data sheets. The first
# entry that a device's name contains counts.
PEAKS: Mapping[str, float] = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10G": 70e12,
    "V100": 125e12,
    "T4": 65e12,
    "TPU v6": 918e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v4": 275e12,
}


def peak_of(kind: str) -> float | None:
    """FLOP/s of a device of this kind (`jax.Device.device_kind`) at its peak, or None if it is not in the table."""
    for name, peak in PEAKS.items():
        if name in kind:
            return peak
    return None


def flops_of(jaxpr: Any) -> float:  # JAX's type of traces is not public
    """Count the FLOPs of matrix products, two for each multiplication.

    A loop of unknown length counts as one iteration, and products inside a kernel, such as fused attention, as none.
    """
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted_axes, _), _ = equation.params["dimension_numbers"]  # of the left factor
            left_shape = equation.invars[0].aval.shape
            size = math.prod(equation.outvars[0].aval.shape)
            total += 2.0 * size * math.prod(left_shape[axis] for axis in contracted_axes)
        if equation.primitive.name != "pallas_call":
            inside = sum(map(flops_of, _inner(equation.params)))
            total += inside * equation.params.get("length", 1)
    return total


def _inner(params: Mapping[str, Any]) -> Iterator[Any]:
    """The traces inside an operation: of a loop's body, a branch, or a compiled function."""
    for part in jax.tree.leaves(params):
        part = getattr(part, "jaxpr", part)  # without its constants
        if hasattr(part, "eqns"):
            yield part
