"""Export a trained run as a directory of settings, parameters and digests, which `load_run` opens like the run."""

from pathlib import Path

from transformer_jax.errors import InputError
from transformer_jax.runs.format import FORMAT
from transformer_jax.runs.record import write_json
from transformer_jax.runs.settings import CONFIG, settings_of
from transformer_jax.trained.load import load_run
from transformer_jax.trained.shipped import write_params


def ship(run: str | Path, destination: str | Path) -> None:
    """Write the settings and the best parameters of a run; settings that do not affect the parameters get defaults.

    Args:
        run: directory of the run.
        destination: directory of the model, `transformer_jax/trained/models/reverse` for example.

    Raises:
        InputError: as `load_run` does, or the destination can't be written.
    """
    trainer, destination = load_run(run), Path(destination)
    settings = {"format": FORMAT, **settings_of(trainer.name, trainer.config.without_neutral())}
    try:
        destination.mkdir(parents=True, exist_ok=True)
        write_json(destination / CONFIG, settings)
        write_params(destination, trainer.params)
    except OSError as error:
        raise InputError(
            f"destination is {destination}; it must be a directory that can be written ({error})"
        ) from error
