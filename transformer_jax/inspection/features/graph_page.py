"""A page with an attribution graph, on which a person follows the edges from a logit to the tokens."""

from collections.abc import Mapping, Sequence

import numpy as np

from transformer_jax.argument_checks import check_arguments
from transformer_jax.errors import InputError
from transformer_jax.inspection.features.graph import AttributionGraph
from transformer_jax.inspection.page.view import View, rounded, view_text
from transformer_jax.outside_files import as_input_error


@check_arguments
def graph_page(
    graph: AttributionGraph,
    positions: Sequence[str],
    logits: Mapping[int, str] | Sequence[str],
    *,
    features: Mapping[str, str] | None = None,
    title: str = "Attribution graph",
) -> View:
    """Make a page with a graph, preferably a pruned one.

    Args:
        graph: such as `attribution_graph(…).pruned()`.
        positions: text of each position.
        logits: text of each class or token, by its number.
        features: descriptions of some features by layer and number, such as `{"3.271": "a year"}`.
        title: title of the page.

    Raises:
        InputError: the graph has more positions, or a logit without a text.
    """
    last = graph.nodes.position.max()
    if last >= len(positions):
        raise InputError(f"positions has {len(positions)} texts; the graph has {last + 1}")
    targets, sources = np.nonzero(graph.edges)
    weights = rounded(graph.edges[targets, sources])
    numbers = graph.nodes.number[graph.nodes.kind == "logit"]
    with as_input_error("logits has no text of a logit of the graph", KeyError, IndexError):
        of_logits = {number: logits[number] for number in numbers.tolist()}
    data = {
        "view": "graph",
        "title": title,
        "nodes": graph.nodes.tolist(),
        "edges": [sources.tolist(), targets.tolist(), weights],
        "influence": rounded(graph.influence + graph.probabilities),
        "score": graph.replacement_score,
        "positions": list(positions),
        "logits": of_logits,
        "features": dict(features or {}),
    }
    return View(view_text(title, data))
