"""SCAN's length split (Csordás et al. 2021, *The Devil is in the Detail*): translate commands to sequences of actions.

The data are all 20 910 commands of the grammar (Lake and Baroni 2018, figure 6). Commands with up to `cutoff` actions
are for training, a tenth of them for validation, and longer commands for the test. `whole` is the share of commands
whose actions and END are all predicted correctly. It is computed with teacher forcing and equals that of greedy
decoding, because both read the same tokens up to the first mistake. `whole_of_length` excludes END and scores the
actions only, as if their number were known (Newman et al. 2020).

    python experiments/papers/scan.py --sweep positions=sinusoidal,relative share_layers=false,true --seeds 0..4
"""

import dataclasses
import itertools
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
from presets import PaperConfig, PaperTrainer, main, token_elements

from transformer_jax import (
    TaskData,
    Transformer,
    block_settings,
    make_loader,
    padding_mask,
    setting,
)
from transformer_jax.data import ArrayDataset

VERBS = ("walk", "look", "run", "jump")
WORDS = (
    "PAD",
    *VERBS,
    "turn",
    "left",
    "right",
    "opposite",
    "around",
    "twice",
    "thrice",
    "and",
    "after",
)
ACTIONS = ("END", *VERBS, "turn left", "turn right", "START")
LONGEST = 48  # actions of a command
SMALL = {
    "model_dim": 64,
    "num_heads": 4,
    "num_layers": 2,
    "dim_feedforward": 128,
    "dropout_prob": 0.1,
}
SMALL |= {"batch_size": 64, "max_epochs": 60, "eval_every": 10, "name": "Scan_small"}
QUICK = {
    "model_dim": 16,
    "num_heads": 2,
    "num_layers": 1,
    "dim_feedforward": 16,
    "max_epochs": 1,
    "share": 0.05,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScanConfig(PaperConfig):
    """Train an encoder-decoder Transformer to carry out commands, and test it on longer ones."""

    cutoff: int = setting(26, least=1, most=LONGEST - 1)  # most actions in the training
    share: float = 1.0  # of all commands that are used
    model_dim: int = 128  # width of the model
    num_heads: int = 8  # attention heads
    num_layers: int = 3  # blocks in each stack
    # width inside the feed-forward networks
    dim_feedforward: int = setting(256, defines_model=True, least=1)
    dropout_prob: float = 0.5  # dropout probability inside the blocks
    batch_size: int = 256  # commands in one step
    lr: float = 1e-3  # learning rate
    gradient_clip: float | None = 5.0  # largest norm of the gradient
    max_epochs: int = 782  # passes over the training set, of 64 steps each
    eval_every: int = 50  # epochs between evaluations
    best_by: str | None = "val/whole:max"  # which model is tested


def phrases() -> Iterator[tuple[str, list[str]]]:
    """The 102 phrases that `and` and `after` connect, with their actions."""
    simple = {verb: [verb] for verb in VERBS}
    for verb, side in itertools.product((*VERBS, "turn"), ("left", "right")):
        turn, act = [f"turn {side}"], [verb] * (verb != "turn")
        simple |= {f"{verb} {side}": turn + act, f"{verb} opposite {side}": turn * 2 + act}
        simple[f"{verb} around {side}"] = (turn + act) * 4
    for phrase, actions in simple.items():
        yield from (
            (phrase, actions),
            (f"{phrase} twice", actions * 2),
            (f"{phrase} thrice", actions * 3),
        )


def commands() -> dict[str, list[str]]:
    """Each command and its actions."""
    found = dict(phrases())
    for (one, first), (other, second) in itertools.product(phrases(), repeat=2):
        found |= {f"{one} and {other}": first + second, f"{one} after {other}": second + first}
    return found


def samples(chosen: list[tuple[str, list[str]]], length: int) -> ArrayDataset:
    """Inputs: words `[N, 9]`, START and the actions `[N, T]`; targets: the actions and END, padded with -1."""
    words, targets = (
        np.zeros((len(chosen), 9), np.int32),
        np.full((len(chosen), length + 1), -1, np.int32),
    )
    for row, (command, actions) in enumerate(chosen):
        words[row, : command.count(" ") + 1] = [WORDS.index(word) for word in command.split()]
        targets[row, : len(actions) + 1] = [ACTIONS.index(action) for action in [*actions, "END"]]
    read = np.pad(
        np.maximum(targets[:, :-1], 0), ((0, 0), (1, 0)), constant_values=ACTIONS.index("START")
    )
    return ArrayDataset((words, read), targets)


def length_split(config: ScanConfig) -> TaskData:
    """Training and validation sets of short commands, 9 to 1, and a test set of long commands."""
    pairs = list(commands().items())
    pairs = [
        pairs[i]
        for i in np.random.default_rng(0).permutation(len(pairs))[: int(config.share * len(pairs))]
    ]
    short, long = (
        [p for p in pairs if (len(p[1]) > config.cutoff) == is_long] for is_long in (False, True)
    )
    val, train = (
        samples(part, config.cutoff)
        for part in (short[: len(short) // 10], short[len(short) // 10 :])
    )
    shuffled = make_loader(train, config.batch_size, shuffle=True, drop_last=True, seed=config.seed)
    return TaskData(shuffled, *(make_loader(part, 256) for part in (val, samples(long, LONGEST))))


class ScanTrainer(PaperTrainer):
    name = "Scan"
    config_class = ScanConfig
    load_data = staticmethod(length_split)

    def create_model(self):
        c = self.config
        sizes = (c.model_dim, c.num_heads, c.num_layers, c.num_layers, c.dim_feedforward)
        return Transformer(
            len(WORDS), len(ACTIONS), *sizes, settings=block_settings(c, LONGEST + 1)
        )

    def model_inputs(self, inputs):
        return *inputs, padding_mask(inputs[0] > 0)

    def loss_function(self, params, batch, key, *, train):
        # [B T C], [B T]
        logits, targets = self.apply(params, batch.inputs, key, train=train), batch.targets
        right = (logits.argmax(-1) == targets) | (targets < 0)
        of_actions = (jnp.argmax(logits[..., 1:], -1) + 1 == targets) | (targets <= 0)
        whole = {"whole": (right.all(-1), 1.0), "whole_of_length": (of_actions.all(-1), 1.0)}
        return token_elements(logits, targets) | whole


if __name__ == "__main__":
    main(ScanTrainer, {"small": SMALL, "quick": QUICK})
