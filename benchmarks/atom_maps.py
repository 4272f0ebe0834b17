"""Run RXNMapper (Schwaller et al. 2021) on given attention maps, and count the bonds that each head keeps.

RXNMapper is an ALBERT trained on unlabelled reactions. One of its heads attends from each atom of a product to the same
atom in the reactants, and the package `rxnmapper` derives the atom mapping from this head's attention map. Here the
maps may come from any implementation of the model.
"""

import contextlib
import importlib.resources
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from published_models import PACKAGES

LAYER, HEAD = 10, 5  # the head that maps atoms, according to the package
REACTIONS = {
    # The first two are from the package's README, as are the confidences below.
    "substitution": "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    "deprotection": (
        "C1COCCO1.CC(C)(C)OC(=O)CONC(=O)NCc1cccc2ccccc12.Cl>>O=C(O)CONC(=O)NCc1cccc2ccccc12"
    ),
    "Fischer esterification": "CC(=O)O.CCO>>CC(=O)OCC",
    "Suzuki coupling": "Brc1ccccc1.OB(O)c1ccc(OC)cc1>>COc1ccc(-c2ccccc2)cc1",
    "Diels-Alder reaction": "C=CC=C.C=CC(=O)OC>>COC(=O)C1CC=CCC1",
    "Claisen-Schmidt condensation": "CC(=O)c1ccccc1.O=Cc1ccccc1>>O=C(/C=C/c1ccccc1)c1ccccc1",
    "azide and alkyne": "[N-]=[N+]=NCc1ccccc1.C#Cc1ccccc1>>c1ccc(Cn2cc(-c3ccccc3)nn2)cc1",
    "acylation": "CC(=O)Cl.Nc1ccc(O)cc1>>CC(=O)Nc1ccc(O)cc1",
    "aspirin": "O=C(O)c1ccccc1O.CC(=O)OC(C)=O>>CC(=O)Oc1ccccc1C(=O)O",
    "Grignard reaction": "CC(C)=O.C[Mg]Br>>CC(C)(C)O",
    "Wittig reaction": "C=P(c1ccccc1)(c1ccccc1)c1ccccc1.O=C1CCCCC1>>C=C1CCCCC1",
}
# as published
CONFIDENCES = {"substitution": 0.9565619900376546, "deprotection": 0.9704424331552834}
# tokens and their validity to maps [L, B, H, T, S]
Maps = Callable[[np.ndarray, np.ndarray], np.ndarray]


@contextlib.contextmanager
def package_at_hand(packages: Path = PACKAGES) -> Iterator[None]:
    """Make `rxnmapper` importable in a `with` block; the one function of `pkg_resources` that it needs is replaced."""
    before = sys.modules.get("pkg_resources")
    found: Any = SimpleNamespace(
        resource_filename=lambda package, name: str(importlib.resources.files(package) / name)
    )
    sys.modules["pkg_resources"] = found
    sys.path.append(str(packages))
    try:
        yield
    finally:
        sys.path.remove(str(packages))
        del sys.modules["pkg_resources"]
        if before is not None:
            sys.modules["pkg_resources"] = before


def mapper_of(maps: Maps, directory: Path | str) -> Any:
    """Return the package's mapper with model and tokenizer replaced; the package's need `transformers` < 5."""
    from rxnmapper import RXNMapper
    from rxnmapper.tokenization_smiles import BasicSmilesTokenizer

    words = Path(directory, "vocab.txt").read_text().split()

    class Mapper(RXNMapper):
        def _load_model_and_tokenizer(self):
            special = {"cls_token": "[CLS]", "sep_token": "[SEP]"}
            return torch.nn.Identity(), SimpleNamespace(
                **special, basic_tokenizer=BasicSmilesTokenizer()
            )

        def maps_of(self, reactions):
            """Tokens of each reaction, and the maps of all heads."""
            rows = [self.tokenize_for_model(reaction) for reaction in reactions]
            longest = max(map(len, rows))
            if longest > 512:
                raise ValueError(f"Reaction SMILES has {longest} tokens, should be at most 512")
            # few lengths to compile for
            tokens = np.zeros((len(rows), -(-longest // 64) * 64), int)
            for ids, row in zip(tokens, rows, strict=True):
                ids[: len(row)] = [
                    words.index(token if token in words else "[UNK]") for token in row
                ]
            return rows, maps(
                tokens, np.arange(tokens.shape[1]) < np.array([[len(row)] for row in rows])
            )

        def convert_batch_to_attns(self, reactions, force_layer=None, force_head=None):
            assert force_layer is None
            assert force_head is None
            rows, found = self.maps_of(reactions)
            of_head = found[LAYER, :, HEAD]
            return [
                torch.tensor(each[: len(row), : len(row)])
                for row, each in zip(rows, of_head, strict=True)
            ]

    return Mapper({"model_path": str(directory)})


def bonds_kept(mapper: Any, reactions: Sequence[str]) -> tuple[Float[np.ndarray, "L H"], int]:
    """Return the share of the products' bonds that each head keeps, and the number of these bonds.

    A bond is kept if its two atoms attend most to atoms of the reactants that are bonded too; this needs no labels.
    """
    from rxnmapper.attention import AttentionScorer

    rows, maps = mapper.maps_of(reactions)  # maps [L, B, H, T, S]
    kept, bonds = np.zeros((maps.shape[0], maps.shape[2])), 0
    for number, (reaction, tokens) in enumerate(zip(reactions, rows, strict=True)):
        for place in np.ndindex(kept.shape):
            scorer = AttentionScorer(
                reaction, tokens, maps[place[0], number, place[1], : len(tokens), : len(tokens)]
            )
            came_from = scorer.combined_attentions_filt_atoms.argmax(1)
            ends = np.nonzero(np.triu(scorer.adjacency_matrix_products))
            kept[place] += scorer.adjacency_matrix_reactants[
                came_from[ends[0]], came_from[ends[1]]
            ].sum()
        bonds += len(ends[0])
    return kept / bonds, bonds
