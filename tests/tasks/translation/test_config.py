"""Settings of the translation task: values derived from the data, and the user's own files of pairs."""

from pathlib import Path

import pytest

from transformer_jax import TranslationConfig
from transformer_jax.tasks.translation.config import translation_data

PAIRS = Path("pairs.tsv")


def numbers(config: TranslationConfig) -> tuple[int, int, int]:
    return config.max_epochs, config.warmup, config.eval_every


def test_the_numbers_of_dates_are_those_of_the_model_that_ships():
    assert numbers(TranslationConfig().resolved(3000)) == (1, 100, 1)
    assert TranslationConfig().max_translation == len("2017-01-03") + 1  # with its end


def test_a_training_on_few_pairs_has_enough_steps_and_not_too_many_evaluations():
    """For 200 pairs; 286 epochs are the least of 7 steps with 2000 in all; …; a million pairs."""
    expected = {2: (1000, 100, 50), 7: (286, 100, 14), 701: (3, 100, 1), 15_000: (1, 100, 1)}
    assert {steps: numbers(TranslationConfig(data=PAIRS).resolved(steps)) for steps in expected} == expected


@pytest.mark.parametrize("data", [None, PAIRS])
def test_numbers_that_are_given_stay(data):
    config = TranslationConfig(data=data, max_epochs=3, warmup=7, eval_every=2)
    assert config.resolved(5) == config
    assert numbers(TranslationConfig(data=data, max_epochs=3).resolved(13)) == (3, 3, 1)  # a tenth of 39 steps
    assert numbers(TranslationConfig(data=data, max_epochs=1, eval_every=5).resolved(2)) == (1, 0, 5)
    of_steps = numbers(TranslationConfig(data=data, max_steps=530).resolved(13))
    assert of_steps == (None, 53, 1 if data is None else 2)  # of 40 epochs


@pytest.mark.parametrize("quiet", [False, True])
def test_the_numbers_of_pairs_are_printed_unless_the_settings_say_quiet(tmp_path, capsys, quiet):
    pairs, val = tmp_path / "pairs.tsv", tmp_path / "val.tsv"
    pairs.write_text("".join(f"s{number}\tt{number}\n" for number in range(200)) + "s\t" + "t" * 18 + "\n")
    val.write_text("s3\tt3\nx\ty\n")
    config = TranslationConfig(data=pairs, val_data=val, max_bytes=17, quiet=quiet)
    assert len(translation_data(config).train_loader) == 2
    line = (
        "Pairs: 189 for training, 2 for validation, 10 for test; left out: 1 longer than --max-bytes, "
        "1 also in --val-data or --test-data\n"
    )
    assert capsys.readouterr().out == ("" if quiet else line)
