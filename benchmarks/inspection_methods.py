"""Score methods that locate the heads that do the work, on models in which these heads are known.

python benchmarks/inspection_methods.py                 # a table, in a few minutes on two CPU cores
python benchmarks/inspection_methods.py --num-seeds 1   # one model of each circuit

Each method assigns a number to each head. Its score is the average precision, which is 1 if all working heads rank
above all others. Path patching ranks pairs of heads by what one reads from the other, separately for queries, keys and
values. Each circuit is constructed with `num_seeds` seeds, which vary its rotations and decoys; the table has the
means. The last column is the time of the compiled method, relative to activation patching or, for edges, to path
patching.
"""

import dataclasses
import functools
import timeit
from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

import transformer_jax as tj
from harness import markdown
from transformer_jax.cli import parse, run
from transformer_jax.fields import set_checked_fields, setting

CIRCUITS: Mapping[str, Callable[..., tj.inspection.Circuit]] = {
    "reverse": tj.inspection.reverse_circuit,
    "sort": tj.inspection.sort_circuit,
    "induction": tj.inspection.induction_circuit,
}
READS = "queries", "keys", "values"
WEIGHTS = "*.attention.weights"
REPEATS = 5  # timings of each method, of which the shortest counts


@dataclasses.dataclass(frozen=True, kw_only=True)
class MethodsConfig:
    """Score methods on known circuits."""

    num_sequences: int = setting(64, least=2)  # B, of each circuit
    num_seeds: int = setting(3, least=1)  # models of each circuit

    __post_init__ = set_checked_fields


class Example(NamedTuple):
    """A circuit, sequences that it answers, and others of the same length."""

    circuit: tj.inspection.Circuit
    model: tuple[Any, Any]  # module and variables
    inputs: tuple[Any, ...]
    other_inputs: tuple[Any, ...]
    answers: np.ndarray  # [B T 1]

    def log_probability(self, logits: jax.Array) -> jax.Array:
        """Mean log-probability of the right answers."""
        return jnp.take_along_axis(jax.nn.log_softmax(logits), self.answers, -1).mean()

    def right_logit(self, logits: jax.Array) -> jax.Array:
        """Logit `[B, T]` of the right answer, less the mean of all."""
        return jnp.take_along_axis(logits, self.answers, -1)[..., 0] - logits.mean(-1)


def example(circuit: tj.inspection.Circuit, num_sequences: int) -> Example:
    rng = np.random.default_rng(0)
    tokens, others = (circuit.draw(rng, num_sequences) for _ in range(2))
    model = circuit.model, circuit.variables
    return Example(
        circuit,
        model,
        circuit.inputs(tokens),
        circuit.inputs(others),
        circuit.answers(tokens)[..., None],
    )


def ablation(of: Example, means: Mapping[str, jax.Array] | None = None) -> jax.Array:
    """Lost log-probability when the head's output is replaced by zero or by its mean."""
    (table,) = tj.inspection.ablate_heads(
        *of.model, *of.inputs, metric=of.log_probability, means=means
    ).values()
    model, variables = of.model
    return of.log_probability(model.apply(variables, *of.inputs)) - table


def mean_ablation(of: Example) -> jax.Array:
    return ablation(of, tj.inspection.mean_head_outputs(*of.model, *of.inputs))


def patching(
    of: Example, method: Callable[..., Mapping[str, jax.Array]], **options: int
) -> jax.Array:
    """Part of the log-probability that the head's output for the right sequence restores, exact or estimated."""
    restored = method(
        *of.model,
        of.inputs,
        of.other_inputs,
        names=["*.head_outputs"],
        metric=of.log_probability,
        by=["heads"],
        **options,
    )
    return jnp.abs(jnp.stack(list(restored.values())))


def attribution(of: Example) -> jax.Array:
    """Mean absolute contribution of the head's output to the right answer's logit."""
    parts = tj.attribute_logits(*of.model, *of.inputs, of=of.right_logit)
    # [H B T] of each layer
    heads = [part for name, part in parts.items() if name.endswith("head_outputs")]
    return jnp.stack([jnp.abs(part).mean((1, 2)) for part in heads])


def gradient_attention(of: Example) -> jax.Array:
    """Sum of the absolute products of each weight and the log-probability's gradient with respect to it."""
    products = tj.inspection.gradient_attention(*of.model, *of.inputs, metric=of.log_probability)
    return jnp.stack([jnp.abs(product).sum((0, 2, 3)) for product in products.values()])


def attention_weights(of: Example) -> jax.Array:
    """Mean of each query's largest weight."""
    return jnp.stack([weights.max(-1).mean((0, 2)) for weights in weights_of(of)])


def rollout(of: Example) -> jax.Array:
    """Mean absolute change of the rollout when the head is left out of its layer's mean."""
    layers = weights_of(of)
    means = [each.mean(1, keepdims=True) for each in layers]
    whole = tj.inspection.attention_rollout(means)[-1]

    def change(layer: int, head: int) -> jax.Array:
        others = jnp.delete(layers[layer], head, axis=1).mean(1, keepdims=True)
        without = [others if layer == number else mean for number, mean in enumerate(means)]
        return jnp.abs(tj.inspection.attention_rollout(without)[-1] - whole).mean()

    shape = of.circuit.working_heads.shape
    return jnp.array([change(*place) for place in np.ndindex(*shape)]).reshape(shape)


