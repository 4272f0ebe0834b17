"""Models that ship: a directory of settings, parameters, and the SHA-256 of both, as `sha256sum -c` reads it.

`load_run` opens it like a run.
"""

import hashlib
from pathlib import Path

import flax.serialization
import jax
import numpy as np

from transformer_jax.errors import InputError
from transformer_jax.outside_files import outside_file, writing_into
from transformer_jax.runs.settings import CONFIG, MAX_CONFIG_BYTES, PARAMETERS, settings_of, write_settings
from transformer_jax.training.trainer import TrainerModule
from transformer_jax.trees import Params
from transformer_jax.weights.files import MAX_BYTES, read_weights
from transformer_jax.weights.layouts import as_tree

SHIPPED = Path(__file__).parent / "models"  # a directory for each model, of its name
DIGESTS = "SHA256SUMS"
FILES = (CONFIG, PARAMETERS)


def shipped_models() -> list[str]:
    """The names of the models that ship."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG}"))


def named_directory(what: str | Path) -> Path:
    """The directory of the model that ships if `what` is its name, else `what` as a path: `./reverse` is always one."""
    return SHIPPED / what if isinstance(what, str) and what in shipped_models() else Path(what)


def ship(trainer: TrainerModule, destination: str | Path) -> None:
    """Write the settings and the parameters of a run; settings that do not affect the parameters get defaults.

    Args:
        trainer: of the run, from `load_run`.
        destination: directory of the model, `transformer_jax/trained/models/reverse` for example.

    Raises:
        InputError: the destination can't be written.
    """
    destination = Path(destination)
    with writing_into("destination", destination):
        destination.mkdir(parents=True, exist_ok=True)
        write_settings(destination, settings_of(trainer.name, trainer.config.without_neutral()))
        content = flax.serialization.msgpack_serialize(jax.tree.map(np.asarray, trainer.params))
        (destination / PARAMETERS).write_bytes(content)
        write_digests(destination)


def write_digests(directory: Path) -> None:
    """Write the digests of the settings and the parameters that are in a directory."""
    lines = [f"{_digest((directory / name).read_bytes())}  {name}\n" for name in FILES]
    (directory / DIGESTS).write_text("".join(lines), encoding="ascii")


def read_params(directory: Path) -> Params:
    """The parameters of a model that ships.

    Raises:
        InputError: a file is missing, can't be read, or does not agree with its digest.
    """
    with outside_file(directory / DIGESTS, "a list of digests", MAX_CONFIG_BYTES) as file:
        digests = set(file.read_text(encoding="ascii", errors="replace").splitlines())
    for name in FILES:
        with outside_file(directory / name, "a file of a model", MAX_BYTES) as file:
            if f"{_digest(file.read_bytes())}  {name}" not in digests:
                raise InputError(f"{file} was damaged or changed: its SHA-256 is not that in {DIGESTS}")
    return as_tree(read_weights(directory / PARAMETERS).arrays)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
