"""The trainer: what an evaluation counts, which model is kept, when training stops, and what a task can override."""

import csv
import gc
import json
from itertools import count
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from events import read_scalars
from tiny_reverse import CONFIG, fit, loader, loaders, trainer_for

from transformer_jax import InputError, load_run
from transformer_jax.fit.fitting import fit as fit_task
from transformer_jax.fit.fitting import training
from transformer_jax.fit.programs import create_programs
from transformer_jax.fitted.fitted import CompiledTask
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.listing import read_run
from transformer_jax.runs.loggers import CsvLogger
from transformer_jax.tasks import ReverseTrainer
from transformer_jax.training.task import Task


@pytest.fixture
def compilations():
    """Record JAX's compilation events; there is one for each program that is compiled."""
    events = []

    def listen(name, *_, **__):
        if name == "/jax/core/compile/backend_compile_duration":
            events.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.slow
def test_an_evaluation_counts_every_element_once_and_compiles_once(tmp_path, compilations):
    trainer = trainer_for(tmp_path)
    trainer.params = create_programs(trainer.compiled, loader(1), num_steps=100).initial_state().params
    trainer.evaluate(loader(1))
    first = len(compilations)
    full = trainer.evaluate(loader(7 * 3 + 2))
    assert len(compilations) == first > 0
    logits = trainer.model.apply({"params": trainer.params}, jax.nn.one_hot(loader(23).dataset.inputs, 3))
    labels = loader(23).dataset.inputs[:, ::-1].copy()
    assert full["accuracy"] == pytest.approx(np.mean(np.asarray(logits).argmax(-1) == labels), abs=1e-7)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    assert full["loss"] == pytest.approx(float(losses.mean()), abs=1e-6)


def test_without_a_batch_parameters_or_a_run_there_is_an_error(tmp_path):
    trainer = trainer_for(tmp_path)
    with pytest.raises(InputError, match="ReverseTask is not trained yet; call fit"):
        trainer.predict(np.zeros((1, 5), int))
    with pytest.raises(InputError, match="ReverseTask has no run directory yet; call fit"):
        trainer.run.save_figure("a.png", None)
    trainer.params = {}
    with pytest.raises(ValueError, match="no batches to average over; a loader must give at least one batch"):
        trainer.evaluate([])


def test_building_a_trainer_changes_no_setting_of_jax(tmp_path):
    before = dict(jax.config.values)
    trainer_for(tmp_path, compilation_cache=tmp_path / "cache")
    assert dict(jax.config.values) == before
    assert not (tmp_path / "cache").exists()


class Evaluations(ReverseTrainer):
    """Validates with given metrics, and records the parameters of each evaluation."""

    values: tuple[float, ...]

    def evaluate(self, loader, params=None):
        self.seen = [*getattr(self, "seen", []), jax.tree.map(np.array, params)]
        value = self.values[len(self.seen) - 1]
        return {"accuracy": value, "loss": 1 - value}


@pytest.mark.slow
def test_patience_ends_a_training_with_the_best_model_also_after_a_restart(tmp_path):
    def train(values):
        trainer = trainer_for(tmp_path, trainer_class=Evaluations, eval_every=1, patience=1)
        trainer.values = values
        return fit(trainer)

    trainer = train((0.5, 0.4, 0.9))
    assert (trainer.steps, trainer.run.checkpoints.best_step) == (10, 5)
    jax.tree.map(np.testing.assert_array_equal, trainer.params, trainer.seen[0])
    again = train(())  # nothing is left to train, nor to evaluate
    assert (again.steps, again.run.checkpoints.best_step) == (10, 5)
    jax.tree.map(np.testing.assert_array_equal, trainer.params, again.params)


@pytest.mark.slow
def test_when_no_evaluation_is_finite_there_is_no_best_model(tmp_path):
    trainer = trainer_for(tmp_path, trainer_class=Evaluations)
    trainer.values = (float("nan"),) * 2
    with pytest.raises(FloatingPointError, match="val/accuracy was never a finite number"):
        fit(trainer)


@pytest.mark.parametrize("name", ["loss", "accuracy"])
def test_a_set_in_which_nothing_counts_is_said_at_its_first_evaluation(tmp_path, name):
    class Unweighted(ReverseTrainer):
        def loss_function(self, params, batch, key, *, train):
            elements = super().loss_function(params, batch, key, train=train)
            return elements | {name: (elements[name][0], 0.0)}

    trainer = trainer_for(tmp_path, trainer_class=Unweighted)
    trainer.params = trainer.initial_params(jax.random.key(0), np.zeros((1, 5), np.int32))
    with pytest.raises(InputError, match=f"the total weight of {name} over 4 batches is 0: loss_function excludes"):
        trainer.evaluate(loader(23))


