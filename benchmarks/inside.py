"""Find out how the three included models work, by intervening on their activations.

python benchmarks/inside.py                        # the numbers of docs/inside.md, in 2 to 3 minutes on two cores
python benchmarks/inside.py --images docs/images   # and its pictures
"""

import dataclasses
import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

import transformer_jax as tj
from harness import markdown
from transformer_jax.cli import parse, run
from transformer_jax.fields import set_checked_fields, setting
from transformer_jax.fit.trainer import TrainerModule
from transformer_jax.tasks.byte_text import PAD, START, encode, pad
from transformer_jax.tasks.translation.dates import FIRST_DAY, LAST_DAY, LOCALES, write_date

PARTS = {"year": slice(0, 4), "month": slice(5, 7), "day": slice(8, 10)}  # of a date in ISO 8601
STYLE = "long"  # has no weekday, which would change with the date
LENGTH = 48  # bytes to which texts are padded
MEMORY = "encoder.output"
CROSS = "decoder.layers.?.cross_attention.weights"


@dataclasses.dataclass(frozen=True, kw_only=True)
class InsideConfig:
    """Look inside the included models."""

    num_pairs: int = setting(200, least=1)  # of dates that differ in one part, for each locale
    images: Path | None = None  # directory for the pictures

    __post_init__ = set_checked_fields


class Pairs(NamedTuple):
    """Dates in words, and dates of the same number of bytes that differ from them in one part only."""

    clean: Int[np.ndarray, "B S"]
    other: Int[np.ndarray, "B S"]
    mixed: Int[np.ndarray, "B T"]  # START and the other date in ISO 8601
    words: Bool[np.ndarray, "B S"]  # positions of the words in which the texts differ


def date_pairs(part: str, locale: str, num: int, seed: int = 0) -> Pairs:
    """Random pairs of dates of one locale that differ in their day, month or year."""
    rng = np.random.default_rng(seed)
    found: list[tuple[np.ndarray, ...]] = []
    while len(found) < num:
        dates = [_random_date(rng) for _ in range(2)]
        other = dates[0].replace(**{part: getattr(dates[1], part)})
        texts = [encode(write_date(date, locale, STYLE)) for date in (dates[0], other)]
        if other != dates[0] and len(texts[0]) == len(texts[1]):
            found.append((*texts, np.concatenate([[START], encode(other.isoformat())])))
    clean, other_texts, mixed = ([row[number] for row in found] for number in range(3))
    padded = pad(clean, LENGTH), pad(other_texts, LENGTH)
    return Pairs(*padded, np.stack(mixed).astype(np.int32), words_of(*padded))


def _random_date(rng: np.random.Generator) -> datetime.date:
    """Draw a date; its day is at most 28, which every month has."""
    day = datetime.date.fromordinal(
        int(rng.integers(FIRST_DAY.toordinal(), LAST_DAY.toordinal() + 1))
    )
    return day.replace(day=int(rng.integers(1, 29)))


def words_of(
    clean: Int[np.ndarray, "B S"], other: Int[np.ndarray, "B S"]
) -> Bool[np.ndarray, "B S"]:
    """Positions of the words and numbers in which the texts differ."""
    is_space = (clean == ord(" ")) | (clean == PAD)
    is_digit = (clean >= ord("0")) & (clean <= ord("9"))
    kind = np.where(is_space, 0, 1 + is_digit)
    # index of the run of digits, letters or spaces
    number = (np.diff(kind, axis=1, prepend=0) != 0).cumsum(1)
    differs = (clean != other)[:, None, :] & (number[:, :, None] == number[:, None, :])
    return differs.any(2) & ~is_space


