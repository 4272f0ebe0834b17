"""The trainer: what an evaluation counts, which model is kept, when training stops, and what a task can override."""

import dataclasses
import gc
import json
import subprocess
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from events import is_timing, read_scalars
from repository import REPOSITORY

from transformer_jax import InputError, ReverseConfig, load_run, make_loader
from transformer_jax.data import StackedSamples
from transformer_jax.mesh_axis import all_rows
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.tasks import ReverseDataset, ReverseTrainer

REVERSE = str(REPOSITORY / "experiments/reverse.py")

CONFIG = ReverseConfig(
    max_epochs=3, batch_size=7, seq_len=5, num_categories=3, model_dim=6, warmup=2, eval_every=2, log_every=2
)


def loader(size: int, seed: int = 1, **options):
    dataset = ReverseDataset(CONFIG.num_categories, CONFIG.seq_len, size, seed)
    return make_loader(dataset, CONFIG.batch_size, **options)


def trainer_for(tmp_path, trainer_class: type = ReverseTrainer, **settings) -> ReverseTrainer:
    return trainer_class(dataclasses.replace(CONFIG, checkpoint_dir=tmp_path, **settings))


def fit(trainer: ReverseTrainer) -> ReverseTrainer:
    trainer.fit(loader(37, drop_last=True), loader(23))
    trainer.run.close()
    return trainer


def initial_params(trainer: ReverseTrainer):
    return trainer.initial_state(loader(1).example(), num_steps=100).params


@pytest.mark.slow
def test_an_evaluation_counts_every_element_once_and_compiles_once(tmp_path):
    trainer = trainer_for(tmp_path)
    trainer.params = initial_params(trainer)
    full = trainer.evaluate(loader(7 * 3 + 2))
    assert trainer._eval_step.count == 1
    logits = trainer.model.apply({"params": trainer.params}, jax.nn.one_hot(loader(23).dataset.inputs, 3))
    labels = loader(23).dataset.inputs[:, ::-1].copy()
    assert full["accuracy"] == pytest.approx(np.mean(np.asarray(logits).argmax(-1) == labels), abs=1e-7)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    assert full["loss"] == pytest.approx(float(losses.mean()), abs=1e-6)


def test_an_empty_loader_is_an_error(tmp_path):
    trainer = trainer_for(tmp_path)
    trainer.params = initial_params(trainer)
    with pytest.raises(ValueError, match="no batch"):
        trainer.evaluate([])


def test_before_training_there_are_no_parameters_and_no_run(tmp_path):
    trainer = trainer_for(tmp_path)
    with pytest.raises(InputError, match="ReverseTask is not trained yet; call fit"):
        trainer.predict(np.zeros((1, 5), int))
    with pytest.raises(InputError, match="ReverseTask has no run directory yet; call fit"):
        trainer.run.save_figure("a.png", None)


def test_building_a_trainer_changes_no_setting_of_jax(tmp_path):
    before = dict(jax.config.values)
    trainer_for(tmp_path, compilation_cache=tmp_path / "cache")
    assert dict(jax.config.values) == before
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
def test_a_run_logs_what_it_should_at_the_right_steps(tmp_path):
    trainer = fit(trainer_for(tmp_path))
    scalars = read_scalars(trainer.run.path)
    every_two_steps_and_at_each_epochs_end = [2, 4, 5, 6, 8, 10, 12, 14, 15]
    names = ("loss", "accuracy", "learning_rate", "gradient_norm", "steps_per_second")
    for name in names:
        assert list(scalars[f"train/{name}"]) == every_two_steps_and_at_each_epochs_end, name
    assert list(scalars["val/accuracy"]) == [10, 15]  # epochs 2 and 3: every second, and the last
    schedule = trainer.create_schedule(15)
    for step, rate in scalars["train/learning_rate"].items():
        assert rate == pytest.approx(float(schedule(step - 1)), abs=1e-9)
    assert trainer._eval_step.count == 1
    assert all(seconds > 0 for seconds in trainer.stopwatch.seconds.values())


