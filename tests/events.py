"""Read TensorBoard events with TensorBoard's own reader."""

from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def read_scalars(directory: Path, *, as_pairs: bool = False) -> dict[str, Any]:
    """Return the values by step for each tag; with `as_pairs`, a list of (step, value) that shows duplicates."""
    reader = EventAccumulator(str(directory), size_guidance={"scalars": 0})  # 0 = all of them
    reader.Reload()
    pairs = {
        # Files of one second come in any order.
        tag: sorted((event.step, float(event.value)) for event in reader.Scalars(tag))
        for tag in reader.Tags()["scalars"]
    }
    return pairs if as_pairs else {tag: dict(values) for tag, values in pairs.items()}


def is_timing(tag: str) -> bool:
    """Whether a curve shows durations, which differ from run to run."""
    return tag.startswith("throughput/")
