"""Measures greedy decoding: with the cache, rerunning the prefix for every token, and in PyTorch without a cache.

python benchmarks/decoding.py                       # a table for 32, 128 and 512 tokens: minutes on two CPU cores
python benchmarks/decoding.py --quick               # at most 128 tokens: half a minute
python benchmarks/decoding.py --json decoding.json  # also writes every single time

The contestants are those of `decoding_contestants.py`. They have the same weights and the same batch, and take turns in
one process. A turn is one decoding off the clock, as what the one before left in the processor's caches is of no use,
and then as many on it as take about a second. The median of the turns counts. No row ever ends, so that each gives T
tokens. The time per token is that of one step, which gives every row of the batch a token; tokens per second are those
of all rows.

The clock runs from the encoded source to the tokens on the host: encoding is the same work for all, and would only blur
how the time of a token grows. Compiling is not on the clock. The tokens of all three are compared; were the first 32
not the same, that would be an error.
"""

import dataclasses
import json
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from decoding_contestants import CONTESTANTS
from transformer_jax.cli import parse, run
from transformer_jax.errors import InputError
from transformer_jax.fields import check_fields, setting
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.encoder_decoder import Transformer

TURN_SECONDS = 1.0  # on the clock, or one decoding where that takes longer
CHECKED_TOKENS = 32  # that must agree; much later, rounding may decide between two tokens all but equally probable


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodingConfig:
    """Measure greedy decoding."""

    lengths: tuple[int, ...] = (32, 128, 512)  # T, tokens to decode
    batch_size: int = setting(16, least=1)  # B
    source_length: int = setting(32, least=1)  # S
    vocabulary_size: int = setting(259, least=1)  # V, of source and target
    model_dim: int = 128  # D
    num_heads: int = 4  # H
    num_layers: int = setting(2, least=1)  # blocks in each stack
    dim_feedforward: int = 256  # F
    repeats: int = setting(3, least=1)  # times that each contestant is measured; the median counts
    seed: int = setting(0, least=0)  # of the weights and the batch
    quick: bool = False  # only lengths of at most 128
    json: Path | None = None  # file for the results

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.lengths or min(self.lengths) < 1:
            raise InputError(f"lengths is {self.lengths}; it must be numbers of at least 1")

    def model(self) -> Transformer:
        """The model in PyTorch's form, with a LayerNorm after each stack."""
        return Transformer(
            self.vocabulary_size,
            self.vocabulary_size,
            self.model_dim,
            self.num_heads,
            self.num_layers,
            self.num_layers,
            self.dim_feedforward,
            settings=BlockSettings(layer_norm_epsilon=1e-5),
            final_norm=True,
        )


def measure(config: DecodingConfig) -> list[dict[str, Any]]:
    """Seconds of each contestant at each length, taking turns; and the fraction of tokens that all agree on."""
    model = config.model()
    shape = config.batch_size, config.source_length
    source = jax.random.randint(jax.random.key(config.seed), shape, 0, config.vocabulary_size)
    params = jax.jit(model.init)(jax.random.key(config.seed), source, source)
    rows = []
    progress = tqdm(total=len(config.lengths) * config.repeats * len(CONTESTANTS), leave=False, disable=None)
    for length in config.lengths:
        contestants = {name: prepare(model, params, source, length) for name, prepare in CONTESTANTS.items()}
        seconds = {name: [] for name in contestants}
        for _ in range(config.repeats):
            tokens = {}
            for name, decode in contestants.items():
                progress.set_description(f"{length} tokens, {name}")
                start = time.perf_counter()
                decode()
                calls = max(1, round(TURN_SECONDS / (time.perf_counter() - start)))
                start = time.perf_counter()
                for _ in range(calls):
                    tokens[name] = decode()
                seconds[name].append((time.perf_counter() - start) / calls)
                progress.update()
        rows.append({"length": length, "seconds": seconds, "agreement": agreement(tokens)})
    progress.close()
    return rows


def agreement(tokens: dict[str, np.ndarray]) -> float:
    """Fraction of the tokens that all contestants agree on.

    Raises:
        RuntimeError: they differ early.
    """
    first, *others = tokens.values()
    same = np.logical_and.reduce([first == other for other in others])  # [B T]
    if not same[:, :CHECKED_TOKENS].all():
        raise RuntimeError(f"the contestants' first {CHECKED_TOKENS} tokens are not the same")
    return float(same.mean())


def summarize(config: DecodingConfig, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The results as they are written: settings, machine, medians, and what became of them from end to end."""
    for row in rows:
        typical = {name: median(seconds) for name, seconds in row["seconds"].items()}
        row["ms_per_token"] = {name: 1000 * s / row["length"] for name, s in typical.items()}
        row["tokens_per_second"] = {name: config.batch_size * row["length"] / s for name, s in typical.items()}
    shortest, longest = (pick(rows, key=lambda row: row["length"])["ms_per_token"] for pick in (min, max))
    return {
        "settings": {name: value for name, value in dataclasses.asdict(config).items() if name != "json"},
        "device": jax.devices()[0].device_kind,
        "rows": rows,
        "cached_growth": longest["cached"] / shortest["cached"],
        "rerun_over_cached": longest["rerun"] / longest["cached"],
        "pytorch_over_cached": longest["pytorch"] / longest["cached"],
    }


def print_table(results: dict[str, Any]) -> None:
    """Time and speed per length and contestant, and the two claims."""
    rows = results["rows"]
    names = "".join(f"{name:>10}" for name in CONTESTANTS)
    print(f"         {'ms per token':^30}   {'tokens per second':^30}")
    print(f" length{names}     {names}   same tokens")
    for row in rows:
        times = "".join(f"{row['ms_per_token'][name]:10.3f}" for name in CONTESTANTS)
        speeds = "".join(f"{row['tokens_per_second'][name]:10.0f}" for name in CONTESTANTS)
        print(f"{row['length']:7}{times}     {speeds}   {row['agreement']:11.2%}")
    shortest, longest = (pick(row["length"] for row in rows) for pick in (min, max))
    growth, speedup = results["cached_growth"], results["rerun_over_cached"]
    print(f"Time per token with the cache, {longest} over {shortest}: {growth:.2f}× (aim: below 2× from 32 to 512)")
    print(f"Time per token at {longest}, rerun over cached: {speedup:.1f}× (aim: at least 5× at 512)")
    print(f"Time per token at {longest}, pytorch over cached: {results['pytorch_over_cached']:.1f}×")


def main(config: DecodingConfig) -> None:
    if config.quick:
        lengths = tuple(sorted({min(length, 128) for length in config.lengths}))
        config = dataclasses.replace(config, lengths=lengths)
    with jax.default_matmul_precision("highest"):  # on GPUs, as precisely as PyTorch
        results = summarize(config, measure(config))
    print_table(results)
    if config.json is not None:
        config.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    run(partial(parse, DecodingConfig), main)
