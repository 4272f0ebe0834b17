"""The page of papers: its numbers come from the committed results, and its commands work."""

import json
import re
import subprocess
import time

import make_tables
import page
import pronunciations
import pytest
from commands import call
from tables import TABLES

from transformer_jax.errors import InputError


def test_the_page_is_made_from_the_committed_results_and_has_each_table_once():
    text = page.PAGE.read_text(encoding="utf-8")
    assert text == page.text(TABLES)
    assert all(text.count(f"<!-- table {name} -->") == 1 for name in TABLES)


def test_mean_and_deviation_are_over_the_seeds():
    assert page.spread([2.0, 4.0, 9.5]) == "5.1667 ± 3.8837"
    assert page.spread([1_200.0, 1_300.0]) == "1,250 ± 70.7107"
    assert page.spread([4e-7]) == "4.0e-07"
    assert page.spread([5.0]) == "5"
    assert page.spread([]) == "not run"


def test_a_run_that_was_tested_again_keeps_its_line(tmp_path):
    found, file = tmp_path / "runs" / "seed0" / "results.json", tmp_path / "results.json"
    found.parent.mkdir(parents=True)
    found.write_text('{"device": "cpu", "test": {"loss": 0.123456789}, "eval_seconds": 5, "settings": {"lr": 1}}')
    make_tables.keep(tmp_path / "runs", file)
    first = json.loads(file.read_text())
    assert first["seed0"]["test"] == {"loss": 0.123457}
    assert "settings" not in first["seed0"]
    found.write_text('{"device": "cpu", "test": {"loss": 0.123456789}, "eval_seconds": 7, "settings": {"lr": 1}}')
    make_tables.keep(tmp_path / "runs", file)
    assert json.loads(file.read_text()) == first
    found.write_text('{"device": "NVIDIA H200", "test": {"loss": 0.5}, "eval_seconds": 7, "settings": {"lr": 1}}')
    make_tables.keep(tmp_path / "runs", file)
    again = json.loads(file.read_text())["seed0"]
    assert again["eval_seconds"] == 7
    assert re.fullmatch(r"NVIDIA H200, \d{4}-\d\d-\d\d", again["machine"])
    assert re.fullmatch(r".+, \d+ cores, \d{4}-\d\d-\d\d", first["seed0"]["machine"])


def test_a_table_is_left_out_where_the_data_that_it_needs_are_not_here(tmp_path, capsys):
    make_tables.make(make_tables.Papers(checkpoint_dir=tmp_path, quick=True, train="Multi30k"))
    assert "# Multi30k: needs data/multi30k" in capsys.readouterr().out
    assert "| BLEU | 36.5 | not run | 0 | – |" in (tmp_path / "papers.md").read_text(encoding="utf-8")


def test_with_a_budget_only_seeds_without_results_are_run_each_by_a_command():
    papers = make_tables.Papers(rows="Scan_small", budget_minutes=1.0)
    table = TABLES["Scan_small"]
    complete = {f"{line.runs}seed{seed}": {} for line in table.lines for seed in (0, 3)}
    partly = {f"{table.lines[1].runs}seed4": {}}
    commands = make_tables.commands_of(table, complete | partly, papers)
    assert [command[-2:] for command in commands] == [["--seeds", str(seed)] for seed in (1, 2, 4)]
    assert len(make_tables.commands_of(table, complete, make_tables.Papers())) == 1


def test_rows_keep_their_order_and_an_unknown_one_is_an_error():
    assert make_tables.Papers(rows="Scan,ReverseTask").names == ["Scan", "ReverseTask"]
    with pytest.raises(InputError, match="rows has Skan; it may have ReverseTask, "):
        _ = make_tables.Papers(rows="Skan").names


def test_towards_the_end_of_the_time_commands_are_stopped_or_not_begun(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(make_tables, "LEAST_SECONDS", 0.5)
    monkeypatch.setattr(make_tables, "SAVING_SECONDS", 0)
    saved = tmp_path / "saved"
    waits = f"import signal, pathlib; signal.sigwait([signal.SIGTERM]); pathlib.Path({str(saved)!r}).touch()"
    mask = f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); {waits}"
    make_tables.train("Scan", ["-c", mask], time.monotonic() + 1.5, shares_device=True)
    assert saved.exists()
    make_tables.train("Rasp", ["-c", "raise AssertionError"], time.monotonic() + 0.2, shares_device=True)
    output = capsys.readouterr().out
    assert "# Scan: stopped, the same command goes on" in output
    assert "# Rasp: not begun, 0 seconds are left" in output
    with pytest.raises(subprocess.CalledProcessError):
        make_tables.train("Rasp", ["-c", "raise ValueError"], None, shares_device=False)


@pytest.mark.slow
def test_a_quick_table_that_is_made_again_goes_on_and_is_the_same(tmp_path, monkeypatch, capsys):
    def here(name, command, end, shares_device):
        outcome = call(command[0].removeprefix("experiments/"), *command[1:])
        print(outcome.stdout, outcome.stderr)

    def values() -> list[str]:
        make_tables.make(make_tables.Papers(checkpoint_dir=tmp_path, quick=True, train="LargestOfASet"))
        table = (tmp_path / "papers.md").read_text(encoding="utf-8").split("<!-- table LargestOfASet -->")[1]
        return re.findall(r"\| (\S+) \| 1 \| \d+ \|", table.split("<!-- end of the table -->")[0])

    monkeypatch.setattr(make_tables, "train", here)
    before, first = page.PAGE.read_bytes(), values()
    assert len(first) == 5  # poolings
    capsys.readouterr()
    assert values() == first
    assert capsys.readouterr().out.count("Going on after step 7 of 7") == 5  # these are only tested again
    assert page.PAGE.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("script", ["in_context.py", "grokking.py", "rasp.py", "length.py", "scan.py"])
def test_quick_papers_run(script, tmp_path):
    outcome = call(f"papers/{script}", "--quick", "--checkpoint-dir", tmp_path)
    assert outcome.status == 0, outcome.stderr
    assert "Test loss:" in outcome.stdout


def test_pronunciations_lose_their_stress_and_a_test_word_has_one():
    spoken = {f"{a}{b}{c}": [["AH0", "B"], ["AH1", "B"], ["AO1"]] for a in "abcd" for b in "abcd" for c in "abcd"}
    parts = pronunciations.split_pairs(spoken | {"a.b.": [["B"]], "it's": [["S"]]}, seed=0)
    assert {part: len({word for word, _ in pairs}) for part, pairs in parts.items()} == {
        "test": 6,
        "val": 1,
        "train": 58,
    }
    train = [word for word, _ in parts["train"] if word != "it's"]
    assert dict(parts["train"])[train[0]] == "AO"
    assert parts["train"][:2] == [(train[0], "AH B"), (train[0], "AO")]
    assert {phonemes for _, phonemes in parts["test"]} <= {"AH B", "S"}
