"""What a training prints as it goes on."""

import sys
import types

import numpy as np
import pytest

from transformer_jax.training.callbacks import Step
from transformer_jax.training.progress import ProgressBar, ProgressLines, format_metric, parameter_table, show_progress
from transformer_jax.training.results import summary


def step(number: int) -> Step:
    sums = {"loss": (6.0, 3.0), "accuracy": (3.0, 4.0), "gradient_norm": (1.0, 1.0), "learning_rate": (0.1, 1.0)}
    return Step(number, sums | {"unused": (0.0, 0.0)}, 5.0)


@pytest.mark.parametrize(("num_steps", "left"), [(600, "01:32"), (140, "00:00"), (100_000, "5:32:52")])
def test_a_line_is_printed_every_ten_seconds_with_the_time_left_and_the_status_is_that_of_the_latest_step(
    capsys, num_steps, left
):
    now = [100.0]
    lines = ProgressLines(num_steps, clock=lambda: now[0])
    assert lines.status() == ""
    for number, now[0] in ((110, 102.5), (120, 105.0), (140, 110.0), (150, 112.5)):
        lines.on_step(step(number))
    out = capsys.readouterr().out
    assert out == f"Step 140 of {num_steps}: loss 2.0000, accuracy 75.00%, 5 steps/s, {left} left\n"
    assert lines.status().startswith("loss 2.0000, accuracy 75.00%, 5 steps/s")


def test_a_notebook_gets_a_bar_and_a_process_that_only_imports_its_packages_does_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    for shell, kind in ((None, ProgressLines), (types.SimpleNamespace(kernel=1), ProgressBar)):
        ipython = types.SimpleNamespace(get_ipython=lambda shell=shell: shell)
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        assert isinstance(show_progress(0, 7, quiet=False), kind)


def test_a_terminal_gets_a_bar_with_the_latest_values(monkeypatch, capsys):
    assert isinstance(show_progress(0, 7, quiet=False), ProgressLines)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    bar = show_progress(0, 7, quiet=False)
    assert isinstance(bar, ProgressBar)
    assert isinstance(show_progress(0, 7, quiet=True), ProgressLines)
    bar.on_step(step(1))
    bar.close()
    error = capsys.readouterr().err
    assert "1/7" in error
    assert "loss 2.0000, accuracy 75.00%" in error


def test_accuracies_are_written_in_percent_and_other_metrics_with_four_digits():
    assert format_metric("accuracy", 0.98765) == "98.77%"
    assert format_metric("ema_accuracy", 1.0) == "100.00%"
    assert format_metric("loss", 0.98765) == "0.9877"


def test_the_table_has_a_line_for_each_array_and_the_total():
    table = parameter_table({"a": {"bias": np.ones(7), "kernel": np.ones((2, 500))}}).splitlines()
    assert [line.split() for line in table] == [
        ["a/bias", "(7,)", "7"],
        ["a/kernel", "(2,", "500)", "1,000"],
        ["total", "1,007"],
    ]


def test_the_summary_has_every_metric_with_the_criterions_last():
    metrics = {
        "val": {"loss": 0.5, "whole": 0.25, "accuracy": 0.75},
        "test": {"loss": 1.0, "whole": 0.0, "accuracy": 0.5},
    }
    assert list(summary(metrics, last="loss")) == [
        "Val whole:     0.2500",
        "Test whole:    0.0000",
        "Val accuracy:  75.00%",
        "Test accuracy: 50.00%",
        "Val loss:      0.5000",
        "Test loss:     1.0000",
    ]
