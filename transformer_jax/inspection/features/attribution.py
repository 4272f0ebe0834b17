"""Compute attribution graphs: which features and tokens a prediction is made of (Ameisen et al. 2025)."""

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from transformer_jax.argument_checks import Probability, Size, check_arguments, check_offset
from transformer_jax.errors import InputError
from transformer_jax.inspection.activations import capture
from transformer_jax.inspection.features.graph import AttributionGraph, graph_of, nodes_of
from transformer_jax.inspection.features.transcoders import Transcoders
from transformer_jax.inspection.inspected import Inspected
from transformer_jax.inspection.inspected_call import OUTPUTS, Captured, forward_pass
from transformer_jax.inspection.logit_attribution import (
    check_head,
    components_of,
    with_scaled_biases,
)
from transformer_jax.inspection.patches import add, zero
from transformer_jax.trees import Variables

# Active features of a layer: position, column in a dictionary of them, and value.
Active: TypeAlias = tuple[ArrayLike, ArrayLike, ArrayLike]


@check_arguments
def attribution_graph(
    model: nn.Module,
    variables: Variables,
    *inputs: object,
    transcoders: Transcoders,
    position: int = -1,
    max_logits: Size = 10,
    probability: Probability = 0.95,
    max_features: Size = 4096,
    batch: Size = 16,
    **kwargs: object,
) -> AttributionGraph:
    """Compute the direct effects of features, errors and tokens on each other and on the logits of one text.

    The attention weights, the scales of the norms, and the errors of the transcoders are fixed at their values in the
    text's pass. Then everything that a transcoder reads, and the logits, are linear in what features, errors and tokens
    write: an edge is what one of them adds to a feature or logit. It takes a backward pass for each feature and logit.
    What makes the attention weights is not explained. Logits are taken minus their mean over the vocabulary.

    Args:
        model, variables, *inputs: as in `transformer_jax.capture`; one text.
        transcoders: of the feed-forwards; the output of a layer without transcoder is an error as a whole.
        position: position of the logits.
        max_logits, probability: the most probable logits, up to this number or this total probability.
        max_features: number of active features; those that write the shortest vectors beyond it count as errors.
        batch: number of backward passes at a time; more need more memory.
        **kwargs: as in `capture`.

    Raises:
        InputError: as in `attribute_logits`; there are several texts, or cross-attention; the text has no such
            position; or the transcoders are not linear where they are active, or replace anything but outputs of
            feed-forwards.
    """
    stream, networks, fixed = _sites(model, variables, inputs, kwargs, transcoders, position)
    inspected = Inspected(model, variables)
    names = [stream, *networks, *transcoders.reads, *fixed]
    output, values = inspected.apply(capture, *inputs, names=names, **kwargs)
    features = _largest_features(transcoders, values, max_features)
    decoded = transcoders.decode(features, values)
    # The outputs of the errors, then those of the tokens. JAX would sort a plain dict.
    rest = OrderedDict((name, values[name] - decoded[name]) for name in [*networks, stream])
    frozen = {name: values[name] for name in fixed}
    length = values[stream].shape[1]

    # The nodes of each layer's active features, and a smaller transcoder of these features alone.
    nodes, layers, active = [], [], []
    for layer, array, name in zip(transcoders.layers, features, transcoders.writes, strict=True):
        positions, numbers = np.nonzero(array[0])
        used_numbers, columns = np.unique(numbers, return_inverse=True)
        layers.append(layer.only(used_numbers))
        sizes = array[0, positions, numbers]
        active.append((positions, columns, sizes))
        nodes.append(nodes_of("feature", networks.index(name), positions, numbers, sizes))
    places = np.indices((len(networks), length)).reshape(2, -1)
    nodes += [nodes_of("error", *places, 0, 0), nodes_of("token", 0, np.arange(length), 0, 0)]

    logits = np.asarray(output[0, position], np.float32)
    probabilities = np.asarray(jax.nn.softmax(logits))
    best = np.argsort(-probabilities, kind="stable")[:max_logits]
    num_best = 1 + np.searchsorted(np.cumsum(probabilities[best]), probability)
    best = best[:num_best]
    values_of_best = (logits - logits.mean())[best]
    nodes.append(nodes_of("logit", len(networks), position % length, best, values_of_best))

    smaller = dataclasses.replace(transcoders, layers=tuple(layers))
    rows = inspected.apply(
        _rows, inputs, kwargs, smaller, active, rest, frozen, (position, best), batch
    )
    return graph_of(np.concatenate(nodes), np.asarray(rows), probabilities[best])


