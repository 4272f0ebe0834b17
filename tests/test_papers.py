"""The page of papers: its numbers are those of the committed results, and its commands work."""

import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import product
from typing import get_args

import page
import pytest
from commands import call
from faults.comparing import differences
from kill_and_resume import READ_ONLY_CACHE
from repository import REPOSITORY

from transformer_jax import TranslationConfig
from transformer_jax.cli import parse

PAPERS = REPOSITORY / "experiments" / "papers"


@pytest.fixture(scope="module")
def names() -> dict:
    return runpy.run_path(str(PAPERS / "make_tables.py"))


def test_the_page_is_made_from_the_committed_results(names):
    assert (REPOSITORY / "docs" / "papers.md").read_text(encoding="utf-8") == names["text"](names["TABLES"])


def test_mean_and_deviation_are_over_the_seeds():
    assert page.spread([2.0, 4.0, 9.5]) == "5.1667 ± 3.8837"
    assert page.spread([1_200.0, 1_300.0]) == "1,250 ± 70.7107"
    assert page.spread([4e-7]) == "4.0e-07"
    assert page.spread([5.0]) == "5"
    assert page.spread([]) == "not run"


def test_a_run_that_was_tested_again_keeps_its_line(names, tmp_path):
    found, file = tmp_path / "runs" / "seed0" / "results.json", tmp_path / "results.json"
    found.parent.mkdir(parents=True)
    found.write_text('{"test": {"loss": 0.123456789}, "eval_seconds": 5, "settings": {"lr": 1}}')
    names["keep"](tmp_path / "runs", file)
    first = json.loads(file.read_text())
    assert first["seed0"]["test"] == {"loss": 0.123457}
    assert "settings" not in first["seed0"]
    found.write_text('{"test": {"loss": 0.123456789}, "eval_seconds": 7, "settings": {"lr": 1}}')
    names["keep"](tmp_path / "runs", file)
    assert json.loads(file.read_text()) == first
    found.write_text('{"test": {"loss": 0.5}, "eval_seconds": 7, "settings": {"lr": 1}}')
    names["keep"](tmp_path / "runs", file)
    assert json.loads(file.read_text())["seed0"]["eval_seconds"] == 7


def test_each_table_has_its_place_in_the_page_and_can_be_chosen(names):
    page = (REPOSITORY / "docs" / "papers.md").read_text(encoding="utf-8")
    assert all(page.count(f"<!-- table {name} -->") == 1 for name in names["TABLES"])
    assert [*names["TABLES"]] == [name for name in get_args(names["Chosen"]) if name not in ("all", "none")]


@pytest.mark.slow
def test_a_quick_table_that_is_killed_half_way_goes_on_and_ends_bit_for_bit_the_same(tmp_path):
    page = (REPOSITORY / "docs" / "papers.md").read_bytes()
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    command = [sys.executable, PAPERS / "make_tables.py", "--quick", "--train", "LargestOfASet", "--checkpoint-dir"]
    finish = partial(subprocess.run, capture_output=True, text=True, check=True)
    assert finish([*command, whole]).stdout.count("step 7 of 7") == 5  # poolings
    options = {"stdout": subprocess.DEVNULL, "start_new_session": True, "env": os.environ | READ_ONLY_CACHE}
    with subprocess.Popen([*command, killed], **options) as process:
        while not (killed / "LargestOfASet" / "pooling=max,seed0").is_dir() and process.poll() is None:  # the third
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGKILL)  # the training that it started, too
    assert process.returncode == -signal.SIGKILL
    assert not (killed / "papers.md").exists()
    assert finish([*command, killed]).stdout.count("Going on after step 7 of 7") == 2  # these are only tested again
    for run in (whole / "LargestOfASet").glob("pooling=*"):
        assert differences(killed / "LargestOfASet" / run.name, run) == {}
    tables = [
        (of / "papers.md").read_text(encoding="utf-8").split("<!-- table LargestOfASet -->")[1]
        for of in (whole, killed)
    ]
    values = [re.findall(r"\| (\S+) \| 1 \| \d+ \|", table.split("<!-- end of the table -->")[0]) for table in tables]
    assert values[0] == values[1]
    assert len(values[0]) == 5
    assert (REPOSITORY / "docs" / "papers.md").read_bytes() == page


@pytest.mark.slow
@pytest.mark.parametrize("script", ["in_context.py", "grokking.py", "rasp.py", "length.py", "scan.py"])
def test_quick_papers_run(script, tmp_path):
    outcome = call(f"papers/{script}", "--quick", "--checkpoint-dir", tmp_path)
    assert outcome.status == 0, outcome.stderr
    assert "Test loss:" in outcome.stdout


def test_a_pronouncing_dictionary_becomes_the_pairs_that_the_command_trains_on(tmp_path):
    section = (REPOSITORY / "docs" / "papers.md").read_text(encoding="utf-8").split("## Spelling to sound")[1]
    to_pairs, train = section.split("```")[1].strip().splitlines()
    sounds = {"a": "AH0", "b": "B", "c": "K", "d": "D"}
    words = ["".join(word) for word in product(sounds, repeat=3)]
    lines = [f"{word} {' '.join(sounds[letter] for letter in word)}\n" for word in words]
    (tmp_path / "cmudict.dict").write_text(";;; a comment\n" + "".join(lines) + "bad(2) B AH0 D T\n", encoding="utf-8")
    subprocess.run(to_pairs, shell=True, cwd=tmp_path, check=True)
    pairs = (tmp_path / "sounds.tsv").read_text(encoding="utf-8").splitlines()
    assert [pairs[0], pairs[-1], len(pairs)] == ["aaa\tAH0 AH0 AH0", "bad\tB AH0 D T", 65]
    flags = shlex.split(train.replace("sounds.tsv", str(tmp_path / "sounds.tsv")))[2:]
    counts = parse(TranslationConfig, flags, task="TranslationTask").splits().counts()
    assert counts == {"train": 59, "val": 3, "test": 3, "too_long": 0, "held_elsewhere": 0}