@pytest.mark.slow
def test_checkpoints_that_cannot_be_read_are_no_divergence(tmp_path, monkeypatch):
    trainer = trainer_for(tmp_path)
    monkeypatch.setattr("transformer_jax.runs.checkpoints.read_arrays", mock.Mock(side_effect=ValueError("damage")))
    with pytest.raises(
        InputError, match=r"the checkpoint of step \d+ in .* is intact, but was written with .*: damage"
    ):
        fit(trainer)
    assert read_run(trainer.run.path).state == "interrupted"


@pytest.mark.usefixtures("without_type_checks")
def test_a_loader_of_pytorch_is_an_error_before_anything_is_written(tmp_path):
    train_loader = torch.utils.data.DataLoader(loader(37).dataset, 7, drop_last=True)
    with pytest.raises(InputError, match="train_loader is <torch.*DataLoader.*; it must be a loader: make_loader"):
        trainer_for(tmp_path / "runs").fit(train_loader, loader(23))
    assert not (tmp_path / "runs").exists()


class Diverges(ReverseTrainer):
    """The learning rate of the eleventh step is NaN, and therefore the twelfth loss."""

    def create_schedule(self, num_steps):
        schedule = super().create_schedule(num_steps)
        return lambda step: jnp.where(step == 10, jnp.nan, schedule(step))


@pytest.mark.slow
def test_a_step_that_is_not_finite_stops_the_training_and_keeps_the_last_good_checkpoint(tmp_path):
    trainer = trainer_for(tmp_path, Diverges, eval_every=1, log_every=50, steps_per_call=3)
    with pytest.raises(FloatingPointError, match="loss is nan at step 12"):
        fit(trainer)
    run = read_run(trainer.run.path)
    assert (run.state, run.reason) == ("diverged", "loss is nan at step 12; training stops there")
    assert json.loads((trainer.run.path / "status.json").read_text())["step"] == 12
    checkpoints = Checkpoints(trainer.run.path / "checkpoints", CONFIG.criterion)
    assert checkpoints.steps[-1] == 10
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(checkpoints.newest().state))


@pytest.mark.slow
def test_after_an_epoch_nothing_is_compiled_or_stays_on_the_device_and_a_resumed_run_has_one_state(
    tmp_path, compilations
):
    def arrays() -> int:
        gc.collect()
        return len(jax.live_arrays())

    gc.freeze()  # so that collections skip objects of other tests
    trainer, sets = trainer_for(tmp_path, eval_every=1), loaders()
    with trainer.training(*sets) as loop:
        loop.train_until(loop.steps_per_epoch)
        trainer.run.checkpoints.wait()
        first = len(compilations), arrays()
        assert first[0] > 0
        loop.train_until(2 * loop.steps_per_epoch)
        assert (len(compilations), arrays()) == first
    trainer.run.close()
    earlier = trainer.stopwatch.seconds["train"]
    del trainer, loop
    before, resumed = arrays(), trainer_for(tmp_path, eval_every=1)
    with resumed.training(*sets) as loop:
        assert loop.step == 10
        assert arrays() - before == len(jax.tree.leaves(loop.state))
        assert resumed.stopwatch.seconds["train"] == pytest.approx(earlier, rel=0.1)  # of the checkpoint
    resumed.run.close()


@pytest.mark.slow
def test_checkpoints_are_made_when_their_minutes_are_over_and_counted_from_the_last_one(tmp_path, monkeypatch):
    clock = count()  # a minute goes by each time that it is read: once before each call, and when a checkpoint is saved
    monkeypatch.setattr("transformer_jax.fit.journal.time", SimpleNamespace(monotonic=lambda: 60 * next(clock)))
    trainer = trainer_for(tmp_path, checkpoint_minutes=3, steps_per_call=1, eval_every=3)
    with trainer, trainer.training(*loaders()) as loop:
        loop.train_until(9)
        trainer.run.checkpoints.wait()
        assert trainer.run.checkpoints.steps == [4, 8]


@pytest.mark.slow
def test_the_average_is_evaluated_beside_the_parameters_chosen_by_its_own_metric_and_resumed_to_the_bit(tmp_path):
    settings = {"ema": 0.9, "best_by": "val/ema_loss:min", "lr": 0.01, "eval_every": 1}
    whole = fit(trainer_for(tmp_path / "whole", **settings))
    results = whole.test(loader(23), loader(11))
    for saving, step in (({"checkpoint_every": 7}, 7), ({"checkpoint_minutes": 1e-9}, 9)):
        begun = trainer_for(tmp_path / "begun", **settings, **saving, steps_per_call=2)
        with begun, begun.training(*loaders()) as loop:
            loop.train_until(step)
            begun.run.checkpoints.wait()
            assert begun.run.checkpoints.steps[-1] == loop.step == step
    resumed = fit(trainer_for(tmp_path / "begun", **settings))
    for params in (resumed.params, load_run(whole.run.path).params):
        jax.tree.map(np.testing.assert_array_equal, params, whole.params)
    scalars = read_scalars(resumed.run.path)
    losses = scalars["val/ema_loss"]
    assert list(losses) == list(scalars["val/ema_accuracy"]) == [5, 10, 15]
    assert results["val"]["loss"] == pytest.approx(min(losses.values()), rel=1e-6)
    assert losses[10] != pytest.approx(scalars["val/loss"][10], rel=1e-4)


