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


def check_found(pattern: str, names: Collection[str]) -> None:
    """Raise an `InputError` if no name fits a name or pattern; it proposes one that is near.

    Args:
        pattern: a name, or a pattern.
        names: all names of the pass.
    """
    if not any(matches(name, pattern) for name in names):
        raise InputError(
            f"{pattern!r} is no activation of this pass; activation_names(model) lists all{meant(pattern, names)}"
        )
