"""Output of a training while it runs."""

import sys
import types

import numpy as np
import pytest

from transformer_jax.config import format_metric
from transformer_jax.fit.progress import Progress, parameter_table
from transformer_jax.fitted.results import summary
from transformer_jax.training.callbacks import Step


def step(number: int) -> Step:
    sums = {"loss": (6.0, 3.0), "accuracy": (3.0, 4.0), "gradient_norm": (1.0, 1.0), "learning_rate": (0.1, 1.0)}
    return Step(number, sums | {"unused": (0.0, 0.0)}, 0.2)


def clock(monkeypatch) -> list[float]:
    """Settable clock of the progress display, in seconds."""
    now = [100.0]
    monkeypatch.setattr("transformer_jax.fit.progress.time", types.SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.mark.parametrize(("num_steps", "left"), [(600, "01:32"), (140, "00:00"), (100_000, "5:32:52")])
def test_a_line_is_printed_every_ten_seconds_with_the_time_left_and_the_status_is_that_of_the_latest_step(
    monkeypatch, capsys, num_steps, left
):
    now = clock(monkeypatch)
    lines = Progress(100, num_steps, quiet=False)
    assert lines.status() == ""
    for number, now[0] in ((110, 102.5), (120, 105.0), (140, 110.0), (150, 112.5)):
        lines.on_step(step(number))
    out = capsys.readouterr().out
    assert out == f"Step 140 of {num_steps}: loss 2.0000, accuracy 75.00%, 5 steps/s, {left} left\n"
    assert lines.status().startswith("loss 2.0000, accuracy 75.00%, 5 steps/s")


@pytest.mark.parametrize(("shell", "has_bar"), [(None, False), (types.SimpleNamespace(kernel=1), True)])
def test_a_notebook_gets_a_bar_and_a_process_that_only_imports_its_packages_does_not(
    monkeypatch, capsys, shell, has_bar
):
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    Progress(0, 7, quiet=False).close()
    assert ("0/7" in capsys.readouterr().err) == has_bar


def test_a_terminal_gets_a_bar_with_the_latest_values_unless_it_is_to_be_quiet(monkeypatch, capsys):
    now = clock(monkeypatch)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    for quiet in (True, False):
        bar = Progress(0, 7, quiet=quiet)
        now[0] += 20
        bar.on_step(step(1))
        assert bar.status() == ("loss 2.0000, accuracy 75.00%" if quiet else "")
        bar.write("a line")
        bar.close()
        shown = capsys.readouterr()
        assert shown.out == ("" if quiet else "a line\n")
        assert ("1/7" in shown.err, "loss 2.0000, accuracy 75.00%" in shown.err) == (not quiet, not quiet)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("accuracy", 0.98765, "98.77%"),
        ("ema_accuracy", 1.0, "100.00%"),
        ("accuracy", 0.0, "0.00%"),
        ("accuracy", 159_999 / 160_000, "99.999%"),  # rounded to two decimals it would be whole
        ("val/accuracy", 2.4e-5, "0.002%"),
        ("whole", 0.997, "99.70%"),  # a share, like an accuracy
        ("f1", 0.5, "50.00%"),
        ("loss", 0.98765, "0.9877"),
        ("loss", 2.4e-5, "2.4e-05"),
        ("loss", 0.0, "0.0000"),
        ("accuracy", float("nan"), "nan%"),
    ],
)
def test_shares_are_in_percent_and_no_number_is_rounded_to_what_it_is_not(name, value, text):
    assert format_metric(name, value) == text


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
    assert list(summary(metrics, last="loss", counted="sets")) == [
        "Val whole:     25.00%",
        "Test whole:    0.00%",
        "Val accuracy:  75.00% of sets",
        "Test accuracy: 50.00% of sets",
        "Val loss:      0.5000",
        "Test loss:     1.0000",
    ]
