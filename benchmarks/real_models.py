"""Inspect published models, and regenerate the tables and pictures of docs/real_models.md.

python benchmarks/real_models.py                   # about five minutes on two CPU cores
python benchmarks/real_models.py --only sentences  # one of its sections

`make real-models` fetches the models first. It runs the page's code; `pytorch_hooks.py` computes the
same numbers with PyTorch.
"""

import contextlib
import dataclasses
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool
from matplotlib.figure import Figure

import published_models
import pytorch_hooks
from atom_maps import CONFIDENCES, HEAD, REACTIONS, mapper_of, package_at_hand
from documents import REPOSITORY, blocks_in, section_of, text_of
from harness import markdown
from real_model_pictures import atoms_picture, induction_picture, sentences_picture
from sentences import SENTENCES
from transformer_jax.cli import parse, run

PAGE = "docs/real_models.md"
MARKED = re.compile(r"(<!-- made (\w+) -->\n).*?(?=\n## |\Z)", re.DOTALL)  # to the section's end
MOVES = 23  # layer of SmolLM2 that moves information from the country's name to the last token
LENS_LAYERS = 23, 28, 29, 30  # numbers of layers before the lens


class Section(NamedTuple):
    """Generated contents of a section of the page."""

    text: str
    picture: Figure
    differences: dict[str, float]  # from PyTorch, by quantity


def ran(heading: str, *changed: tuple[str, str]) -> dict[str, Any]:
    """Run the page's code below a heading and return the names that it defines; tests replace some of the code."""
    code = "\n".join(blocks_in(section_of(PAGE, heading), "python"))
    for text, other in changed:
        assert text in code
        code = code.replace(text, other)
    names: dict[str, Any] = {}
    with contextlib.chdir(REPOSITORY):
        exec(code, names)
    return names


def compared(pairs: Mapping[str, tuple[Any, Any]]) -> dict[str, float]:
    """Largest difference of each pair of arrays, relative to the largest absolute value of the second."""
    arrays = {name: [np.asarray(array, float) for array in pair] for name, pair in pairs.items()}
    return {
        name: float(np.abs(ours - theirs).max() / np.abs(theirs).max())
        for name, (ours, theirs) in arrays.items()
    }


def agreement(differences: Mapping[str, float]) -> str:
    return (
        "Largest difference to PyTorch:"
        f" {', '.join(f'{name} {x:.1e}' for name, x in differences.items())}."
    )


def induction(found: Mapping[str, Any], draws: int = 5) -> Section:
    """Induction scores and ablated losses of the page's code, with other heads ablated, and PyTorch's."""
    theirs = pytorch_hooks.opened("AutoModelForCausalLM", published_models.smollm2())
    tokens, scores, leading = found["tokens"], found["scores"], found["leading"]
    maps = pytorch_hooks.attention_maps(theirs, input_ids=tokens)
    their_scores = np.array([found["induction_scores"](weights, tokens) for weights in maps])
    others = drawn_others(leading, draws)
    of_others = [
        found["smollm2"].inspected.apply(found["losses"], tokens, heads) for heads in others
    ]
    losses = np.array([found["whole"], found["without"], *of_others])  # [2 + draws, B, T - 1]
    removed = np.zeros_like(leading), leading, *others
    their_losses = np.array(
        [pytorch_hooks.losses_without(theirs, tokens, heads) for heads in removed]
    )

    places = [
        divmod(int(place), scores.shape[1])
        for place in np.argsort(-scores, axis=None)[: leading.sum()]
    ]
    of_scores = ", ".join(f"{layer}.{head} ({scores[layer, head]:.3f})" for layer, head in places)
    half = tokens.shape[1] // 2
    times = losses[..., : half - 1], losses[..., half:], their_losses[..., half:]
    means = [time.mean((1, 2)) for time in times]
    rows = [
        ["nothing", *(f"{mean[0]:.2f}" for mean in means)],
        ["the eight", *(f"{mean[1]:.2f}" for mean in means)],
    ]
    spread = (
        f"{mean[2:].mean():.2f} ({mean[2:].min():.2f} – {mean[2:].max():.2f})" for mean in means
    )
    header = ["set to 0", "loss, first time", "second time", "second time, PyTorch"]
    of_losses = markdown(header, [*rows, ["eight others: mean, range", *spread]])
    differences = compared({"scores": (scores, their_scores), "losses": (losses, their_losses)})
    text = f"{of_losses}\n\nLeading (layer.head, score): {of_scores}. {agreement(differences)}"
    return Section(text, induction_picture(scores, losses.mean(1)), differences)


def drawn_others(leading: Bool[np.ndarray, "L H"], draws: int) -> list[Bool[np.ndarray, "L H"]]:
    """Draw sets of other heads, each with as many heads per layer as the leading ones."""
    rng = np.random.default_rng(0)
    order = [
        np.where(leading, np.inf, rng.random(leading.shape)).argsort(1).argsort(1)
        for _ in range(draws)
    ]
    return [each < leading.sum(1, keepdims=True) for each in order]