def swap_rate(trainer: TrainerModule, pairs: Pairs, where: Bool[np.ndarray, "B S"]) -> float:
    """Share of pairs that the model translates to the other date when part of the encoder's output is swapped.

    The encoder's output at the positions `where` comes from the other text. Each byte is predicted from the correct
    bytes before it; if all predictions are correct, greedy decoding writes the same bytes.
    """
    written = _swapped(trainer.model, trainer.variables, *pairs[:3], where)
    return float((np.asarray(written)[:, :-1] == pairs.mixed[:, 1:]).all(1).mean())


@partial(jax.jit, static_argnums=0)
def _swapped(
    model: Any, variables: Any, clean: Any, other: Any, target: Any, where: Any
) -> jax.Array:
    mask = tj.padding_mask(clean != PAD)
    memory = [
        tj.capture(model, variables, source, target, mask, names=[MEMORY])[1][MEMORY]
        for source in (clean, other)
    ]
    value = jnp.where(where[..., None], memory[1], memory[0])
    return tj.patch(model, variables, clean, target, mask, patches={MEMORY: value}).argmax(-1)


def attention_to_parts(
    trainer: TrainerModule, locale: str, num: int
) -> Float[np.ndarray, "heads 3 3"]:
    """Mean cross-attention of each head from the queries that write a part of a date to the words of each part.

    Rows (written part) and columns (read part) are year, month and day; heads are those of all layers.
    """
    table = []
    for part in PARTS:
        of_part = date_pairs(part, locale, num)  # `words` marks the part in the clean dates
        inputs = of_part.clean, of_part.mixed, tj.padding_mask(of_part.clean != PAD)
        _, seen = tj.capture(trainer.model, trainer.variables, *inputs, names=[CROSS])
        weights = np.concatenate(list(seen.values()), 1)  # [B heads T S]
        to_part = np.einsum("bhts,bs->ht", weights, of_part.words) / num
        table.append([to_part[:, queries].mean(1) for queries in PARTS.values()])
    return np.array(table).transpose(2, 1, 0)


class Sets(NamedTuple):
    """Sets of digits, as inputs of the model."""

    inputs: tuple[Any, ...]  # of the model; the first are the features [B S F]
    odd: Int[np.ndarray, " B"]  # position of the odd one
    digits: Int[np.ndarray, "B S"]


def digit_sets(trainer: TrainerModule) -> Sets:
    """Return the test set."""
    data = type(trainer).load_data(trainer.config)
    batches = list(data.test_loader)
    images, odd = (np.concatenate([batch[part] for batch in batches]) for part in (0, 1))
    prepared = trainer.prepare(images, data.constants)
    return Sets(tuple(trainer.model_inputs(prepared)), odd, data.table.labels[images])


def accuracy_without(
    trainer: TrainerModule, sets: Sets, edges: Bool[np.ndarray, "B S S"], layers: str
) -> float:
    """Accuracy when some queries cannot see some keys in the given layers (`0`, `1`, or `*` for all)."""
    blind = jnp.asarray(edges)[:, None]  # the same for all heads

    @jax.jit
    def found(variables: Any) -> jax.Array:
        patches = {
            f"encoder.layers.{layers}.attention.logits": lambda logits: jnp.where(
                blind, -jnp.inf, logits
            )
        }
        return tj.patch(trainer.model, variables, *sets.inputs, patches=patches)[..., 0].argmax(-1)

    return float((np.asarray(found(trainer.variables)) == sets.odd).mean())


def edges_between(sets: Sets) -> dict[str, Bool[np.ndarray, "B S S"]]:
    """Masks of the edges to remove from attention, by name."""
    is_odd = np.arange(sets.digits.shape[1]) == sets.odd[:, None]
    query, key = is_odd[:, :, None], is_odd[:, None, :]
    other = ~np.eye(sets.digits.shape[1], dtype=bool)
    return {
        "none": np.zeros_like(query & key),
        "from the odd one to the others": query & ~key,
        "from the others to the odd one": ~query & key,
        "from the others to each other": ~query & ~key & other,
        "all but each to itself": np.broadcast_to(other, (query & key).shape),
    }


