"""Models that ship: a directory of settings, parameters, and the SHA-256 of both, as `sha256sum -c` reads it."""

import hashlib
import os
from pathlib import Path

import flax.serialization
import jax
import numpy as np

from transformer_jax.errors import InputError
from transformer_jax.runs.settings import CONFIG, PARAMETERS
from transformer_jax.trees import Params
from transformer_jax.weights.files import read_regular, weights_of
from transformer_jax.weights.layouts import Arrays

SHIPPED = Path(__file__).parent / "models"  # a directory for each model, of its name
DIGESTS = "SHA256SUMS"
FILES = (CONFIG, PARAMETERS)


def shipped_models() -> list[str]:
    """The names of the models that ship."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG}"))


def named_directory(what: str | Path) -> Path:
    """The directory of the model that ships if `what` is its name, else `what` as a path.

    Raises:
        InputError: the name of a model that ships is that of a directory here too.
    """
    if not isinstance(what, str) or what not in shipped_models():
        return Path(what)
    if os.path.isdir(what):
        raise InputError(
            f"{what} is a model that ships, and a directory here; choose ./{what} for the directory, or "
            f"{SHIPPED / what} for the model"
        )
    return SHIPPED / what


def is_shipped(directory: Path) -> bool:
    """Whether a directory is that of a model that ships, complete or not, and not that of a run."""
    return any(os.path.lexists(directory / name) for name in (PARAMETERS, DIGESTS))


def write_params(directory: Path, params: Params) -> None:
    """Write the parameters of a model beside its settings, and then the digests of both."""
    content = flax.serialization.msgpack_serialize(jax.tree.map(np.asarray, params))
    (directory / PARAMETERS).write_bytes(content)
    write_digests(directory)


def write_digests(directory: Path) -> None:
    """Write the digests of the settings and the parameters that are in a directory."""
    lines = [f"{_digest((directory / name).read_bytes())}  {name}\n" for name in FILES]
    (directory / DIGESTS).write_text("".join(lines), encoding="ascii")


def read_params(directory: Path) -> Arrays:
    """The parameters of a model that ships, by path.

    Raises:
        InputError: a file is missing, can't be read, or does not agree with its digest.
    """
    if missing := [name for name in (*FILES, DIGESTS) if not os.path.lexists(directory / name)]:
        raise InputError(f"the model in {directory} is incomplete: {missing[0]} is missing")
    digests = set(read_regular(directory / DIGESTS).decode("ascii", errors="replace").splitlines())
    contents = {name: read_regular(directory / name) for name in FILES}
    for name, content in contents.items():
        if f"{_digest(content)}  {name}" not in digests:
            raise InputError(f"{directory / name} was damaged or changed: its SHA-256 is not that in {DIGESTS}")
    return weights_of(contents[PARAMETERS], directory / PARAMETERS).arrays


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
