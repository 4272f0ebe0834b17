"""Every writer writes the elements that it was given, whatever their order in memory, byte order and type."""

import io

import flax.serialization
import jax
import numpy as np
import pytest
import safetensors.numpy
import torch
from array_forms import FORMS, assert_bitwise, plain
from compiled_models import draw
from flax.traverse_util import flatten_dict
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from transformer_jax import (
    InputError,
    MultiheadAttention,
    TransformerPredictor,
    export_torch,
    load_run,
    params_from_torch,
    params_to_torch,
)
from transformer_jax.config import Criterion
from transformer_jax.fit.programs import choose_initial
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.tensorboard import TensorBoardLogger
from transformer_jax.trained.load import read_params
from transformer_jax.weights.layouts import abstract_params

parametrized = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def assert_same(found, given) -> None:
    jax.tree.map(assert_bitwise, found, given)


@parametrized
def test_a_saved_model(form, tmp_path):
    run = load_run("reverse")
    given = jax.tree.map(form, dict(run.params))
    run.params = given
    run.save(tmp_path / "model")
    assert_same(load_run(tmp_path / "model").params, given)
    content = flax.serialization.msgpack_serialize(run.params)  # as Flax's users write them
    assert_same(flax.serialization.msgpack_restore(content), given)


def test_a_saved_model_with_an_array_without_elements_and_one_without_dimensions(tmp_path):
    run = load_run("reverse")
    run.params = given = {"empty": np.zeros((0, 3), ">f4"), "scalar": np.array(3, ">f4"), "flag": np.array([True])}
    run.save(tmp_path / "model")
    assert_same(read_params(tmp_path / "model"), given)


@parametrized
def test_a_state_dict_of_pytorch_and_back(form):
    model = MultiheadAttention(6, 2)
    shapes = abstract_params(model, jax.ShapeDtypeStruct((1, 1, 6), np.float32))
    given = {path: form(draw(*leaf.shape, seed=seed)) for seed, (path, leaf) in enumerate(shapes.items())}
    found = params_to_torch(model, flax.traverse_util.unflatten_dict(given, sep="/"))
    assert_same(flatten_dict(params_from_torch(model, found), sep="/"), given)
    stored = {name: form(tensor.float().numpy()) for name, tensor in found.items()}
    assert_same(params_from_torch(model, stored), params_from_torch(model, {n: plain(a) for n, a in stored.items()}))


@parametrized
def test_an_export_to_pytorch(form, tmp_path):
    model = TransformerPredictor(6, 5, 1, 1)
    shapes = abstract_params(model, jax.ShapeDtypeStruct((1, 1, 3), np.float32))
    given = {path: form(draw(*leaf.shape, seed=seed)) for seed, (path, leaf) in enumerate(shapes.items())}
    export_torch(model, flax.traverse_util.unflatten_dict(given, sep="/"), tmp_path)
    found = torch.load(tmp_path / "weights.pt", weights_only=True)["state_dict"]
    kernel = found["encoder.layers.0.linear1.weight"].numpy()
    assert_bitwise(kernel, given["encoder/layers_0/feed_forward/expand/kernel"].T.astype(np.float32))


@parametrized
def test_initial_parameters_and_checkpoints(form, tmp_path):
    array = draw(5, 7)
    given = choose_initial({"kernel": form(array)}, {"kernel": array}, load_run("reverse").config).arrays["kernel"]
    np.testing.assert_array_equal(given, form(array).astype(np.float32))
    checkpoints = Checkpoints(tmp_path / "checkpoints", Criterion("loss", "min"))
    checkpoints.save(1, {"given": given, "kernel": plain(form(array)).T, "scalar": np.array(3, "f4")}, {})
    assert_same(checkpoints.newest().state, {"given": given, "kernel": form(array).T, "scalar": np.array(3, "f4")})
    checkpoints.close()


@pytest.mark.usefixtures("without_type_checks")
def test_pictures_and_numbers_of_tensorboard(tmp_path):
    pixels = np.arange(35, dtype=np.uint8).reshape(5, 7)
    order = {name: form(pixels) for name, form in FORMS.items() if form(pixels).dtype == np.uint8}
    numbers = {name: form(np.array([0.1], np.float32))[0, ...] for name, form in FORMS.items()}
    logger = TensorBoardLogger(tmp_path)
    logger.log(1, numbers)
    for name, picture in order.items():
        logger.log_image(1, name, picture)
    logger.close()
    found = EventAccumulator(str(tmp_path)).Reload()
    assert len(order) == 7
    for name, picture in order.items():
        np.testing.assert_array_equal(Image.open(io.BytesIO(found.Images(name)[0].encoded_image_string)), picture)
    assert [found.Scalars(name)[0].value for name in numbers] == [np.float32(number) for number in numbers.values()]


def test_a_model_stays_if_what_was_written_is_read_back_differently(tmp_path, monkeypatch):
    run = load_run("reverse")
    run.save(tmp_path / "model")
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    run.params = jax.tree.map(lambda leaf: leaf + 1, run.params)
    write, name = safetensors.numpy.save_file, "input_layer/bias"
    other = {name: np.asarray(run.params["input_layer"]["bias"]) - 1}
    monkeypatch.setattr(safetensors.numpy, "save_file", lambda arrays, *rest: write(arrays | other, *rest))
    with pytest.raises(InputError, match=r"directory is .*model; it must be .*\(input_layer/bias in .* differs from"):
        run.save(tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
