"""Reads TensorBoard events back with TensorBoard's own reader."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray


def read_scalars(directory: Path) -> dict[str, dict[int, float]]:
    """For each tag its values by step."""
    reader = EventAccumulator(str(directory), size_guidance={"tensors": 0})  # 0 = all of them
    reader.Reload()
    return {
        tag: {event.step: float(make_ndarray(event.tensor_proto)) for event in reader.Tensors(tag)}
        for tag in reader.Tags()["tensors"]
    }