def _sites(
    model: nn.Module,
    variables: Variables,
    inputs: Sequence[object],
    kwargs: Mapping[str, Any],
    transcoders: Transcoders,
    position: int,
) -> tuple[str, list[str], list[str]]:
    """Return the name of the first block's input, of the feed-forwards' outputs, and of the fixed activations."""
    check_head(model)
    sites = forward_pass(model, variables, inputs, kwargs).sites()
    stream, *writers = components_of(sites)
    networks = [name for name in writers if not name.endswith(OUTPUTS)]
    num_texts, length, _ = sites[stream].shape
    check_offset("position", position, -length, length - 1)
    if num_texts != 1 or any("cross_attention" in name for name in writers):
        raise InputError(
            f"inputs have {num_texts} texts, or the model has cross-attention; a graph is of one"
            " text in one stack"
        )
    if not set(transcoders.writes) <= set(networks):
        raise InputError(
            f"transcoders replace {', '.join(transcoders.writes)}; they may replace"
            f" {', '.join(networks)}"
        )
    width = len(transcoders.layers[-1].decoder_bias)
    if any(sites[name].shape[-1] != width for name in transcoders.writes):
        raise InputError(
            f"transcoders write activations of width {width}; the model's feed-forwards have"
            f" {sites[transcoders.writes[0]].shape[-1]}"
        )
    if any(layer.is_normalized for layer in transcoders.layers):
        raise InputError("transcoders has one that standardizes its input, which is not linear")
    return stream, networks, [name for name in sites if name.endswith((".weights", ".scale"))]


def _largest_features(
    transcoders: Transcoders, values: Captured, count: int
) -> list[Float[np.ndarray, "1 T F"]]:
    """Return the features that write the longest vectors; the others are 0."""
    features = [np.asarray(array) for array in transcoders.encode(values)]  # each [1 T F]
    norms = [np.linalg.norm(layer.decoder, axis=1) for layer in transcoders.layers]  # each [F]
    lengths = [np.abs(array) * norm for array, norm in zip(features, norms, strict=True)]
    longest = np.sort(np.concatenate(lengths, axis=None))[-count:]
    return [
        np.where(length < longest[0], 0, array)
        for length, array in zip(lengths, features, strict=True)
    ]


def _rows(
    model: nn.Module,
    variables: Variables,
    inputs: Sequence[object],
    kwargs: Mapping[str, Any],
    transcoders: Transcoders,
    active: Sequence[Active],
    rest: Captured,
    fixed: Captured,
    logits: tuple[int, Array],
    batch: int,
) -> Float[Array, "targets sources"]:
    """Return the incoming edges of features and logits; the last column is what biases add.

    What features and logits read is linear in what nodes write, so an edge is a derivative by a factor of 1 on that.
    `active` has the features of each layer, `rest` what errors and tokens write, and `logits` their position and
    numbers.
    """
    position, best = logits

    def read(on_features: list[Array], on_rest: Captured, on_biases: Array) -> Array:
        """Compute what features and logits read if the outputs of nodes and all biases have these factors."""
        read_by_features = {}  # filled by the pass below

        def output(layer: int, x: Array) -> Array:
            dictionary = transcoders.layers[layer]
            positions, columns, sizes = active[layer]
            linear = x @ dictionary.encoder + on_biases * dictionary.encoder_bias
            read_by_features[layer] = linear[0, positions, columns]
            scaled = on_features[layer] * sizes
            features = jnp.zeros_like(linear).at[0, positions, columns].set(scaled)
            bias = on_biases * dictionary.decoder_bias
            return dataclasses.replace(dictionary, decoder_bias=bias).decode(features, x)

        patches: dict[str, Any] = dict(fixed) | transcoders.patches(output)
        for name, factors in on_rest.items():
            added = add(factors[:, None] * rest[name])
            patches[name] = [*patches.get(name, [zero()]), added]
        scaled = with_scaled_biases(variables, on_biases)
        result, _ = forward_pass(model, scaled, inputs, kwargs).run(patches=patches)
        centered = result[0, position, best] - result[0, position].mean()
        return jnp.concatenate([*(read_by_features[n] for n in range(len(active))), centered])

    ones = (
        [jnp.ones_like(sizes) for *_, sizes in active],
        jax.tree.map(lambda array: jnp.ones(array.shape[1]), rest),
        jnp.ones(()),
    )
    values, pull = jax.vjp(read, *ones)

    def row(number: Int[Array, ""]) -> Float[Array, " sources"]:
        gradients = pull(jax.nn.one_hot(number, len(values)))
        return jnp.concatenate(jax.tree.leaves(gradients), axis=None)

    return jax.lax.map(row, jnp.arange(len(values)), batch_size=batch)
