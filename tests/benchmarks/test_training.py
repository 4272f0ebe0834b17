"""The benchmark of training, with a few steps; its times are not judged here."""

import json

import pytest

import training

pytestmark = pytest.mark.slow


def test_it_measures_every_contestant_and_writes_what_it_printed(tmp_path, monkeypatch, capsys):
    path = tmp_path / "training.json"
    monkeypatch.setitem(training.PLANS, "reverse", training.Plan(steps=30, window=(0, 60), spread=1.0))
    contestants = [
        name for name in training.CONTESTANTS if name != "reference_torch"
    ]  # test_reference.py has its steps
    monkeypatch.setattr(training, "CONTESTANTS", contestants)
    training.main(training.BenchmarkConfig(task="reverse", turns=1, quick=True, json=path))
    printed, results = capsys.readouterr().out, json.loads(path.read_text())["reverse"]
    assert list(results) == ["ours", "reference_jax"]
    for name, result in results.items():
        assert result["ours_is_faster_by"] == pytest.approx(result["ms_per_step"] / results["ours"]["ms_per_step"])
        assert f"{result['ms_per_step']:.2f}" in printed, name
