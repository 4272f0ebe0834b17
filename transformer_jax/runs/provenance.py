"""Where a run's results come from: the versions of the libraries, the commit of this package."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy", "torch", "transformer-jax")
REPOSITORY = Path(__file__).parents[2]  # where the package is not installed
GIT = ("git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
MAX_SECONDS = 5.0  # for git


def versions() -> dict[str, str | None]:
    """The versions of Python and of the libraries that compute; None for one that is not installed."""
    return {"python": platform.python_version()} | {name.replace("-", "_"): _version(name) for name in LIBRARIES}


def git_commit(repository: Path = REPOSITORY) -> str | None:
    """The commit of a git repository, with `-dirty` if a file that it tracks was changed.

    Returns:
        None if there is no repository, as where the package is installed, or git is missing or fails.
    """
    if not (repository / ".git").exists():
        return None
    try:
        asked = subprocess.run(GIT, cwd=repository, capture_output=True, text=True, timeout=MAX_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
