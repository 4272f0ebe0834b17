"""Small problems over sequences (Friedman, Wettig and Chen 2023, *Learning Transformer Programs*, table 1).

Ordinary Transformers are trained on the problems that the paper solves with Transformer Programs. As in the paper,
`accuracy` is per position. The sequences are drawn as in the authors' code (princeton-nlp/TransformerPrograms): without
duplicates, at most 20 000 per problem.

    python experiments/papers/rasp.py --sweep problem=reverse,hist,double_hist,sort,most_freq,dyck1,dyck2 --seeds 0..4
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

import jax
import numpy as np
from presets import PaperConfig, PaperTrainer, main, token_elements

from transformer_jax import Causal, TaskData, block_settings, make_loader, padding_mask, setting
from transformer_jax.data import ArrayDataset
from transformer_jax.nn import TransformerPredictor
from transformer_jax.setting_groups import Positions

Row = list[int]
BEGIN, END, PAD = 6, 7, 8  # smaller numbers are symbols, counts, and states of brackets
# a prefix of brackets can become balanced, is balanced, or can no longer be
NOT_YET, BALANCED, WRONG = range(3)
SMALL = {
    "model_dim": 64,
    "num_layers": 2,
    "num_heads": 4,
    "lr": 1e-3,
    "max_epochs": 20,
    "name": "Rasp_small",
}
QUICK = {"model_dim": 16, "num_layers": 1, "num_heads": 2, "max_epochs": 1, "size": 301}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RaspConfig(PaperConfig):
    """Train a Transformer to solve a problem over short sequences."""

    problem: Literal["reverse", "hist", "double_hist", "sort", "most_freq", "dyck1", "dyck2"] = (
        "reverse"
    )
    # most sequences, of which a tenth each is for validation and test
    size: int = setting(20_000, least=10)
    model_dim: int = 256  # width of the model
    num_heads: int = 8  # attention heads
    num_layers: int = 3  # blocks
    positions: Positions = "learned"
    batch_size: int = 50  # sequences in one step
    lr: float = 3e-4  # learning rate
    max_epochs: int = 100  # passes over the training set


def by_frequency(row: Row) -> Row:
    """Distinct symbols by falling frequency, ties by first occurrence; padded with BEGIN to the row's length."""
    symbols = sorted(set(row), key=lambda x: (-row.count(x), row.index(x)))
    return symbols + [BEGIN] * (len(row) - len(symbols))


def brackets(row: Row) -> Row:
    """State of the brackets up to each position; 0 and 2 are opening brackets, 1 and 3 closing brackets."""
    states, opened = list[int](), list[int]()
    for bracket in row:
        if bracket % 2 == 0:
            opened.append(bracket)
        elif not opened or opened.pop() != bracket - 1:
            return states + [WRONG] * (len(row) - len(states))
        states.append(NOT_YET if opened else BALANCED)
    return states


ANSWERS: Mapping[str, Callable[[Row], Row]] = {
    "reverse": lambda row: row[::-1],
    "hist": lambda row: [row.count(x) for x in row],
    "double_hist": lambda row: [len({y for y in row if row.count(y) == row.count(x)}) for x in row],
    "sort": sorted,
    "most_freq": by_frequency,
    "dyck1": brackets,
    "dyck2": brackets,
}


def draw(problem: str, rng: np.random.Generator) -> Row:
    """Draw 1 to 6 of 5 symbols if END follows them, else 1 to 7 of 6; or 15 brackets.

    Half of the rows of brackets are random, half are the first 15 of 16 balanced brackets.
    """
    if not problem.startswith("dyck"):
        fewer = problem in ("reverse", "sort")
        return rng.integers(6 - fewer, size=rng.integers(1, 8 - fewer)).tolist()
    kinds, row = 2 * int(problem[-1]), list[int]()
    for _ in range(8 * int(rng.integers(2))):  # adds a pair after or around the earlier ones
        left = 2 * int(rng.integers(kinds // 2))
        row = [*row, left, left + 1] if rng.integers(2) else [left, *row, left + 1]
    return (row + rng.integers(kinds, size=15).tolist())[:15]


def sequences(config: RaspConfig) -> TaskData:
    """Tokens `[N, T]` and the answer at each position, -1 if there is none; T is 8, or 16 for brackets."""
    rng, answers = np.random.default_rng(config.seed), ANSWERS[config.problem]
    drawn = dict.fromkeys(tuple(draw(config.problem, rng)) for _ in range(5 * config.size))
    rows = [list(row) for row in drawn][: config.size]
    length, end = (
        (16 if config.problem.startswith("dyck") else 8),
        [END] * (config.problem in ("reverse", "sort")),
    )
    tokens, targets = (
        np.full((len(rows), length), PAD, np.int32),
        np.full((len(rows), length), -1, np.int32),
    )
    for number, row in enumerate(rows):
        tokens[number, : len(row) + 1 + len(end)] = [BEGIN, *row, *end]
        targets[number, 1 : len(row) + 1] = answers(row)
    tenth = len(rows) // 10
    parts = [
        ArrayDataset(tokens[part], targets[part])
        for part in np.split(np.arange(len(rows)), [-2 * tenth, -tenth])
    ]
    train = make_loader(parts[0], config.batch_size, shuffle=True, drop_last=True, seed=config.seed)
    return TaskData(train, *(make_loader(part, 500) for part in parts[1:]))


class RaspTrainer(PaperTrainer):
    name = "Rasp"
    config_class = RaspConfig
    load_data = staticmethod(sequences)

    def create_model(self):
        c = self.config
        return TransformerPredictor(
            c.model_dim, PAD + 1, c.num_heads, c.num_layers, settings=block_settings(c, 16)
        )

    def model_inputs(self, inputs):
        mask = Causal() if self.config.problem.startswith("dyck") else padding_mask(inputs != PAD)
        return jax.nn.one_hot(inputs, PAD + 1), mask

    def loss_function(self, params, batch, key, *, train):
        return token_elements(self.apply(params, batch.inputs, key, train=train), batch.targets)


if __name__ == "__main__":
    main(RaspTrainer, {"small": SMALL, "quick": QUICK})