@pytest.mark.slow
def test_a_training_of_a_number_of_steps_ends_within_an_epoch_and_is_resumed_to_the_bit(tmp_path, capsys):
    settings = {"max_steps": 8, "eval_every": 1, "log_every": 50, "logger": "csv", "steps_per_call": 3, "ema": 0}
    whole = fit(trainer_for(tmp_path / "whole", **settings))
    assert whole.steps == 8
    evaluations = [line for line in capsys.readouterr().out.splitlines() if ": validation " in line]
    assert [line.partition(":")[0] for line in evaluations] == ["Epoch 1, step 5 of 8", "Epoch 2, step 8 of 8"]
    with (whole.run.path / "metrics.csv").open() as stream:
        curves = {(name, int(step)): float(value) for step, name, value in list(csv.reader(stream))[1:]}
    assert {(name, step) for name, step in curves if name.endswith("/loss")} == {
        ("train/loss", 5), ("val/loss", 5), ("train/loss", 8), ("val/loss", 8)
    }  # fmt: skip
    assert curves["train/learning_rate", 8] == pytest.approx(float(whole.create_schedule(8)(7)), rel=1e-6)
    begun = trainer_for(tmp_path / "begun", **settings, checkpoint_every=7)
    with begun, begun.training(*loaders()) as loop:
        loop.train_until(7)
    resumed = fit(trainer_for(tmp_path / "begun", **settings))
    jax.tree.map(np.testing.assert_array_equal, resumed.params, whole.params)
    with pytest.raises(InputError, match="max_steps was 8 and is 9"):
        fit(trainer_for(tmp_path / "begun", **settings | {"max_steps": 9}))


def test_a_models_file_that_cannot_be_written_leaves_the_runs_directory_to_others(tmp_path):
    class WithFile(ReverseTrainer):
        def model_files(self):
            return {"config.json/words.txt": ""}

    with pytest.raises(InputError) as caught:
        fit(trainer_for(tmp_path, WithFile))
    trainer = trainer_for(tmp_path)
    RunDirectory(trainer.config, trainer.name).close()
    assert "can't be written any more" in str(caught.value)  # its traceback still holds the first directory


@pytest.mark.parametrize(("split", "value"), [("val", np.nan), ("test", np.nan), ("test", np.inf)])
def test_a_metric_that_is_not_finite_is_an_error_and_no_result(tmp_path, split, value):
    class Broken(ReverseTrainer):
        """Its loss is not finite on the set of 3 sequences."""

        def evaluate(self, loader, params=None):
            return {"accuracy": 0.5, "loss": value if len(loader.dataset) == 3 else 0.1}

    trainer = trainer_for(tmp_path, Broken)
    trainer.params = {}
    sets = {"val": loader(2), "test": loader(2)} | {split: loader(3)}
    with pytest.raises(FloatingPointError, match=f"{split}/loss is {value}; no results are written"):
        trainer.test(*sets.values())
    assert trainer.results == {}


class BareTask(Task):
    """Reverses sequences, and is no trainer."""

    name, loggers = "BareTask", {"csv": CsvLogger}
    model_inputs, loss_function = ReverseTrainer.model_inputs, ReverseTrainer.loss_function
    prepare = ReverseTrainer.prepare

    def __init__(self, config, model):
        self.config, self.model, self.given_model = config, model, model


@pytest.mark.slow
def test_a_task_is_fitted_without_a_trainer_and_its_config_stays_the_same_object(tmp_path):
    trainer = fit(trainer_for(tmp_path / "trainer", logger="csv"))
    config = trainer_for(tmp_path / "task", logger="csv").config
    task = BareTask(config, trainer.model)
    compiled = CompiledTask(task, trainer.devices, None, trainer.stopwatch)
    opened = []
    run = training(
        compiled, loaders(), None,
        evaluate=lambda loader, params: compiled.evaluate(params, loader), opened=lambda *run: opened.append(run),
    )  # fmt: skip
    fitted = fit_task(compiled, run, config)
    opened[0][0].close()
    assert task.config is config
    assert fitted.steps == trainer.steps == 15
    jax.tree.map(np.testing.assert_array_equal, fitted.params, trainer.params)
    assert fitted.evaluate(loader(23)) == trainer.evaluate(loader(23))
