"""Export a trained run as a directory of settings and parameters alone, which `load_run` opens like the run."""

from pathlib import Path

import flax.serialization
import jax
import numpy as np

from transformer_jax.runs.directory import CONFIG, PARAMETERS, settings_of, write_json
from transformer_jax.runs.format import FORMAT
from transformer_jax.trained.load import load_run


def ship(run: str | Path, destination: str | Path) -> None:
    """Write the settings and the best parameters of a run; settings that do not affect the parameters get defaults.

    Args:
        run: directory of the run.
        destination: directory of the model, `checkpoints/pretrained/reverse` for example.

    Raises:
        InputError: as `load_run` does.
    """
    trainer, destination = load_run(run), Path(destination)
    destination.mkdir(parents=True, exist_ok=True)
    write_json(destination / CONFIG, {"format": FORMAT, **settings_of(trainer.name, trainer.config.without_neutral())})
    params = flax.serialization.msgpack_serialize(jax.tree.map(np.asarray, trainer.params))
    (destination / PARAMETERS).write_bytes(params)