def capitals(found: Mapping[str, Any]) -> Section:
    """Logit lens, patching grid and heads of the page's code, and PyTorch's."""
    theirs = pytorch_hooks.opened("AutoModelForCausalLM", published_models.smollm2())
    prompts, answers = found["prompts"], found["answers"]
    pair, metric = found["pair"], found["difference"]
    lens, heads = found["lens"], np.asarray(found["of_heads"].values[0])
    their_lens = pytorch_hooks.logit_lens(theirs, prompts)
    their_heads = pytorch_hooks.restored_by_heads(theirs, MOVES, *pair, metric)
    differences = compared(
        {
            "lens": (lens, their_lens),
            "grid": (
                found["grid"].values,
                pytorch_hooks.restored_by_streams(theirs, *pair, metric),
            ),
            "heads": (heads, their_heads),
        }
    )
    ranks, their_ranks = (ranks_of(answers, np.asarray(logits)) for logits in (lens, their_lens))
    rows = [[count, *ranks[count]] for count in LENS_LAYERS]
    of_lens = markdown(
        ["after layers", *(city.strip() for city in found["capitals"].values())], rows
    )
    restored = ", ".join(f"{x:.2f}" for x in heads.round(2) + 0)
    of_heads = f"Heads 0 to {len(heads) - 1} of layer {MOVES} restore {restored}."
    equal = f"{(ranks == their_ranks).sum()} of {ranks.size} ranks are equal to PyTorch's."
    figure = found["figure"]
    figure.set_size_inches(3, 5.5)
    figure.set_layout_engine("compressed")
    return Section(f"{of_lens}\n\n{of_heads} {equal} {agreement(differences)}", figure, differences)


def ranks_of(answers: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """The rank `[L + 1, B]` of each row's answer among all tokens, from 1."""
    right = np.take_along_axis(logits, answers[None, :, None], -1)
    return (logits > right).sum(-1) + 1


def atoms(found: Mapping[str, Any]) -> Section:
    """Atom mappings and kept bonds of the page's code, and the mappings from PyTorch's attention maps."""
    theirs, seen = pytorch_hooks.opened("AlbertForMaskedLM", published_models.rxnmapper()), []

    def their_maps(tokens: np.ndarray, valid: np.ndarray) -> np.ndarray:
        maps = pytorch_hooks.attention_maps(
            theirs, input_ids=tokens, attention_mask=valid.astype(int)
        )
        real = valid[:, None, :, None] & valid[:, None, None, :]  # values at padding are arbitrary
        seen.append((np.where(real, found["maps"](tokens, valid), 0), np.where(real, maps, 0)))
        return maps

    with package_at_hand():
        mapper = mapper_of(their_maps, published_models.rxnmapper())
        expected = dict(
            zip(
                REACTIONS,
                mapper.get_attention_guided_atom_maps(list(REACTIONS.values())),
                strict=True,
            )
        )
        mapped = dict(zip(REACTIONS, found["mapped"], strict=True))
        picture = atoms_picture(mapped["Fischer esterification"], found["kept"])
    same = sum(mapped[name]["mapped_rxn"] == expected[name]["mapped_rxn"] for name in REACTIONS)
    kept, others = found["kept"], np.delete(found["kept"], HEAD, axis=1)
    rows = [[f"head {HEAD}", *kept[:, HEAD]], ["best other head", *others.max(1)]]
    of_bonds = markdown(
        [f"share of {found['num_bonds']} bonds kept, layer", *map(str, range(len(kept)))],
        ([name, *(f"{x:.2f}" for x in values)] for name, *values in rows),
    )
    of_mapping = " ".join(
        f"Confidence of the {name}: {mapped[name]['confidence']:.8f}, published {published:.8f}."
        for name, published in CONFIDENCES.items()
    )
    pairs = [(mapped[name]["confidence"], expected[name]["confidence"]) for name in REACTIONS]
    differences = compared(
        {"maps of all heads": seen[0], "confidences": tuple(zip(*pairs, strict=True))}
    )
    equal = f"With PyTorch's maps {same} of {len(mapped)} reactions get the same mapping."
    return Section(
        f"{of_bonds}\n\n{of_mapping} {equal} {agreement(differences)}", picture, differences
    )


def sentences(found: Mapping[str, Any]) -> Section:
    """Cosine similarities of the page's code, and PyTorch's vectors."""
    their_vectors = pytorch_hooks.mean_pooled(published_models.minilm(), SENTENCES)
    cosines, number = found["cosines"], np.arange(len(SENTENCES))
    is_other = number[:, None] // 2 != number // 2
    is_pair = ~is_other & (number[:, None] != number)
    differences = compared({"vectors": (found["vectors"], their_vectors)})
    highest = [SENTENCES[place] for place in np.argwhere(cosines == cosines[is_other].max())[0]]
    text = (
        f"The cosine of two that mean the same is at least {cosines[is_pair].min():.3f}, of two"
        f" others at most {cosines[is_other].max():.3f}:\n“{highest[0]}” and “{highest[1]}”"
        f" {agreement(differences)}"
    )
    return Section(text, sentences_picture(cosines, SENTENCES), differences)


SECTIONS = {
    "induction": ("Induction heads", induction),
    "capitals": ("Where a capital comes from", capitals),
    "atoms": ("The head that maps atoms", atoms),
    "sentences": ("Sentences that mean the same", sentences),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RealModels:
    """Regenerate the tables and pictures of docs/real_models.md."""

    only: Literal["all", *SECTIONS] = "all"  # section that is made


def main(config: RealModels) -> None:
    """Run the code of the page, and update its tables and pictures."""
    for directory_of in (
        published_models.smollm2,
        published_models.rxnmapper,
        published_models.minilm,
    ):
        directory_of()
    torch.set_num_threads(1)  # its threads would compete with those of JAX
    page = REPOSITORY / PAGE
    for name, (heading, make) in SECTIONS.items():
        if config.only in ("all", name):
            made = make(ran(heading))
            print(f"## {heading}\n\n{made.text}\n", flush=True)
            made.picture.savefig(page.parent / "images" / f"real_{name}.png", dpi=80)
            page.write_text(renewed(text_of(PAGE), name, made.text), encoding="utf-8")


def renewed(page: str, name: str, text: str) -> str:
    """Return the page with the text of a marked place replaced."""
    return MARKED.sub(lambda place: f"{place[1]}\n{text}\n" if place[2] == name else place[0], page)


if __name__ == "__main__":
    run(partial(parse, RealModels), main)
