"""Linear probes with a control task: what can be read off activations, and what the probe learned itself."""

from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int

from transformer_jax.argument_checks import as_array
from transformer_jax.errors import InputError

MAX_STEPS = 1000  # of L-BFGS


class Probe(NamedTuple):
    """A probe of the labels: its accuracies on elements that it was not fitted to, and its weights.

    Its selectivity is the difference of the two accuracies: near 0 where the probe only remembers the types.
    """

    accuracy: float  # of the labels
    control_accuracy: float  # of the control task's labels
    labels: Int[np.ndarray, " C"]  # the C different ones of the fit
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

    Each feature is standardised by its mean and standard deviation over the rows of the fit, as a stream may have
    coordinates thousands of times as large as others, with which the solver ends far from the minimum. The L2 penalty
    `½ ‖W‖²`, beside the sum of the losses, is on the weights of the standardised features; the weights that are
    returned are those of the features as given. A feature whose deviation comes from one huge row says little of the
    other rows: leave rows such as a text's first position out of `features`.

    The control task gives each type, such as a token's id, one random label, drawn from the labels as often as they
    occur. It has nothing to do with the model; what a probe reaches on it, it has learned by heart.

    Args:
        features: activations `[N, D]`, one row for each element.
        labels: `[N]`, what should be read off them.
        types: `[N]`, of which type each element is.
        is_train: `[N]`, which elements the probes are fitted to; the others are for the accuracies.
        seed: of the control task's labels.

    Raises:
        InputError: the arrays differ in N, or features have another rank.
        ValueError: all elements or none are for the fit, or these have one label alone.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    arrays = {"features": features, "labels": labels, "types": types, "is_train": is_train}
    features, labels, types, is_train = (np.asarray(as_array(name, array)) for name, array in arrays.items())
    shapes = [array.shape for array in (features, labels, types, is_train)]
    if len({shape[:1] for shape in shapes}) > 1 or features.ndim != 2:
        raise InputError(f"features, labels, types and is_train have shapes {shapes}; they must have as many rows")
    kinds, of_kind = np.unique(types, return_inverse=True)
    scaler = StandardScaler().fit(features[is_train].astype(np.float64))
    standardised = scaler.transform(features)
    control = np.random.default_rng(seed).choice(labels, size=len(kinds))[of_kind]

    def fit(wanted: np.ndarray) -> LogisticRegression:
        return LogisticRegression(max_iter=MAX_STEPS).fit(standardised[is_train], wanted[is_train])

    def accuracy(probe: LogisticRegression, wanted: np.ndarray) -> float:
        return float(probe.score(standardised[~is_train], wanted[~is_train]))

    probe = fit(labels)
    if len(np.unique(control[is_train])) == 1:  # few types, which drew one label
        of_control = float((control[~is_train] == control[is_train][0]).mean())
    else:
        of_control = accuracy(fit(control), control)
    parts = [probe.coef_, probe.intercept_]
    if len(probe.classes_) == 2:  # of which scikit-learn has the log-odds alone
        parts = [np.concatenate([-part / 2, part / 2]) for part in parts]
    weights = parts[0] / scaler.scale_
    return Probe(accuracy(probe, labels), of_control, probe.classes_, weights, parts[1] - weights @ scaler.mean_)
