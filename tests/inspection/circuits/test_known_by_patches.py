"""Methods on models of known circuit: those that change what heads write find them, those that look at maps do not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import capture, patch
from transformer_jax.inspection import score_heads
from transformer_jax.inspection.circuits.circuit import Circuit
from transformer_jax.inspection.circuits.dyck import dyck_circuit
from transformer_jax.inspection.circuits.histogram import histogram_circuit
from transformer_jax.inspection.circuits.induction import induction_circuit
from transformer_jax.inspection.circuits.reverse import reverse_circuit
from transformer_jax.inspection.circuits.sort import sort_circuit
from transformer_jax.inspection.patches import replace, zero

CIRCUITS = {
    "reverse": reverse_circuit(seed=1),
    "histogram": histogram_circuit(seed=1),
    "sort": sort_circuit(seed=1),
    "dyck-1": dyck_circuit(seed=1),
    "dyck-2": dyck_circuit(kinds=2, seed=1),
    "induction": induction_circuit(seed=1),
}
OUTPUTS, WEIGHTS = "encoder.layers.{}.attention.head_outputs", "encoder.layers.{}.attention.weights"


@functools.cache
def captured(name: str) -> dict[str, np.ndarray]:
    """Logits, and each layer's outputs of heads and weights, of 64 sequences."""
    circuit = CIRCUITS[name]
    tokens = circuit.draw(np.random.default_rng(0), 64)
    layers = range(circuit.model.num_layers)
    names = [pattern.format(layer) for pattern in (OUTPUTS, WEIGHTS) for layer in layers]
    logits, activations = capture(circuit.model, circuit.variables, *circuit.inputs(tokens), names=names)
    return {"logits": np.asarray(logits)} | {name: np.asarray(array) for name, array in activations.items()}


def change_of_logits(name: str, make_patch) -> np.ndarray:
    """Mean change of a logit `[L, H]` where one head's output is patched by `make_patch(layer, head)`."""
    circuit, logits = CIRCUITS[name], captured(name)["logits"]
    inputs = circuit.inputs(circuit.draw(np.random.default_rng(0), 64))

    def changed(layer: int, head: jax.Array) -> jax.Array:
        patches = {OUTPUTS.format(layer): make_patch(layer, head)}
        return jnp.abs(patch(circuit.model, circuit.variables, *inputs, patches=patches) - logits).mean()

    heads = jnp.arange(circuit.model.num_heads)
    layers = range(circuit.model.num_layers)
    return np.stack([jax.jit(jax.vmap(functools.partial(changed, layer)))(heads) for layer in layers])


def in_other_row(name: str, layer: int, head: jax.Array):
    """What the head writes in the row before: the output of another sequence."""
    return replace(np.roll(captured(name)[OUTPUTS.format(layer)], 1, axis=0), heads=head)


def mean_of_heads(name: str, pattern: str, function) -> np.ndarray:
    """Mean of a function of an activation `[B, H, T, …]` for each head, `[L, H]`."""
    layers = range(CIRCUITS[name].model.num_layers)
    return np.stack([function(captured(name)[pattern.format(layer)]).mean((0, 2)) for layer in layers])


def score(importance: np.ndarray, circuit: Circuit) -> float:
    return score_heads(importance, circuit.working_heads).average_precision


@pytest.mark.slow
@pytest.mark.parametrize("name", CIRCUITS)
def test_ablation_and_patching_find_the_heads_that_work(name):
    zeroed = change_of_logits(name, lambda layer, head: zero(heads=head))
    swapped = change_of_logits(name, functools.partial(in_other_row, name))
    for importance in (zeroed, swapped):
        working = CIRCUITS[name].working_heads
        assert score(importance, CIRCUITS[name]) == 1
        assert importance[working].min() > 0.1
        assert importance[~working].max() < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", CIRCUITS)
def test_sharp_weights_and_large_outputs_do_not_tell_them(name):
    circuit = CIRCUITS[name]
    sharpness = mean_of_heads(name, WEIGHTS, lambda weights: weights.max(-1))
    size = mean_of_heads(name, OUTPUTS, lambda outputs: np.linalg.norm(outputs, axis=-1))
    assert score(sharpness, circuit) <= circuit.working_heads.mean() + 1e-6  # that of equal numbers for all heads
    assert score(size, circuit) <= circuit.working_heads.mean() + 1e-6
