"""The trainer: what a step computes, what an evaluation counts, which model is kept, and when training stops."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from events import read_scalars

from transformer_jax import ReverseConfig, ReverseDataset, ReverseTrainer, make_loader, numpy_collate
from transformer_jax.metrics import pad_batch

CONFIG = ReverseConfig(
    max_epochs=3, batch_size=7, seq_len=5, num_categories=3, model_dim=6, warmup=2, eval_every=2, log_every=2
)


def loader(size: int, seed: int = 1, **options):
    dataset = ReverseDataset(CONFIG.num_categories, CONFIG.seq_len, size, seed)
    return make_loader(dataset, CONFIG.batch_size, **options)


def trainer_for(tmp_path, num_steps: int = 100, trainer_class: type = ReverseTrainer, **settings) -> ReverseTrainer:
    config = dataclasses.replace(CONFIG, checkpoint_dir=tmp_path, **settings)
    return trainer_class(config, numpy_collate([loader(1).dataset[0]]), num_steps)


def first_batch(size: int = 7):
    return pad_batch(next(iter(loader(size))), CONFIG.batch_size)


def test_a_step_is_adam_on_the_clipped_gradient_of_the_mean_loss(tmp_path):
    trainer = trainer_for(tmp_path, gradient_clip=0.01)
    state = trainer.state.replace(step=30)
    batch = first_batch()

    def mean_loss(params):
        logits = trainer.model.apply({"params": params}, jax.nn.one_hot(batch.data[0], 3))
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch.data[1]).mean()

    loss, gradients = jax.value_and_grad(mean_loss)(state.params)
    norm = optax.tree.norm(gradients)
    assert norm > 0.01
    new_state, sums = jax.jit(trainer.train_step)(state, batch)
    total, weight = sums["loss"]
    assert weight == 7 * 5
    assert total / weight == pytest.approx(float(loss), rel=1e-5)
    assert sums["gradient_norm"][0] == pytest.approx(float(norm), rel=1e-5)
    assert new_state.step == 31
    # The optimizer counts its own updates: this is its first, at the schedule's rate of step 0, which is 0.
    np.testing.assert_allclose(optax.tree.norm(jax.tree.map(jnp.subtract, new_state.params, state.params)), 0)
    mean = jax.tree.map(lambda g: 0.1 * 0.01 * g / norm, gradients)  # (1 - β₁) times the clipped gradient
    ours = new_state.opt_state[1][0].mu
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-7), ours, mean)


def test_padded_rows_change_neither_the_update_nor_the_metrics(tmp_path):
    trainer = trainer_for(tmp_path)
    data = next(iter(loader(4)))
    padded, exact = pad_batch(data, 7), pad_batch(data, 4)
    other = padded._replace(data=jax.tree.map(lambda a: np.concatenate([a[:4], a[:3]]), padded.data))
    step = jax.jit(trainer.train_step)
    results = [step(trainer.state, batch) for batch in (exact, padded, other)]
    assert [float(sums["loss"][1]) for _, sums in results] == [20, 20, 20]
    for state, _ in results[1:]:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-7),
            state.opt_state[1][0].mu,
            results[0][0].opt_state[1][0].mu,
        )


def test_dropout_is_a_function_of_the_seed_and_the_step(tmp_path):
    trainer = trainer_for(tmp_path, dropout_prob=0.5)
    step, batch = jax.jit(trainer.train_step), first_batch()

    def loss(at_step, seed=CONFIG.seed):
        state = trainer.state.replace(step=at_step, key=jax.random.key(seed))
        return float(step(state, batch)[1]["loss"][0])

    assert loss(3) == loss(3)
    assert loss(3) != loss(4)
    assert loss(3) != loss(3, seed=1)


def test_an_evaluation_counts_every_element_once_and_compiles_once(tmp_path):
    trainer = trainer_for(tmp_path)
    full = trainer.evaluate(loader(7 * 3 + 2))
    assert trainer._eval_step.count == 1
    logits = trainer.model.apply({"params": trainer.state.params}, jax.nn.one_hot(loader(23).dataset.inputs, 3))
    labels = loader(23).dataset.inputs[:, ::-1].copy()
    assert full["accuracy"] == pytest.approx(np.mean(np.asarray(logits).argmax(-1) == labels), abs=1e-7)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    assert full["loss"] == pytest.approx(float(losses.mean()), abs=1e-6)


def test_an_empty_loader_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no batch"):
        trainer_for(tmp_path).evaluate([])


def test_a_run_logs_what_it_should_at_the_right_steps(tmp_path):
    trainer = trainer_for(tmp_path, num_steps=15)
    trainer.fit(loader(37, drop_last=True), loader(23))
    scalars = read_scalars(trainer.run.path)
    every_two_steps_and_at_each_epochs_end = [2, 4, 5, 6, 8, 10, 12, 14, 15]
    names = ("loss", "accuracy", "learning_rate", "gradient_norm", "steps_per_second")
    for name in names:
        assert list(scalars[f"train/{name}"]) == every_two_steps_and_at_each_epochs_end, name
    assert list(scalars["val/accuracy"]) == [10, 15]  # epochs 2 and 3: every second, and the last
    for step, rate in scalars["train/learning_rate"].items():
        assert rate == pytest.approx(float(trainer.schedule(step - 1)), abs=1e-9)
    assert trainer._train_step.count == trainer._eval_step.count == 1
    assert trainer.train_seconds > 0
    assert trainer.compile_seconds > 0


class Accuracies(ReverseTrainer):
    """Validates with accuracies that are given, and remembers the parameters of each time."""

    accuracies: tuple[float, ...]

    def evaluate(self, loader):
        self.seen = [*getattr(self, "seen", []), jax.tree.map(np.array, self.state.params)]
        return {"accuracy": self.accuracies[len(self.seen) - 1], "loss": 1.0}


@pytest.mark.parametrize(("accuracies", "best"), [((0.3, 0.7, 0.5), 1), ((0.7, 0.7, 0.5), 1), ((0.1, 0.2, 0.2), 2)])
def test_the_best_model_is_what_a_run_ends_with_the_later_of_equal_ones(tmp_path, accuracies, best):
    trainer = trainer_for(tmp_path, num_steps=15, trainer_class=Accuracies, eval_every=1)
    trainer.accuracies = accuracies
    trainer.fit(loader(37, drop_last=True), loader(23))
    assert len(trainer.seen) == 3
    assert trainer.run.best.step == 5 * (best + 1)
    jax.tree.map(np.testing.assert_array_equal, trainer.state.params, trainer.seen[best])


class Diverges(ReverseTrainer):
    """Its loss becomes infinite or no number when the poisoned sequence comes."""

    poison: float

    def loss_function(self, params, data, key, *, train):
        elements = super().loss_function(params, data, key, train=train)
        losses, weights = elements["loss"]
        poisoned = (data[0] == 2).all(-1, keepdims=True) & train
        return elements | {"loss": (jnp.where(poisoned, self.poison, losses), weights)}


class PoisonedLoader:
    """Gives nothing but 2s in the third batch of the second epoch, which is step 8."""

    def __init__(self, loader):
        self.loader, self.batch_sampler = loader, loader.batch_sampler

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        for number, (inputs, labels) in enumerate(self.loader):
            inputs[:, 0] = 0  # no other sequence is of 2s alone
            yield (np.full_like(inputs, 2) if self.batch_sampler.epoch == 1 and number == 2 else inputs), labels


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_stops_the_training_names_the_step_and_keeps_the_last_good_checkpoint(
    tmp_path, poison
):
    trainer = trainer_for(tmp_path, num_steps=15, trainer_class=Diverges, eval_every=1, log_every=50)
    trainer.poison = poison
    with pytest.raises(FloatingPointError, match=f"loss is {poison} at step 8"):
        trainer.fit(PoisonedLoader(loader(37, drop_last=True)), loader(23))
    assert trainer.run.best.step == 5
    best = trainer.run.best.restore(trainer.state.params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(best))


def test_a_warmup_as_long_as_the_training_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="warmup is 2; .* 2"):
        trainer_for(tmp_path, num_steps=2)
    assert not list(tmp_path.iterdir())
