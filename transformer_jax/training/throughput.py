"""How well a training uses the devices: examples and FLOPs per second, waiting for data, memory."""

from collections.abc import Callable, Mapping, Sequence

import jax

from transformer_jax.attention.request import Explanation, attention_line
from transformer_jax.devices.compilation import Memory
from transformer_jax.training.callbacks import Callback, Log, Step

# Largest FLOPs per second of a dense product in bfloat16, from the vendors' data sheets, by the beginning of the name
# that JAX gives to a kind of device; the longest beginning counts.
PEAK_FLOPS: Mapping[str, float] = {
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": 989e12,
    "TPU v4": 275e12,
    "TPU v4 lite": 138e12,
    "TPU v5": 459e12,  # v5p
    "TPU v5 lite": 197e12,
    "TPU v6 lite": 918e12,
}


def peak_flops(device_kind: str) -> float | None:
    """Largest FLOPs per second of a device of this kind; None if it is not in the table."""
    names = [name for name in PEAK_FLOPS if device_kind.startswith(name)]
    return PEAK_FLOPS[max(names, key=len)] if names else None


class ShowProgram(Callback):
    """Prints, after the first step, which attention a step runs and why, and what it takes of a device's memory.

    Where batches have several shapes, another line comes with the first one that runs another attention.

    Args:
        write: prints a line.
        calls: of attention in the steps that were compiled; it grows.
        memory: of the compiled step; None where it is not known.
    """

    def __init__(
        self, write: Callable[[str], None], calls: Sequence[Explanation], memory: Callable[[], Memory | None]
    ) -> None:
        self._write, self._calls, self._memory = write, calls, memory
        self._num_seen, self._shown = 0, set[str]()  # calls, and implementations
        self._is_first = True

    def on_step(self, step: Step) -> None:
        """Print the lines that are due."""
        new = self._calls[self._num_seen :]
        self._num_seen += len(new)
        implementations = {call.implementation for call in new}
        if not implementations <= self._shown:
            self._shown |= implementations
            self._write(attention_line(new))
        if self._is_first and (memory := self._memory()) is not None:
            self._write(memory.line((jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")))
        self._is_first = False


class LogThroughput(Callback):
    """Logs, where an entry of the curves is due, how fast and how busy the devices are.

    `throughput/examples_per_second`; `throughput/seconds_waiting_for_data` since the last entry;
    `throughput/flops_per_second`, those of the program before its optimization, and `throughput/share_of_peak` of all
    devices, where their peak is known; `throughput/bytes_in_use/<device>`, where the devices tell.

    Args:
        log: gets the entries.
        every: steps between entries.
        batch_size: examples of a step.
        flops_per_step: asked at the first entry; None where it is not known.
        devices: that share the steps.
    """

    def __init__(
        self,
        log: Log,
        every: int,
        batch_size: int,
        flops_per_step: Callable[[], float | None],
        devices: list[jax.Device],
    ) -> None:
        self._log, self._every, self._batch_size, self._devices = log, every, batch_size, devices
        self._flops_per_step = flops_per_step
        self._waited = 0.0

    def on_step(self, step: Step) -> None:
        """Log, if an entry is due."""
        self._waited += step.waited
        if step.number % self._every:
            return
        scalars = {
            "examples_per_second": step.per_second * self._batch_size,
            "seconds_waiting_for_data": self._waited,
        }
        self._waited = 0.0
        flops = self._flops_per_step()
        if flops is not None:
            scalars["flops_per_second"] = flops * step.per_second
            peak = peak_flops(self._devices[0].device_kind)
            if peak is not None:
                scalars["share_of_peak"] = scalars["flops_per_second"] / (peak * len(self._devices))
        for device in self._devices:
            if device.process_index != jax.process_index():
                continue
            in_use = (device.memory_stats() or {}).get("bytes_in_use")
            if in_use is not None:
                scalars[f"bytes_in_use/{device.id}"] = float(in_use)
        self._log(step.number, {f"throughput/{name}": value for name, value in scalars.items()})
