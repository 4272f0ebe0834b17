"""Callbacks, loggers and metrics that a task adds to its training; and what a trainer keeps and releases."""

import json

import numpy as np
import optax
import pytest
from events import read_scalars
from sklearn.metrics import f1_score
from tiny_reverse import STEPS, fit, loader, loaders, trainer_for

from transformer_jax import InputError, TaskData, TrainerModule, load_run, make_loader
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.loggers import Logger
from transformer_jax.tasks import ReverseTrainer
from transformer_jax.training.callbacks import Callback

pytestmark = pytest.mark.slow


class Remember(Callback):
    """Records its calls; its state is the number of steps."""

    def __init__(self) -> None:
        self.steps, self.evaluations, self.ends, self.restored = [], [], [], None
        self.epochs = []

    def on_step(self, step):
        self.steps.append((step.number, step.metrics["loss"]))
        assert step.epoch == (step.number + 4) // 5

    def on_evaluation(self, evaluation):
        self.evaluations.append((evaluation.step, evaluation.epoch, dict(evaluation.metrics), evaluation.params))

    def on_epoch(self, epoch):
        self.epochs.append((epoch.number, epoch.metrics["loss"], epoch.evaluation and epoch.evaluation.step))

    def on_end(self, step):
        self.ends.append(step)

    def state(self):
        return {"steps": len(self.steps)}

    def restore(self, state):
        self.restored = state


class Everything(Logger):
    """A user-defined logger."""

    def __init__(self) -> None:
        self.entries, self.settings, self.results, self.closed = [], [], [], 0

    def log(self, step, scalars):
        self.entries += [(step, name) for name in scalars]

    def log_settings(self, settings):
        self.settings.append(settings["seq_len"])

    def log_results(self, metrics):
        self.results.append(sorted(metrics))

    def close(self):
        self.closed += 1


