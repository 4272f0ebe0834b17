"""RXNMapper (Schwaller et al. 2021) gives the same atom mappings with our attention maps in the place of its own.

One head of its ALBERT, which was trained on reactions without labels, attends from each atom of a product to the atom
that it was in the reactants.
"""

import importlib.resources
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from compiled_models import assert_close
from transformers import AlbertForMaskedLM

from transformer_jax import capture, from_transformers, padding_mask

pytestmark = pytest.mark.slow

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


@pytest.fixture(scope="module", autouse=True)
def packages(rxnmapper):
    """The path on which the package is imported; `pkg_resources`, of which it needs one function, is gone."""
    pytest.importorskip("rxn.chemutils")
    found = SimpleNamespace(resource_filename=lambda package, name: str(importlib.resources.files(package) / name))
    path = rxnmapper.parent / "packages"
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(sys, "path", [*sys.path, str(path)])
        patches.setitem(sys.modules, "pkg_resources", found)
        yield path


@pytest.fixture(scope="module")
def theirs(rxnmapper):
    return AlbertForMaskedLM.from_pretrained(rxnmapper, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def our_maps(rxnmapper) -> Maps:
    model, variables = from_transformers(rxnmapper)
    names = [f"encoder.layers.{layer}.attention.weights" for layer in range(model.num_layers)]

    @jax.jit
    def maps(tokens, valid):
        return jnp.stack(list(capture(model, variables, tokens, padding_mask(valid), names=names)[1].values()))

    return lambda tokens, valid: np.asarray(maps(tokens, valid))


@pytest.fixture(scope="module")
def ours(our_maps, rxnmapper):
    return mapper_of(our_maps, rxnmapper)


def mapper_of(maps: Maps, directory: Path) -> Any:
    """The package's mapper, all of it but the model; it tokenizes with `transformers` below 5."""
    from rxnmapper import RXNMapper
    from rxnmapper.tokenization_smiles import BasicSmilesTokenizer

    words = (directory / "vocab.txt").read_text().split()

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


def test_logits_and_streams_and_maps_are_those_of_transformers(rxnmapper, theirs):
    model, variables = from_transformers(rxnmapper)
    rng = np.random.default_rng(0)
    tokens, types = rng.integers(model.vocabulary_size, size=(3, 47)), rng.integers(2, size=(3, 47))
    valid = np.arange(47) < np.array([[47], [29], [11]])
    with torch.no_grad():
        inputs = {"input_ids": tokens, "token_type_ids": types, "attention_mask": valid.astype(int)}
        inputs = {name: torch.tensor(value) for name, value in inputs.items()}
        expected = theirs(**inputs, output_attentions=True, output_hidden_states=True)
    names = ["*.layers.*.output", "*.weights"]
    inputs = tokens, padding_mask(valid), types
    logits, seen = jax.jit(lambda v: capture(model, v, *inputs, names=names))(variables)
    assert_close(logits, expected.logits.numpy(), 1e-5)
    for number in range(model.num_layers):
        stream, weights = expected.hidden_states[number + 1].numpy(), expected.attentions[number].numpy()
        assert_close(seen[f"encoder.layers.{number}.output"], stream, 1e-5)
        assert_close(seen[f"encoder.layers.{number}.attention.weights"], weights, 1e-5)


def test_reactions_are_mapped_as_with_the_maps_of_pytorch(theirs, ours, rxnmapper):
    def their_maps(tokens, valid):
        with torch.no_grad():
            mask = torch.tensor(valid.astype(int))
            found = theirs(torch.tensor(tokens), attention_mask=mask, output_attentions=True)
        return torch.stack(found.attentions).numpy()

    reactions = list(REACTIONS.values())
    expected = mapper_of(their_maps, rxnmapper).get_attention_guided_atom_maps(reactions)
    found = dict(zip(REACTIONS, ours.get_attention_guided_atom_maps(reactions), strict=True))
    for mapped, other in zip(found.values(), expected, strict=True):
        assert mapped["mapped_rxn"] == other["mapped_rxn"]
        assert mapped["confidence"] == pytest.approx(other["confidence"], abs=1e-5)
    for name, confidence in CONFIDENCES.items():
        assert found[name]["confidence"] == pytest.approx(confidence, abs=1e-5)
    # The oxygen of the ester is that of the alcohol, as isotopes showed (Roberts and Urey 1938).
    fischer = found["Fischer esterification"]["mapped_rxn"]
    assert fischer.endswith(".[CH3:1][CH2:2][OH:3]>>[CH3:1][CH2:2][O:3][C:4]([CH3:5])=[O:6]")


def test_the_packages_own_tests_pass_on_our_maps(ours, packages):
    import rxnmapper.batched_mapper

    with mock.patch.object(rxnmapper.batched_mapper, "RXNMapper", return_value=ours):
        batched = rxnmapper.batched_mapper.BatchedMapper(batch_size=4, canonicalize=False)
    given = {"rxn_mapper": ours, "batched_mapper": batched}
    passed = 0
    for module in modules_of(packages / "tests", "test_mapper", "test_batched_mapper", "test_smiles_utils"):
        for name, test in vars(module).items():
            if name.startswith("test_"):
                test(*(given[parameter] for parameter in inspect.signature(test).parameters))
                passed += 1
    assert passed == 14


def modules_of(directory: Path, *names: str) -> list[ModuleType]:
    """Modules of a package that is called like that of these tests."""
    spec = importlib.util.spec_from_file_location("rxnmapper_tests", directory / "__init__.py")
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    return [importlib.import_module(f"{spec.name}.{name}") for name in names]


def test_one_head_keeps_the_bonds_of_the_products_and_no_other_does(ours):
    """A bond is kept if its atoms attend to bonded atoms of the reactants: no label says which atom is which."""
    from rxnmapper.attention import AttentionScorer

    kept, bonds = np.zeros((12, 8)), 0
    for reaction in REACTIONS.values():
        (tokens,), maps = ours.maps_of([reaction])
        for place in np.ndindex(kept.shape):
            scorer = AttentionScorer(reaction, tokens, maps[place[0], 0, place[1], : len(tokens), : len(tokens)])
            came_from = scorer.combined_attentions_filt_atoms.argmax(1)
            ends = np.nonzero(np.triu(scorer.adjacency_matrix_products))
            kept[place] += scorer.adjacency_matrix_reactants[came_from[ends[0]], came_from[ends[1]]].sum()
        bonds += len(ends[0])
    share = kept / bonds
    by_layer, others = share[:, HEAD], np.delete(share, HEAD, axis=1)
    assert by_layer[LAYER] > 0.75
    assert others.max() < 0.55
    assert (by_layer[5:] > others.max()).all()  # the same matrices in each layer, since layers share them
