"""Memory of a device that a compiled step takes, as the compiler has planned it."""

from typing import Any, NamedTuple


class Memory(NamedTuple):
    """Bytes that a compiled call takes on each device, as the compiler has planned it."""

    held: int  # of the training state, the batches and the constants
    temporary: int  # of activations, gradients and whatever else lives only inside the call

    @classmethod
    def of(cls, executable: Any) -> "Memory | None":  # Any: what `jax.stages.Lowered.compile` gives
        """That of a compiled call; None where the backend does not tell."""
        analysis = executable.memory_analysis()
        if analysis is None:
            return None
        return cls(int(analysis.argument_size_in_bytes), int(analysis.temp_size_in_bytes))

    def line(self, limit: int | None) -> str:
        """The memory of a call, and whether it fits into `limit` bytes; None for a device that does not tell."""
        held, temporary = _size(self.held), _size(self.temporary)
        needed = f"Memory of each device: {held} for state and batches, {temporary} inside a step"
        if limit is None:
            return needed
        fits = "which fits" if self.held + self.temporary <= limit else "which does NOT fit"
        return f"{needed}, {fits} into its {_size(limit)}"


def _size(num_bytes: int) -> str:
    exponent = min(4, max(0, num_bytes.bit_length() - 1) // 10)
    size = num_bytes / 1024**exponent
    digits = f"{size:.0f}" if size >= 100 else f"{size:.3g}"
    return f"{digits} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[exponent]}"
