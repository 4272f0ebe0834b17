"""What capturing costs: a pass of a 6-layer encoder, and the same pass with all of its activations returned.

`python benchmarks/inspection.py` takes about a minute on two CPU cores.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import jax

from transformer_jax import BlockSettings, TransformerEncoder, capture
from transformer_jax.cli import parse, run


@dataclasses.dataclass(frozen=True)
class Settings:
    """Measure what capturing costs."""

    repeats: int = 20  # calls of each program, in turns
    batch_size: int = 16  # B
    length: int = 128  # T
    model_dim: int = 256  # D
    num_heads: int = 8  # H
    num_layers: int = 6  # L


def programs(settings: Settings) -> Mapping[str, Callable[[], object]]:
    """Compiled calls: the pass alone, with each layer's weights, with everything."""
    model = TransformerEncoder(
        settings.num_layers,
        settings.model_dim,
        settings.num_heads,
        4 * settings.model_dim,
        settings=BlockSettings(norm_first=True),
    )
    x = jax.random.normal(jax.random.key(0), (settings.batch_size, settings.length, settings.model_dim))
    variables = model.init(jax.random.key(1), x)
    chosen = {"pass": None, "without names": [], "weights": ["*.weights"], "residual stream": ["*put"], "all": ["*"]}

    def call(names: list[str] | None) -> Callable[[], object]:
        program = jax.jit(model.apply if names is None else partial(capture, model, names=names))
        compiled = program.lower(variables, x).compile()
        return lambda: jax.block_until_ready(compiled(variables, x))

    return {name: call(names) for name, names in chosen.items()}


def main(settings: Settings) -> None:
    """Print medians and their ratios to the pass alone."""
    calls = programs(settings)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(settings.repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    alone = statistics.median(times["pass"])
    for name, seconds in times.items():
        median, least, most = (1e3 * measure(seconds) for measure in (statistics.median, min, max))
        print(f"{name:15}  {median:7.1f} ms  ({least:.1f} to {most:.1f})  × {median / alone / 1e3:.2f}")


if __name__ == "__main__":
    run(partial(parse, Settings), main)
