"""Size of the page `inspection.html` on a long example, and the time in which a browser opens it.

    PYTHONPATH=tests python benchmarks/inspection_page.py

An encoder of 6 layers of 8 heads reads 512 numbers. Its parameters are random, and its queries are multiplied by
several factors: the larger, the sharper the attention. The last line is of maps whose rows are distributed
uniformly over all rows that sum to 1, of which no encoding is short.
"""

import argparse
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from inspection_pages import CHROMIUM, opened, shown_map

from transformer_jax import ReverseConfig
from transformer_jax.inspection.page.page import Page, inspection_page
from transformer_jax.inspection.page.stored_maps import stored_maps
from transformer_jax.tasks import ReverseTrainer

SIZES = {"num_layers": 6, "num_heads": 8, "model_dim": 128, "test_size": 8}
FACTORS = (1.0, 4.0, 16.0, 64.0)


def long_page(length: int, factor: float) -> Page:
    """The page on one random example of a model of random parameters.

    Args:
        length: of the example.
        factor: by which the queries are multiplied.
    """
    trainer = ReverseTrainer(ReverseConfig(seq_len=length, **SIZES))
    numbers = np.random.default_rng(0).integers(10, size=(1, length)).astype(np.int32)
    params = trainer.initial_params(jax.random.key(0), numbers)

    def scaled(path, leaf):
        return leaf * factor if any(getattr(key, "key", None) == "query_proj" for key in path) else leaf

    trainer.params = jax.tree_util.tree_map_with_path(scaled, params)
    return inspection_page(trainer, trainer.examples(numbers))


def main() -> None:
    """Print a line for each factor."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--length", type=int, default=512, help="numbers in the example (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="times the page is opened (default: %(default)s)")
    chosen = parser.parse_args()
    for factor in FACTORS:
        begin = time.perf_counter()
        page = long_page(chosen.length, factor)
        line = f"queries × {factor:g}: made in {time.perf_counter() - begin:.1f} s, {len(page.text) / 1e6:.2f} MB"
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "inspection.html"
            page.save(file)
            times = [time_to_open(file) for _ in range(chosen.repeats if CHROMIUM else 0)]
        seconds = sorted(seconds for seconds, _ in times)
        print(
            line + (f", opened in {seconds[0]:.2f} to {seconds[-1]:.2f} s, {times[0][1]}" if times else ", no Chromium")
        )
    print(spread_maps(chosen.length))


def spread_maps(length: int) -> str:
    """A line on maps that are spread as widely as possible."""
    shape = SIZES["num_heads"], length
    rng = np.random.default_rng(0)
    maps = [rng.dirichlet(np.ones(length), shape).astype(np.float32) for _ in range(SIZES["num_layers"])]
    stored = stored_maps(maps)
    size = sum(len(of_layer.text) for of_layer in stored) / 1e6
    return f"spread rows: maps of {size:.2f} MB, ± {stored[0].step / 2:g}"


def time_to_open(file: Path) -> tuple[float, str]:
    """Seconds until the first map is drawn, and the precision of the weights."""
    with opened(file) as (page, _, _, seconds):
        shown_map(page, "encoder", 0, 0)
        precision = page.locator("#value").inner_text().rpartition("(")[2].rstrip(")")
    return seconds, precision


if __name__ == "__main__":
    main()
