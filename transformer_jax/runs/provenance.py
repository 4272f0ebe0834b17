"""Where a run's results come from: its settings, the versions of the libraries, the commit of this package."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

from transformer_jax.runs.settings import Json

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy", "torch", "transformer-jax")
PACKAGE = Path(__file__).parents[1]
MAX_SECONDS = 5.0  # for git
ASKED_OF_GIT = (
    ("ls-files", "--error-unmatch", "__init__.py"),  # fails if no repository tracks the package
    ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"),
)


def provenance(settings: Json) -> Json:
    """Settings, versions and commit of a run, as `results.json` holds them.

    Args:
        settings: of the run, as its `config.json` has them.
    """
    return {"settings": dict(settings), "versions": versions(), "git_commit": git_commit()}


def versions() -> dict[str, str | None]:
    """The versions of Python and of the libraries that compute; None for one that is not installed."""
    return {"python": platform.python_version()} | {name.replace("-", "_"): _version(name) for name in LIBRARIES}


def git_commit(package: Path = PACKAGE) -> str | None:
    """The commit of the git repository that holds the package, with `-dirty` if a file that it tracks was changed.

    Args:
        package: directory with an `__init__.py`.

    Returns:
        None if no repository tracks the package, as where it is installed, or git is missing or fails.
    """
    is_tracked, commit = (_git(package, *asked) for asked in ASKED_OF_GIT)
    return None if is_tracked is None else commit


def _git(directory: Path, *arguments: str) -> str | None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        process = subprocess.run(
            ["git", *arguments],
            cwd=directory,
            env={**environment, "GIT_OPTIONAL_LOCKS": "0"},  # it writes nothing
            capture_output=True,
            text=True,
            timeout=MAX_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return None
    return process.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
