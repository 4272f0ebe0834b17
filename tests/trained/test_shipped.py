"""The included models: they open by name in any directory; a damaged model never silently gives other answers."""

import dataclasses
import json
import os
import shutil
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from repository import REPOSITORY

from transformer_jax import load_run
from transformer_jax.errors import InputError
from transformer_jax.runs.settings import FORMAT
from transformer_jax.tasks import ReverseDataset
from transformer_jax.trained.__main__ import carry_out, read_command
from transformer_jax.trained.load import SHIPPED, shipped_models

FILES = ("SHA256SUMS", "config.json", "params.msgpack")


@pytest.fixture
def shipped(tmp_path) -> Path:
    """Copy an included model."""
    return Path(shutil.copytree(SHIPPED / "reverse", tmp_path / "reverse"))


def test_a_name_opens_a_small_model_from_any_directory_that_knows_nothing_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shipped_models() == ["dates", "digits", "reverse"]
    assert (REPOSITORY / "checkpoints" / "pretrained").resolve() == SHIPPED.resolve()
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*")) < 5e6
    assert [load_run(name).trained_length for name in shipped_models()] == [0, 10, 16]
    for name in shipped_models():
        by_name, by_path = load_run(name), load_run(SHIPPED / name)
        assert (by_name.name, by_name.config) == (by_path.name, by_path.config)
        jax.tree.map(np.testing.assert_array_equal, by_name.params, by_path.params)
        assert by_name.config.checkpoint_dir == Path("checkpoints")  # what it writes is not written beside the model
        assert '"/' not in (SHIPPED / name / "config.json").read_text()
    inputs = ReverseDataset(size=1000, seed=7).inputs
    np.testing.assert_array_equal(load_run("reverse").predict(inputs), inputs[:, ::-1])


def test_a_name_is_the_model_and_a_path_the_directory_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(SHIPPED / "dates", tmp_path / "reverse")
    assert load_run("./reverse").name == load_run(Path("reverse")).name == "TranslationTask"
    assert load_run("reverse").name == "ReverseTask"


def test_the_name_that_was_meant_is_proposed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^date holds no run: there is no such directory; did you mean dates\?$"):
        load_run("date")
    with pytest.raises(InputError, match="^gpt2 holds no run: .* included models are dates, digits, reverse$"):
        load_run("gpt2")
    (tmp_path / "checkpoints" / "mine").mkdir(parents=True)
    (tmp_path / "checkpoints" / "mine" / "config.json").touch()
    for what in ("mine", "checkpoints"):
        with pytest.raises(InputError, match="^.* holds no run: .*; runs are checkpoints/mine$"):
            load_run(what)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """An included model, saved again."""
    directory = tmp_path_factory.mktemp("models") / "saved"
    load_run("reverse").save(directory)
    return directory


def test_a_saved_model_is_opened_by_us_and_by_safetensors_and_says_what_it_is(saved):
    original, made = load_run("reverse"), load_run(saved)
    assert jax.tree.structure(made.params) == jax.tree.structure(original.params)
    jax.tree.map(np.testing.assert_array_equal, made.params, original.params)
    assert (made.model, made.config.without_neutral()) == (original.model, original.config.without_neutral())
    settings = json.loads((saved / "config.json").read_text())
    assert (settings["format"], settings["task"], settings["checkpoint_dir"]) == (FORMAT, "ReverseTask", "checkpoints")
    arrays = safetensors.numpy.load_file(saved / "model.safetensors")
    np.testing.assert_array_equal(arrays["input_layer/kernel"], original.params["input_layer"]["kernel"])
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=saved, check=True, capture_output=True)
    card = (saved / "README.md").read_text()
    assert card.startswith("# ReverseTask\n\nA model of transformer-jax, trained with the defaults.")


def test_the_card_has_the_flags_and_the_metrics_of_the_run(tmp_path):
    trainer = load_run("reverse")
    trainer.config = dataclasses.replace(trainer.config, lr=0.25, num_devices=2)
    here = {"settings": {"checkpoint_dir": "/of/this/machine"}, "number": np.float32(1)}
    trainer.results = {"val": {"loss": 0.5}, "test": {"loss": 0.25, "accuracy": 0.875}} | here
    trainer.save(tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "trained with `--lr 0.25`." in card
    assert "| val | loss | 0.5 |\n| test | loss | 0.25 |\n| test | accuracy | 0.875 |\n" in card
    assert f"jax {jax.__version__}" in card
    assert not any("/of/this" in path.read_text("latin-1") for path in (tmp_path / "model").iterdir())
    load_run(tmp_path / "model").save(tmp_path / "again")
    assert (tmp_path / "again" / "README.md").read_text() == card


def test_a_model_replaces_a_saved_one_and_nothing_else(saved, tmp_path):
    for name in ("README.md", "notes.txt"):  # files of others
        (tmp_path / name).touch()
        with pytest.raises(InputError, match=rf"which holds {name}; it must be empty, or hold nothing but a model"):
            load_run("reverse").save(tmp_path)
        (tmp_path / name).unlink()
    (saved / ".theirs").touch()
    load_run("reverse").save(saved)
    names = [".theirs", "README.md", "SHA256SUMS", "config.json", "model.safetensors", "results.json"]
    assert sorted(path.name for path in saved.iterdir()) == names
    assert [path.name for path in saved.parent.iterdir()] == ["saved"]


def test_a_command_saves_a_model(tmp_path, saved):
    carry_out(read_command(["export", "reverse", str(tmp_path / "model")]))
    assert (tmp_path / "model" / "SHA256SUMS").read_text() == (saved / "SHA256SUMS").read_text()
    with pytest.raises(InputError, match="the following arguments are required: DIRECTORY"):
        read_command(["export", "reverse"])


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_bit_is_refused(shipped, file):
    content = bytearray((shipped / file).read_bytes())
    content[len(content) // 3] ^= 1
    (shipped / file).write_bytes(content)
    with pytest.raises(InputError, match="changed: its SHA-256 differs from the one in SHA256SUMS|config.json"):
        load_run(shipped)


def test_a_model_without_one_of_its_files_or_with_a_pipe_in_its_place_is_refused(shipped):
    (shipped / "SHA256SUMS").unlink()
    with pytest.raises(InputError, match="SHA256SUMS can't be read: No such file"):
        load_run(shipped)
    os.mkfifo(shipped / "SHA256SUMS")
    with pytest.raises(InputError, match="SHA256SUMS is a pipe, a socket or a device; it must be"):
        load_run(shipped)
    (shipped / "params.msgpack").unlink()
    with pytest.raises(InputError, match=f"{shipped} has no intact checkpoint"):
        load_run(shipped)