class Evaluations(ReverseTrainer):
    """Validates with metrics that are given, and remembers the parameters of each time."""

    values: tuple[float, ...]

    def evaluate(self, loader, params=None):
        self.seen = [*getattr(self, "seen", []), jax.tree.map(np.array, params)]
        value = self.values[len(self.seen) - 1]
        return {"accuracy": value, "loss": 1 - value}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "best_by", "best"),
    [
        ((0.3, 0.7, 0.5), None, 1),
        ((0.7, 0.7, 0.5), None, 1),  # the later of equal ones
        ((0.1, 0.2, 0.2), None, 2),
        ((0.3, 0.7, 0.5), "val/accuracy:min", 0),
        ((0.3, 0.7, 0.5), "val/loss:min", 1),
        ((0.7, 0.3, float("nan")), None, 0),
    ],
)
def test_a_run_ends_with_the_best_model_by_its_criterion(tmp_path, values, best_by, best):
    trainer = trainer_for(tmp_path, trainer_class=Evaluations, eval_every=1, best_by=best_by)
    trainer.values = values
    fit(trainer)
    assert len(trainer.seen) == 3
    assert trainer.run.checkpoints.best_step == 5 * (best + 1)
    jax.tree.map(np.testing.assert_array_equal, trainer.params, trainer.seen[best])


@pytest.mark.slow
def test_patience_ends_a_training_that_no_longer_improves_also_after_a_restart(tmp_path):
    def train(values):
        trainer = trainer_for(tmp_path, trainer_class=Evaluations, eval_every=1, patience=2, max_epochs=7)
        trainer.values = values
        return fit(trainer)

    trainer = train((0.1, 0.5, 0.4, 0.3, 0.9, 0.9, 0.9))
    assert (trainer.steps, trainer.run.checkpoints.best_step) == (20, 10)
    again = train(())  # nothing is left to train, nor to evaluate
    assert (again.steps, again.run.checkpoints.best_step) == (20, 10)
    jax.tree.map(np.testing.assert_array_equal, trainer.params, again.params)


def test_when_no_evaluation_is_finite_there_is_no_best_model(tmp_path):
    trainer = trainer_for(tmp_path, trainer_class=Evaluations)
    trainer.values = (float("nan"),) * 2
    with pytest.raises(FloatingPointError, match="val/accuracy was never a finite number"):
        fit(trainer)


@pytest.mark.slow
def test_a_run_that_was_never_evaluated_has_no_best_model(tmp_path):
    trainer = trainer_for(tmp_path, checkpoint_every=2, steps_per_call=2)
    with trainer.training(loader(37, drop_last=True), loader(23)) as loop:
        loop.train_until(4)
    trainer.run.close()
    assert trainer.run.checkpoints.steps == [2, 4]
    with pytest.raises(InputError, match="has no intact checkpoint that was evaluated"):
        load_run(trainer.run.path)


class OtherMetrics(ReverseTrainer):
    """Gives metrics that a test chooses."""

    names: tuple[str, ...]

    def loss_function(self, params, batch, key, *, train):
        loss = super().loss_function(params, batch, key, train=train)["loss"]
        return dict.fromkeys(self.names, loss)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("accuracy",), "gives accuracy; it must give loss, which is minimised"),
        (("loss", "accuracy", "learning_rate"), "learning_rate must have another name, since training logs its own"),
    ],
)
def test_metrics_that_cannot_work_are_an_error_before_anything_is_written(tmp_path, names, message):
    trainer = trainer_for(tmp_path / "runs", trainer_class=OtherMetrics)
    trainer.names = names
    with pytest.raises(InputError, match=message):
        fit(trainer)
    assert not (tmp_path / "runs").exists()


class UpdatesTwice(ReverseTrainer):
    """Overrides the step: every update is made twice."""

    def train_step(self, state, batch, constants, **options):
        state, _ = super().train_step(state, batch, constants, **options)
        return super().train_step(state.replace(step=state.step - 1), batch, constants, **options)


@pytest.mark.slow
def test_a_task_can_override_the_step(tmp_path):
    usual, changed = (fit(trainer_for(tmp_path / cls.__name__, cls)) for cls in (ReverseTrainer, UpdatesTwice))
    assert changed.steps == usual.steps == 15
    difference = changed.params["input_layer"]["kernel"] - usual.params["input_layer"]["kernel"]
    assert jnp.abs(difference).max() > 1e-4


