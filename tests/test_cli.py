"""A command ends silently or with one line, and with a status that says why; it saves what it can."""

import contextlib
import gc
import io
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import jax
import pytest
from commands import call, command, own_handlers

from transformer_jax.__main__ import main
from transformer_jax.cli import run
from transformer_jax.errors import InputError, check_whole
from transformer_jax.flags import escape_output

SETTINGS = ("--max-epochs=2", "--train-size=2000", "--val-size=257", "--test-size=257", "--warmup=3", "--eval-every=1")
PATIENCE = 300  # seconds


@contextmanager
def started(arguments: list[str]) -> Iterator[subprocess.Popen]:
    """Start a command in its own process group, with buffered output as usual; kill it after the `with` block."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(arguments, start_new_session=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_a_signal_during_imports_ends_a_command_in_silence(tmp_path):
    with started(command("translate.py", tmp_path)) as process:
        while "jaxlib" not in Path(f"/proc/{process.pid}/maps").read_text():
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=PATIENCE)
    assert (process.returncode, *output) == (128 + signal.SIGINT, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], SETTINGS])
def test_output_that_nobody_reads_is_no_error(arguments, tmp_path):
    with started(command("reverse.py", tmp_path, *arguments)) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=PATIENCE) == 128 + signal.SIGPIPE


@contextmanager
def standard_output(file: Path, **options) -> Iterator[None]:
    """Redirect standard output to a file in a `with` block, opened as by Python, then as by a command."""
    with file.open("wb", buffering=options.pop("buffering", -1)) as raw, pytest.MonkeyPatch.context() as patch:
        stream = io.TextIOWrapper(raw, **options)
        for name in ("stdout", "__stdout__"):
            patch.setattr(sys, name, stream)
        escape_output()
        try:
            yield
            sys.stdout.flush()
        finally:
            with contextlib.suppress(OSError):  # what could not be written stays in the buffer
                sys.stdout.close()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "cp437", "gbk", "utf-8", "utf-16"])
def test_what_an_encoding_lacks_is_printed_as_an_escape(encoding, tmp_path):
    text = "".join(map(chr, range(32, 2**12))) + "日本 😀 \udce9"
    with standard_output(tmp_path / "out", encoding=encoding):
        print(text, end="")
    assert (tmp_path / "out").read_bytes() == text.encode(encoding, "backslashreplace")


@pytest.mark.parametrize("write_through", [False, True])
def test_a_text_is_written_whole_or_that_is_an_error(write_through, tmp_path):
    raw = {"buffering": 0, "write_through": True} if write_through else {}  # as with PYTHONUNBUFFERED
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # a write of more is short, as on a full disk
    try:
        with pytest.raises(OSError, match="File too large"), standard_output(tmp_path / "out", **raw):
            print("a" * 5000, end="", flush=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_compilation_cache_that_is_no_directory_is_an_error(tmp_path):
    file = tmp_path / "file"
    file.touch()
    outcome = call("reverse.py", f"--compilation-cache={file}", f"--checkpoint-dir={tmp_path}")
    assert outcome.status == 2
    assert f"File exists: '{file}'" in outcome.stderr
    assert outcome.stderr.count("\n") == 1


@pytest.fixture
def error_of(monkeypatch, capsys):
    """Function that runs a training as a command that fails, and returns its output."""
    monkeypatch.setattr(sys, "argv", ["/experiments/task.py"])
    monkeypatch.setattr("gc.freeze", lambda: None)  # this process goes on afterwards

    def error_of(train) -> str:
        with own_handlers(), pytest.raises(SystemExit, match="2"):
            run(lambda arguments: None, train)
        return capsys.readouterr().err

    return error_of


@pytest.mark.parametrize("name", ["pairs.tsv", "two\nlines", "caf\udce9", "a" * 300])
def test_an_error_of_the_operating_system_is_one_line_that_names_the_file(name, error_of):
    error = error_of(lambda config: Path(f"/nowhere/{name}").read_text())
    assert error.startswith("task.py: error: [Errno ")
    assert f"/nowhere/{name[:3]}" in error
    assert error.count("\n") == 1


def test_an_error_inside_a_traced_function_is_one_line_without_the_note_that_jax_adds(error_of):
    def fail(x):
        raise InputError("lr is 0")

    assert error_of(lambda config: jax.jit(fail)(0)) == "task.py: error: lr is 0\n"


def test_what_an_error_quotes_moves_no_cursor_and_is_cut(error_of):
    error = error_of(lambda config: check_whole("lr\x1b[2J\u202e", "w" * 10**6, 1))
    assert error.startswith("task.py: error: lr\\x1b[2J\\u202e is 'www")
    assert len(error) < 5000
    assert error[:-1].isprintable()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ("", 0, "commands:\n  reverse         train a Transformer to reverse sequences of numbers\n  anomaly "),
        ("--help-all", 0, "  trained         export a trained model\n"),
        (
            "trained",
            2,
            "python -m transformer_jax.trained: error: the following arguments are required: export, RUN, D",
        ),
        ("revers", 2, "unknown command: revers; did you mean reverse?"),
        ("reverse --lr abc", 2, "python -m transformer_jax reverse: error: --lr is 'abc'; it must be float"),
        ("runs nowhere", 2, "DIR is nowhere; it must be a directory"),
    ],
)
def test_every_command_has_one_entry(arguments, status, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["transformer_jax", *arguments.split()])
    for name in ("runs", "trained"):
        monkeypatch.delitem(sys.modules, f"transformer_jax.{name}.__main__", raising=False)
    ends = pytest.raises(SystemExit, match=f"^{status}$") if status else contextlib.nullcontext()
    with own_handlers(), mock.patch.multiple(gc, freeze=mock.DEFAULT, unfreeze=mock.DEFAULT), ends:
        main()
    assert said in "".join(capsys.readouterr())
