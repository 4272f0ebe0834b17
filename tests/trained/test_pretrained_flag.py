"""`--pretrained`: a trained model is evaluated as after training, and stays as it is."""

import json
import os
import shutil
from pathlib import Path

import flax.serialization
import jax
import numpy as np
import pytest
import torch
from commands import call
from made_once import made_once
from repository import REPOSITORY
from tutorial_models import TorchPredictor, flax_tree

from transformer_jax import ReverseConfig, load_run, train_reverse
from transformer_jax.errors import InputError
from transformer_jax.runs.settings import FORMAT
from transformer_jax.tasks import ReverseDataset, ReverseTrainer
from transformer_jax.tasks.anomaly.task import DigitsConfig, train_anomaly
from transformer_jax.tasks.reverse import reverse_data
from transformer_jax.tasks.translation.task import train_translation
from transformer_jax.trained.shipped import SHIPPED, ship, shipped_models, write_digests

pytestmark = pytest.mark.slow

FOLDER = Path(os.environ.get("PUBLISHED_WEIGHTS", REPOSITORY.parent / "shared" / "pretrained"))
PUBLISHED = FOLDER / "ReverseTask.ckpt"
DATA = {"seq_len": 5, "num_categories": 7, "train_size": 1280, "val_size": 70, "test_size": 110}
MODEL = {"model_dim": 12, "num_heads": 3, "num_layers": 1, "input_dropout_prob": 0.05}


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """The directory of a run that has learned some of it."""

    def train(parent: Path) -> None:
        _, results = train_reverse(
            **DATA, **MODEL, batch_size=32, max_epochs=5, lr=1e-2, warmup=3, checkpoint_dir=parent
        )
        assert 0.3 < results["test_acc"] < 1

    return made_once(tmp_path_factory, "trained", train) / "ReverseTask"


@pytest.fixture
def copied(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "runs" / "ReverseTask"))


def test_a_run_reaches_its_own_accuracies_again_beside_it_and_stays_as_it_was(copied):
    before = contents(copied)
    trainer, results = train_reverse(**DATA, pretrained=str(copied), checkpoint_dir=copied.parent)
    assert contents(copied) == before
    directory = copied.parent / "ReverseTask_pretrained"
    assert json.loads((directory / "results.json").read_text()) == results
    of_training = json.loads((copied / "results.json").read_text())
    for name in ("val_acc", "test_acc"):
        assert results[name] == of_training[name]
    for name in ("val", "test"):
        assert results[name] == pytest.approx(of_training[name], abs=1e-6)
    assert (results["steps"], results["train_seconds"]) == (0, 0)
    assert results.keys() == of_training.keys()
    assert (directory / "attention_maps.png").read_bytes() == (copied / "attention_maps.png").read_bytes()
    assert not (directory / "checkpoints").exists()
    # The model is the run's, whatever the settings say; the rest is as it was asked for.
    settings = json.loads((directory / "config.json").read_text())
    assert settings.items() >= MODEL.items()
    assert (settings["pretrained"], settings["max_epochs"]) == (str(copied), 10)
    jax.tree.map(np.testing.assert_array_equal, trainer.params, load_run(copied).params)


def test_an_evaluation_begins_anew_and_leaves_no_picture_of_the_one_before(trained, tmp_path):
    directory = tmp_path / "ReverseTask_pretrained"
    train_reverse(**DATA, pretrained=str(trained), checkpoint_dir=tmp_path)
    (directory / "of_another_model.png").write_text("")
    _, results = train_reverse(**(DATA | {"test_size": 90}), pretrained=str(trained), checkpoint_dir=tmp_path)
    assert json.loads((directory / "results.json").read_text()) == results
    assert not (directory / "of_another_model.png").exists()


