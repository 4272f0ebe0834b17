"""Linear probes with a control task, which shows how much a probe memorises by itself."""

from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int

from transformer_jax.argument_checks import as_array, check_numbers
from transformer_jax.errors import InputError
from transformer_jax.trees import short_repr

MAX_STEPS = 1000  # of L-BFGS


class Probe(NamedTuple):
    """A fitted probe: its accuracies on elements that it was not fitted to, and its weights.

    Its selectivity is the difference of the two accuracies; it is near 0 if the probe only memorises the types.
    """

    def __repr__(self) -> str:
        return short_repr(self)

    accuracy: float  # on the labels
    control_accuracy: float  # on the labels of the control task
    labels: Int[np.ndarray, " C"]  # the C distinct labels that it was fitted to
    weights: Float[np.ndarray, "C D"]  # the logit of each label is `features @ weights.T + bias`
    bias: Float[np.ndarray, " C"]


def linear_probe(
    features: Float[ArrayLike, "..."],
    labels: Int[ArrayLike, "..."],
    types: Int[ArrayLike, "..."],
    is_train: Bool[ArrayLike, "..."],
    *,
    seed: int = 0,
) -> Probe:
    """Fit a softmax regression from activations to labels, and another one to a control task (Hewitt and Liang 2019).

    Each feature is standardised by its mean and standard deviation over the training rows, because residual streams may
    have coordinates thousands of times as large as others, for which the solver stops far from the minimum. The L2
    penalty `½ ‖W‖²`, added to the sum of the losses, is on the weights of the standardised features; the returned
    weights are for the features as given. If one huge row dominates a feature's standard deviation, the feature says
    little about the other rows: leave rows such as a text's first position out of `features`.

    The control task gives each type, such as a token id, one random label, drawn with the frequencies of the labels.
    It is unrelated to the model: a probe can only memorise it.

    Args:
        features: activations `[N, D]`, one row for each element.
        labels: `[N]`, what to predict from the features.
        types: `[N]`, the type of each element.
        is_train: `[N]`, True for elements that the probes are fitted to; the others are for the accuracies.
        seed: random seed of the control task's labels.

    Raises:
        InputError: the arrays differ in N, or `features` does not have two axes or is not finite.
        ValueError: all or no elements are for training, or the training elements have only one label.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    arrays = {"features": features, "labels": labels, "types": types, "is_train": is_train}
    features, labels, types, is_train = (
        np.asarray(as_array(name, array)) for name, array in arrays.items()
    )
    shapes = [array.shape for array in (features, labels, types, is_train)]
    if len({shape[:1] for shape in shapes}) > 1 or features.ndim != 2:
        raise InputError(
            f"features, labels, types and is_train have shapes {shapes}; they must be [N, D]"
            " and [N]"
        )
    check_numbers({"features": features.astype(np.float64)}, "the arguments")
    kinds, kind_of_row = np.unique(types, return_inverse=True)
    label_of_kind = np.random.default_rng(seed).choice(labels, size=len(kinds))
    control = label_of_kind[kind_of_row]  # [N]
    scaler = StandardScaler().fit(features[is_train].astype(np.float64))
    standardised = scaler.transform(features)

    def fit(targets: np.ndarray) -> LogisticRegression:
        return LogisticRegression(max_iter=MAX_STEPS).fit(standardised[is_train], targets[is_train])

    def accuracy(probe: LogisticRegression, targets: np.ndarray) -> float:
        return float(probe.score(standardised[~is_train], targets[~is_train]))

    probe = fit(labels)
    if len(np.unique(control[is_train])) == 1:  # the few types all drew one label: no fit
        control_accuracy = float((control[~is_train] == control[is_train][0]).mean())
    else:
        control_accuracy = accuracy(fit(control), control)
    weights = probe.coef_
    bias = probe.intercept_
    if len(probe.classes_) == 2:  # scikit-learn has only their log-odds
        weights = np.concatenate([-weights / 2, weights / 2])
        bias = np.concatenate([-bias / 2, bias / 2])
    weights = weights / scaler.scale_  # of the features as given
    bias = bias - weights @ scaler.mean_
    return Probe(accuracy(probe, labels), control_accuracy, probe.classes_, weights, bias)