def probes(trainer: TrainerModule, sets: Sets) -> list[list[tj.inspection.Probe]]:
    """Probes for the digit of each image and for whether it is the odd one, after the embedding and each layer."""
    names = ["embeddings", "encoder.layers.?.output"]
    _, streams = tj.capture(trainer.model, trainer.variables, *sets.inputs, names=names)
    is_train = np.repeat(np.arange(len(sets.odd)) % 2 == 0, sets.digits.shape[1])
    is_odd = (np.arange(sets.digits.shape[1]) == sets.odd[:, None]).astype(int)
    image = np.unique(
        np.asarray(sets.inputs[0]).reshape(is_odd.size, -1), axis=0, return_inverse=True
    )[1]
    flat = [np.asarray(stream).reshape(is_odd.size, -1) for stream in streams.values()]
    probe = partial(tj.inspection.linear_probe, types=image.ravel(), is_train=is_train)
    return [
        [probe(features, labels.ravel()) for labels in (sets.digits, is_odd)] for features in flat
    ]


def mirrored(trainer: TrainerModule, num: int) -> dict[str, float]:
    """Measure where the head of `reverse` attends, and whether its attention depends on the numbers."""
    numbers = np.random.default_rng(0).integers(
        trainer.config.num_categories, size=(2, num, trainer.config.seq_len)
    )
    inputs, others = (trainer.model_inputs(each)[0] for each in numbers)
    name = "encoder.layers.0.attention.weights"
    _, seen = tj.capture(trainer.model, trainer.variables, inputs, names=[name])
    _, of_others = tj.capture(trainer.model, trainer.variables, others, names=[name])
    mirror = np.eye(trainer.config.seq_len, dtype=np.float32)[::-1]

    def accuracy(weights: Any) -> float:
        logits = tj.patch(
            trainer.model, trainer.variables, inputs, patches={name: lambda old: weights + 0 * old}
        )
        return float((logits.argmax(-1) == numbers[0][:, ::-1]).mean())

    return {
        "mean weight of position T - 1 - t": float((seen[name] * mirror).sum(-1).mean()),
        "accuracy": accuracy(seen[name]),
        "accuracy with the weights of other sequences": accuracy(of_others[name]),
        "accuracy with weights of 1 at T - 1 - t": accuracy(mirror),
        "accuracy with equal weights": accuracy(np.full_like(mirror, 1 / len(mirror))),
    }


def table(header: list[str], rows: list[list[Any]]) -> str:
    """Format a Markdown table, with floats as percentages."""
    return markdown(
        header, ([f"{100 * x:.1f}" if isinstance(x, float) else x for x in row] for row in rows)
    )


def print_reverse(trainer: TrainerModule) -> None:
    """Print what the head of `reverse` does."""
    for by in ("zero", "mean"):
        found = tj.inspection.ablation_table(trainer, by=by)
        print(
            f"reverse: accuracy {found.whole:.2%}; head replaced by {by}:"
            f" {found.without['encoder'].item():.2%}"
        )
    for name, number in mirrored(trainer, 1000).items():
        print(f"reverse: {name}: {number:.2%}")


def print_heads(trainer: TrainerModule) -> None:
    """Print the accuracy without each head."""
    for kind, of_kind in tj.inspection.ablation_table(trainer).without.items():
        rows = [[f"{kind} {layer}", *map(float, row)] for layer, row in enumerate(of_kind)]
        print(table(["without head", "0", "1", "2", "3"], rows))