def test_the_models_that_ship_are_small_and_know_nothing_of_the_machine_they_were_made_on():
    assert shipped_models() == ["dates", "digits", "reverse"]
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*")) < 5e6
    for name in shipped_models():
        settings = (SHIPPED / name / "config.json").read_text()
        assert json.loads(settings)["checkpoint_dir"] == "checkpoints"
        assert '"/' not in settings
    inputs = ReverseDataset(size=1000, seed=7).inputs
    np.testing.assert_array_equal(load_run(SHIPPED / "reverse").predict(inputs), inputs[:, ::-1])


@pytest.mark.parametrize(
    ("arguments", "task", "least", "pictures"),
    [
        (["reverse.py"], "ReverseTask", {"val_acc": 1.0, "test_acc": 1.0}, ["attention_maps"]),
        (
            ["anomaly.py", "--dataset", "digits"],
            "SetAnomalyTask_digits",
            {"train_acc": 0.99, "test_acc": 0.99},
            ["example_sets", "right_prediction", "wrong_prediction"],
        ),
        (
            ["translate.py", "--train-size", 71, "--val-size", 71, "--test-size", 307],
            "TranslationTask",
            {"test_acc": 0.999, "exact_match": 0.99},
            ["cross_attention"],
        ),
    ],
    ids=["reverse", "digits", "dates"],
)
def test_each_experiment_shows_its_numbers_and_pictures_with_a_model_that_ships(
    request, tmp_path, arguments, task, least, pictures
):
    name = request.node.callspec.id
    outcome = call(*arguments, "--pretrained", name, "--checkpoint-dir", tmp_path)
    assert (outcome.status, outcome.stderr) == (0, "")
    directory = tmp_path / f"{task}_pretrained"
    assert outcome.stdout.startswith(f"Nothing is trained: {name} is evaluated, into {directory}\n")
    results = json.loads((directory / "results.json").read_text())
    assert f"Test accuracy: {results['test_acc']:.2%}\n" in outcome.stdout
    assert results["steps"] == 0
    for metric, value in least.items():
        assert results[metric] >= value, metric
    assert sorted(path.stem for path in directory.glob("*.png")) == pictures


def test_shipping_keeps_the_numbers_and_leaves_the_rest(trained, tmp_path):
    ship(load_run(trained), tmp_path / "small")
    assert sorted(path.name for path in (tmp_path / "small").iterdir()) == [
        "SHA256SUMS",
        "config.json",
        "params.msgpack",
    ]
    shipped, original = load_run(tmp_path / "small"), load_run(trained)
    assert jax.tree.structure(shipped.params) == jax.tree.structure(original.params)
    jax.tree.map(np.testing.assert_array_equal, shipped.params, original.params)
    assert shipped.model == original.model
    settings = json.loads((tmp_path / "small" / "config.json").read_text())
    assert (settings["format"], settings["task"], settings["checkpoint_dir"]) == (FORMAT, "ReverseTask", "checkpoints")
    assert shipped.config.without_neutral() == original.config.without_neutral()
    numbers = sum(leaf.size for leaf in jax.tree.leaves(original.params))
    assert 4 * numbers < (tmp_path / "small" / "params.msgpack").stat().st_size < 4 * numbers + 3000


@pytest.mark.skipif(
    not PUBLISHED.is_file(), reason=f"needs the published {PUBLISHED}; PUBLISHED_WEIGHTS may name its folder"
)
@pytest.mark.parametrize("by_name", [True, False])
def test_the_published_reverse_model_reaches_100_percent_through_the_command(tmp_path, monkeypatch, by_name):
    if by_name:  # as if it had been downloaded before
        (tmp_path / "data" / "pretrained").mkdir(parents=True)
        shutil.copy(PUBLISHED, tmp_path / "data" / "pretrained" / "reverse-jax.ckpt")
    monkeypatch.chdir(tmp_path)
    outcome = call("reverse.py", "--pretrained", "reverse-jax" if by_name else PUBLISHED)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert "Val accuracy:  100.00%\nTest accuracy: 100.00%\nNext: tensorboard --logdir checkpoints\n" in outcome.stdout
    results = json.loads((tmp_path / "checkpoints" / "ReverseTask_pretrained" / "results.json").read_text())
    assert (results["test_acc"], results["steps"]) == (1.0, 0)


