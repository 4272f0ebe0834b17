"""Whether the run in a directory is the one that shall go on there."""

from pathlib import Path

from transformer_jax.errors import InputError
from transformer_jax.outside_files import Json
from transformer_jax.runs.settings import differing_settings

FOLLOWING_EPOCHS = {"max_epochs", "warmup", "eval_every"}  # a task may choose the others by the number of epochs
REMEDY = "choose another checkpoint_dir or name, or --no-resume --overwrite to replace that run"


def check_settings(path: Path, stored: Json, settings: Json, neutral: frozenset[str]) -> None:
    """Raise an `InputError` if settings differ."""
    differing, remedy = differing_settings(stored, settings, neutral), REMEDY
    if "max_epochs" in differing and set(differing) <= FOLLOWING_EPOCHS:
        remedy = f"a longer training is a new run: give it another name, and --init-from {path}"
    if differing:
        values = ", ".join(f"{name} was {stored.get(name)} and is {settings.get(name)}" for name in differing)
        raise InputError(f"{path} holds a run of other settings: {values}; {remedy}")


def check_beginning(path: Path, saved: Json, data: str, initial_params: str | None, init_from: str | None) -> None:
    """Raise an `InputError` if a run has other data, or began with other parameters, than its checkpoints say.

    Args:
        path: of the run.
        saved: `data` and `initial_params`, as the checkpoints have them.
        data: fingerprint of the data.
        initial_params: digest of the parameters that are given now. A run that goes on does not need the model that it
            began with, which may be gone: None then.
        init_from: the setting.
    """
    if saved["data"] != data:
        raise InputError(f"{path} holds a run of other data: its training or validation set has changed; {REMEDY}")
    digests = saved.get("initial_params"), initial_params
    if digests[0] != digests[1] and (init_from is None or None not in digests):
        source = "the arrays of fit" if init_from is None else init_from
        raise InputError(f"{path} holds a run that began with other parameters: {source} are not the same; {REMEDY}")
