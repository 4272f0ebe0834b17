"""Initial parameters drawn from the distributions of `torch.nn`."""

import math
from collections.abc import Mapping

import jax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array
from jaxtyping import PRNGKeyArray

from transformer_jax.nn.layer_stacks import stack_layers, unstack_layers
from transformer_jax.trees import Params

PROJECTIONS = "query_proj", "key_proj", "value_proj"  # start in PyTorch as they do here


def like_torch(params: Params, key: PRNGKeyArray) -> Params:
    """Draw fresh parameters again as `torch.nn` draws them; other arrays, such as those of norms, stay unchanged.

    | array | distribution |
    | --- | --- |
    | `kernel` of a `Dense` or `Conv`, and its `bias` | uniform, at most 1 / √(inputs of a unit) |
    | `output_proj` of an attention | the same for the kernel; biases stay zero |
    | `embedding` | normal, with variance 1 |

    Args:
        params: parameters of a model, from its `init`.
        key: random key.
    """
    arrays = flatten_dict(unstack_layers(params), sep="/")
    keys = jax.random.split(key, len(arrays))
    drawn = {path: _drawn(path, arrays, keys[number]) for number, path in enumerate(sorted(arrays))}
    return stack_layers(unflatten_dict(drawn, sep="/"), params)


def _drawn(path: str, arrays: Mapping[str, Array], key: PRNGKeyArray) -> Array:
    array = arrays[path]
    module, _, name = path.rpartition("/")
    parent, _, layer = module.rpartition("/")
    if name == "embedding":
        return jax.random.normal(key, array.shape, array.dtype)
    kernel = arrays.get(f"{module}/kernel".lstrip("/"))
    is_of_attention = f"{parent}/query_proj/kernel".lstrip("/") in arrays
    is_kept = is_of_attention and (layer in PROJECTIONS or name == "bias")
    if kernel is None or name not in ("kernel", "bias") or is_kept:
        return array
    bound = 1 / math.sqrt(math.prod(kernel.shape[:-1]))
    return jax.random.uniform(key, array.shape, array.dtype, -bound, bound)
