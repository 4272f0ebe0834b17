"""Doors for a user's arrays: the same numbers give the same result in any form, or one line says why they cannot."""

import jax
import numpy as np
import pytest
import torch
from array_forms import FORMS, plain
from compiled_models import draw
from tiny_models import predictor
from tiny_own_task import LargestConfig, LargestTrainer

from transformer_jax import InputError, capture, make_loader, patch
from transformer_jax.data import ArrayDataset, numpy_collate
from transformer_jax.inspection import Inspected

IDS = np.random.default_rng(0).integers(7, size=(7, 5)).astype(np.int32)
REFUSED = {
    "masked": (
        lambda array: np.ma.masked_array(array, array == array.flat[0]),
        "is a masked array; it must have no mask",
    ),
    "longdouble": (lambda array: array.astype(np.longdouble), "an array of numbers, not of float128"),
    "objects": (lambda array: array.astype(object), "an array of numbers, not of object"),
}


@pytest.fixture(scope="module")
def doors():
    """Functions of ids `[7, 5]` or of features `[2, 7, 12]`, and an input of each.

    They were called with the input, since a compiled JAX function checks only the arguments of its first call.
    """
    trainer, (model, variables, (x,)) = LargestTrainer(LargestConfig()), predictor(num_layers=1)
    trainer.params, bound = trainer.initial_params(jax.random.key(0), IDS), Inspected(model, variables)
    other = LargestTrainer(LargestConfig())

    def with_params(array):
        other.params = {"array": array}
        return other.params

    def with_constants(array):
        other.compiled.place_constants(array)
        return other.constants

    found = {
        "forward": (trainer.forward, IDS),
        "predict": (trainer.predict, IDS),
        "attention": (lambda ids: trainer.attention(ids)[0].maps, IDS),
        "evaluate": (lambda ids: trainer.evaluate([(ids, IDS.max(-1))]), IDS),
        "capture": (lambda x: dict(bound.capture(x, ["embeddings"])[1]), np.array(x)),
        "capture without a program": (lambda x: capture(model, variables, x, names=["embeddings"]), np.array(x)),
        "patch": (lambda array: bound.patch(x, {"embeddings": array}), draw(2, 7, 12)),
        "patch without a program": (lambda a: patch(model, variables, x, patches={"embeddings": a}), draw(2, 7, 12)),
        "params": (with_params, draw(3, 5)),
        "constants": (with_constants, draw(3, 5)),
        "samples": (lambda rows: numpy_collate([(row, 3) for row in rows]), draw(3, 5)),
        "loader": (lambda rows: list(make_loader(ArrayDataset(rows, {"targets": rows}), 2)), draw(3, 5)),
        "loader of samples": (lambda rows: list(make_loader([(row, row) for row in rows], 2)), draw(3, 5)),
    }
    for door, given in found.values():
        door(given)
    return found


NAMES = (
    "forward", "predict", "attention", "evaluate", "capture", "capture without a program", "patch",
    "patch without a program", "params", "constants", "samples", "loader", "loader of samples",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_form_of_an_array_does_not_matter(doors, name):
    door, array = doors[name]
    for form in FORMS.values():
        given = form(array)
        if given.dtype.kind == array.dtype.kind:  # ids stay integers
            jax.tree.map(np.testing.assert_array_equal, door(given), door(plain(given)))


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_converted_is_one_line(doors, name):
    door, array = doors[name]
    for form, message in REFUSED.values():
        with pytest.raises(InputError, match=f"{message}|the patch of embeddings is .*; it must be an array") as caught:
            door(form(array))
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 200
    if not name.startswith("loader"):
        jax.tree.map(np.testing.assert_array_equal, door(torch.tensor(array)), door(array))
