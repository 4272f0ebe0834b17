"""The accelerator benchmark with tiny sizes, on a machine without accelerator; its times are not tested."""

import re

import numpy as np
import pytest
from commands import call

import accelerator
import attention

pytestmark = pytest.mark.slow


def test_it_prints_a_row_for_each_thing_that_it_measures_and_keeps_a_profile(tmp_path, monkeypatch, capsys):
    def ended_here(kind, *command):
        if kind == "task":
            assert call(command[0].removeprefix("experiments/"), *command[1:]).status == 0
        return "done", 1.0

    monkeypatch.setattr(attention, "TURN_SECONDS", 0.01)
    monkeypatch.setattr(accelerator, "ended", ended_here)
    accelerator.main(accelerator.AcceleratorConfig(tiny=True, tasks=("reverse",), profile=tmp_path, steps=2))
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [row.split("|")[1].split(",")[0].strip() for row in rows] == ["tests", "reverse", "GPT-2", "attention"]
    assert "| done |" in rows[0]
    assert re.search(r"accuracy .* \| compilation \d+ s \|", rows[1])
    assert "tokens/s" in rows[2]
    assert "nan" not in rows[3]
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_the_full_gpt2_gets_random_tokens_of_its_whole_vocabulary():
    trainer, loader = accelerator.gpt2(accelerator.AcceleratorConfig())
    tokens, targets = next(loader.epoch(0))
    assert tokens.shape == (32, 1024)
    np.testing.assert_array_equal(tokens[:, 1:], targets[:, :-1])
    assert len(np.unique(tokens)) > 20_000  # of 32 · 1024 draws
    assert (trainer.model.num_layers, trainer.model.vocabulary_size) == (12, 50304)


def test_a_command_that_fails_or_takes_too_long_says_so(monkeypatch):
    assert accelerator.ended("task", "-c", "raise SystemExit('lr is 0')")[0] == "lr is 0"
    monkeypatch.setitem(accelerator.SECONDS, "task", 1)
    assert accelerator.ended("task", "-c", "import time; time.sleep(9)")[0] == "stopped after 1 s"
