"""The page of papers: its numbers are those of the committed results, and its commands work."""

import json
import runpy
import subprocess
import sys

import pytest
from repository import REPOSITORY

PAPERS = REPOSITORY / "experiments" / "papers"


@pytest.fixture(scope="module")
def names() -> dict:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PAPERS)
        return runpy.run_path(str(PAPERS / "make_tables.py"))


def test_the_page_is_made_from_the_committed_results(names):
    assert (REPOSITORY / "docs" / "papers.md").read_text(encoding="utf-8") == names["text"]()


def test_mean_and_deviation_are_over_the_seeds(names):
    assert names["spread"]([2.0, 4.0, 9.0]) == "5.0000 ± 3.6056"
    assert names["spread"]([1_200.0, 1_300.0]) == "1,250 ± 71"
    assert names["spread"]([2.0]) == "2.0000"
    assert names["spread"]([]) == "not run"


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


def test_papers_take_the_lines_that_they_may():
    for script in PAPERS.glob("*.py"):
        assert len(script.read_text(encoding="utf-8").splitlines()) <= 120, script.name


@pytest.mark.slow
def test_quick_papers_train_each_row_and_write_beside_their_runs(names, tmp_path):
    page = (REPOSITORY / "docs" / "papers.md").read_bytes()
    command = [sys.executable, PAPERS / "make_tables.py", "--quick", "--checkpoint-dir", tmp_path]
    first, second = (
        subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600, check=True).stdout
        for _ in range(2)
    )
    made = (tmp_path / "papers.md").read_text(encoding="utf-8")
    assert all(f"<!-- table {name} -->" in made for name in names["TABLES"])
    assert made.count("| not run |") == 1  # of the steps until all is learned, which --quick doesn't reach
    trained, tested = "Epoch 1, step 7 of 7", "Going on after step 7 of 7"
    assert trained in first
    assert trained not in second  # finished runs are only tested again
    assert tested in second
    assert (REPOSITORY / "docs" / "papers.md").read_bytes() == page
