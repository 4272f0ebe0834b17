"""Low-rank adapters (Hu et al. 2022, LoRA): which arrays have them, and how a training with them begins.

The model's parameters stay as they are. Matrices A and B are trained, whose product times α / r is added to an array
before the model is called (`transformer_jax.trees.merged`). Gradients, the optimizer's state and moving averages exist
only for what is trained.
"""

import math
import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import PRNGKeyArray

from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError
from transformer_jax.nn.layer_stacks import STACKED, unstack_layers
from transformer_jax.setting_groups import FULL, RankAndAlpha, parse_lora
from transformer_jax.training.optimizers import decay_mask, matches, matching
from transformer_jax.trees import ADAPTERS, FROZEN, SCALES, VARIABLES, Params, split_variables

ATTENTION = ("*attn", "*attention", "*Attention*")  # modules of `attention:8`, ours and Flax's


def with_adapters(params: Params, config: TrainingConfig, key: PRNGKeyArray) -> Params:
    """Return the parameters of a training's state, with which the model still computes the same.

    A is drawn uniformly, at most 1 / √rows, as in PEFT; B is 0.

    Args:
        params: of the model.
        config: `lora` says which arrays have adapters. Arrays that `init_only` leaves fresh are trained in full. Arrays
            that `freeze` names are neither.
        key: random key.

    Raises:
        InputError: a pattern selects no matrix, or `freeze` names all that are selected.
    """
    trained, variables = split_variables(params)
    arrays = flatten_dict(trained, sep="/")
    chosen = _chosen(trained, config)
    state = flatten_dict({VARIABLES: variables}, sep="/")
    for number, (path, array) in enumerate(sorted(arrays.items())):
        rank, alpha = chosen.get(path, (None, 0.0))  # None: frozen
        if rank == 0:  # trained in full
            state[path] = array
        else:
            state[f"{VARIABLES}/{FROZEN}/{path}"] = array
        if rank:
            num_stacked = int(STACKED in path.split("/"))
            layers = array.shape[:num_stacked]  # [L] of stacked layers, else []
            rows, columns = matrix_shape(array.shape[num_stacked:])
            drawn = jax.random.uniform(
                jax.random.fold_in(key, number), (*layers, rows, rank), array.dtype, -1, 1
            )
            state[f"{ADAPTERS}/{path}/a"] = drawn / math.sqrt(rows)
            state[f"{ADAPTERS}/{path}/b"] = jnp.zeros((*layers, rank, columns), array.dtype)
            state[f"{VARIABLES}/{SCALES}/{path}"] = jnp.full(layers, alpha / rank, array.dtype)
    return unflatten_dict(state, sep="/")


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of an array as a matrix: of all ways to divide its axes, the one with the smallest sum.

    A projection to heads `[D, H, d]` is a matrix `[D, H d]`, and one from heads `[H, d, D]` is `[H d, D]`.
    """
    splits = [(math.prod(shape[:axis]), math.prod(shape[axis:])) for axis in range(1, len(shape))]
    return min(splits, key=sum)


def _chosen(params: Params, config: TrainingConfig) -> dict[str, RankAndAlpha]:
    """Rank and α by path of an array; all other arrays are frozen."""
    arrays = flatten_dict(decay_mask(params), sep="/")  # whether an array is a matrix
    chosen: dict[str, RankAndAlpha] = {}
    for pattern, size in parse_lora("lora", config.lora or "").items():
        patterns = ATTENTION if pattern == "attention" else (pattern, f"*/{pattern}")
        selected = [
            path
            for path, is_matrix in arrays.items()
            if (is_matrix or size == FULL) and any(matches(path, one) for one in patterns)
        ]
        if not selected:
            modules = {path.split("/")[-2] for path in arrays if arrays[path] and "/" in path}
            raise InputError(
                f"lora has {pattern!r}, which selects no matrix of the model; modules:"
                f" {', '.join(sorted(modules))}"
            )
        chosen |= dict.fromkeys(selected, size)
    chosen |= dict.fromkeys(_fresh(params, config), FULL)
    if config.freeze is not None:
        for path in matching(config.freeze, arrays, "freeze"):
            chosen.pop(path, None)
        if not chosen:
            raise InputError(f"freeze is {config.freeze}; it names all that lora selects")
    return chosen


def _fresh(params: Params, config: TrainingConfig) -> list[str]:
    """Paths of the arrays that `init_only` leaves fresh; layers of a stack have one path."""
    if config.init_only is None:
        return []
    arrays = flatten_dict(params, sep="/")
    unstacked = flatten_dict(jax.eval_shape(unstack_layers, params), sep="/").keys()
    paths = []
    for path in unstacked - matching(config.init_only, unstacked, "init_only"):
        stacked = re.sub(r"\blayers_\d+", STACKED, path)
        paths.append(stacked if stacked in arrays else path)
    return paths
