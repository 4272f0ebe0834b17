"""Count the collectives and matrix products of a compiled program from its text (XLA's HLO), loops included."""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?(?P<name>%?[\w.-]+) = (?P<shape>\(.*?\)|\S+)"
    r" (?P<operation>[a-z-]+)\((?P<rest>.*)$"
)
COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?(?P<name>%?[\w.-]+) \(.*\{$")
ARRAY = re.compile(r"\b([a-z]+[0-9]*)\[([0-9,]*)\]")
BYTES = {
    "pred": 1,
    "s8": 1,
    "u8": 1,
    "bf16": 2,
    "f16": 2,
    "s32": 4,
    "u32": 4,
    "f32": 4,
    "s64": 8,
    "u64": 8,
    "f64": 8,
}
# attribute that names the computation to run
CALLED = {"while": "body", "call": "to_apply", "fusion": "calls"}
# Bytes that each device sends in a ring of g devices, given the bytes of the whole array.
SENT = dict.fromkeys(
    ("all-gather", "reduce-scatter", "all-to-all"), lambda size, g: size * (g - 1) / g
) | {
    "all-reduce": lambda size, g: 2 * size * (g - 1) / g,
    "collective-permute": lambda size, g: size,
}


class Instruction(NamedTuple):
    """A line of a program."""

    name: str
    shape: str
    operation: str
    rest: str  # operands and attributes

    @property
    def arrays(self) -> list[tuple[str, int]]:
        """Type and number of elements of each array of the result."""
        return [(kind, math.prod(sizes_in(sizes))) for kind, sizes in ARRAY.findall(self.shape)]


class Collective(NamedTuple):
    """A collective operation of a program."""

    kind: str
    times: int  # runs per step
    elements: int  # of the whole arrays
    num_bytes: int  # of the whole arrays
    groups: Int[np.ndarray, "groups size"]  # numbers of the devices that communicate

    @property
    def sent(self) -> float:
        """Bytes that each device sends in a step."""
        return self.times * SENT[self.kind](self.num_bytes, self.groups.shape[1])

    def hosts(self, devices_per_host: int) -> int:
        """Largest number of hosts that a group spans; devices of a host have consecutive numbers."""
        return max(len(set(group)) for group in (self.groups // devices_per_host).tolist())

    def through_port(self, devices_per_host: int) -> float:
        """Bytes that each device sends through its network port in a step.

        A group with k devices per host uses k rings, each of which leaves the host through the port of a different
        device. Hence 1/k of the bytes that a device sends go to another host.
        """
        hosts = self.hosts(devices_per_host)
        return self.sent * hosts / self.groups.shape[1] if hosts > 1 else 0.0


class Program:
    """A compiled program, parsed from its text.

    The number of rounds of a loop is the one that XLA has noted (`known_trip_count`), or the constant that bounds its
    counter. A loop with neither counts as one round; in our programs this is the outermost loop, over training steps.

    Args:
        text: text of an HLO module.
    """

    def __init__(self, text: str) -> None:
        self._computations: dict[str, list[Instruction]] = {}
        entry = ""
        for line in text.splitlines():
            if found := COMPUTATION.match(line):
                self._computations[found["name"]] = instructions = []
                entry = found["name"] if found["entry"] else entry
            elif self._computations and (found := INSTRUCTION.match(line)):
                instructions.append(Instruction(**found.groupdict()))
        self._rounds = list(self._walk(entry, 1))

    def collectives(self) -> list[Collective]:
        """List the collectives; an `all-reduce` of which each device keeps only its slice is a `reduce-scatter`.

        XLA's partitioner writes a reduce-scatter as an `all-reduce` and a `dynamic-slice`. The compilers for GPUs and
        TPUs fuse the two; the compiler for CPUs does not.
        """
        found = []
        for computation, times in self._rounds:
            for one in self._computations[computation]:
                kind = one.operation.removesuffix("-start")
                if kind not in SENT:
                    continue
                elements = sum(size for _, size in one.arrays)
                num_bytes = sum(size * BYTES[dtype] for dtype, size in one.arrays)
                groups = groups_in(one.rest)
                if kind == "reduce-scatter":
                    elements, num_bytes = elements * groups.shape[1], num_bytes * groups.shape[1]
                if kind == "all-reduce" and self._is_scattered(computation, one, groups.shape[1]):
                    kind = "reduce-scatter"
                found.append(Collective(kind, times, elements, num_bytes, groups))
        return found

    def flops(self) -> int:
        """FLOPs of a step's matrix products, on each device."""
        total = 0
        for computation, times in self._rounds:
            shapes = {one.name: one.shape for one in self._computations[computation]}
            for one in self._computations[computation]:
                if one.operation != "dot":
                    continue
                left = ARRAY.findall(shapes[one.rest.split(",")[0].split(")")[0].split()[-1]])[0][1]
                axes = sizes_in(re.search(r"lhs_contracting_dims=\{([\d,]*)\}", one.rest)[1])
                contracted = math.prod(sizes_in(left)[axis] for axis in axes)
                total += times * 2 * contracted * sum(size for _, size in one.arrays)
        return total

    def _walk(self, computation: str, times: int) -> Iterator[tuple[str, int]]:
        """Yield the computations that a step runs and how often, once for each place that calls them."""
        yield computation, times
        for one in self._computations[computation]:
            rounds = times * (self._trips(one) if one.operation == "while" else 1)
            attribute = CALLED.get(one.operation)
            for called in re.findall(rf"{attribute}=(%?[\w.-]+)", one.rest) if attribute else ():
                yield from self._walk(called, rounds)

    def _trips(self, loop: Instruction) -> int:
        if noted := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.rest):
            return int(noted[1])
        condition = self._computations[re.search(r"condition=(%?[\w.-]+)", loop.rest)[1]]
        values = {
            one.name: one.rest.split(")")[0] for one in condition if one.operation == "constant"
        }
        compared = condition[-1].rest.split(")")[0].split(", ")
        limits = [int(values[name]) for name in compared if name in values]
        return limits[0] if limits and "direction=LT" in condition[-1].rest else 1

    def _is_scattered(self, computation: str, summed: Instruction, group_size: int) -> bool:
        name = re.compile(rf"{re.escape(summed.name)}(?![\w.-])")
        users = [one for one in self._computations[computation] if name.search(one.rest)]
        return bool(users) and all(
            one.operation == "dynamic-slice"
            and one.arrays[0][1] * group_size == summed.arrays[0][1]
            for one in users
        )


def groups_in(attributes: str) -> Int[np.ndarray, "groups size"]:
    """Parse the groups of devices from the attributes of a collective, in any of the forms that XLA writes.

    Raises:
        ValueError: the form is unknown.
    """
    order = r"\[(?P<order>[\d,]+)\](?:T\((?P<transposed>[\d,]+)\))?"
    if found := re.search(
        rf"replica_groups=mesh\[(?P<mesh>[^\]]*)\](?:, device_ids=\({order}\))?"
        r" ?\{(?P<over>[^}]*)\}",
        attributes,
    ):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", found["mesh"]))
        mesh = [int(size) for size in sizes.values()]
        devices = _ordered(found["order"] or str(math.prod(mesh)), found["transposed"]).reshape(
            mesh
        )
        over = [list(sizes).index(name) for name in re.findall(r"'(\w+)'", found["over"])]
        return np.moveaxis(devices, over, range(-len(over), 0)).reshape(
            -1, math.prod(mesh[axis] for axis in over)
        )
    if found := re.search(rf"replica_groups=\[(?P<shape>[\d,]+)\]<={order}", attributes):
        return _ordered(found["order"], found["transposed"]).reshape(sizes_in(found["shape"]))
    if found := re.search(
        r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{} ]*\})\}", attributes
    ):
        return np.array([sizes_in(group) for group in re.findall(r"\{([\d,]+)\}", found[1])])
    raise ValueError(f"unknown form of device groups in {attributes[:300]}")


def sizes_in(text: str) -> list[int]:
    """Return the integers of a text such as `8,16`."""
    return [int(number) for number in re.findall(r"\d+", text)]


def _ordered(shape: str, transposed: str | None) -> Int[np.ndarray, "..."]:
    sizes = sizes_in(shape)
    devices = np.arange(math.prod(sizes)).reshape(sizes)
    return devices.transpose(sizes_in(transposed)) if transposed else devices
