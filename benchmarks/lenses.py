"""Run the code of docs/lenses.md, and draw its picture: the rank of each answer after each layer, read by each lens.

python benchmarks/lenses.py jacobian.safetensors tuned.safetensors shuffled.safetensors

Without these files, the page's code fits them first, which takes hours on two CPU cores.
"""

import sys

import numpy as np
from matplotlib.figure import Figure

from documents import REPOSITORY, blocks_in, text_of
from lens_texts import FACTS
from transformer_jax.inspection import Lens, load_lens, rotated

PICTURE = REPOSITORY / "docs" / "images" / "lenses.png"


def logit_lens_like(lens: Lens) -> Lens:
    """Return the logit lens after the same layers."""
    bias = np.zeros_like(lens.bias)
    return lens._replace(maps=np.eye(bias.shape[1], dtype=bias.dtype) + bias[:, None], bias=bias)


def picture(ranks: dict[str, np.ndarray]) -> Figure:
    """Draw one map of ranks for each lens: prompts below each other, layers from left to right."""
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    for ax, (name, values) in zip(axes.flat, ranks.items(), strict=True):
        image = ax.imshow(np.log10(values).T, vmin=0, vmax=4, cmap="viridis_r", aspect="auto")
        ax.set_title(name, fontsize=8)
    labels = [f"{prompt}{answer}" for prompt, answer in FACTS.items()]
    for row in axes:
        row[0].set_yticks(range(len(labels)), labels, fontsize=6)
    for ax in axes[-1]:
        ax.set_xlabel("layer")
    bar = figure.colorbar(image, ax=axes, label="rank of the answer among 49 152 tokens")
    bar.set_ticks(range(5), labels=["1", "10", "100", "1000", "≥ 10 000"])
    return figure


def main() -> None:
    """Read the lenses, compute the ranks, and write the picture and print how many answers are in the first 10."""
    (code,) = blocks_in(text_of("docs/lenses.md"), "python")
    if len(sys.argv) > 1:
        code = code[: code.index("encoded =")] + code[code.index("def ranks") :]
    names: dict = {}
    exec(code, names)
    if len(sys.argv) > 1:
        names |= zip(("jacobian", "tuned", "control"), map(load_lens, sys.argv[1:]), strict=True)
    jacobian, tuned = names["jacobian"], names["tuned"]
    lenses = {
        "logit lens": logit_lens_like(jacobian),
        "tuned lens": tuned,
        "Jacobian lens": jacobian,
        "null: tuned lens, rotated": rotated(tuned),
        "null: Jacobian lens, rotated": rotated(jacobian),
        "null: Jacobian lens of shuffled texts": names["control"],
    }
    ranks = {name: names["ranks"](lens) for name, lens in lenses.items()}
    for name, values in ranks.items():
        shares = " ".join(f"{(row <= 10).sum()}" for row in values[15:])
        print(
            f"{name}, {lenses[name].num_texts} texts: answers in the first 10 after 15 …: {shares}"
        )
    picture(ranks).savefig(PICTURE, dpi=70)


if __name__ == "__main__":
    main()
