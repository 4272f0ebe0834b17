"""The pure training step: what an update computes, and that it is a function of its arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer_jax.data.batch import Batch, pad_batch
from transformer_jax.training.optimizers import adam
from transformer_jax.training.step import TrainState, UpdateRule, gradients_and_sums, initial_state, train_step

RNG = np.random.default_rng(0)
SAMPLES = RNG.normal(size=(7, 3)).astype(np.float32), RNG.normal(size=(7, 5)).astype(np.float32)


def loss_function(params, batch, constants, key, *, train):
    """Squared error of a linear map, with noise from the key."""
    assert train
    noise = jax.random.normal(key, batch.targets.shape) * constants
    return {"loss": (jnp.square(batch.inputs @ params["layer"]["kernel"] - batch.targets + noise), 1.0)}


def state_at(step: int, optimizer: optax.GradientTransformation, seed: int = 0) -> TrainState:
    params = {"layer": {"kernel": jnp.asarray(RNG.normal(size=(3, 5)), jnp.float32)}}
    return initial_state(params, optimizer, jax.random.key(seed)).replace(step=jnp.asarray(step))


def whole_batch() -> Batch:
    return pad_batch(SAMPLES, 7)


def rule(clip: float | None = 100.0, schedule=lambda step: 0.01) -> UpdateRule:
    return UpdateRule(adam(schedule, b1=0.8, b2=0.95), schedule, clip, log_norms=clip is None)


@pytest.mark.parametrize("clip", [0.01, 100.0, None])
def test_a_step_is_adam_on_the_clipped_gradient_of_the_mean_loss(clip):
    def schedule(step):
        return 0.01 * (step + 1)

    state, batch = state_at(30, rule().optimizer), whole_batch()

    def mean_loss(params):
        return jnp.square(batch.inputs @ params["layer"]["kernel"] - batch.targets).mean()

    loss, gradient = jax.value_and_grad(mean_loss)(state.params)
    norm = optax.tree.norm(gradient)
    assert 0.01 < norm < 100
    new, sums = jax.jit(lambda *args: train_step(*args, loss_function=loss_function, rule=rule(clip, schedule)))(
        state, batch, jnp.zeros(())
    )
    assert sums["loss"][1] == 7 * 5
    assert sums["loss"][0] / sums["loss"][1] == pytest.approx(float(loss), rel=1e-5)
    assert sums["gradient_norm"][0] == pytest.approx(float(norm), rel=1e-5)
    assert ("gradient_norm/layer" in sums) == (clip is None)
    assert sums.get("gradient_norm/layer", sums["gradient_norm"])[0] == pytest.approx(float(norm), rel=1e-5)
    assert sums["learning_rate"][0] == pytest.approx(0.31)
    assert new.step == 31
    # The first update of Adam: bias correction makes the averages the gradient itself and its square.
    clipped = gradient["layer"]["kernel"] * min(1, clip / norm if clip else 1)
    expected = state.params["layer"]["kernel"] - 0.31 * clipped / (jnp.abs(clipped) + 1e-8)
    assert float(jnp.abs(expected - state.params["layer"]["kernel"]).max()) > 0.3
    np.testing.assert_allclose(new.params["layer"]["kernel"], expected, atol=1e-5)
    np.testing.assert_allclose(new.opt_state[0].mu["layer"]["kernel"], 0.2 * clipped, rtol=1e-5, atol=1e-8)


def test_gradients_and_sums_of_parts_add_up_to_those_of_the_batch():
    state, batch = state_at(0, rule().optimizer), pad_batch(SAMPLES, 8)
    in_parts, whole = (
        jax.jit(lambda num_parts=num_parts: gradients_and_sums(state, batch, jnp.zeros(()), loss_function, num_parts))()
        for num_parts in (4, 1)
    )
    jax.tree.map(lambda found, expected: np.testing.assert_allclose(found, expected, rtol=1e-5), in_parts, whole)


def test_padded_rows_change_neither_the_update_nor_the_metrics():
    short = jax.tree.map(lambda array: array[:4], SAMPLES)
    exact, padded = pad_batch(short, 4), pad_batch(short, 7)
    other = padded._replace(inputs=np.concatenate([padded.inputs[:4], padded.inputs[:3]]))
    step = jax.jit(lambda *args: train_step(*args, loss_function=loss_function, rule=rule()))
    initial = state_at(0, rule().optimizer)
    results = [step(initial, batch, jnp.zeros(())) for batch in (exact, padded, other)]
    assert [float(sums["loss"][1]) for _, sums in results] == [20, 20, 20]
    for state, sums in results[1:]:
        assert sums["loss"][0] == pytest.approx(float(results[0][1]["loss"][0]), rel=1e-6)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-7),
            state.opt_state[0].mu,
            results[0][0].opt_state[0].mu,
        )


def test_draws_are_a_function_of_the_key_and_the_step():
    step = jax.jit(lambda *args: train_step(*args, loss_function=loss_function, rule=rule()))
    initial = state_at(0, rule().optimizer)

    def loss(at_step: int, seed: int = 0) -> float:
        state = initial.replace(step=jnp.asarray(at_step), key=jax.random.key(seed))
        return float(step(state, whole_batch(), jnp.ones(()))[1]["loss"][0])

    assert loss(3) == loss(3)
    assert loss(3) != loss(4)
    assert loss(3) != loss(3, seed=1)


def test_the_optimizer_is_given_the_mean_loss_and_the_number_of_the_step():
    given = {}

    def update(updates, state, params, **more):
        given.update(more)
        return updates, state

    own = rule()._replace(optimizer=optax.GradientTransformationExtraArgs(lambda params: (), update))
    _, sums = train_step(
        state_at(4, own.optimizer), whole_batch(), jnp.zeros(()), loss_function=loss_function, rule=own
    )
    total, weight = map(float, sums["loss"])
    assert weight > 1
    assert float(given["value"]) == pytest.approx(total / weight, rel=1e-6)
    assert int(given["step"]) == 4
