"""How well a method finds the heads that do the work, where these are known."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Bool, Float

from transformer_jax.errors import InputError


@dataclasses.dataclass(frozen=True)
class HeadScore:
    """How a ranking of heads agrees with the truth: 1 where every working head is above every idle one."""

    average_precision: float  # the share of working heads, if all heads get the same importance
    roc_auc: float  # 0.5, if all get the same


def score_heads(
    importance: Float[ArrayLike, "..."], working: Bool[ArrayLike, "L H"] | Sequence[Sequence[bool]]
) -> HeadScore:
    """Score the importance that a method gives to each head.

    With P(t) the share of working heads among those of importance t and more, average precision is the mean of
    P(importance of h) over the working heads h. Heads of equal importance come together, as one step. The area under
    the ROC curve is the share of pairs of a working and an idle head in which the working one is more important, where
    equal ones count half (Fawcett 2006).

    Args:
        importance: `[L, H]`, the more important the larger. A method whose numbers have a sign gives their absolute
            values.
        working: which heads do the work, as `Circuit.working_heads`.

    Raises:
        InputError: the shapes differ, a number is not finite, or no head works, or all do.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    importance, working = np.asarray(importance), np.asarray(working, bool)
    if importance.shape != working.shape:
        raise InputError(f"importance has shape {importance.shape}; it must be that of working, {working.shape}")
    if not np.isfinite(importance).all():
        raise InputError(f"importance holds {importance[~np.isfinite(importance)][0]}; all of it must be finite")
    if working.all() or not working.any():
        raise InputError(f"working is {'all' if working.all() else 'never'} True; some heads must work and some not")
    return HeadScore(
        float(average_precision_score(working.ravel(), importance.ravel())),
        float(roc_auc_score(working.ravel(), importance.ravel())),
    )
