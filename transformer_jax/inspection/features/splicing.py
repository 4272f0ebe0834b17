"""A pass that goes on with what a sparse dictionary reconstructs, and what that costs."""

import functools
from collections.abc import Iterable
from typing import NamedTuple

import jax
from jax import Array
from jaxtyping import Float

from transformer_jax.argument_checks import check_arguments
from transformer_jax.data.batch import Batch, Samples
from transformer_jax.errors import InputError
from transformer_jax.inspection.features.dictionary import SparseDictionary
from transformer_jax.inspection.inspected_call import Computation
from transformer_jax.inspection.names import ActivationSite
from transformer_jax.inspection.patches import Change, Patch, parts_of, zero
from transformer_jax.inspection.patching.ablation import metric_sums, padded_batches, total
from transformer_jax.training.trainer import TrainerModule
from transformer_jax.trees import Arrays, Params, Variables, pytree_class, static_field


class LossRecovered(NamedTuple):
    """A task's loss with a dictionary in the place of an activation, of the whole model, and without the activation."""

    clean: float
    spliced: float  # with what the dictionary reconstructs
    zeroed: float  # with zeros

    @property
    def recovered(self) -> float:
        """(zeroed - spliced) / (zeroed - clean): 1 where nothing is lost, 0 where zeros would do as well."""
        return (self.zeroed - self.spliced) / (self.zeroed - self.clean)


@pytree_class
class Spliced(Patch):
    """What a dictionary reconstructs, in the place of an activation."""

    module: SparseDictionary = static_field()
    keep_error: bool = static_field()
    variables: Variables
    change: tuple[Patch, ...]
    reads: Array | None

    def apply(self, x: Array, site: ActivationSite) -> Array:
        dictionary = self.module.bind(self.variables)
        features = dictionary.encode(x if self.reads is None else self.reads)
        made = dictionary.decode(features)
        if made.shape != x.shape:
            raise InputError(f"dictionary gives {made.shape}; in the place of {site.name} it must give {x.shape}")
        error, changed = x - made, features
        for part in self.change:
            of_features = site._replace(name=f"features of {site.name}", shape=features.shape)
            changed = part.apply(changed, of_features)
        spliced = dictionary.decode(changed)
        return (spliced + jax.lax.stop_gradient(error) if self.keep_error else spliced).astype(x.dtype)


@check_arguments
def splice(
    dictionary: SparseDictionary,
    *,
    keep_error: bool = False,
    change: Change | None = None,
    reads: Float[Array, "..."] | None = None,
) -> Patch:
    """A patch that puts what a dictionary reconstructs in the place of an activation.

    Args:
        dictionary: bound to its variables: `trainer.dictionary`.
        keep_error: whether what the dictionary misses is added, as it is in the pass without changed features; then
            unchanged features leave the pass as it is, to rounding. It gets no gradient (Marks et al. 2024).
        change: of the features `[B, T, F]`, as of any activation: `zero(units=[3])`, a function.
        reads: the activation that a transcoder reads, captured from the pass before; an autoencoder's is the one in
            whose place the patch stands.

    Raises:
        InputError: the dictionary is not bound.
    """
    module, variables = unbound(dictionary)
    if (reads is None) != (module.output_dim is None):
        raise InputError(f"reads is {'None' if reads is None else 'given'}; a transcoder needs it, an autoencoder none")
    return Spliced(module, keep_error, variables, () if change is None else parts_of(change), reads)


def unbound(dictionary: SparseDictionary) -> tuple[SparseDictionary, Variables]:
    """A dictionary's module and its variables.

    Raises:
        InputError: it has none.
    """
    if dictionary.scope is None:
        raise InputError("dictionary has no variables; it must be bound to some: dictionary.bind(variables)")
    return dictionary.unbind()


@check_arguments
def loss_recovered(
    trainer: TrainerModule,
    dictionary: SparseDictionary,
    name: str,
    loader: Iterable[Samples] | None = None,
    *,
    reads: str | None = None,
) -> LossRecovered:
    """A task's mean loss over a data set with a dictionary in the place of an activation.

    Args:
        trainer: of the model, trained, or from `load_run`.
        dictionary: as `splice` takes it.
        name: of the activation in whose place it stands.
        loader: of batches; None for the task's own test set.
        reads: name of the activation that a transcoder reads.

    Raises:
        InputError: no activation has the name, the dictionary is not bound or of another width, or there are no
            parameters or no batch.
    """
    module, variables = unbound(dictionary)
    batches, constants = padded_batches(trainer, loader)

    def sums(params: Params, constants: Arrays, batch: Batch, variables: Variables) -> tuple[Array, ...]:
        call = Computation(functools.partial(metric_sums, trainer, "loss", params, constants, batch))
        clean, seen = call.run([] if reads is None else [reads])
        patch = splice(module.bind(variables), reads=None if reads is None else seen[reads])
        return clean, *(call.run(patches={name: each})[0] for each in (patch, zero()))

    losses = total(sums, trainer.params, constants, batches, variables)
    return LossRecovered(*(float(loss / weight) for loss, weight in losses))
