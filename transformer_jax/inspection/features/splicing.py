"""Passes that continue with a sparse dictionary's reconstruction of an activation, and their loss."""

import functools
from collections.abc import Iterable
from typing import NamedTuple

import jax
from jax import Array
from jaxtyping import Float

from transformer_jax.argument_checks import check_arguments
from transformer_jax.data.batch import Batch, Samples
from transformer_jax.errors import InputError
from transformer_jax.fitted.fitted import Fitted, fitted_of
from transformer_jax.inspection.features.dictionary import SparseDictionary
from transformer_jax.inspection.features.folded import FoldedDictionary, folded
from transformer_jax.inspection.features.transcoders import Transcoders
from transformer_jax.inspection.inspected_call import Computation
from transformer_jax.inspection.names import ActivationSite
from transformer_jax.inspection.patches import Change, Patch, parts_of, zero
from transformer_jax.inspection.patching.ablation import metric_sums, padded_batches, total
from transformer_jax.training.task import Task
from transformer_jax.trees import Arrays, Params, pytree_class, static_field


class LossRecovered(NamedTuple):
    """A task's loss with an activation as it is, replaced by a dictionary's reconstruction, and replaced by zeros."""

    clean: float
    spliced: float  # with the reconstruction
    zeroed: float  # with zeros

    @property
    def recovered(self) -> float:
        """(zeroed - spliced) / (zeroed - clean): 1 if nothing is lost, 0 if zeros would do as well."""
        return (self.zeroed - self.spliced) / (self.zeroed - self.clean)


@pytree_class
class Spliced(Patch):
    """Replace an activation by a dictionary's reconstruction."""

    dictionary: FoldedDictionary
    keep_error: bool = static_field()
    change: tuple[Patch, ...]
    reads: Array | None

    def apply(self, x: Array, site: ActivationSite) -> Array:
        """The reconstruction from the changed features, plus the error of the unchanged one if it is kept."""
        source = x if self.reads is None else self.reads
        unchanged, features = self.dictionary(source)
        if unchanged.shape != x.shape:
            raise InputError(
                f"dictionary gives {unchanged.shape}; to replace {site.name}, it must give"
                f" {x.shape}"
            )
        site_of_features = site._replace(name=f"features of {site.name}", shape=features.shape)
        for part in self.change:
            features = part.apply(features, site_of_features)
        spliced = self.dictionary.decode(features, source)
        if self.keep_error:
            spliced += jax.lax.stop_gradient(x - unchanged)
        return spliced.astype(x.dtype)


@check_arguments
def splice(
    dictionary: SparseDictionary | FoldedDictionary,
    *,
    keep_error: bool = False,
    change: Change | None = None,
    reads: Float[Array, "..."] | None = None,
) -> Patch:
    """Make a patch that replaces an activation by a dictionary's reconstruction.

    Args:
        dictionary: `trainer.dictionary`, or from `load_dictionary`.
        keep_error: whether to add the dictionary's reconstruction error, computed with unchanged features; then the
            pass is unchanged, to rounding, if the features are. The error gets no gradient (Marks et al. 2024).
        change: change of the features `[B, T, F]`, as of any activation, such as `zero(units=[3])` or a function.
        reads: the activation that a transcoder reads, captured in an earlier pass; None for an autoencoder, which
            reads the activation that it replaces.

    Raises:
        InputError: the dictionary is not bound, or `reads` is missing or not needed.
    """
    plain = _folded_for(dictionary, reads)
    return Spliced(plain, keep_error, () if change is None else parts_of(change), reads)


def _folded_for(dictionary: SparseDictionary | FoldedDictionary, reads: object) -> FoldedDictionary:
    """Return a dictionary in folded form, if `reads` is None for an autoencoder, and given for a transcoder."""
    plain = folded(dictionary)
    if (reads is None) == plain.is_transcoder:
        raise InputError(
            f"reads is {'None' if reads is None else 'given'}; only a transcoder needs it"
        )
    return plain


@check_arguments
def loss_recovered(
    trainer: Task | Fitted,
    dictionary: SparseDictionary | FoldedDictionary | Transcoders,
    name: str | None = None,
    loader: Iterable[Samples] | None = None,
    *,
    reads: str | None = None,
) -> LossRecovered:
    """Compute a task's mean loss over a data set with activations replaced by dictionaries' reconstructions.

    Args:
        trainer: trainer of the model, trained, or from `load_run`; or what `fit` has returned.
        dictionary: as in `splice`; or transcoders of several layers, which all replace their activations.
        name: name of the activation to replace; None for transcoders of several layers, which know it.
        loader: loader of batches; None for the task's test set.
        reads: name of the activation that a single transcoder reads.

    Raises:
        InputError: no activation has the name; the dictionary is not bound, or has another width; or there are no
            parameters or no batches.
    """
    if isinstance(dictionary, Transcoders):
        transcoders = dictionary
    else:
        # an autoencoder reads what it replaces
        plain = _folded_for(dictionary, reads)
        name = str(name)
        transcoders = Transcoders((plain,), (reads or name,), (name,))
    fitted = fitted_of(trainer)
    batches, constants = padded_batches(fitted, loader)

    def sums(
        params: Params, constants: Arrays, batch: Batch, transcoders: Transcoders
    ) -> tuple[Array, ...]:
        call = Computation(
            functools.partial(metric_sums, fitted.task, "loss", params, constants, batch)
        )
        zeroed = dict.fromkeys(transcoders.writes, zero())
        passes = [call.run(patches=patches) for patches in ({}, transcoders.patches(), zeroed)]
        return tuple(sum_and_weight for sum_and_weight, _ in passes)

    losses = total(sums, fitted.params, constants, batches, transcoders)
    return LossRecovered(*(float(loss / weight) for loss, weight in losses))
