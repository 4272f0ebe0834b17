"""RXNMapper (Schwaller et al. 2021) gives the same atom mappings with our attention maps as with its own."""

import importlib.resources
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from compiled_models import assert_close
from transformers import AlbertForMaskedLM

from atom_maps import CONFIDENCES, HEAD, LAYER, REACTIONS, Maps, bonds_kept, mapper_of, package_at_hand
from published_models import PACKAGES
from transformer_jax import capture, from_transformers, padding_mask

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def packages(rxnmapper):
    """The directory from which the package is imported."""
    pytest.importorskip("rxn.chemutils")
    with package_at_hand():
        yield PACKAGES


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
    """Import modules of the package's tests under another name, since both packages are called `tests`."""
    spec = importlib.util.spec_from_file_location("rxnmapper_tests", directory / "__init__.py")
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    return [importlib.import_module(f"{spec.name}.{name}") for name in names]


def test_one_head_keeps_the_bonds_of_the_products_and_no_other_does(ours):
    share, bonds = bonds_kept(ours, list(REACTIONS.values()))
    assert bonds == 134
    by_layer, others = share[:, HEAD], np.delete(share, HEAD, axis=1)
    assert by_layer[LAYER] > 0.75
    assert others.max() < 0.55
    assert (by_layer[5:] > others.max()).all()  # the same matrices in each layer, since layers share them
