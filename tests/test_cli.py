"""A command ends with one line, or in silence, and with a status that says why; it saves what it can."""

import ast
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from commands import call, own_handlers, start
from kill_and_resume import READ_ONLY_CACHE, command
from repository import REPOSITORY

from transformer_jax.cli import run

SETTINGS = ("--max-epochs=2", "--train-size=2000", "--val-size=257", "--test-size=257", "--warmup=3", "--eval-every=1")
LONG = ("--max-epochs=100000", *SETTINGS[1:])
PATIENCE = 300  # seconds


@contextmanager
def started(arguments: list[str], **options) -> Iterator[subprocess.Popen]:
    """A command in a process group of its own, with buffered output as most users have it, killed after the block."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(arguments, start_new_session=True, **{**pipes, **options}) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(holds, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def handlers_come_back() -> Iterator[None]:
    with own_handlers():
        yield


@pytest.mark.slow
def test_a_signal_during_imports_ends_a_command_in_silence(tmp_path):
    with started(command("reverse.py", tmp_path)) as process:
        wait_until(lambda: "jaxlib" in Path(f"/proc/{process.pid}/maps").read_text(), process)
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=PATIENCE)
    assert (process.returncode, *output) == (128 + signal.SIGINT, "", "")


@pytest.mark.parametrize("script", sorted((REPOSITORY / "experiments").glob("*.py")), ids=lambda script: script.name)
def test_every_command_ends_at_signals_before_it_imports_what_takes_long(script):
    _, handling, *_ = ast.parse(script.read_text(encoding="utf-8")).body  # behind the docstring
    assert ast.unparse(handling).splitlines()[1:] == [
        "    from transformer_jax.training.signals import end_at_signals", "    end_at_signals()",
    ]  # fmt: skip


@pytest.mark.slow
def test_workers_end_after_a_killed_main_process(tmp_path):
    with started(command("reverse.py", tmp_path, *LONG, "--num-workers=2")) as process:
        workers: list[psutil.Process] = []

        def two_work() -> bool:
            with suppress(psutil.NoSuchProcess):  # a child that has ended since it was listed
                children = psutil.Process(process.pid).children(recursive=True)
                workers[:] = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
            return len(workers) >= 2

        wait_until(two_work, process)
        process.kill()
    _, alive = psutil.wait_procs(workers, timeout=PATIENCE)
    assert alive == []


@pytest.mark.slow
def test_a_full_disk_is_one_line_of_ours(tmp_path):
    # The operating system takes no more in one file, as a full disk does.
    limited = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    process = subprocess.run(
        [sys.executable, "-c", limited, *command("reverse.py", tmp_path, *SETTINGS)],
        capture_output=True, text=True, timeout=PATIENCE, env=os.environ | READ_ONLY_CACHE,
    )  # fmt: skip
    assert process.returncode == 2
    # Threads of other libraries may print errors of their own beside it, and before it in the same line.
    assert len(re.findall("reverse.py: error: .*written", process.stderr)) == process.stderr.count("error: ") == 1, (
        process.stderr
    )


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], SETTINGS])
def test_output_that_nobody_reads_is_no_error(arguments, tmp_path):
    with started(command("reverse.py", tmp_path, *arguments)) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=PATIENCE) == 128 + signal.SIGPIPE


@pytest.mark.slow
def test_output_for_which_there_is_no_room_is_one_line(tmp_path):
    with open("/dev/full", "w") as full:
        process = start("reverse.py", "--help", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert process.returncode == 2
    assert process.stderr == "reverse.py: error: [Errno 28] No space left on device\n"


def test_a_compilation_cache_that_is_no_directory_is_an_error(tmp_path):
    file = tmp_path / "file"
    file.touch()
    outcome = call("reverse.py", f"--compilation-cache={file}", f"--checkpoint-dir={tmp_path}")
    assert outcome.status == 2
    assert f"File exists: '{file}'" in outcome.stderr
    assert outcome.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["pairs.tsv", "two\nlines", "caf\udce9", "a" * 300])
def test_an_error_of_the_operating_system_is_one_line_that_names_the_file(
    name, handlers_come_back, capsys, monkeypatch
):
    monkeypatch.setattr(sys, "argv", ["/experiments/task.py"])
    monkeypatch.setattr("gc.freeze", lambda: None)  # this process goes on afterwards
    with pytest.raises(SystemExit, match="2"):
        run(lambda arguments: None, lambda config: Path(f"/nowhere/{name}").read_text())
    error = capsys.readouterr().err
    assert error.startswith("task.py: error: [Errno ")
    assert f"/nowhere/{name[:3]}" in error
    assert error.count("\n") == 1
