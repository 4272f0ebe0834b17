"""The protocol of experiments: a trained model is not lost if its scoring fails."""

import jax
import numpy as np
import pytest
from finished_runs import REVERSE, copied_run

from transformer_jax import InputError, ReverseConfig, load_run
from transformer_jax.tasks import ReverseTrainer
from transformer_jax.tasks.experiment import train_and_test
from transformer_jax.tasks.reverse import reverse_data


def run(directory, report, **settings):
    return train_and_test(
        ReverseTrainer, ReverseConfig(checkpoint_dir=directory, **REVERSE, **settings), reverse_data, report
    )


@pytest.mark.slow
def test_where_scoring_fails_the_same_command_scores_the_model_again_without_training(
    tmp_path_factory, tmp_path, capsys, monkeypatch
):
    directory = copied_run(tmp_path_factory, "ReverseTask", tmp_path)
    params = load_run(directory).params
    (directory / "results.json").unlink()

    def fail(trainer, data):
        raise RuntimeError("no score")

    with pytest.raises(RuntimeError, match="no score"):
        run(tmp_path, fail)
    assert not (directory / "results.json").exists()
    capsys.readouterr()
    written = [directory / name for name in ("predictions.tsv", "attention_maps.png", "results.json")]
    monkeypatch.setattr(
        "transformer_jax.fitted.results.summary", lambda *_: [f"written: {[file.exists() for file in written]}"]
    )
    trainer, results = run(tmp_path, lambda trainer, data: {"score": 0.25})
    printed = capsys.readouterr().out
    assert "Going on after step 20 of 20" in printed
    assert "written: [True, True, True]" in printed  # whatever becomes of the output
    rows = [line.split("\t") for line in (directory / "predictions.tsv").read_text().splitlines()]
    mistakes = sorted((row for row in rows if row[4] == "0"), key=lambda row: -float(row[3]))
    wrong = [f"  {row[0]}: predicted {row[2]} ({float(row[3]):.3g}), expected {row[1]}" for row in mistakes]
    assert len(wrong) > 10
    listed = [f"Mistakes: {len(wrong)} of the first 29 examples of the test set", *wrong[:10]]
    assert "\n".join(listed) + "\nwritten" in printed
    assert (results["score"], results["steps"]) == (0.25, 20)
    jax.tree.map(np.testing.assert_array_equal, trainer.params, params)


def test_more_steps_than_can_be_counted_are_refused_before_training(tmp_path):
    config = ReverseConfig(**(REVERSE | {"max_epochs": 2**31 - 1}), checkpoint_dir=tmp_path / "runs")
    with pytest.raises(InputError, match="max_epochs is 2147483647; with these data it may be at most 214748364"):
        train_and_test(ReverseTrainer, config, reverse_data)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pretrained": "reverse"}, "pretrained is reverse; fit always trains: use train_and_test"),
        ({"seeds": "0..1"}, "fit trains a single run; use train_and_test for seeds and sweep"),
    ],
)
def test_fit_trains_one_run_and_nothing_else(tmp_path, settings, message):
    trainer = ReverseTrainer(ReverseConfig(checkpoint_dir=tmp_path / "runs", **REVERSE, **settings))
    data = reverse_data(trainer.config)
    with pytest.raises(InputError, match=message):
        trainer.fit(data.train_loader, data.val_loader)
    assert not (tmp_path / "runs").exists()
