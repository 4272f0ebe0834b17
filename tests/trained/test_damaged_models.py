"""Trained models that are damaged, incomplete or crafted: one line says so, and none answers otherwise in silence."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer_jax import ReverseConfig, load_run, train_reverse
from transformer_jax.errors import InputError
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.tasks import ReverseDataset, ReverseTrainer
from transformer_jax.trained.named import find_trained
from transformer_jax.trained.shipped import SHIPPED, shipped_models, write_digests, write_params


@pytest.fixture
def shipped(tmp_path) -> Path:
    """A copy of a model that ships."""
    return Path(shutil.copytree(SHIPPED / "reverse", tmp_path / "reverse"))


def change_settings(directory: Path, **changes) -> None:
    """Other settings in a config.json, without new digests."""
    settings = json.loads((directory / "config.json").read_text()) | changes
    (directory / "config.json").write_text(json.dumps(settings))


def corrupted(content: bytes, kind: str, rng: np.random.Generator) -> bytes:
    place = int(rng.integers(len(content)))
    match kind:
        case "cut":
            return content[:place]
        case "zeroed":
            return content[:place] + bytes(len(content[place : place + 64])) + content[place + 64 :]
        case "flipped":
            return content[:place] + bytes([content[place] ^ 1 << int(rng.integers(8))]) + content[place + 1 :]
        case "grown":
            return content[:place] + content[place : place + 16] + content[place:]
        case _:  # swapped
            return content[place:] + content[:place]


@pytest.mark.parametrize("file", ["params.msgpack", "config.json", "SHA256SUMS"])
@pytest.mark.parametrize("kind", ["cut", "zeroed", "flipped", "grown", "swapped"])
def test_no_corruption_of_a_model_that_ships_answers_otherwise(shipped, kind, file):
    rng, refused, original = np.random.default_rng(3), 0, (shipped / file).read_bytes()
    for _ in range(11):
        (shipped / file).write_bytes(corrupted(original, kind, rng))
        if (shipped / file).read_bytes() == original:
            continue
        try:
            loaded = load_run(shipped)
        except InputError:
            refused += 1
        else:
            jax.tree.map(np.testing.assert_array_equal, loaded.params, load_run(SHIPPED / "reverse").params)
    assert refused >= (11 if file == "params.msgpack" else 8)


@pytest.mark.parametrize("name", shipped_models())
def test_each_model_that_ships_agrees_with_its_digests(name):
    assert load_run(SHIPPED / name).params
    assert len((SHIPPED / name / "SHA256SUMS").read_text().splitlines()) == 2


@pytest.mark.parametrize("file", ["params.msgpack", "SHA256SUMS"])
def test_a_model_without_one_of_its_files_is_incomplete(shipped, file):
    (shipped / file).unlink()
    with pytest.raises(InputError, match=f"the model in {shipped} is incomplete: {file} is missing$"):
        load_run(shipped)


@pytest.mark.parametrize("changed", [{"num_heads": 4}, {"input_dropout_prob": 0.5}, {"lr": 0.25}])
def test_changed_settings_of_a_model_that_ships_are_noticed(shipped, changed):
    change_settings(shipped, **changed)
    with pytest.raises(InputError, match=r"config.json was damaged or changed: its SHA-256 is not that in SHA256SUMS$"):
        load_run(shipped)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.full(10, np.nan, np.float32), "output_layer/bias in the model in .*reverse holds NaN or infinity"),
        (np.full(10, np.inf, np.float16), "output_layer/bias in the model in .*reverse holds NaN or infinity"),
        (np.zeros(10, np.int32), "output_layer/bias in the model in .*reverse has the type int32; it must be a float"),
    ],
)
def test_parameters_that_are_no_finite_numbers_are_refused_with_right_digests_too(shipped, value, message):
    arrays = flatten_dict(load_run(shipped).params, sep="/") | {"output_layer/bias": value}
    write_params(shipped, unflatten_dict(arrays, sep="/"))
    with pytest.raises(InputError, match=message):
        load_run(shipped)


def run_with(parent: Path, params: dict) -> Path:
    """A run whose best checkpoint has these parameters."""
    with RunDirectory(ReverseConfig(checkpoint_dir=parent), "ReverseTask") as run:
        run.checkpoints.save(3, {"params": params}, {}, {"accuracy": 0.5})
    return run.path


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_run_whose_best_parameters_are_not_finite_is_refused(tmp_path, bad):
    directory = run_with(tmp_path, {"kernel": np.full((32, 5), bad, np.float32)})
    with pytest.raises(
        InputError, match=f"kernel in the model in {directory} holds NaN or infinity; every number must"
    ):
        load_run(directory)


def test_changed_settings_of_a_run_are_named_but_for_those_that_do_not_matter(tmp_path):
    directory = run_with(tmp_path, {"kernel": np.ones((32, 5), np.float32)})
    change_settings(directory, log_every=7, checkpoint_dir="elsewhere")
    load_run(directory)
    change_settings(directory, num_heads=4)
    with pytest.raises(
        InputError, match=r"config.json was damaged or changed: num_heads is 4, and was 1 in the training$"
    ):
        load_run(directory)


def test_a_crafted_config_chooses_no_cache_of_compiled_programs(shipped, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    change_settings(shipped, compilation_cache=str(cache), num_workers=3, num_devices=2)
    write_digests(shipped)
    before = jax.config.values["jax_compilation_cache_dir"]
    trainer = load_run(shipped)
    trainer.predict(ReverseDataset(size=3, seed=7).inputs)
    config, trained = find_trained(ReverseTrainer, ReverseConfig(pretrained=str(shipped)))
    assert trained is not None
    assert jax.config.values["jax_compilation_cache_dir"] == before
    assert list(cache.iterdir()) == []
    for taken in (trainer.config, config):
        assert (taken.compilation_cache, taken.num_workers, taken.num_devices) == (None, 0, 0)
    assert config == dataclasses.replace(ReverseConfig(), pretrained=str(shipped))


@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "empty", "directory", "a" * 300, "a/" * 2500, "a\0b", "\udcff"])
def test_what_is_no_model_is_refused_at_once_in_one_line(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("empty").touch()
    Path("directory").mkdir()
    with pytest.raises(InputError, match="pretrained is|empty is empty|holds no run") as caught:
        train_reverse(pretrained=name)
    assert "\n" not in str(caught.value)
    assert not Path("checkpoints").exists()


def test_pipes_in_the_place_of_a_models_files_do_not_block(shipped):
    for file in ("SHA256SUMS", "params.msgpack"):
        (shipped / file).unlink()
        os.mkfifo(shipped / file)
        with pytest.raises(InputError, match=f"{file} is a pipe, a socket or a device; it must be"):
            load_run(shipped)
        (shipped / file).unlink()
        shutil.copy(SHIPPED / "reverse" / file, shipped)