def test_a_lightning_file_is_evaluated_as_pytorch_computes_it(tmp_path):
    settings = {"input_dim": 64, "model_dim": 22, "num_classes": 1, "num_heads": 2, "num_layers": 2}
    module = TorchPredictor(**settings, dropout=0.0, input_dropout=0.0)
    torch.save(module.checkpoint(), tmp_path / "lightning.ckpt")
    config = DigitsConfig(checkpoint_dir=tmp_path, num_heads=2, num_layers=5)  # the file has other numbers of layers
    trainer, results = train_anomaly(config, pretrained=str(tmp_path / "lightning.ckpt"))
    assert (trainer.config.model_dim, trainer.config.num_heads, trainer.config.num_layers) == (22, 2, 2)
    assert trainer.model.settings.layer_norm_epsilon == 1e-5
    indices = np.random.default_rng(0).integers(1797, size=(7, 5))
    logits = trainer.forward(indices)
    expected = module(torch.tensor(np.asarray(trainer.constants)[indices]), positions=False).detach()
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    assert results["permutation_error"] <= 1e-5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seq_len": 11}, "seq_len is 11; it must be 5, as in the training of .*ReverseTask$"),
        ({"num_categories": 10}, "num_categories is 10; it must be 7, as in the training of .*ReverseTask$"),
    ],
)
def test_data_of_another_form_than_the_run_learned_are_named(trained, tmp_path, settings, message):
    with pytest.raises(InputError, match=message):
        train_reverse(**(DATA | settings), pretrained=str(trained), checkpoint_dir=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("features", "classes", "message"),
    [
        (11, 1, r"which does not fit the task and its data: input_layer/kernel .* \[11, 22\]; it must be \[64, 22\]"),
        (64, 3, r"which does not fit the task and its data: output_layer/bias .* \[3\]; it must be \[1\]"),
    ],
)
def test_a_file_of_other_data_is_refused_by_its_first_array_that_differs(tmp_path, features, classes, message):
    path = tmp_path / "flax.ckpt"
    path.write_bytes(flax.serialization.msgpack_serialize(flax_tree(features, 22, classes, 1)))
    with pytest.raises(InputError, match=message):
        train_anomaly(DigitsConfig(checkpoint_dir=tmp_path / "runs", num_heads=2), pretrained=str(path))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("bad", ["nan", "truncated", "missing", "extra"])
