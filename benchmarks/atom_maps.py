"""RXNMapper (Schwaller et al. 2021) with attention maps that are handed in, and the bonds that each head keeps.

One head of its ALBERT, which was trained on reactions without labels, attends from each atom of a product to the atom
that it was in the reactants. The package `rxnmapper` makes the mapping of that head's map; here it gets any model's.
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

LAYER, HEAD = 10, 5  # that map atoms, as the package has it
REACTIONS = {
    # The two of the package's README; its confidences are below.
    "substitution": "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    "deprotection": "C1COCCO1.CC(C)(C)OC(=O)CONC(=O)NCc1cccc2ccccc12.Cl>>O=C(O)CONC(=O)NCc1cccc2ccccc12",
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
CONFIDENCES = {"substitution": 0.9565619900376546, "deprotection": 0.9704424331552834}  # as published
Maps = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of tokens and which of them are no padding: [L, B, H, T, S]


@contextlib.contextmanager
def package_at_hand(packages: Path = PACKAGES) -> Iterator[None]:
    """A block in which `rxnmapper` can be imported; `pkg_resources`, of which it needs one function, is gone."""
    before = sys.modules.get("pkg_resources")
    found: Any = SimpleNamespace(resource_filename=lambda package, name: str(importlib.resources.files(package) / name))
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
    """The package's mapper, all of it but the model; it tokenizes with `transformers` below 5."""
    from rxnmapper import RXNMapper
    from rxnmapper.tokenization_smiles import BasicSmilesTokenizer

    words = Path(directory, "vocab.txt").read_text().split()

    class Mapper(RXNMapper):
        def _load_model_and_tokenizer(self):
            special = {"cls_token": "[CLS]", "sep_token": "[SEP]"}
            return torch.nn.Identity(), SimpleNamespace(**special, basic_tokenizer=BasicSmilesTokenizer())

        def maps_of(self, reactions):
            """The tokens of each reaction, and all maps."""
            rows = [self.tokenize_for_model(reaction) for reaction in reactions]
            longest = max(map(len, rows))
            if longest > 512:
                raise ValueError(f"Reaction SMILES has {longest} tokens, should be at most 512")
            tokens = np.zeros((len(rows), -(-longest // 64) * 64), int)  # of few lengths, each of which is compiled
            for ids, row in zip(tokens, rows, strict=True):
                ids[: len(row)] = [words.index(token if token in words else "[UNK]") for token in row]
            return rows, maps(tokens, np.arange(tokens.shape[1]) < np.array([[len(row)] for row in rows]))

        def convert_batch_to_attns(self, reactions, force_layer=None, force_head=None):
            assert force_layer is None
            assert force_head is None
            rows, found = self.maps_of(reactions)
            of_head = found[LAYER, :, HEAD]
            return [torch.tensor(each[: len(row), : len(row)]) for row, each in zip(rows, of_head, strict=True)]

    return Mapper({"model_path": str(directory)})


def bonds_kept(mapper: Any, reactions: Sequence[str]) -> tuple[Float[np.ndarray, "L H"], int]:
    """The share of the products' bonds that each head keeps, and their number.

    A bond is kept if its atoms attend to bonded atoms of the reactants: no label says which atom is which.
    """
    from rxnmapper.attention import AttentionScorer

    rows, maps = mapper.maps_of(reactions)  # maps [L, B, H, T, S]
    kept, bonds = np.zeros((maps.shape[0], maps.shape[2])), 0
    for number, (reaction, tokens) in enumerate(zip(reactions, rows, strict=True)):
        for place in np.ndindex(kept.shape):
            scorer = AttentionScorer(reaction, tokens, maps[place[0], number, place[1], : len(tokens), : len(tokens)])
            came_from = scorer.combined_attentions_filt_atoms.argmax(1)
            ends = np.nonzero(np.triu(scorer.adjacency_matrix_products))
            kept[place] += scorer.adjacency_matrix_reactants[came_from[ends[0]], came_from[ends[1]]].sum()
        bonds += len(ends[0])
    return kept / bonds, bonds