@pytest.mark.slow
def test_a_second_fit_of_one_trainer_counts_its_seconds_once(tmp_path):
    trainer = fit(trainer_for(tmp_path))
    first = trainer.stopwatch.seconds
    assert fit(trainer).stopwatch.seconds["train"] == first["train"]


class Diverges(ReverseTrainer):
    """Its loss or its gradient is infinite or no number when the poisoned sequence comes."""

    poison: Callable  # the losses, from what they were, which are poisoned, and a number made of the parameters

    def loss_function(self, params, batch, key, *, train):
        elements = super().loss_function(params, batch, key, train=train)
        losses, weights = elements["loss"]
        poisoned = (jnp.asarray(batch.targets) == 2).all(-1, keepdims=True) & train
        return elements | {"loss": (self.poison(losses, poisoned, params["input_layer"]["kernel"].sum()), weights)}


# The order in which the fifth of 37 sequences is one of the two that the first epoch drops.
SEED = next(seed for seed in range(99) if 5 in np.random.default_rng([seed, 0]).permutation(37)[35:])


class PoisonedDataset(ReverseDataset):
    """Has nothing but 2s in one sequence, and in no other."""

    def __init__(self):
        super().__init__(CONFIG.num_categories, CONFIG.seq_len, 37, seed=1)
        self.inputs[:, 0] = 0
        self.inputs[5] = 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("message", "poison", "steps_per_call"),
    [
        ("loss is nan", lambda losses, poisoned, number: jnp.where(poisoned, jnp.nan, losses), 0),
        ("loss is inf", lambda losses, poisoned, number: jnp.where(poisoned, jnp.inf, losses), 3),
        # The root is 0, its slope infinite: times 0 that is no number.
        (
            "gradient_norm is nan",
            lambda losses, poisoned, number: losses + jnp.sqrt(jnp.where(poisoned, 0 * number, 1)),
            0,
        ),
    ],
    ids=["loss is nan", "loss is inf", "gradient_norm is nan"],
)
def test_a_step_that_is_not_finite_stops_the_training_and_keeps_the_last_good_checkpoint(
    tmp_path, message, poison, steps_per_call
):
    trainer = trainer_for(tmp_path, trainer_class=Diverges, eval_every=1, log_every=50, steps_per_call=steps_per_call)
    trainer.poison = poison
    train_loader = make_loader(PoisonedDataset(), CONFIG.batch_size, shuffle=True, drop_last=True, seed=SEED)
    order = [samples for epoch in range(3) for samples in train_loader.epoch(epoch)]
    poisoned_step = 1 + next(number for number, (inputs, _) in enumerate(order) if (inputs == 2).all(1).any())
    with pytest.raises(FloatingPointError, match=f"{message} at step {poisoned_step}"):
        trainer.fit(train_loader, loader(23))
    last_good = (poisoned_step - 1) // 5 * 5
    assert last_good > 0
    checkpoints = Checkpoints(trainer.run.path / "checkpoints", CONFIG.criterion)
    assert checkpoints.steps[-1] == last_good
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(checkpoints.read(last_good).state))


@pytest.mark.slow
def test_how_many_steps_a_call_has_changes_nothing(tmp_path):
    def run(steps_per_call):
        trainer = trainer_for(tmp_path / str(steps_per_call), dropout_prob=0.2, steps_per_call=steps_per_call)
        trainer.fit(loader(240, shuffle=True, drop_last=True), loader(23))
        trainer.run.close()
        assert trainer.steps == 102
        return trainer

    one, others = run(1), [run(n) for n in (3, 32, 0)]
    scalars = read_scalars(one.run.path)
    for other in others:
        # Another number of steps is another program; on this backend it rounds alike.
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), one.params, other.params)
        for tag, values in read_scalars(other.run.path).items():
            assert list(values) == list(scalars[tag])
            if not is_timing(tag):
                np.testing.assert_allclose(list(values.values()), list(scalars[tag].values()), atol=1e-5)


