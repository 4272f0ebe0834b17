"""Saved models, among them those that ship: settings, parameters, and the SHA-256 of both. `load_run` opens them."""

import os
from pathlib import Path

from transformer_jax.errors import InputError
from transformer_jax.outside_files import outside_file
from transformer_jax.runs.own_files import digest_of
from transformer_jax.runs.saved_model import DIGESTS
from transformer_jax.runs.settings import CONFIG, MAX_CONFIG_BYTES, PARAMETERS, RESULTS, WEIGHTS
from transformer_jax.trees import Params
from transformer_jax.weights.files import MAX_BYTES, read_weights
from transformer_jax.weights.layouts import as_tree

SHIPPED = Path(__file__).parent / "models"  # a directory for each model, of its name


def shipped_models() -> list[str]:
    """The names of the models that ship."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG}"))


def named_directory(what: str | Path) -> Path:
    """The directory of the model that ships if `what` is its name, else `what` as a path: `./reverse` is always one."""
    return SHIPPED / what if isinstance(what, str) and what in shipped_models() else Path(what)


def is_saved(directory: Path) -> bool:
    """Whether a directory is that of a saved model, and not that of a run."""
    return any(os.path.lexists(directory / name) for name in (WEIGHTS, PARAMETERS))


def read_params(directory: Path) -> Params:
    """The parameters of a saved model.

    Raises:
        InputError: a file is missing, can't be read, or does not agree with its digest.
    """
    with outside_file(directory / DIGESTS, "a list of digests", MAX_CONFIG_BYTES) as file:
        digests = set(file.read_text(encoding="ascii", errors="replace").splitlines())
    weights = WEIGHTS if os.path.lexists(directory / WEIGHTS) else PARAMETERS
    settings = sorted(path.name for path in directory.glob("*.json") if path.name != RESULTS)  # and what they name
    for name in (*settings, weights):
        with outside_file(directory / name, "a file of a model", MAX_BYTES) as file:
            if f"{digest_of(file)}  {name}" not in digests:
                raise InputError(f"{file} was damaged or changed: its SHA-256 is not that in {DIGESTS}")
    return as_tree(read_weights(directory / weights).arrays)
