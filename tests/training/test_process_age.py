"""The age of the process does not depend on a clock that can be set."""

import time

import psutil
import pytest

from transformer_jax import train_reverse
from transformer_jax.training.process_age import process_age


def test_the_age_is_counted_from_the_start_of_the_process():
    assert process_age() == pytest.approx(time.time() - psutil.Process().create_time(), abs=3)
    assert process_age() <= process_age()


@pytest.mark.slow
def test_a_run_while_which_the_clock_is_set_back_took_some_seconds(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 86_400.0)
    _, results = train_reverse(
        checkpoint_dir=tmp_path, max_epochs=1, train_size=71, val_size=37, test_size=29, batch_size=7, warmup=3,
        seq_len=5, num_categories=3, model_dim=6,
    )  # fmt: skip
    assert 0 < results["train_seconds"] < results["total_seconds"]
