"""Attribution graphs: edges, completeness, pruning, and a circuit that is known."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_models import draw
from tiny_models import SETTINGS, language_model, predictor

from transformer_jax.errors import InputError
from transformer_jax.inspection import (
    FoldedDictionary,
    Inspected,
    Transcoders,
    attribution_graph,
    swap,
)
from transformer_jax.inspection.circuits.circuit import CircuitTask
from transformer_jax.inspection.circuits.compilation import compile_circuit
from transformer_jax.inspection.circuits.program import SHARPNESS, Attend, Program, Table

pytestmark = pytest.mark.slow  # they compile

FEATURES = 17
SHARE = 0.01  # removed part of a feature's output, too small to switch a ReLU of the output network


def drawn_dictionary(seed: int, output: int = 12, *, skip: bool = False, **fields) -> FoldedDictionary:
    shapes = (12, FEATURES), (FEATURES,), (FEATURES, output), (output,)
    arrays = [jnp.asarray(draw(*shape, seed=seed + n)) / 3 for n, shape in enumerate(shapes)]
    skip_weights = jnp.asarray(draw(12, 12, seed=seed + 9)) / 5 if skip else None
    return FoldedDictionary(*arrays, True, skip=skip_weights, **fields)


def drawn_transcoders(kind: str, stack: str) -> Transcoders:
    layers = [drawn_dictionary(0, threshold=0.3), drawn_dictionary(20, k=3)]
    if kind == "crossing":
        layers = [drawn_dictionary(0, 24), drawn_dictionary(20)]
    if kind == "skip":  # and layer 0 has no transcoder
        layers = [drawn_dictionary(0, skip=True)]
    numbers = range(2 - len(layers), 2)
    reads, writes = (
        [f"{stack}.layers.{n}.{name}" for n in numbers] for name in ("after_attention", "feed_forward.output")
    )
    return Transcoders.of(layers, reads, writes)


CASES = [
    ("predictor", "post_norm", "plain"),
    ("predictor", "pre_norm", "crossing"),
    ("language model", "pre_norm", "skip"),
]


def one_text(name, settings):
    made = language_model(SETTINGS[settings]) if name == "language model" else predictor(SETTINGS[settings])
    return made.model, made.variables, made.inputs[0][:1]


def test_the_order_of_the_transcoders_changes_no_edge():
    model, variables, x = one_text("predictor", "post_norm")
    given = drawn_transcoders("plain", "encoder")
    reversed_ones = Transcoders.of(*(parts[::-1] for parts in (given.layers, given.reads, given.writes)))
    graphs = [
        attribution_graph(model, variables, x, transcoders=each, position=3, batch=5) for each in (given, reversed_ones)
    ]
    order = [
        np.lexsort((nodes.number, nodes.position, nodes.layer, nodes.kind)) for nodes in (each.nodes for each in graphs)
    ]
    edges = [graph.edges[np.ix_(places, places)] for graph, places in zip(graphs, order, strict=True)]
    np.testing.assert_allclose(*edges, atol=1e-5)
    assert np.abs(edges[0]).max() > 0.1


@pytest.mark.parametrize(("name", "settings", "kind"), CASES)
def test_values_are_sums_of_edges_and_an_edge_is_what_a_node_adds(name, settings, kind):
    model, variables, x = one_text(name, settings)
    transcoders = drawn_transcoders(kind, "decoder" if name == "language model" else "encoder")
    graph = attribution_graph(model, variables, x, transcoders=transcoders, position=3, batch=5)
    kinds = graph.nodes.kind
    np.testing.assert_allclose(graph.edges.sum(1) + graph.biases, graph.nodes.value, atol=1e-4)
    inspected = Inspected(model, variables)
    logits = np.asarray(inspected.capture(x, [])[0])[0, 3]
    shown = graph.nodes[kinds == "logit"]
    np.testing.assert_allclose(shown.value, logits[shown.number] - logits.mean(), atol=1e-5)
    np.testing.assert_allclose(graph.probabilities[kinds == "logit"], jax.nn.softmax(logits)[shown.number], rtol=1e-5)
    assert (kinds == "error").sum() == 14
    assert (kinds == "token").sum() == 7

    _, seen = inspected.capture(x, ["*.weights", "*.scale", *transcoders.writes, *transcoders.reads])
    first = transcoders.layers[0]
    own = (kinds == "feature") & (graph.nodes.layer == 0)
    source = int(np.where(own, abs(graph.edges).sum(0), 0).argmax())  # the feature of the first layer that does most
    if kind != "skip":  # with it, what is written would not be fixed
        node = graph.nodes[source]
        fixed = {name: swap(array) for name, array in seen.items() if name not in transcoders.reads}
        for name, part in transcoders.parts(0, first.decoder[node.number] * node.value * SHARE):
            fixed[name] = swap(seen[name].at[0, node.position].add(-part))
        output, read = inspected.patch(x, fixed, transcoders.reads)
        change = logits - np.asarray(output)[0, 3]
        changes = np.zeros(len(kinds))
        changes[kinds == "logit"] = (change - change.mean())[shown.number]
        for layer, (name, dictionary) in enumerate(zip(transcoders.reads, transcoders.layers, strict=True)):
            own = (kinds == "feature") & (graph.nodes.layer == layer)
            nodes, moved = graph.nodes[own], np.asarray(seen[name] - read[name])[0]
            changes[own] = (moved[nodes.position] * np.asarray(dictionary.encoder.T)[nodes.number]).sum(1)
        np.testing.assert_allclose(graph.edges[:, source], changes / SHARE, atol=1e-3)
        assert abs(changes / SHARE).max() > 0.05


def test_influence_is_that_of_all_paths_and_pruning_keeps_the_largest():
    model, variables, x = one_text("predictor", "pre_norm")
    transcoders = drawn_transcoders("plain", "encoder")
    graph = attribution_graph(model, variables, x, transcoders=transcoders)
    sizes = np.abs(graph.edges).astype(np.float64)
    shares = sizes / np.maximum(sizes.sum(1, keepdims=True), 1e-30)
    paths = np.linalg.inv(np.eye(len(shares)) - shares) - np.eye(len(shares))  # Ameisen et al. 2025
    influence = graph.probabilities @ paths
    np.testing.assert_allclose(graph.influence, influence, rtol=1e-4, atol=1e-7)
    kinds = graph.nodes.kind
    tokens, errors = (influence[kinds == kind].sum() for kind in ("token", "error"))
    assert graph.replacement_score == pytest.approx(tokens / (tokens + errors), rel=1e-4)
    with pytest.raises(InputError, match="probabilities that are NaN or infinite, so it has no influences"):
        _ = dataclasses.replace(graph, probabilities=np.nan * graph.probabilities).influence

    pruned = graph.pruned(0.6, 0.9)
    places = {node.tolist()[:4]: number for number, node in enumerate(graph.nodes)}
    kept = [places[node.tolist()[:4]] for node in pruned.nodes]
    stays = np.isin(kinds, ("token", "logit"))
    assert stays.sum() < len(kept) < 0.8 * len(kinds)
    assert np.isin(np.flatnonzero(stays), kept).all()
    whole = graph.edges[np.ix_(kept, kept)]
    assert ((pruned.edges == 0) | (pruned.edges == whole)).all()
    assert (pruned.nodes.kind != "feature")[~pruned.edges.any(1)].all()
    assert stays[kept][~pruned.edges.any(0)].all()
    order = np.sort(influence)[::-1]
    least = order[np.searchsorted(np.cumsum(order), 0.6 * order.sum())]
    assert (influence[kept] >= least * (1 - 1e-5))[~stays[kept]].all()

    few = attribution_graph(model, variables, x, transcoders=transcoders, max_features=5)
    assert (few.nodes.kind == "feature").sum() == 5
    np.testing.assert_allclose(few.edges.sum(1) + few.biases, few.nodes.value, atol=1e-4)


def mapping_circuit():
    """Position i of T gives the square, modulo 5, of the number at T - 1 - i: hidden units of layer 0 look it up."""
    length, numbers = 6, 5
    program = Program(numbers, length)
    number, square, answer = program.space(1), program.space(numbers), program.space(numbers)
    program.heads[0, 1] = Attend(
        {(program.position, program.position): SHARPNESS * np.eye(length)},
        {(program.tokens, number): np.arange(numbers)[:, None]},
        "attends to its own position and writes its number",
    )
    squares = np.arange(numbers) ** 2 % numbers
    program.tables[0] = Table(number, np.arange(numbers), np.eye(numbers)[squares], square)
    program.heads[1, 2] = Attend(
        {(program.position, program.position): SHARPNESS * np.eye(length)[::-1]},
        {(square, answer): np.eye(numbers)},
        "attends from position i to T - 1 - i and copies the square",
    )
    task = CircuitTask(
        "squares", tuple(map(str, range(numbers))), length, length, False, lambda x: x[:, ::-1] ** 2 % numbers
    )
    return compile_circuit(program, answer, task, seed=3)


def of_feed_forward(params) -> FoldedDictionary:
    """The exact transcoder of a feed-forward: its hidden units are the features."""
    expand, contract = params["expand"], params["contract"]
    return FoldedDictionary(
        *map(jnp.asarray, (expand["kernel"], expand["bias"], contract["kernel"], contract["bias"])), True
    )


def test_the_graph_has_the_circuit_that_was_written():
    circuit = mapping_circuit()
    tokens = np.array([[3, 1, 2, 4, 1, 2]])  # for the number 0, only biases would act
    assert circuit.accuracy(tokens) == 1
    layers = [of_feed_forward(circuit.variables["params"]["encoder"][f"layers_{n}"]["feed_forward"]) for n in (0, 1)]
    reads, writes = (
        [f"encoder.layers.{n}.{name}" for n in (0, 1)] for name in ("after_attention", "feed_forward.output")
    )
    (features,) = circuit.inputs(tokens)
    transcoders = Transcoders.of(layers, reads, writes)
    for position in (1, 3):
        graph = attribution_graph(
            circuit.model, circuit.variables, features, transcoders=transcoders, position=position
        )
        tokens_read = graph.nodes.position[(graph.nodes.kind == "token") & (graph.influence > 0.01)]
        assert graph.replacement_score == pytest.approx(1, abs=1e-3)
        assert tokens_read.tolist() == [5 - position]
        pruned = graph.pruned(0.99, 0.99).nodes
        assert pruned.number[pruned.kind == "logit"].tolist() == [circuit.answers(tokens)[0, position]]
        found = pruned[pruned.kind == "feature"]
        assert set(found.position) == {5 - position}
        assert circuit.working_units[found.layer, found.number].all()


def test_mistakes_are_named():
    model, variables, x = one_text("predictor", "pre_norm")
    transcoders = drawn_transcoders("plain", "encoder")
    with pytest.raises(
        InputError, match="inputs have 2 texts, or the model has cross-attention; a graph is of one text"
    ):
        attribution_graph(model, variables, np.repeat(x, 2, 0), transcoders=transcoders)
    normalized = drawn_dictionary(0, is_normalized=True), transcoders.layers[1]
    for changed, message in (
        ({"position": 7}, "position is 7; it must be a whole number, -7 … 6"),
        ({"transcoders": Transcoders.of(normalized, transcoders.reads, transcoders.writes)}, "standardizes its input"),
    ):
        with pytest.raises(InputError, match=message):
            attribution_graph(model, variables, x, **{"transcoders": transcoders} | changed)
    other = Transcoders.of(transcoders.layers, transcoders.reads, transcoders.reads)
    with pytest.raises(
        InputError, match=r"transcoders replace encoder\.layers\.0\.after_attention, .*; they may replace"
    ):
        attribution_graph(model, variables, x, transcoders=other)