class Trainer(ReverseTrainer):
    """Has a callback, and a logger in addition to TensorBoard's."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.callback, self.own_logger = Remember(), Everything()

    def create_callbacks(self, loggers):
        return [self.callback]

    def create_loggers(self, directory, position):
        return [*super().create_loggers(directory, position), self.own_logger]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Trainer:
    return fit(trainer_for(tmp_path_factory.mktemp("trained"), Trainer, log_every=1, log_norms=True))


def test_a_callback_gets_every_step_every_evaluation_and_the_end(trained):
    callback = trained.callback
    assert [number for number, _ in callback.steps] == list(range(1, STEPS + 1))
    curve = read_scalars(trained.run.path)["train/loss"]
    assert [loss for _, loss in callback.steps] == pytest.approx([curve[step] for step in curve], abs=1e-6)
    assert [(step, epoch) for step, epoch, *_ in callback.evaluations] == [(10, 2), (15, 3)]
    for *_, metrics, params in callback.evaluations:  # which stay as they are
        assert trained.evaluate(loader(23), params) == metrics
    assert [(number, evaluated) for number, _, evaluated in callback.epochs] == [(1, None), (2, 10), (3, 15)]
    losses = np.reshape([loss for _, loss in callback.steps], (3, 5)).mean(1)
    assert [loss for _, loss, _ in callback.epochs] == pytest.approx(losses, abs=1e-6)
    assert callback.ends == [STEPS]


def test_a_logger_of_ones_own_gets_what_tensorboard_gets(trained):
    logger = trained.own_logger
    curves = read_scalars(trained.run.path)
    assert "train/gradient_norm/encoder/layers_0" in curves
    assert sorted(logger.entries) == sorted((step, name) for name, curve in curves.items() for step in curve)
    assert (logger.settings, logger.results, logger.closed) == ([5], [], 1)
    results = trained.test(loader(23), loader(11))
    assert results["val_acc"] == results["val"]["accuracy"]
    assert logger.results == [["test/accuracy", "test/loss", "val/accuracy", "val/loss"]]
    assert read_scalars(trained.run.path)["test/loss"][STEPS] == pytest.approx(results["test"]["loss"])


class StopAtOnce(Callback):
    """Stops at the first evaluation."""

    wants_to_stop = False

    def on_evaluation(self, evaluation):
        self.wants_to_stop = True


class Stopped(ReverseTrainer):
    """Has no accuracy, and a callback that stops the training."""

    def create_callbacks(self, loggers):
        return [StopAtOnce()]

    def loss_function(self, params, batch, key, *, train):
        elements = super().loss_function(params, batch, key, train=train)
        return {"loss": elements["loss"], "right": elements["accuracy"]}


class Live(Callback):
    """Keeps changing the object that it returned as its state."""

    def __init__(self):
        self.losses = []

    def on_step(self, step):
        self.losses.append(step.sums["loss"][0])  # NumPy's number

    def state(self):
        return self.losses


def test_a_checkpoint_keeps_the_state_that_a_callback_had_then(tmp_path, monkeypatch):
    saved, save = {}, Checkpoints.save

    def noting(self, step, state, progress, metrics=None):
        saved[step] = progress["callbacks"]["Live"]
        save(self, step, state, progress, metrics)

    monkeypatch.setattr(Checkpoints, "save", noting)
    kind = type("WithLive", (ReverseTrainer,), {"create_callbacks": lambda self, loggers: [Live()]})
    fit(trainer_for(tmp_path, kind, checkpoint_every=4, steps_per_call=4))
    assert {step: len(losses) for step, losses in saved.items()} == {step: step for step in saved}
    assert len(saved) > 2
    monkeypatch.setattr(Live, "state", lambda self: {"all": np.ones(2)})
    with pytest.raises(
        InputError, match="Live.state returned .* it may only hold numbers, strings, lists and dictionaries"
    ):
        fit(trainer_for(tmp_path / "other", kind))


def test_a_stopped_run_is_not_trained_further_is_quiet_and_its_lowest_loss_is_the_best_without_accuracy(
    tmp_path, capsys
):
    for _ in range(2):
        trainer = fit(trainer_for(tmp_path, Stopped, logger="csv", quiet=True))
        results = trainer.test(loader(23), loader(11))
        assert results["steps"] == 10
    assert capsys.readouterr() == ("", "")
    names = {file.name for file in trainer.run.path.iterdir()}
    assert "metrics.csv" in names
    assert not any("tfevents" in name for name in names)
    assert set(results["val"]) == set(results["test"]) == {"loss", "right"}
    assert "val_acc" not in results
    assert json.loads((trainer.run.path / "config.json").read_text())["best_by"] == "val/loss:min"
    assert results["criterion"] == "val/loss:min"
    assert load_run(trainer.run.path, Stopped).evaluate(loader(23)) == trainer.evaluate(loader(23))


def test_an_error_of_a_callback_is_not_one_of_the_runs_directory(tmp_path):
    class Lost(Trainer):
        def create_callbacks(self, loggers):
            raise FileNotFoundError("words.txt")

    with pytest.raises(FileNotFoundError, match=r"^words\.txt$"):
        fit(trainer_for(tmp_path, Lost))


def test_a_metric_of_the_whole_set_chooses_the_best_model_and_the_results_say_what_the_hooks_made(tmp_path):
    class WithF1(ReverseTrainer):
        dataset_metric_names = ("f1",)

        def create_optimizer(self, num_steps):
            return optax.adamw(self.create_schedule(num_steps), weight_decay=0.05)

        def create_model(self):
            return super().create_model().clone(dropout_prob=0.25)

        def dataset_metrics(self, params, loader):
            batches = [(self.forward(inputs, params=params).argmax(-1), targets) for inputs, targets in loader]
            answers, targets = (np.concatenate(parts).ravel() for parts in zip(*batches, strict=True))
            return {"f1": np.float32(f1_score(targets, answers, average="macro"))}

    trainer = fit(trainer_for(tmp_path, WithF1, best_by="val/f1:max", eval_every=1))
    results = trainer.test(loader(23), loader(11))
    assert 0 < results["val"]["f1"] < 1
    logged = read_scalars(trainer.run.path)["val/f1"]
    assert results["val"]["f1"] == pytest.approx(max(logged.values()), rel=1e-6)  # float32
    assert (results["model"]["class"], results["model"]["dropout_prob"]) == ("TransformerPredictor", 0.25)
    assert results["model"]["settings"]["norm"] == "LayerNorm"
    assert "weight_decay" not in results["settings"]  # that of the config is not the hook's


def test_a_run_goes_on_only_with_the_data_that_it_began_with(trained):
    (train, val), other = loaders(), loader(37, seed=2, drop_last=True)
    larger = make_loader(train.dataset, 37, drop_last=True)
    for train_loader, val_loader, message in (
        (other, val, "holds a run with different data: its training or validation set has changed"),
        (train, loader(23, seed=2), "holds a run with different data: its training or validation set has changed"),
        (larger, val, r"train_loader has batches of 37; config\.batch_size is 7$"),
    ):
        with pytest.raises(InputError, match=message):
            Trainer(trained.config).fit(train_loader, val_loader)


def test_a_resumed_run_gives_the_callback_its_state_back_and_a_with_block_keeps_its_directory(trained):
    with Trainer(trained.config) as other:
        fit(other)
        assert (other.callback.restored, other.callback.steps) == ({"steps": STEPS}, [])
        with pytest.raises(InputError, match="in use by another process"):
            trained.test(loader(23), loader(11))
    assert trained.test(loader(23), loader(11))["steps"] == STEPS
    fit(Trainer(trained.config))


def test_after_load_run_the_tasks_own_data_are_tested_and_nothing_is_written(trained):
    class WithData(ReverseTrainer):
        @staticmethod
        def load_data(config):
            return TaskData(*loaders(), loader(11))

    results = trained.test(loader(23), loader(11))
    before = sorted(file.name for file in trained.run.path.iterdir())
    again = load_run(trained.run.path, WithData)
    assert {name: again.test()[name] for name in ("val", "test")} == {name: results[name] for name in ("val", "test")}
    assert sorted(file.name for file in trained.run.path.iterdir()) == before
    assert again.variables == {"params": again.params}

    class Without(ReverseTrainer):
        load_data = TrainerModule.load_data

    with pytest.raises(InputError, match="Without has no load_data, and so no data .* and test_loader to test"):
        load_run(trained.run.path, Without).test()
