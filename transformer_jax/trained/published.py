"""Models published by the tutorials' authors, by name, and files in the same two formats, by path."""

import os
from pathlib import Path
from typing import NamedTuple

from transformer_jax.data.downloads import download
from transformer_jax.errors import InputError, check_value
from transformer_jax.nn.predictor import TransformerPredictor
from transformer_jax.runs.own_files import digest_of
from transformer_jax.trees import Params
from transformer_jax.weights.tutorials import load_tutorial_weights


class Published(NamedTuple):
    """A published file."""

    url: str
    num_heads: int  # H, which Flax files do not contain
    sha256: str | None = None  # None if unknown


BASE_URL = "https://raw.githubusercontent.com/phlippe/saved_models/main/"
PUBLISHED = {
    "reverse-jax": Published(
        BASE_URL + "JAX/tutorial6/ReverseTask.ckpt",
        num_heads=1,
        sha256="af733e4191eafd377769576d3a9e06fde606748881ca887ef4462d92c3b038f9",
    ),
    "reverse-pytorch": Published(
        BASE_URL + "tutorial6/ReverseTask.ckpt",
        num_heads=1,
        sha256="30bc6601c4818c15f0e4d12aabcebfc199ba8cb40386ecbe90aaae9e6693c19b",
    ),
    "anomaly-jax": Published(BASE_URL + "JAX/tutorial6/SetAnomalyTask.ckpt", num_heads=4),
    "anomaly-pytorch": Published(BASE_URL + "tutorial6/SetAnomalyTask.ckpt", num_heads=4),
}


def load_pretrained(
    what: str | Path, *, num_heads: int | None = None, cache_dir: str | Path = "data/pretrained"
) -> tuple[TransformerPredictor, Params]:
    """Load a published model, or a file saved by the tutorials' code.

    The reverse task's models take one-hot numbers and positions; the anomaly task's take ResNet-34 features without
    positions (`add_positional_encoding=False`).

    Args:
        what: `reverse-jax`, `reverse-pytorch`, `anomaly-jax` or `anomaly-pytorch`, which are downloaded once; or the
            path of a Flax msgpack or a PyTorch Lightning checkpoint, told apart by their content.
        num_heads: H, if the file does not contain it; it is known for the published models.
        cache_dir: directory for downloaded files.

    Returns:
        The model, and its parameters, for `model.apply({"params": params}, …)`: NumPy arrays.

    Raises:
        InputError: the file does not exist, cannot be downloaded (a failed download leaves no file), is not the
            published one, or is rejected by `load_tutorial_weights`.
    """
    check_value("what", what, str | Path)
    if what not in PUBLISHED:
        if not os.path.isfile(what):
            raise InputError(f"what is {what}; it must be a file, or one of {', '.join(PUBLISHED)}")
        return load_tutorial_weights(what, num_heads=num_heads)
    published = PUBLISHED[str(what)]
    if num_heads not in (None, published.num_heads):
        raise InputError(f"num_heads is {num_heads}; that of {what} is {published.num_heads}")
    path = Path(cache_dir) / f"{what}.ckpt"
    if not path.is_file():
        download(published.url, path, str(what))
    try:
        digest = digest_of(path)
        if published.sha256 not in (None, digest):
            raise InputError(
                f"{path} is not the published file: its SHA-256 is {digest}, not {published.sha256}"
            )
        return load_tutorial_weights(path, num_heads=published.num_heads)
    except (OSError, InputError) as error:
        raise InputError(f"{error}; remove {path} to download it again") from error
