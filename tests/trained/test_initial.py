"""`--init-from`: training starts from a trained model's parameters, of any kind that --pretrained accepts."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from finished_runs import REVERSE, finished_run
from flax.traverse_util import flatten_dict
from tiny_own_task import LargestConfig, LargestTrainer, largest_data

from transformer_jax import InputError, ReverseConfig, load_run
from transformer_jax.cli import parse
from transformer_jax.config import Criterion
from transformer_jax.runs.listing import read_run
from transformer_jax.tasks import ReverseTrainer
from transformer_jax.tasks.experiment import chosen_config, train_and_test
from transformer_jax.tasks.reverse import reverse_data, train_reverse
from transformer_jax.tasks.translation.pairs import PairInputs
from transformer_jax.tasks.translation.task import TranslationConfig, TranslationTrainer
from transformer_jax.trained import named
from transformer_jax.trained.load import SHIPPED

pytestmark = pytest.mark.slow


class OwnTrainer(ReverseTrainer):
    """A user-defined task."""

    name = "OwnTask"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    return finished_run(tmp_path_factory, "ReverseTask")


def config(parent: Path, **settings) -> ReverseConfig:
    return ReverseConfig(**(REVERSE | {"checkpoint_dir": parent} | settings))


def find_initial(trainer: ReverseTrainer):
    tokens = np.zeros((1, 3), np.int32)
    inputs = tokens if isinstance(trainer, ReverseTrainer) else PairInputs(tokens, tokens)
    return named.find_initial(trainer, (inputs, tokens))


def trainer_of(parent: Path, **settings) -> ReverseTrainer:
    return ReverseTrainer(config(parent, **settings))


def assert_same(one, other) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_with_everything_else_frozen_the_parameters_are_those_of_the_run_and_the_source_is_recorded(trained, tmp_path):
    settings = config(tmp_path, init_from=str(trained), freeze="encoder,input_layer,*/bias")
    trainer, results = train_and_test(OwnTrainer, settings, reverse_data)
    before, after = (flatten_dict(params, sep="/") for params in (load_run(trained).params, trainer.params))
    changed = {path for path in before if not np.array_equal(before[path], after[path])}
    assert changed == {"output_hidden/kernel", "output_layer/kernel", "output_norm/scale"}
    settings = json.loads((tmp_path / "OwnTask" / "config.json").read_text())
    assert (settings["task"], settings["init_from"]) == ("OwnTask", str(trained))
    assert results["steps"] == 20
    assert_same(load_run(tmp_path / "OwnTask", OwnTrainer).params, trainer.params)


class LossConfig(LargestConfig):
    """The lowest loss is the best, which its runs do not store as a setting."""

    @property
    def default_criterion(self):
        return Criterion("loss", "min")


class Pretrained(LargestTrainer):
    name, config_class = "Pretraining", LossConfig


class Tuned(LargestTrainer):
    name = "Tuning"


@pytest.mark.parametrize("best_by", [None, "val/ema_loss:min"])
def test_a_task_of_ones_own_begins_with_the_parameters_of_another_one(tmp_path, best_by):
    settings = {
        "checkpoint_dir": tmp_path,
        "max_epochs": 4,
        "eval_every": 1,
        "lr": 0.3,
        "ema": 0.5,
        "schedule": "constant",
    }
    source, _ = train_and_test(Pretrained, LossConfig(**settings, best_by=best_by), largest_data)
    assert read_run(source.run.path).state == "finished"
    source.save(tmp_path / "saved")
    for what in ("Pretraining", "saved"):
        settings = {"init_from": str(tmp_path / what), "init_only": "encoder", "freeze": "encoder", "warmup": 0}
        config = LargestConfig(checkpoint_dir=tmp_path, name=f"from_{what}", max_steps=1, **settings)
        tuned, _ = train_and_test(Tuned, config, largest_data)
        assert_same(tuned.params["encoder"], source.params["encoder"])
        assert not np.array_equal(tuned.params["input_layer"]["kernel"], source.params["input_layer"]["kernel"])
    with pytest.raises(InputError, match="^num_heads is 2; it must be 1, as in the training of "):
        train_and_test(Tuned, dataclasses.replace(config, name="heads", num_heads=2), largest_data)


def test_a_run_that_was_given_parameters_in_python_does_not_go_on_without_them(trained, tmp_path):
    trainer = trainer_of(tmp_path)
    data = reverse_data(trainer.config)
    with trainer:
        trainer.fit(data.train_loader, data.val_loader, initial_params=load_run(trained).params)
    with pytest.raises(InputError, match="Task holds a run with different initial parameters: the arrays passed to"):
        trainer_of(tmp_path).fit(data.train_loader, data.val_loader)


def test_every_kind_of_model_is_found(trained, tmp_path):
    load_run(trained).save(tmp_path / "saved")
    expected = load_run(trained).params
    for what in (trained, tmp_path / "saved"):
        assert_same(find_initial(trainer_of(tmp_path, init_from=str(what))), expected)
    shipped = TranslationTrainer(TranslationConfig(checkpoint_dir=tmp_path, init_from="dates"))
    assert_same(find_initial(shipped), load_run(SHIPPED / "dates").params)
    assert find_initial(trainer_of(tmp_path)) is None


def test_a_source_that_cannot_initialize_the_model_is_an_error(trained, tmp_path):
    with pytest.raises(
        InputError,
        match=r"^init_from is nothing; it must be a run's directory, or an included model \(.*\)$",
    ):
        find_initial(trainer_of(tmp_path, init_from="nothing"))
    with pytest.raises(InputError, match="^num_heads is 2; it must be 3, as in the training of "):
        find_initial(trainer_of(tmp_path, init_from=str(trained), num_heads=2))
    for again in ({}, {"resume": False, "overwrite": True}):  # which would delete it before the training
        with pytest.raises(InputError, match="this run itself; choose another checkpoint_dir or name$"):
            find_initial(trainer_of(trained.parent, init_from=f"{trained}/../{trained.name}", **again))
    remedy = "which does not fit the task and its data: .*; --num-categories 7 would fit$"
    with pytest.raises(InputError, match=remedy):
        train_reverse(config(tmp_path, init_from=str(trained), num_categories=5))
    with pytest.raises(InputError, match="which does not fit .*; it is a model of the task TranslationTask$"):
        train_reverse(config(tmp_path, init_from="dates", num_heads=4))
    assert not (tmp_path / "ReverseTask").exists()


def test_settings_of_the_model_are_taken_over_unless_they_are_given(trained, tmp_path):
    own = json.loads((trained / "config.json").read_text())
    line = [f"--init-from={trained}", f"--checkpoint-dir={tmp_path}", "--dropout-prob=0.25", "--max-epochs=1"]
    chosen = parse(ReverseConfig, line)
    sizes = ("seq_len", "num_categories", "model_dim", "num_heads", "num_layers")
    assert [getattr(chosen, name) for name in sizes] == [own[name] for name in sizes]
    assert own["model_dim"] != ReverseConfig.model_dim
    assert (chosen.dropout_prob, chosen.lr, chosen.train_size) == (0.25, ReverseConfig.lr, ReverseConfig.train_size)
    settings = {"init_from": str(trained), "checkpoint_dir": tmp_path, "dropout_prob": 0.25, "max_epochs": 1}
    assert chosen_config(None, ReverseConfig(), settings, "ReverseTask") == chosen
    assert parse(ReverseConfig, ["--init-from=nothing"]).model_dim == ReverseConfig.model_dim
    run = Path(shutil.copytree(trained, tmp_path / "ReverseTask"))  # one that began with a model which is gone
    (run / "config.json").write_text(json.dumps(own | {"init_from": "gone"}))
    line[0] = "--init-from=gone"
    assert parse(ReverseConfig, line, task="ReverseTask") == dataclasses.replace(chosen, init_from="gone")


def test_a_run_goes_on_without_the_model_it_began_with_but_not_with_another_one(trained, tmp_path, capsys):
    source = Path(shutil.copytree(trained, tmp_path / "source"))
    settings = {"init_from": str(source), "init_only": "encoder"}
    first, _ = train_and_test(ReverseTrainer, config(tmp_path, **settings), reverse_data)
    assert "Arrays that training begins with: 32\n  not taken: input_layer/bias [12]\n" in capsys.readouterr().out
    shutil.rmtree(source)
    with pytest.raises(InputError, match="^init_from is nothere; it must be a run's directory"):
        train_and_test(ReverseTrainer, config(tmp_path, init_from="nothere"), reverse_data)
    assert "resumes" not in capsys.readouterr().out
    again, _ = train_and_test(ReverseTrainer, config(tmp_path, **settings), reverse_data)
    assert "resumes from its checkpoint, without init_from" in capsys.readouterr().out
    assert_same(again.params, first.params)
    with pytest.raises(InputError, match="init_from is .*source; it must be a run's directory"):
        train_reverse(config(tmp_path, **settings, resume=False, overwrite=True))
    other = load_run(trained)
    other.params = jax.tree.map(np.negative, other.params)
    other.save(source)
    with pytest.raises(InputError, match="holds a run with different initial parameters: .*source have changed"):
        train_reverse(config(tmp_path, **settings))
