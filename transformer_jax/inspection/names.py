"""Names of activations, made of a module's path and the activation's name in the module, and matched by patterns."""

import fnmatch
import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from transformer_jax.attention.score_block import Start
from transformer_jax.errors import InputError, meant

# Modules whose names are spelled out in names of activations.
ALIASES = {"self_attn": "attention", "cross_attn": "cross_attention"}
# Activations that are named after the model, not after its module that adds positions.
OF_ENCODING = ("token_embeddings", "positions")
RESIDUAL = "_residual"  # end of the name of a residual connection
# Letters of the axes along which a patch selects.
AXES = {
    "heads": ("H", "Hkv"),
    "positions": ("T", "S"),
    "units": ("F", "D", "d"),
    "queries": ("T",),
    "keys": ("S",),
}


# TransformerLens's names of activations, and ours (docs/pretrained.md).
TRANSFORMER_LENS = {
    "hook_embed": "token_embeddings",
    "embed.hook_out": "token_embeddings",
    "hook_pos_embed": "positions",
    "pos_embed.hook_out": "positions",
    "blocks.0.hook_resid_pre": "decoder.layers.0.input",
    "blocks.0.hook_in": "decoder.layers.0.input",
    "blocks.0.ln1.hook_scale": "decoder.layers.0.attention_norm.scale",
    "blocks.0.ln1.hook_out": "decoder.layers.0.attention_norm.normalized",
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
    "blocks.0.ln2.hook_out": "decoder.layers.0.feed_forward_norm.normalized",
    "blocks.0.mlp.hook_in": "decoder.layers.0.feed_forward_norm.normalized",
    "blocks.0.mlp.hook_pre": "decoder.layers.0.feed_forward.pre",
    "blocks.0.mlp.hook_pre_linear": "decoder.layers.0.feed_forward.pre_linear",
    "blocks.0.mlp.hook_post": "decoder.layers.0.feed_forward.hidden",
    "blocks.0.hook_mlp_out": "decoder.layers.0.feed_forward.output",
    "blocks.0.mlp.hook_out": "decoder.layers.0.feed_forward.output",
    "blocks.0.hook_resid_post": "decoder.layers.0.output",
    "blocks.0.hook_out": "decoder.layers.0.output",
    "ln_final.hook_scale": "decoder.norm.scale",
    "ln_final.hook_out": "decoder.norm.normalized",
    "unembed.hook_out": "logits",
}


class ActivationSite(NamedTuple):
    """An activation of a pass, without its values."""

    name: str
    letters: str  # of its axes: "B H T d"
    shape: tuple[int, ...]
    # in cached decoding, position of its first element along T, if it has a T
    first: Start | None = None

    def axis(self, what: str) -> int | None:
        """Number of the first axis of heads, positions, units, queries or keys; None if there is none."""
        for number, letter in enumerate(self.letters.split()):
            if letter in AXES[what]:
                return number
        return None

    def size(self, what: str) -> int | None:
        """Length of the first axis of heads, positions, units, queries or keys; None if there is none."""
        axis = self.axis(what)
        return None if axis is None else self.shape[axis]


def activation_name(path: Iterable[str], name: str) -> str:
    """Return the name of the activation that the module at a Flax path calls `name`.

    `encoder/layers_0/self_attn` and `weights` make `encoder.layers.0.attention.weights`. Activations of a residual
    connection are named after its sub-layer: `encoder/layers_0/self_attn_residual` and `after` make
    `encoder.layers.0.after_attention`; its norm's `scale` is `encoder.layers.0.attention_norm.scale`.
    """
    parts: list[str] = []
    sublayer = ""  # set if the previous part is its residual connection
    for part in (*path, name):
        if sublayer:
            if part.endswith("norm"):
                part = f"{sublayer}_{part}"
            parts.append(f"after_{sublayer}" if part == "after" else part)
            sublayer = ""
        elif part.endswith(RESIDUAL) and part != RESIDUAL:
            sublayer = part.removesuffix(RESIDUAL)
            sublayer = ALIASES.get(sublayer, sublayer)
        elif part != "positional_encoding" or name not in OF_ENCODING:
            parts.append(part.replace("_", ".") if is_layer(part) else ALIASES.get(part, part))
    return ".".join(parts)


def is_layer(part: str) -> bool:
    """Whether a part of a path names a layer, such as `layers_3`."""
    return re.fullmatch(r"layers_\d+", part) is not None


def residual_stream(names: Iterable[str]) -> list[str]:
    """Return the names of the residual stream in the last stack: the first block's input, and each block's output.

    Raises:
        InputError: the model has no blocks.
    """
    outputs = [name for name in names if re.fullmatch(r".*layers\.\d+\.output", name)]
    if not outputs:
        raise InputError("the model has no blocks in a stack, so it has no residual stream")
    layers = f"{outputs[-1].rpartition('layers.')[0]}layers."
    return [f"{layers}0.input", *(name for name in outputs if name.startswith(layers))]


def matches(name: str, pattern: str) -> bool:
    """Whether a name equals or matches an `fnmatch` pattern, in which `*` also matches dots.

    `?` matches a layer's number even if it has several digits: `encoder.layers.?.output` matches layer 10.
    """
    if name == pattern or fnmatch.fnmatchcase(name, pattern):
        return True
    one_character = re.sub(r"(?<=\.)\d\d+(?=\.)", "#", name)  # in place of a layer's number
    return fnmatch.fnmatchcase(one_character, pattern)


def our_name(name: str) -> str:
    """Translate a TransformerLens name, with or without a block's number; return other names and patterns unchanged.

    `blocks.3.attn.hook_z` is `decoder.layers.3.attention.head_outputs`; `hook_z` is `head_outputs` of layer 0.
    """
    number, end = "0", name
    block = re.match(r"blocks\.(\d+|[*?])\.", name)
    if block:
        number = block[1]
        end = name[block.end() :]
    for theirs, ours in TRANSFORMER_LENS.items():
        if f".{theirs}".endswith(f".{end}"):
            return ours.replace("layers.0.", f"layers.{number}.")
    return name


def check_found(pattern: str, names: Collection[str]) -> None:
    """Raise an `InputError`, which suggests a similar name, if no name matches a name or pattern.

    Args:
        pattern: a name, or a pattern.
        names: all names of the pass.
    """
    if any(matches(name, pattern) for name in names):
        return
    ours = our_name(pattern)
    all_layers = re.search(r"layers\.[*?]\.", ours)
    if all_layers:  # then a suggestion is for all layers, too
        names = [re.sub(r"layers\.\d+\.", all_layers[0], name) for name in names]
    raise InputError(
        f"{pattern!r} is not an activation of this pass; activation_names(model) lists"
        f" all{meant(ours, names)}"
    )
