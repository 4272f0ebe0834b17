"""What `make reverse` leaves behind; the test run makes it once."""

from pathlib import Path

import pytest
from commands import start
from made_once import made_once


def reverse_run(factory: pytest.TempPathFactory) -> Path:
    """A directory with the run `ReverseTask` of the command with all its defaults, and with what it `printed`.

    Args:
        factory: the fixture `tmp_path_factory`.
    """

    def train(parent: Path) -> None:
        process = start("reverse.py", "--checkpoint-dir", parent)
        assert (process.returncode, process.stderr) == (0, "")  # no progress bar where there is no terminal
        (parent / "printed").write_text(process.stdout)

    return made_once(factory, "reverse", train)