@pytest.fixture
def compilations():
    """Names of JAX's events while compiling; it has one for each program that goes to the compiler."""
    events = []

    def listen(name, *_, **__):
        if name == "/jax/core/compile/backend_compile_duration":
            events.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.slow
def test_nothing_is_compiled_and_nothing_stays_on_the_device_after_the_first_epoch(tmp_path, compilations):
    trainer = trainer_for(tmp_path, dropout_prob=0.2, eval_every=1)
    with trainer.training(loader(100, shuffle=True, drop_last=True), loader(23)) as loop:
        loop.train_until(loop.steps_per_epoch)
        trainer.run.checkpoints.wait()
        gc.collect()
        first = len(compilations), len(jax.live_arrays())
        assert first[0] > 0
        loop.train_until(loop.num_steps)
        gc.collect()
        assert (len(compilations), len(jax.live_arrays())) == first
    trainer.run.close()
    assert loop.step == 3 * 14
    assert (loop.runner.compiled.count, trainer._eval_step.count) == (1, 1)


@pytest.mark.slow
def test_a_resumed_run_has_one_state_on_the_device_and_goes_on_with_its_stopwatch(tmp_path):
    def begun() -> ReverseTrainer:
        return trainer_for(tmp_path, eval_every=1)

    trainer = begun()
    with trainer.training(loader(100, shuffle=True, drop_last=True), loader(23)) as loop:
        loop.train_until(loop.steps_per_epoch)
    trainer.run.close()
    directory = trainer.run.checkpoints.directory
    del trainer, loop
    gc.collect()
    before = len(jax.live_arrays())
    resumed = begun()
    with resumed.training(loader(100, shuffle=True, drop_last=True), loader(23)) as loop:
        assert loop.step == loop.steps_per_epoch
        gc.collect()
        assert len(jax.live_arrays()) - before == len(jax.tree.leaves(loop.state))
        seconds = resumed.stopwatch.seconds
    resumed.run.close()
    earlier = Checkpoints(directory, CONFIG.criterion).newest(resumed.initial_state(loader(1).example(), 42))
    assert seconds["train"] == earlier.progress["seconds"]["train"] > 0
    assert seconds["compile"] > earlier.progress["seconds"]["compile"] > 0


@pytest.mark.slow
def test_a_run_goes_on_only_with_the_data_that_it_began_with(tmp_path):
    fit(trainer_for(tmp_path))
    for train_loader, val_loader in (
        (loader(37, seed=2, drop_last=True), loader(23)),
        (loader(38, drop_last=True), loader(23)),
        (loader(37, drop_last=True), loader(23, seed=2)),
    ):
        with pytest.raises(InputError, match="holds a run of other data: its training or validation set has changed"):
            trainer_for(tmp_path).fit(train_loader, val_loader)
    assert fit(trainer_for(tmp_path)).steps == 15
    larger = make_loader(loader(37).dataset, 37, drop_last=True)
    with pytest.raises(InputError, match="is at step 15; these settings and data end at step 3"):
        trainer_for(tmp_path).fit(larger, loader(23))


class Traced(ReverseTrainer):
    """Notes how often its loss is traced for a training step."""

    traces = 0

    def loss_function(self, params, batch, key, *, train):
        self.traces += train
        return super().loss_function(params, batch, key, train=train)


@pytest.mark.slow
def test_a_training_step_is_traced_once_for_a_whole_run(tmp_path):
    assert fit(trainer_for(tmp_path, Traced)).traces == 1


@pytest.mark.slow
def test_another_process_finds_the_compiled_programs_where_the_setting_says(tmp_path):
    cache = tmp_path / "compiled"
    command = [sys.executable, REVERSE, "--max-epochs=1", "--train-size=2000", "--warmup=2", "--val-size=9"]
    command += ["--test-size=9", f"--compilation-cache={cache}"]
    written = []
    for number in (1, 2):
        subprocess.run([*command, f"--checkpoint-dir={tmp_path / str(number)}"], check=True, capture_output=True)
        # Of other programs JAX keeps those that took 0.1 s, which depends on how busy the machine is.
        written.append({path.name for path in cache.glob("*run_stacked*-cache")})
    assert len(written[0]) == 1
    assert written[0] == written[1]
    first, second = (json.loads((tmp_path / number / "ReverseTask/results.json").read_text()) for number in ("1", "2"))
    assert first["val_acc"] == second["val_acc"]


