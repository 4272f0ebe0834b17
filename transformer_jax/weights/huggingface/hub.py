"""Models by their names on HuggingFace's hub."""

from pathlib import Path

from transformer_jax.errors import InputError, in_one_line
from transformer_jax.outside_files import standing

KINDS = "*.safetensors", "*.json", "*.spm", "*.jinja"  # of files that are downloaded


def local_directory(what: str | Path) -> Path:
    """A directory as it is; of a model on the hub that in which the library `huggingface_hub` keeps it.

    Of the model only safetensors, JSON and SentencePiece files and chat templates are downloaded.

    Raises:
        InputError: there is no such directory, and no such model on the hub or no network.
    """
    if (directory := standing(Path(what))).is_dir():
        return directory
    try:
        import huggingface_hub

        return Path(huggingface_hub.snapshot_download(str(what), allow_patterns=[*KINDS]))
    except ImportError as error:
        raise InputError(
            f"{what} is no directory; models of the hub need pip install transformer-jax[pretrained]"
        ) from error
    except Exception as error:  # of many classes, of several libraries
        raise InputError(f"{what} is no directory, and can't be downloaded: {in_one_line(error)}") from error
