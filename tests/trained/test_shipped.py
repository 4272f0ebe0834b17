"""The models that ship are opened by name, from any directory."""

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from repository import REPOSITORY

from transformer_jax import ReverseConfig, load_run
from transformer_jax.errors import InputError
from transformer_jax.tasks import ReverseTrainer
from transformer_jax.trained.named import find_trained
from transformer_jax.trained.shipped import SHIPPED, shipped_models


@pytest.mark.parametrize("name", shipped_models())
def test_a_name_opens_the_model_that_ships_from_any_directory(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    by_name, by_path = load_run(name), load_run(SHIPPED / name)
    assert (by_name.name, by_name.config) == (by_path.name, by_path.config)
    jax.tree.map(np.testing.assert_array_equal, by_name.params, by_path.params)
    assert by_name.config.checkpoint_dir == Path("checkpoints")  # what it writes is not written beside the model


def test_the_link_in_checkpoints_leads_to_them():
    assert (REPOSITORY / "checkpoints" / "pretrained").resolve() == SHIPPED.resolve()


def open_by_flag(what: str) -> None:
    find_trained(ReverseTrainer, ReverseConfig(pretrained=what))


@pytest.mark.parametrize("opened", [load_run, open_by_flag])
def test_a_name_that_is_a_directory_too_is_an_error_that_says_how_to_name_each(opened, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reverse").mkdir()
    with pytest.raises(InputError) as caught:
        opened("reverse")
    assert str(caught.value) == (
        "reverse is a model that ships, and a directory here; choose ./reverse for the directory, or "
        f"{SHIPPED / 'reverse'} for the model"
    )


def test_a_path_is_never_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(SHIPPED / "dates", tmp_path / "reverse")
    assert load_run("./reverse").name == load_run(Path("reverse")).name == "TranslationTask"