def print_digits(trainer: TrainerModule) -> None:
    """Print what the odd-one-out model compares."""
    sets = digit_sets(trainer)
    print_heads(trainer)
    layers = {"layer 0": "0", "layer 1": "1", "both": "*"}
    rows = [
        [name, *(accuracy_without(trainer, sets, edges, each) for each in layers.values())]
        for name, edges in edges_between(sets).items()
    ]
    print(table(["without attention", *layers], rows))
    lens = np.asarray(tj.inspection.logit_lens(trainer.model, trainer.variables, *sets.inputs))[
        ..., 0
    ].argmax(-1)
    rows = [
        [number, float((lens[number] == sets.odd).mean()), digit.accuracy, odd.accuracy]
        for number, (digit, odd) in enumerate(probes(trainer, sets))
    ]
    print(table(["after layers", "logit lens", "probe: which digit", "probe: is it odd"], rows))


def print_dates(trainer: TrainerModule, num: int) -> None:
    """Print where the model reads each part of a date."""
    rows: list[list[Any]] = []
    for locale in LOCALES:
        of_parts = [date_pairs(part, locale, num) for part in PARTS]
        where = [
            (pairs, chosen)
            for pairs in of_parts
            for chosen in (pairs.clean != pairs.other, pairs.words)
        ]
        rows.append([locale, *(swap_rate(trainer, *pair) for pair in where)])
    header = [
        "locale",
        *(f"{part}, {where}" for part in PARTS for where in ("bytes that differ", "whole word")),
    ]
    print(table(header, rows))
    print_heads(trainer)


def save_pictures(directory: Path, dates: TrainerModule, digits: TrainerModule, num: int) -> None:
    """Save the pictures of docs/inside.md."""
    from matplotlib.figure import Figure

    reverse = tj.load_run("reverse")
    numbers = np.arange(reverse.config.seq_len) * 7 % reverse.config.num_categories
    reverse.attention(numbers).plot().savefig(directory / "inside_reverse.png", dpi=80)

    sets = digit_sets(digits)
    figure = Figure(figsize=(5, 2.4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for layer, ax in enumerate(axes):
        names = [f"encoder.layers.{layer}.attention.weights"]
        # the odd one last
        order = np.argsort(np.arange(10) == sets.odd[:, None], axis=1, kind="stable")
        (weights,) = tj.capture(digits.model, digits.variables, *sets.inputs, names=names)[
            1
        ].values()
        mean = np.asarray(weights).mean(1)
        sorted_maps = np.take_along_axis(
            np.take_along_axis(mean, order[:, :, None], 1), order[:, None], 2
        )
        ax.imshow(sorted_maps.mean(0), vmin=0, cmap="viridis")
        ax.set(title=f"Layer {layer}", xlabel="keys, the odd one last", xticks=[], yticks=[])
    axes[0].set(ylabel="queries, the odd one last")
    figure.savefig(directory / "inside_digits.png", dpi=80)

    locales = "en_US", "de", "ja", "ar"
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    figure.supxlabel(
        "upper row: part of the source that is read; lower row: part being written", fontsize=9
    )
    figure.supylabel("layer.head", fontsize=9)
    for ax, locale in zip(figure.subplots(1, len(locales), sharey=True), locales, strict=True):
        found = attention_to_parts(dates, locale, num)  # [heads, from, to]
        ax.imshow(found.reshape(len(found), -1), vmin=0, vmax=1, cmap="viridis", aspect="auto")
        ax.set_xticks(range(9), ["Y", "M", "D"] * 3)  # year, month and day
        ax.set_yticks(range(len(found)), [f"{n // 4}.{n % 4}" for n in range(len(found))])
        ax.set(title=locale, xlabel="year       month       day  ")
    figure.savefig(directory / "inside_dates.png", dpi=80)


def main(config: InsideConfig) -> None:
    """Print the numbers, and save the pictures if a directory is given."""
    reverse, digits, dates = (tj.load_run(name) for name in ("reverse", "digits", "dates"))
    print_reverse(reverse)
    print_digits(digits)
    print_dates(dates, config.num_pairs)
    if config.images is not None:
        save_pictures(config.images, dates, digits, config.num_pairs)


if __name__ == "__main__":
    run(partial(parse, InsideConfig), main)