@pytest.mark.slow
def test_the_papers_schedule_is_a_setting(tmp_path):
    trainer = fit(trainer_for(tmp_path, schedule="noam", warmup=4))
    rates = read_scalars(trainer.run.path)["train/learning_rate"]
    assert rates[5] == pytest.approx(6**-0.5 * 4**-0.5, rel=1e-5)  # the peak: step 4, counted from 0


class Constants(ReverseTrainer):
    """Looks its inputs up in a table, inside the compiled step."""

    def prepare(self, inputs, constants):
        return constants[inputs]


class LookedUp(ReverseDataset):
    """The inputs as the table has them; the targets as ever."""

    def __getitems__(self, indices):
        inputs, labels = super().__getitems__(indices).stacked
        return StackedSamples((TABLE[inputs].astype(np.int32), labels))


TABLE = np.array([2, 0, 1])


@pytest.mark.slow
def test_constants_reach_every_step_through_prepare(tmp_path):
    looked_up = Constants(dataclasses.replace(CONFIG, checkpoint_dir=tmp_path / "a"), constants=TABLE)
    fit(looked_up)
    direct = trainer_for(tmp_path / "b")
    train_loader, val_loader = (make_loader(LookedUp(3, 5, size, 1), 7, drop_last=size == 37) for size in (37, 23))
    direct.fit(train_loader, val_loader)
    direct.run.close()
    jax.tree.map(np.testing.assert_array_equal, looked_up.params, direct.params)


class Contrastive(ReverseTrainer):
    """Each sequence must be nearer to its own label than to those of all other rows of the batch."""

    def loss_function(self, params, batch, key, *, train):
        ours = self.apply(params, batch.inputs, key, train=train).reshape(len(batch.inputs), -1)  # [B E]
        theirs = jax.nn.one_hot(batch.targets, 3).reshape(len(batch.inputs), -1)
        candidates, valid = all_rows((theirs, jnp.asarray(batch.valid)))
        logits = jnp.where(valid, ours @ candidates.T, -1e9)  # [B, rows of all devices]
        return {"loss": (jax.nn.logsumexp(logits, axis=-1) - (ours * theirs).sum(-1), 1.0)}


@pytest.mark.slow
@pytest.mark.skipif("len(jax.local_devices()) < 3", reason="there are fewer than three devices")
def test_a_loss_that_compares_rows_does_not_depend_on_the_number_of_devices(tmp_path):
    def train(num_devices: int) -> tuple:
        settings = {"num_devices": num_devices, "batch_size": 12, "best_by": "val/loss:min", "max_epochs": 2}
        trainer = trainer_for(tmp_path / str(num_devices), Contrastive, **settings)
        dataset = ReverseDataset(3, 5, 41, seed=1)
        trainer.fit(make_loader(dataset, 12, drop_last=True), make_loader(dataset, 12))
        trainer.run.close()
        return trainer.params, read_scalars(trainer.run.path)

    (alone, scalars), (shared, shared_scalars) = train(1), train(3)
    for tag in ("train/loss", "train/gradient_norm", "val/loss"):
        assert list(shared_scalars[tag].values()) == pytest.approx(list(scalars[tag].values()), rel=1e-5), tag
    np.testing.assert_allclose(shared["input_layer"]["kernel"], alone["input_layer"]["kernel"], atol=1e-6)


@pytest.mark.slow  # where no run-time check of types comes first
def test_a_loader_of_another_kind_is_an_error_before_anything_is_written(tmp_path):
    other = torch.utils.data.DataLoader(loader(37).dataset, batch_size=7)
    with pytest.raises(InputError, match="train_loader is a DataLoader; it must be a Loader, from make_loader"):
        trainer_for(tmp_path / "runs").fit(other, other)
    assert not (tmp_path / "runs").exists()


def test_a_warmup_as_long_as_the_training_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="warmup is 15; .* 15"):
        trainer_for(tmp_path / "runs", warmup=15).fit(loader(37, drop_last=True), loader(23))
    assert not (tmp_path / "runs").exists()
