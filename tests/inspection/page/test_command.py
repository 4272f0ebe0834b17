"""`python -m transformer_jax.inspection`: what it prints and writes, and its errors in one line."""

import argparse
import re
from pathlib import Path

import pytest

from transformer_jax import InputError
from transformer_jax.inspection.__main__ import carry_out, read_command

NUMBERS = ["3", "1", "4", "1", "5", "9", "2", "6", "5", "3", "5", "8", "9", "7", "9", "3"]


def command(run: str, words: list[str], output: Path) -> argparse.Namespace:
    return read_command([run, *words, "--output", str(output)])


def test_the_output_must_not_be_a_directory():
    with pytest.raises(InputError, match="--output is .; it must be a file"):
        read_command(["reverse", "--output", "."])


def test_only_the_run_is_required():
    with pytest.raises(InputError, match="the following arguments are required: RUN$"):
        read_command([])


@pytest.mark.parametrize(
    ("run", "words", "message"),
    [
        ("nothing", [], "RUN is nothing; it must be a run's directory, .* .dates, digits, reverse., or a directory"),
        ("reverse", ["3"] * 5001, "5001"),
        (".", [], "config.json"),
    ],
)
def test_invalid_runs_and_inputs_are_errors_and_nothing_is_written(tmp_path, run, words, message):
    with pytest.raises((InputError, OSError), match=message):
        carry_out(command(run, words, tmp_path / "page.html"))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_numbers_are_printed_with_the_probability_of_each_and_the_page_is_written(tmp_path, capsys):
    carry_out(command("reverse", NUMBERS, tmp_path / "page.html"))
    title, answer, parts, written = capsys.readouterr().out.splitlines()
    assert title == " ".join(NUMBERS)
    assert answer.startswith(f"  → {' '.join(reversed(NUMBERS))}  98.")
    assert len(re.findall(r"\d (\d+\.\d+)%", parts)) == 16
    assert written == f"Written: {tmp_path / 'page.html'}"
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
