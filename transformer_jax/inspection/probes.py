"""Linear probes with a control task: what can be read off activations, and what the probe learned itself."""

from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int

from transformer_jax.errors import InputError

MAX_STEPS = 1000  # of L-BFGS


class Probe(NamedTuple):
    """Accuracies of a probe on elements that it was not fitted to."""

    accuracy: float  # of the labels
    control_accuracy: float  # of the control task's labels

    @property
    def selectivity(self) -> float:
        """Accuracy of the labels less that of the control task: near 0 where the probe only remembers the types."""
        return self.accuracy - self.control_accuracy


def linear_probe(
    features: Float[ArrayLike, "..."],
    labels: Int[ArrayLike, "..."],
    types: Int[ArrayLike, "..."],
    is_train: Bool[ArrayLike, "..."],
    *,
    seed: int = 0,
    strength: float = 1.0,
) -> Probe:
    """Fit a softmax regression from activations to labels, and another one to a control task (Hewitt and Liang 2019).

    The control task gives each type, such as a token's id, one random label, drawn from the labels as often as they
    occur . It has nothing to do with the model; what a probe reaches on it, it has learned by heart.

    Args:
        features: activations `[N, D]`, one row for each element.
        labels: `[N]`, what should be read off them.
        types: `[N]`, of which type each element is.
        is_train: `[N]`, which elements the probes are fitted to; the others are for the accuracies.
        seed: of the control task's labels.
        strength: of the L2 penalty, `strength / 2 · ‖W‖²` beside the sum of the losses.

    Raises:
        InputError: the arrays differ in N, all elements or none are for the fit, these have one label alone, or
            `strength` is not above 0.
    """
    from sklearn.linear_model import LogisticRegression

    features, labels, types, is_train = (np.asarray(array) for array in (features, labels, types, is_train))
    _check(features, labels, types, is_train, strength)
    kinds, of_kind = np.unique(types, return_inverse=True)
    control = np.random.default_rng(seed).choice(labels, size=len(kinds))[of_kind]
    accuracies = []
    for wanted in (labels, control):
        if len(np.unique(wanted[is_train])) == 1:  # nothing to fit
            accuracies.append(float((wanted[~is_train] == wanted[is_train][0]).mean()))
            continue
        probe = LogisticRegression(C=1 / strength, max_iter=MAX_STEPS).fit(features[is_train], wanted[is_train])
        accuracies.append(float(probe.score(features[~is_train], wanted[~is_train])))
    return Probe(*accuracies)


def _check(features: np.ndarray, labels: np.ndarray, types: np.ndarray, is_train: np.ndarray, strength: float) -> None:
    numbers = [len(array) for array in (features, labels, types, is_train)]
    if len(set(numbers)) > 1:
        raise InputError(f"features, labels, types and is_train have {numbers} rows; they must have as many")
    if is_train.all() or len(np.unique(labels[is_train])) < 2:
        raise InputError("is_train must leave some elements, and choose some with two labels at least")
    if not strength > 0:
        raise InputError(f"strength is {strength}; it must be above 0")
