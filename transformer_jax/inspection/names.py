"""Names of activations: made of a module's path and of the name that the module gives; chosen by patterns."""

import fnmatch
import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from transformer_jax.attention.score_block import Start
from transformer_jax.errors import InputError, meant

# Names of modules that are longer in an activation's name.
ALIASES = {"self_attn": "attention", "cross_attn": "cross_attention"}
# Activations that are called after the model, and not after the module in it that adds positions.
OF_ENCODING = ("token_embeddings", "positions")
RESIDUAL = "_residual"  # end of the name of a residual connection
# Letters of the axes along which a patch chooses.
AXES = {"heads": ("H", "Hkv"), "positions": ("T", "S"), "units": ("F", "D", "d"), "queries": ("T",), "keys": ("S",)}


# Names that TransformerLens gives to activations, and ours (docs/pretrained.md).
TRANSFORMER_LENS = {
    "hook_embed": "token_embeddings",
    "embed.hook_out": "token_embeddings",
    "hook_pos_embed": "positions",
    "pos_embed.hook_out": "positions",
    "blocks.0.hook_resid_pre": "decoder.layers.0.input",
    "blocks.0.hook_in": "decoder.layers.0.input",
    "blocks.0.ln1.hook_scale": "decoder.layers.0.attention_norm.scale",
    "blocks.0.ln1.hook_normalized": "decoder.layers.0.attention_norm.normalized",
    "blocks.0.attn.hook_in": "decoder.layers.0.attention_norm.normalized",
    "blocks.0.attn.hook_q": "decoder.layers.0.attention.queries",
    "blocks.0.attn.hook_rot_q": "decoder.layers.0.attention.queries",
    "blocks.0.attn.hook_k": "decoder.layers.0.attention.keys",
    "blocks.0.attn.hook_rot_k": "decoder.layers.0.attention.keys",
    "blocks.0.attn.hook_v": "decoder.layers.0.attention.values",
    "blocks.0.attn.hook_attn_scores": "decoder.layers.0.attention.logits",
    "blocks.0.attn.hook_pattern": "decoder.layers.0.attention.weights",
    "blocks.0.attn.hook_z": "decoder.layers.0.attention.head_outputs",
    "blocks.0.attn.hook_result": "decoder.layers.0.attention.head_results",
    "blocks.0.hook_attn_out": "decoder.layers.0.attention.output",
    "blocks.0.hook_resid_mid": "decoder.layers.0.after_attention",
    "blocks.0.attn.hook_out": "decoder.layers.0.attention.output",
    "blocks.0.ln2.hook_scale": "decoder.layers.0.feed_forward_norm.scale",
    "blocks.0.ln2.hook_normalized": "decoder.layers.0.feed_forward_norm.normalized",
    "blocks.0.mlp.hook_in": "decoder.layers.0.feed_forward_norm.normalized",
    "blocks.0.mlp.hook_pre": "decoder.layers.0.feed_forward.pre",
    "blocks.0.mlp.hook_pre_linear": "decoder.layers.0.feed_forward.pre_linear",
    "blocks.0.mlp.hook_post": "decoder.layers.0.feed_forward.hidden",
    "blocks.0.hook_mlp_out": "decoder.layers.0.feed_forward.output",
    "blocks.0.mlp.hook_out": "decoder.layers.0.feed_forward.output",
    "blocks.0.hook_resid_post": "decoder.layers.0.output",
    "blocks.0.hook_out": "decoder.layers.0.output",
    "ln_final.hook_scale": "decoder.norm.scale",
    "ln_final.hook_normalized": "decoder.norm.normalized",
    "unembed.hook_out": "logits",
}


class ActivationSite(NamedTuple):
    """An activation of a pass, without its values."""

    name: str
    letters: str  # of its axes: "B H T d"
    shape: tuple[int, ...]
    first: Start | None = None  # in cached decoding the position of its first element along T, where it has a T

    def axis(self, what: str) -> int | None:
        """The first axis of heads, positions, units, queries or keys; None where there is none."""
        return next((number for number, letter in enumerate(self.letters.split()) if letter in AXES[what]), None)

    def size(self, what: str) -> int | None:
        """Length of that axis; None where there is none."""
        axis = self.axis(what)
        return None if axis is None else self.shape[axis]


def activation_name(path: Iterable[str], name: str) -> str:
    """Name of an activation that the module at a path of Flax's calls `name`.

    `encoder/layers_0/self_attn` and `weights` make `encoder.layers.0.attention.weights`. What belongs to a residual
    connection is named after its sub-layer: `encoder/layers_0/self_attn_residual` and `after` make
    `encoder.layers.0.after_attention`; its norm's `scale` is `encoder.layers.0.attention_norm.scale`.
    """
    parts: list[str] = []
    sublayer = ""  # whose residual connection the part before this one is
    for part in (*path, name):
        if sublayer:
            parts.append({"after": f"after_{sublayer}", "norm": f"{sublayer}_norm"}.get(part, part))
            sublayer = ""
        elif part.endswith(RESIDUAL) and part != RESIDUAL:
            sublayer = part.removesuffix(RESIDUAL)
            sublayer = ALIASES.get(sublayer, sublayer)
        elif part != "positional_encoding" or name not in OF_ENCODING:
            parts.append(part.replace("_", ".") if is_layer(part) else ALIASES.get(part, part))
    return ".".join(parts)


def is_layer(part: str) -> bool:
    """Whether this part of a path is that of a layer, `layers_3`."""
    return re.fullmatch(r"layers_\d+", part) is not None


def residual_stream(names: Iterable[str]) -> list[str]:
    """Names of the residual stream of a model's last stack: the input of its first block, and the output of each.

    Raises:
        InputError: the model has no blocks.
    """
    blocks = [match for name in names if (match := re.fullmatch(r"(?P<stack>.*)layers\.\d+\.output", name))]
    if not blocks:
        raise InputError("the model has no blocks in a stack, and so no residual stream to look at")
    stack = blocks[-1]["stack"]
    return [f"{stack}layers.0.input", *(match.string for match in blocks if match["stack"] == stack)]


def matches(name: str, pattern: str) -> bool:
    """Whether a name is this one, or fits this pattern of `fnmatch`, in which `*` stands for dots too.

    A layer's number of several digits may stand as one character: `encoder.layers.?.output` fits layer 10.
    """
    as_one = re.sub(r"(?<=\.)\d\d+(?=\.)", "#", name)
    return name == pattern or fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(as_one, pattern)


def our_name(name: str) -> str:
    """A name or pattern, or what it is called here if it is one of TransformerLens, with or without a block's number.

    `blocks.3.attn.hook_z` and `hook_z` are `decoder.layers.3.attention.head_outputs` and that of layer 0.
    """
    block = re.match(r"blocks\.(\d+|[*?])\.", name)
    end = name[block.end() :] if block else name
    found = next((ours for theirs, ours in TRANSFORMER_LENS.items() if f".{theirs}".endswith(f".{end}")), name)
    return found.replace("layers.0.", f"layers.{block[1]}.") if block else found


def check_found(pattern: str, names: Collection[str]) -> None:
    """Raise an `InputError` if no name fits a name or pattern; it proposes one that is near.

    Args:
        pattern: a name, or a pattern.
        names: all names of the pass.
    """
    if not any(matches(name, pattern) for name in names):
        near = meant(our_name(pattern), names)
        raise InputError(f"{pattern!r} is no activation of this pass; activation_names(model) lists all{near}")
