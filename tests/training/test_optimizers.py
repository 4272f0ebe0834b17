"""Optimizers: a task's own one trains as optax trains with it, and weight decay leaves out what it should."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict

from transformer_jax import ReverseConfig, ReverseDataset, ReverseTrainer, make_loader
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.training.optimizers import decay_mask

CONFIG = ReverseConfig(
    max_epochs=10, batch_size=7, seq_len=5, num_categories=3, model_dim=6, warmup=3, lr=1e-2, gradient_clip=0.5,
    adam_b1=0.8, adam_b2=0.95, eval_every=10,
)  # fmt: skip


def kernels_of_the_encoder(params):
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path[0].key == "encoder" and path[-1].key == "kernel", params
    )


OPTIMIZERS = {
    "adamw": lambda schedule: optax.adamw(schedule, weight_decay=0.3, mask=decay_mask),
    # Of arrays this small Adafactor factors none unless it is told to.
    "adafactor": lambda schedule: optax.adafactor(schedule, min_dim_size_to_factor=3),
    "masked": lambda schedule: optax.chain(
        optax.sgd(schedule, momentum=0.9), optax.masked(optax.add_decayed_weights(-0.01), kernels_of_the_encoder)
    ),
}


class CustomTrainer(ReverseTrainer):
    """Trains with the optimizer that a test chooses."""

    optimizer: str

    def create_optimizer(self, num_steps):
        return OPTIMIZERS[self.optimizer](self.create_schedule(num_steps))


def loaders():
    train, val = (ReverseDataset(CONFIG.num_categories, CONFIG.seq_len, size, seed=1) for size in (37, 11))
    return make_loader(train, CONFIG.batch_size, shuffle=True, drop_last=True, seed=CONFIG.seed), make_loader(val, 7)


def train(trainer: ReverseTrainer):
    trainer.fit(*loaders())
    trainer.run.close()
    assert trainer.steps == 50
    return trainer.params


def train_plainly(trainer: ReverseTrainer, optimizer: optax.GradientTransformation):
    """The same training as a loop over steps in plain optax."""
    train_loader, _ = loaders()
    params = trainer.initial_state(train_loader.example(), num_steps=50).params
    optimizer = optax.chain(optax.clip_by_global_norm(CONFIG.gradient_clip), optimizer)
    opt_state = optimizer.init(params)

    @jax.jit
    def step(params, opt_state, inputs, labels):
        def mean_loss(params):
            logits = trainer.model.apply({"params": params}, jax.nn.one_hot(inputs, 3))
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        updates, opt_state = optimizer.update(jax.grad(mean_loss)(params), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    for epoch in range(CONFIG.max_epochs):
        for inputs, labels in train_loader.epoch(epoch):
            params, opt_state = step(params, opt_state, inputs, labels)
    return params


def assert_equal_params(ours, theirs) -> None:
    ours, theirs = flatten_dict(ours, sep="/"), flatten_dict(theirs, sep="/")
    for name, array in ours.items():
        # The softmax makes the gradient of a key's bias zero: what is left is rounding, which Adam scales up.
        if not name.endswith("key_proj/bias"):
            np.testing.assert_allclose(array, theirs[name], rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_tasks_own_optimizer_trains_as_in_plain_optax(tmp_path, name):
    trainer = CustomTrainer(dataclasses.replace(CONFIG, checkpoint_dir=tmp_path))
    trainer.optimizer = name
    assert_equal_params(train(trainer), train_plainly(trainer, trainer.create_optimizer(50)))


@pytest.mark.slow
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_the_default_optimizer_is_adam_with_decoupled_weight_decay(tmp_path, weight_decay):
    trainer = ReverseTrainer(dataclasses.replace(CONFIG, checkpoint_dir=tmp_path, weight_decay=weight_decay))
    adamw = optax.adamw(trainer.create_schedule(50), 0.8, 0.95, weight_decay=weight_decay, mask=decay_mask)
    ours = train(trainer)
    assert_equal_params(ours, train_plainly(trainer, adamw))
    if weight_decay:  # which is large enough to be seen
        without = train_plainly(trainer, optax.adam(trainer.create_schedule(50), 0.8, 0.95))
        kernels = [params["input_layer"]["kernel"] for params in (ours, without)]
        assert np.abs(kernels[0] - kernels[1]).max() > 1e-3


def test_weight_decay_leaves_out_biases_norms_and_embeddings():
    matrix, vector = jnp.ones((2, 3)), jnp.ones(3)
    params = {
        "layer": {"kernel": matrix, "bias": vector},
        "norm": {"scale": vector, "bias": vector},
        "source": {"embedding": matrix},
        "own": {"weight": matrix, "gain": vector},
    }
    decayed = {name for name, decays in flatten_dict(decay_mask(params), sep="/").items() if decays}
    assert decayed == {"layer/kernel", "own/weight"}


@pytest.mark.slow
def test_the_state_of_the_optimizer_has_the_parameters_tree_in_a_checkpoint(tmp_path):
    trainer = ReverseTrainer(dataclasses.replace(CONFIG, checkpoint_dir=tmp_path))
    params = train(trainer)

    state = Checkpoints(tmp_path / "ReverseTask/checkpoints", CONFIG.criterion).read(50).state
    leaves = {
        jax.tree_util.keystr(p, simple=True, separator="/"): a for p, a in jax.tree_util.tree_leaves_with_path(state)
    }
    shapes = {name: np.shape(array) for name, array in flatten_dict(params, sep="/").items()}
    for moment in ("mu", "nu"):
        found = {
            name.partition(f"/{moment}/")[2]: array.shape for name, array in leaves.items() if f"/{moment}/" in name
        }
        assert found == shapes
    counts = [name for name in leaves if "count" in name or name == "step"]
    assert len(counts) == 2  # of the training's steps, and of Adam's averages
