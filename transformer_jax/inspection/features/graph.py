"""Graphs of features, errors, tokens and logits: influence, score and pruning (Ameisen et al. 2025)."""

import dataclasses
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float

from transformer_jax.argument_checks import Probability, check_arguments
from transformer_jax.errors import InputError

# Fields of a node. An error is what the transcoders do not explain of a feed-forward's output.
NODE = np.dtype(
    [
        ("kind", "U7"),  # feature, error, token or logit
        ("layer", int),  # of a feature or error
        ("position", int),
        ("number", int),  # of a feature or logit
        ("value", float),  # of a feature or logit
    ]
)
Nodes: TypeAlias = "np.recarray[Any, Any]"


def nodes_of(*fields: Any) -> Nodes:
    """Make nodes of the values of all fields, which are broadcast."""
    columns: Any = np.broadcast_arrays(*fields)
    return np.rec.fromarrays(columns, dtype=NODE)


@dataclasses.dataclass(frozen=True, eq=False)
class AttributionGraph:
    """Direct effects of nodes on each other.

    The value of a feature or logit is the sum of its edges and its bias, if the graph is not pruned.
    """

    nodes: Nodes  # `nodes.kind` has the kinds of all nodes, `nodes[0].kind` that of the first
    edges: Float[np.ndarray, "N N"]  # [target, source]
    biases: Float[np.ndarray, " N"]
    probabilities: Float[np.ndarray, " N"]  # of the logits; 0 for other nodes

    @property
    def influence(self) -> Float[np.ndarray, " N"]:
        """Influence of each node on the logits, weighted by their probabilities.

        It sums the products of shares along all paths; a share is the absolute value of an edge, divided by the sum of
        those of all edges to the same target.
        """
        if not (np.isfinite(self.edges).all() and np.isfinite(self.probabilities).all()):
            raise InputError(
                "the graph has edges or probabilities that are NaN or infinite, so it has no"
                " influences"
            )
        shares = self._shares()
        total = np.zeros_like(self.probabilities)
        # influence along all paths of one length, at first 0
        influence_of_length = self.probabilities
        while influence_of_length.any():  # no path is longer than the model is deep
            influence_of_length = influence_of_length @ shares
            total = total + influence_of_length
        return total

    @property
    def replacement_score(self) -> float:
        """Influence of the tokens as a share of that of tokens and errors: 1 if the features explain everything."""
        tokens, errors = (self.influence[self.nodes.kind == kind] for kind in ("token", "error"))
        return float(tokens.sum() / (tokens.sum() + errors.sum()))

    @check_arguments
    def pruned(self, nodes: Probability = 0.8, edges: Probability = 0.98) -> "AttributionGraph":
        """Return the graph of the most influential nodes and edges; tokens and logits stay.

        Args:
            nodes: share of the influence of all nodes that the kept nodes have together.
            edges: share of the influence of all edges that the kept edges have together.
        """
        stays = np.isin(self.nodes.kind, ("token", "logit"))
        kept = _largest(self.influence, nodes) | stays
        edges_of_kept = self.edges * np.outer(kept, kept)
        graph_of_kept = dataclasses.replace(self, edges=edges_of_kept)
        influence_of_targets = graph_of_kept.influence + self.probabilities
        influence_of_edges = graph_of_kept._shares() * influence_of_targets[:, None]
        is_edge = _largest(influence_of_edges, edges)  # [target, source]
        num_kept = 0
        while num_kept != kept.sum():  # a node without edges takes others with it
            num_kept = kept.sum()
            has_sources = is_edge.any(1) | (self.nodes.kind != "feature")
            has_targets = is_edge.any(0) | stays
            kept &= has_sources & has_targets
            is_edge &= np.outer(kept, kept)
        return AttributionGraph(
            self.nodes[kept].view(np.recarray),
            (self.edges * is_edge)[np.ix_(kept, kept)],
            self.biases[kept],
            self.probabilities[kept],
        )

    def _shares(self) -> Float[np.ndarray, "N N"]:
        """Each edge's absolute value, as a share of those of all edges to the same target."""
        sizes = np.abs(self.edges)
        return sizes / np.maximum(sizes.sum(1, keepdims=True), 1e-30)


def graph_of(nodes: np.ndarray, rows: np.ndarray, probabilities: np.ndarray) -> AttributionGraph:
    """Make a graph of the incoming edges of features and logits, the last column of which is that of biases."""
    is_target = np.isin(nodes["kind"], ("feature", "logit"))
    num_sources = rows.shape[1] - 1  # all nodes but the logits, which come last
    num_nodes = len(nodes)
    edges = np.zeros((num_nodes, num_nodes), np.float32)
    edges[is_target, :num_sources] = rows[:, :-1]
    biases, probability_of_node = np.zeros((2, num_nodes))
    biases[is_target] = rows[:, -1]
    probability_of_node[num_sources:] = probabilities
    return AttributionGraph(nodes.view(np.recarray), edges, biases, probability_of_node)


def _largest(scores: Float[np.ndarray, "..."], share: float) -> Bool[np.ndarray, "..."]:
    """Mask of the largest scores that have this share of the sum together."""
    ranked = np.sort(scores, axis=None)[::-1]
    last = np.searchsorted(np.cumsum(ranked), share * ranked.sum())
    least = ranked[min(last, ranked.size - 1)]
    return (scores >= least) & (scores > 0)
