"""Paths of parameters, `encoder/layers_0/self_attn/query_proj/kernel`, and patterns that choose some of them."""

import difflib
from collections.abc import Collection
from fnmatch import fnmatchcase

from transformer_jax.errors import InputError

MAX_SHOWN = 3  # names that an error proposes


def matching(patterns: str, paths: Collection[str], setting: str) -> frozenset[str]:
    """The paths that patterns choose.

    A pattern is the path of an array, or of a module for all arrays in it. In it `*` stands for any text, slashes
    included, `?` for one character and `[…]` for one of those in the brackets.

    Args:
        patterns: separated by commas.
        paths: of the model's arrays.
        setting: that holds the patterns, for the error.

    Raises:
        InputError: a pattern chooses no array; the message proposes names that are near.
    """
    chosen: set[str] = set()
    for pattern in patterns.split(","):
        found = {path for path in paths if _matches(pattern.strip(), path)}
        if not found:
            raise InputError(
                f"{setting} has {pattern.strip()!r}, which is no array or module of the model; near it are "
                f"{', '.join(_near(pattern.strip(), paths))}"
            )
        chosen |= found
    return frozenset(chosen)


def _matches(pattern: str, path: str) -> bool:
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}/*")


def _near(pattern: str, paths: Collection[str]) -> list[str]:
    modules = {
        "/".join(parts[:depth]) for path in paths if (parts := path.split("/")) for depth in range(1, len(parts))
    }
    return difflib.get_close_matches(pattern, sorted(modules) + sorted(paths), MAX_SHOWN, cutoff=0.0)