def test_damaged_parameters_are_refused(trained, tmp_path, bad):
    ship(load_run(trained), tmp_path / "small")
    path = tmp_path / "small" / "params.msgpack"
    params = flax.serialization.msgpack_restore(path.read_bytes())
    if bad == "nan":
        params["output_layer"]["bias"] = np.full(7, np.nan, np.float32)
    elif bad == "missing":
        del params["output_layer"]["bias"]
    elif bad == "extra":
        params["output_layer"]["more"] = np.zeros(3)
    content = flax.serialization.msgpack_serialize(params)
    path.write_bytes(content[:1000] if bad == "truncated" else content)
    write_digests(path.parent)
    messages = {
        "nan": "output_layer/bias in .* holds NaN",
        "truncated": r"params.msgpack is not a Flax msgpack",
        "missing": "lacks output_layer/bias",
        "extra": "has output_layer/more, for which the model has no place",
    }
    with pytest.raises(InputError, match=messages[bad]):
        train_reverse(**DATA, pretrained=str(tmp_path / "small"), checkpoint_dir=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_directory_that_holds_a_training_is_never_taken_for_the_evaluation(trained, tmp_path):
    training = Path(shutil.copytree(trained, tmp_path / "ReverseTask_pretrained"))
    before = {name: content for name, content in contents(training).items() if not name.startswith(".lock")}
    for what in (training, trained):
        with pytest.raises(InputError, match="ReverseTask_pretrained holds a training, not an evaluation; choose"):
            train_reverse(**DATA, pretrained=str(what), checkpoint_dir=tmp_path)
    after = {name: content for name, content in contents(training).items() if not name.startswith(".lock")}
    assert after == before


def test_a_translator_of_dates_is_not_asked_for_pairs_nor_for_the_tutorials_files(tmp_path):
    with pytest.raises(InputError, match="data is pairs.tsv; it must be None, since dates was trained on dates"):
        train_translation(pretrained="dates", data=Path("pairs.tsv"), checkpoint_dir=tmp_path)
    with pytest.raises(InputError, match=r"pretrained is reverse-jax; it must be a .*\(dates, digits, reverse\)$"):
        train_translation(pretrained="reverse-jax", checkpoint_dir=tmp_path)


def test_a_run_without_a_checkpoint_and_a_directory_without_a_run_are_named(copied):
    shutil.rmtree(copied / "checkpoints")
    with pytest.raises(InputError, match=f"{copied} has no checkpoint"):
        train_reverse(**DATA, pretrained=str(copied))
    with pytest.raises(InputError, match=f"{copied.parent} holds no run: config.json is missing"):
        train_reverse(**DATA, pretrained=str(copied.parent))


@pytest.mark.parametrize(("written", "number"), [(None, 1), (FORMAT + 1, FORMAT + 1)])
def test_a_run_of_another_format_is_named(copied, written, number):
    settings = json.loads((copied / "config.json").read_text()) | {"format": written}
    settings = {name: value for name, value in settings.items() if (name, value) != ("format", None)}
    (copied / "config.json").write_text(json.dumps(settings))
    message = f"{copied / 'config.json'} is of format {number}, this version reads {FORMAT}"
    with pytest.raises(InputError, match=message):
        train_reverse(**DATA, pretrained=str(copied), checkpoint_dir=copied.parent)
    assert not (copied.parent / "ReverseTask_pretrained").exists()


def test_fit_does_not_train_in_spite_of_the_setting(tmp_path):
    config = ReverseConfig(pretrained="reverse", checkpoint_dir=tmp_path / "runs", train_size=200)
    data = reverse_data(config)
    with pytest.raises(InputError, match="pretrained is reverse; fit only trains, without it"):
        ReverseTrainer(config).fit(data.train_loader, data.val_loader)
    assert not (tmp_path / "runs").exists()


def test_images_wait_until_the_model_is_found(monkeypatch):
    monkeypatch.setattr(DigitsConfig, "table", lambda config: pytest.fail("the images were loaded"))
    with pytest.raises(InputError, match="pretrained is nothing"):
        train_anomaly(DigitsConfig(pretrained="nothing"))


@pytest.mark.parametrize(
    ("experiment", "what", "message"),
    [
        (
            "reverse.py",
            "nowhere/model.ckpt",
            "pretrained is nowhere/model.ckpt; it must be a run's directory, a model that ships "
            "(dates, digits, reverse), a file of the tutorials, or one of reverse-jax, reverse-pytorch, anomaly-jax, "
            "anomaly-pytorch",
        ),
        ("reverse.py", "digits", "pretrained is digits, a model of the task SetAnomalyTask_digits; it must be one of"),
        ("reverse.py", __file__, "is not a Flax msgpack or a PyTorch file of weights"),
        ("translate.py", "reverse", "it must be one of TranslationTask"),
    ],
)
def test_the_command_says_what_it_may_be_in_one_line_with_status_2(tmp_path, monkeypatch, experiment, what, message):
    monkeypatch.chdir(tmp_path)
    outcome = call(experiment, "--pretrained", what)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert outcome.stderr.count("\n") == 1
    assert message in outcome.stderr
    assert not list(tmp_path.iterdir())
