"""Small runs: defaults that do not fit adapt with one line, and only given values are refused."""

from pathlib import Path

import numpy as np
import pytest
from commands import call
from finished_runs import REVERSE, finished_run

import transformer_jax
from transformer_jax import InputError, ReverseConfig, load_run, train_reverse
from transformer_jax.errors import InputWarning
from transformer_jax.predict import carry_out, read_command
from transformer_jax.tasks import ReverseDataset
from transformer_jax.tasks.task_data import task_loaders


def test_a_default_warm_up_that_is_too_long_is_a_tenth_of_the_training():
    config = ReverseConfig(max_epochs=3)
    assert config.resolved(17) == config  # 51 steps
    assert config.resolved(7).warmup == 2
    assert config.resolved(7).resolved(7).warmup == 2
    assert ReverseConfig(max_epochs=3, warmup=23).resolved(7).warmup == 23  # which the schedule refuses


def test_a_training_set_below_the_default_batch_size_is_one_batch(capsys):
    sets = [ReverseDataset(3, 5, size, seed=1) for size in (11, 7, 7)]
    train, *_ = task_loaders(ReverseConfig(), *sets)
    assert [len(inputs) for inputs, _ in train] == [11]
    assert capsys.readouterr().out == "Batches of all 11 training samples, as the default batch_size, 128, is larger\n"
    task_loaders(ReverseConfig(quiet=True), *sets)
    assert capsys.readouterr().out == ""
    with pytest.raises(InputError, match="batch_size is 13; it may be at most 11"):
        task_loaders(ReverseConfig(batch_size=13), *sets)


@pytest.mark.slow
def test_a_command_on_few_samples_trains(tmp_path):
    flags = "--train-size=5 --val-size=3 --test-size=2 --seq-len=3 --max-epochs=4 --logger=csv --model-dim=6"
    outcome = call("reverse.py", f"--checkpoint-dir={tmp_path}", *flags.split())
    assert (outcome.status, outcome.stderr) == (0, "")
    lines = outcome.stdout.splitlines()
    assert lines[0] == "Batches of all 5 training samples, as the default batch_size, 128, is larger"
    assert lines[1] == "Warm-up: 0 steps, as the default, 50, is too long"
    assert "4 steps on" in lines[2]


def test_inputs_of_another_length_than_in_training_get_one_warning(tmp_path_factory, tmp_path, capsys):
    run = finished_run(tmp_path_factory, "ReverseTask")
    trainer = load_run(run)
    with pytest.warns(InputWarning, match="^inputs has length 3; the model was trained on length 5 only") as caught:
        trainer.predict(np.array([1, 2, 3]))
    (warning,) = caught
    assert Path(transformer_jax.__file__).parent not in Path(warning.filename).parents  # but the caller's file
    assert len(trainer.predict(np.arange(REVERSE["seq_len"]))) == 5
    with pytest.warns(InputWarning, match="length 4"):
        carry_out(read_command([str(run), "1 2 3 4"]))
    sizes = {"val_size": 3, "test_size": 3, "seq_len": 5, "num_categories": REVERSE["num_categories"]}
    evaluated, results = train_reverse(pretrained=str(run), checkpoint_dir=tmp_path, quiet=True, **sizes)
    assert evaluated.trained_length == results["trained_length"] == 5
