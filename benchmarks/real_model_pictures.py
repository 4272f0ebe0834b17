"""Plot the pictures of docs/real_models.md."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from atom_maps import HEAD, LAYER


def induction_picture(
    scores: Float[np.ndarray, "L H"], losses: Float[np.ndarray, "2_plus_draws T_less_1"]
) -> Figure:
    """Plot all heads' scores, and the loss by position: whole model, without leading heads, without other heads."""
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    image = left.imshow(scores.T, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    left.set(xlabel="layer", ylabel="head", title="Induction score")
    figure.colorbar(image, ax=left)
    right.plot(
        losses[2:].T,
        color="tab:gray",
        linewidth=0.7,
        label=["without eight others", *["_"] * (len(losses) - 3)],
    )
    right.plot(losses[0], color="tab:blue", label="whole model")
    right.plot(losses[1], color="tab:red", label="without the eight leading heads")
    right.axvline((losses.shape[1] + 1) / 2 - 1, color="black", linestyle=":", linewidth=0.8)
    right.set(
        xlabel="position; the text begins again at the dotted line",
        ylabel="loss of the next token",
        ylim=0,
    )
    right.legend(fontsize=7, loc="lower left")
    return figure


def atoms_picture(mapped: Mapping[str, Any], kept: Float[np.ndarray, "L H"]) -> Figure:
    """Plot the mapping head's atom-to-atom map of a reaction with the mapping, and the bonds that each head keeps."""
    from rxnmapper.attention import AttentionScorer

    tokens = mapped["tokens"]
    scorer = AttentionScorer("".join(tokens[1:-1]), tokens, mapped["tokensxtokens_attns"])
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    image = left.imshow(scorer.combined_attentions_filt_atoms / 2, vmin=0, vmax=1, cmap="viridis")
    came_from = mapped["pxr_mapping_vector"]
    left.scatter(came_from, range(len(came_from)), s=60, facecolors="none", edgecolors="tab:red")
    sides = (scorer.rtokens, scorer.rnums), (scorer.ptokens, scorer.pnums)
    labels = [
        [token for token, number in zip(*side, strict=True) if number != -1] for side in sides
    ]
    left.set_xticks(range(len(labels[0])), labels[0])
    left.set_yticks(range(len(labels[1])), labels[1])
    reactants, product = "".join(tokens[1:-1]).split(">>")
    left.set(
        xlabel=f"reactants {reactants}",
        ylabel=f"product {product}",
        title=f"Head {HEAD} in layer {LAYER}, and the mapping",
    )
    figure.colorbar(image, ax=left)
    image = right.imshow(kept, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    right.set(xlabel="head", ylabel="layer", title="Share of bonds kept")
    figure.colorbar(image, ax=right)
    return figure


def sentences_picture(cosines: Float[np.ndarray, "B B"], sentences: Sequence[str]) -> Figure:
    figure = Figure(figsize=(6.5, 3.2), layout="compressed")
    ax = figure.subplots()
    image = ax.imshow(cosines, vmin=0, vmax=1, cmap="viridis")
    ax.set_yticks(
        range(len(sentences)),
        [f"{number}  {text}" for number, text in enumerate(sentences, 1)],
        fontsize=8,
    )
    ax.set_xticks(range(len(sentences)), [str(number) for number in range(1, len(sentences) + 1)])
    figure.colorbar(image, ax=ax, label="cosine")
    return figure
