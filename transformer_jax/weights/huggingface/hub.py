"""Models by their names on HuggingFace's hub."""

from pathlib import Path

from transformer_jax.errors import InputError, in_one_line
from transformer_jax.outside_files import standing

KINDS = "*.safetensors", "*.json", "*.spm", "*.jinja"  # files to download


def local_directory(what: str | Path) -> Path:
    """Return a local directory as it is, or download a model from the hub and return its directory in the hub's cache.

    Only safetensors, JSON and SentencePiece files and chat templates are downloaded.

    Raises:
        InputError: there is no such directory, and no such model on the hub or no network.
    """
    directory = standing(Path(what))
    if directory.is_dir():
        return directory
    try:
        import huggingface_hub

        return Path(huggingface_hub.snapshot_download(str(what), allow_patterns=[*KINDS]))
    except ImportError as error:
        raise InputError(
            f"{what} is not a directory; for models on the hub, pip install"
            " transformer-jax[pretrained]"
        ) from error
    except Exception as error:  # of many classes, of several libraries
        raise InputError(
            f"{what} is not a directory, and cannot be downloaded: {in_one_line(error)}"
        ) from error
