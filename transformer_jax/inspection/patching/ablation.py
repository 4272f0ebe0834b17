"""Ablation of heads: what a model loses without each of them (Michel et al. 2019)."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.argument_checks import check_arguments
from transformer_jax.data.batch import Batch, Samples, num_rows, pad_batch
from transformer_jax.errors import InputError
from transformer_jax.fitted.fitted import Fitted, fitted_of
from transformer_jax.inspection.inspected_call import (
    OUTPUTS,
    Captured,
    Chosen,
    Computation,
    HeadTable,
    Metric,
    attentions,
    forward_pass,
    map_over_sites,
)
from transformer_jax.inspection.patches import Patch, mean, zero
from transformer_jax.training.task import Task
from transformer_jax.trees import Arrays, Params, Variables, short_repr

Sums = TypeVar("Sums")  # pytree of arrays
Means = Mapping[str, Float[ArrayLike, "H 1 d"]]  # by the name of an attention's `head_outputs`


class Ablation(NamedTuple):
    """A metric of the whole model, and of the model without each head."""

    def __repr__(self) -> str:
        return short_repr(self)

    whole: float
    without: dict[str, Float[np.ndarray, "L H"]]  # by kind: `encoder`, `decoder`, `cross`


@check_arguments
def ablate_heads(
    model: nn.Module,
    variables: Variables,
    *inputs: object,
    metric: Metric,
    means: Means | None = None,
    **kwargs: object,
) -> HeadTable:
    """Compute a metric of the output with each head ablated, one at a time (Michel et al. 2019, section 3.2).

    A pure function, which works under `jax.jit`.

    Args:
        model, variables, *inputs: as in `transformer_jax.capture`.
        metric: function of the model's output that returns an array of any shape.
        means: replacements of the heads' outputs, as `mean_head_outputs` returns them; None for zeros.
        **kwargs: as in `capture`.

    Returns:
        The metric `[L, H, ...]` by kind of attention (`encoder`, `decoder`, `cross`).

    Raises:
        InputError: the model has no attention; or `means` lacks one, or does not broadcast to its `[B, H, T, d]`.
    """
    return _table(forward_pass(model, variables, inputs, kwargs), metric, means)


def mean_head_outputs(
    model: nn.Module, variables: Variables, *inputs: object, **kwargs: object
) -> Captured:
    """Compute the mean output `[H, 1, d]` of each head over all rows and positions, including padding.

    Raises:
        InputError: the model has no attention.
    """
    _, outputs = forward_pass(model, variables, inputs, kwargs).run([f"*{OUTPUTS}"])
    return jax.tree.map(lambda output: output.mean((0, 2), keepdims=True)[0], outputs)


@check_arguments
def ablation_table(
    trainer: Task | Fitted,
    loader: Iterable[Samples] | None = None,
    *,
    metric: str = "accuracy",
    by: Literal["zero", "mean"] = "zero",
) -> Ablation:
    """Compute a task's metric over a data set with each head ablated, one at a time (Michel et al. 2019).

    Args:
        trainer: trained, or from `load_run`; or what `fit` has returned.
        loader: loader of batches; None for the task's test set.
        metric: name of a metric that the task's `loss_function` returns, or `loss`.
        by: replacement of a head's outputs: zeros, or their mean over the rows and positions of the data set.

    Returns:
        The metric of the whole model, and, by kind of attention, the metric without each head `[L, H]`.

    Raises:
        InputError: there are no parameters, no such metric or no batches, or `by` is neither "zero" nor "mean".
    """
    fitted = fitted_of(trainer)
    batches, constants = padded_batches(fitted, loader)
    means = _means(fitted, batches, constants) if by == "mean" else None

    def sums(
        params: Params, constants: Arrays, batch: Batch, means: Means | None
    ) -> tuple[Array, HeadTable]:
        call = functools.partial(metric_sums, fitted.task, metric, params, constants, batch)
        return call(), _table(Computation(call), lambda pair: pair, means)

    # Pairs of a sum and its weight, `[2]` of the whole model and `[L H 2]` without each head.
    pairs = total(sums, fitted.params, constants, batches, means)
    whole, without = jax.tree.map(lambda pair: pair[..., 0] / pair[..., 1], pairs)
    return Ablation(float(whole), without)


def padded_batches(fitted: Fitted, loader: Iterable[Samples] | None) -> tuple[list[Batch], Arrays]:
    """Return the padded batches of a data set, by default of the task's test set, and the constants for them.

    Raises:
        InputError: there are no batches.
    """
    task = fitted.task
    constants = fitted.compiled.local_constants
    if loader is None:
        loader = task.test_data.test_loader
        constants = task.test_data.constants
    size = task.config.batch_size  # the compiled batch size
    batches = [pad_batch(samples, max(size, num_rows(samples))) for samples in loader]
    if not batches:
        raise InputError("the loader gives no batch; there must be at least one")
    return batches, constants


def metric_sums(
    task: Task, metric: str, params: Params, constants: Arrays, batch: Batch
) -> Float[Array, "2"]:
    """Return a metric's sum over a batch, and the weight of the sum.

    Raises:
        InputError: there is no such metric.
    """
    sums = task.eval_step(params, batch, constants)
    if metric not in sums:
        raise InputError(f"metric is {metric!r}; it must be one of {', '.join(sums)}")
    return jnp.stack(sums[metric])


def _table(call: Computation, metric: Metric, means: Means | None) -> HeadTable:
    """Compute a metric of a computation with each head ablated, by kind of attention."""
    found_attentions = attentions(call.sites())
    for attention in found_attentions:
        if means is not None and attention.head_outputs.name not in means:
            raise InputError(
                f"means lacks {attention.head_outputs.name}; it must have the mean output of every"
                " attention's heads"
            )

    def ablated(name: str, chosen: Chosen) -> Patch:
        return zero(**chosen) if means is None else mean(means[name], **chosen)

    def run(patches: Mapping[str, Patch]) -> Array:
        return metric(call.run(patches=patches)[0])

    sites = [attention.head_outputs for attention in found_attentions]
    by_name = map_over_sites(sites, ["heads"], ablated, run)  # each [H, ...]
    by_kind: dict[str, list[Array]] = {}
    for attention in found_attentions:
        by_kind.setdefault(attention.kind, []).append(by_name[attention.head_outputs.name])
    return {kind: jnp.stack(layers) for kind, layers in by_kind.items()}


def _means(fitted: Fitted, batches: Sequence[Batch], constants: Arrays) -> Means:
    """Mean output of each head over the valid rows and all positions of a data set."""

    def sums(params: Params, constants: Arrays, batch: Batch) -> tuple[Captured, Array]:
        rows = jnp.asarray(batch.valid, jnp.float32)
        call = functools.partial(fitted.task.eval_step, params, batch, constants)
        _, outputs = Computation(call).run([f"*{OUTPUTS}"])

        def over_rows(output: Float[Array, "B H T d"]) -> Float[Array, "H 1 d"]:
            mean_of_positions = output.mean(2, keepdims=True)
            return jnp.einsum("b,bhtd->htd", rows, mean_of_positions)

        return jax.tree.map(over_rows, outputs), rows.sum()

    sums_of_heads, num_rows = total(sums, fitted.params, constants, batches)
    return jax.tree.map(lambda sum_of_heads: sum_of_heads / num_rows, sums_of_heads)


def total(
    sums: Callable[..., Sums],
    params: Params,
    constants: Arrays,
    batches: Sequence[Batch],
    *arguments: object,
) -> Sums:
    """Sum a function's results over all batches, in float64."""
    compiled = jax.jit(sums)
    parts = [compiled(params, constants, batch, *arguments) for batch in batches]
    return jax.tree.map(
        lambda *arrays: np.sum(arrays, axis=0, dtype=np.float64), *jax.device_get(parts)
    )
