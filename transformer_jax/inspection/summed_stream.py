"""Logit attribution if the residual stream is a plain sum: in pre-norm blocks of this package.

There, the path from every component to the logits is what follows the last block, so the blocks need not run again.
"""

import re
from collections.abc import Callable, Iterable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict
from jax import Array
from jaxtyping import Float

from transformer_jax.inspection.inspected_call import AT_ONCE, OUTPUTS
from transformer_jax.inspection.names import activation_name
from transformer_jax.nn.blocks import SettingsModule
from transformer_jax.nn.causal import CausalBlock
from transformer_jax.nn.decoder import DecoderBlock
from transformer_jax.nn.encoder import EncoderBlock
from transformer_jax.nn.layer_stacks import unstack_layers
from transformer_jax.trees import Params

BLOCKS = (EncoderBlock, CausalBlock, DecoderBlock)


def is_summed(model: nn.Module) -> bool:
    """Whether the blocks of a model's last stack only add to the residual stream."""
    if not (isinstance(model, SettingsModule) and model.settings.norm_first):
        return False
    return getattr(model, "decoder_block", getattr(model, "block", None)) in BLOCKS


def written_by_parts(
    params: Params, written: Mapping[str, Array]
) -> dict[str, Float[Array, "parts B T D"]]:
    """Compute what each component, and each head of an attention, writes into the residual stream, by name.

    Args:
        params: parameters of the model.
        written: the input of the first block, head outputs, and outputs of other sub-layers.
    """

    def parts(name: str, value: Array) -> Float[Array, "parts B T D"]:
        if not name.endswith(OUTPUTS):
            return value[None]
        kernel = _output_projection(params, name)["kernel"].reshape(
            value.shape[1], value.shape[3], -1
        )
        return jnp.einsum("bhtd,hdm->hbtm", value, kernel)

    return {name: parts(name, value) for name, value in written.items()}


def written_by_biases(params: Params, written: Iterable[str]) -> Float[Array, " D"] | float:
    """Sum of the biases of all attentions' output projections."""
    attentions = [name for name in written if name.endswith(OUTPUTS)]
    return sum(_output_projection(params, name).get("bias", 0.0) for name in attentions)


def mapped(
    change: Callable[[Array], Array], parts: dict[str, Float[Array, "parts B T D"]]
) -> dict[str, Array]:
    """Apply a linear function of the residual stream to each component, and to each head, whose axis comes first.

    If the function has few outputs, their gradients are computed, each of which serves all components; if it has many,
    it is applied to one part after another.
    """
    like = next(iter(parts.values()))[0]
    result = jax.eval_shape(change, like)
    if result.size < sum(map(len, parts.values())):
        basis = jnp.eye(result.size, dtype=result.dtype).reshape(-1, *result.shape)
        (slopes,) = jax.vmap(jax.linear_transpose(change, like))(basis)  # [numbers B T D]
        found = {
            name: jnp.einsum("nbtd,pbtd->pn", slopes, of).reshape(-1, *result.shape)
            for name, of in parts.items()
        }
    else:
        found = {name: jax.lax.map(change, of, batch_size=AT_ONCE) for name, of in parts.items()}
    return {name: of if name.endswith(OUTPUTS) else of[0] for name, of in found.items()}


def _output_projection(params: Params, head_outputs: str) -> dict[str, Array]:
    """Output projection of the attention with these head outputs; shared layers have that of the first layer."""
    flat = flatten_dict(unstack_layers(params))
    paths = {
        activation_name(path[:-2], OUTPUTS): path[:-1]
        for path in flat
        if path[-2:-1] == ("output_proj",)
    }
    path = paths.get(head_outputs) or paths[re.sub(r"layers\.\d+", "layers.0", head_outputs)]
    return {name: flat[*path, name] for name in ("kernel", "bias") if (*path, name) in flat}