def weights_of(of: Example) -> list[jax.Array]:
    return list(tj.capture(*of.model, *of.inputs, names=[WEIGHTS])[1].values())


METHODS: Mapping[str, Callable[[Example], jax.Array]] = {
    "ablation to zero": ablation,
    "ablation to the mean": mean_ablation,
    "activation patching": functools.partial(patching, method=tj.inspection.patch_activations),
    "attribution patching": functools.partial(patching, method=tj.inspection.attribute_activations),
    "attribution patching, 10 steps": functools.partial(
        patching, method=tj.inspection.attribute_activations, steps=10
    ),
    "direct logit attribution": attribution,
    "gradient × attention": gradient_attention,
    "attention weights": attention_weights,
    "attention rollout": rollout,
}


def path_patching(of: Example) -> Float[jax.Array, "pairs 3"]:
    """Absolute change of the log-probability when each path from layer 0 to layer 1 is patched."""

    def change(sender: Any, receiver: Any, reads: str) -> jax.Array:
        return tj.inspection.patch_path(
            *of.model,
            of.inputs,
            of.other_inputs,
            sender=("encoder.layers.0.attention", sender),
            receiver=("encoder.layers.1.attention", receiver),
            reads=reads,
            metric=of.log_probability,
        )

    numbers = np.indices((of.circuit.model.num_heads,) * 2).reshape(2, -1)
    found = [jax.vmap(functools.partial(change, reads=reads))(*numbers) for reads in READS]
    return jnp.abs(jnp.stack(found, -1))


def edge_attribution(of: Example) -> Float[jax.Array, "pairs 3"]:
    """Estimate of `path_patching` from gradients, for all paths at once."""
    edges = tj.inspection.attribute_edges(
        *of.model, of.inputs, of.other_inputs, metric=of.log_probability
    )
    sender, receiver = "encoder.layers.0.attention.head_outputs", "encoder.layers.1.attention"
    found = [edges[sender, f"{receiver}.{reads}"].reshape(-1) for reads in READS]
    return jnp.abs(jnp.stack(found, -1))


OF_EDGES: Mapping[str, Callable[[Example], jax.Array]] = {
    "path patching, for edges": path_patching,
    "edge attribution, for edges": edge_attribution,
}
EXACT = dict.fromkeys(METHODS, "activation patching") | dict.fromkeys(
    OF_EDGES, "path patching, for edges"
)


def is_edge(of: Example) -> Bool[np.ndarray, "pairs 3"]:
    """Mark which heads of layer 1 read from which heads of layer 0, for queries, keys and values."""
    numbers = np.indices((of.circuit.model.num_heads,) * 2).reshape(2, -1)
    edges = {(edge.source[1], edge.target[1], edge.reads) for edge in of.circuit.edges}
    return np.array([[(*pair, reads) in edges for reads in READS] for pair in numbers.T.tolist()])


class Score(NamedTuple):
    """Result of a method on one circuit."""

    average_precision: float
    seconds: float  # of one call, without compilation


def scores_of(
    circuit: tj.inspection.Circuit, num_sequences: int, methods: Container[str] | None = None
) -> dict[str, Score]:
    """Score all methods, or those in `methods`, on one circuit."""
    of = example(circuit, num_sequences)
    scores = {}
    for name, method in {**METHODS, **(OF_EDGES if circuit.edges else {})}.items():
        if methods is not None and name not in methods:
            continue

        def compiled(variables: Any, inputs: Any, others: Any, method: Any = method) -> jax.Array:
            given = {"model": (circuit.model, variables), "inputs": inputs, "other_inputs": others}
            return method(of._replace(**given))

        call = functools.partial(jax.jit(compiled), circuit.variables, of.inputs, of.other_inputs)
        importance, working = (
            np.asarray(call()),
            is_edge(of) if name in OF_EDGES else circuit.working_heads,
        )
        seconds = min(
            timeit.repeat(lambda call=call: jax.block_until_ready(call()), number=1, repeat=REPEATS)
        )
        scores[name] = Score(
            tj.inspection.score_heads(importance, working).average_precision, seconds
        )
    return scores


def table(scores: Mapping[str, Mapping[str, Score]]) -> str:
    """Format a Markdown table: a row per method, a column per circuit, and the relative time over all circuits."""
    methods = list(dict.fromkeys(method for of_circuit in scores.values() for method in of_circuit))
    rows = []
    for method in methods:
        each = [
            f"{found[method].average_precision:.2f}" if method in found else ""
            for found in scores.values()
        ]
        own, exact = (
            sum(found[name].seconds for found in scores.values() if name in found)
            for name in (method, EXACT[method])
        )
        rows.append([method, *each, f"{own / exact:.2f}"])
    return markdown(["method", *scores, "time"], rows)


def main(config: MethodsConfig) -> None:
    """Score all methods on all circuits, and print the table."""
    scores = {}
    for name, write in CIRCUITS.items():
        of_seeds = [
            scores_of(write(seed=seed), config.num_sequences) for seed in range(config.num_seeds)
        ]
        scores[name] = {
            method: Score(*np.mean([of[method] for of in of_seeds], 0)) for method in of_seeds[0]
        }
    print(table(scores))


if __name__ == "__main__":
    run(functools.partial(parse, MethodsConfig), main)
