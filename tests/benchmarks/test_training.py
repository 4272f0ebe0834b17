"""The training benchmark with a few steps; its times are not tested."""

import json

import pytest

import training

pytestmark = pytest.mark.slow


def test_it_measures_a_contestant_and_writes_what_it_printed(tmp_path, monkeypatch, capsys):
    path = tmp_path / "training.json"
    monkeypatch.setitem(training.PLANS, "reverse", training.Plan(steps=30, window=(0, 60), spread=1.0))
    monkeypatch.setattr(training, "CONTESTANTS", ["ours"])  # test_reference.py has the steps of the others
    training.main(training.BenchmarkConfig(task="reverse", turns=1, quick=True, json=path))
    result = json.loads(path.read_text())["reverse"]["ours"]
    assert (result["ours_is_faster_by"], result["loss"] > 0, result["peak_memory_mib"] > 100) == (1, True, True)
    assert f"{result['ms_per_step']:.2f}" in capsys.readouterr().out
