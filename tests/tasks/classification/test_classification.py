"""Classifiers of texts: losses and scores as those of PyTorch and scikit-learn, and files for `transformers`."""

import dataclasses
import shutil

import flax.linen as nn
import jax
import numpy as np
import pytest
import sklearn.metrics
import torch
import transformers
from inspection_pages import content_of
from tiny_encoders import logits_of, saved, sentence_files

from transformer_jax import InputError, from_transformers, load_run, load_transformers, predict
from transformer_jax.inspection import inspection_page
from transformer_jax.nn.layers import Dropout
from transformer_jax.tasks import ClassificationConfig, train_classification
from transformer_jax.tasks.classification.task import ClassificationTrainer, classification_data
from transformer_jax.tasks.experiment import chosen_config

pytestmark = pytest.mark.slow  # they compile

TINY = {
    "max_epochs": 2, "batch_size": 7, "model_dim": 12, "num_heads": 3, "num_layers": 1, "dim_feedforward": 13,
    "tokenizer": "characters", "max_tokens": 13,
}  # fmt: skip
WORDS = ["red", "blue", "green"]


def written(path, labels, pair=False):
    """Write a file with a text for each label."""
    rows = ["text\tother\tlabel"]
    for number, label in enumerate(labels):
        rows.append(f"{WORDS[number % 3]} {number}\t{number % 5}\t{label}")
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of three classes."""
    directory = tmp_path_factory.mktemp("classes")
    data = written(directory / "data.tsv", [f"is {WORDS[number % 3]}" for number in range(71)])
    trainer, results = train_classification(data=data, checkpoint_dir=directory, class_weights="balanced", **TINY)
    return trainer, results


def test_a_run_has_scores_a_confusion_matrix_and_predictions(run):
    trainer, results = run
    assert sorted(trainer.labels) == ["is blue", "is green", "is red"]
    files = {path.name for path in trainer.run.path.iterdir()}
    assert {"confusion.png", "predictions.tsv", "tokenizer.json", "labels.txt", "attention_maps.png"} <= files
    assert results["scores"]["linear model on n-grams"]["accuracy"] == 1
    own = results["scores"]["this model"]
    assert own["accuracy"] == pytest.approx(results["test"]["accuracy"])
    assert 0 <= results["calibration_error"] < 1
    rows = [line.split("\t") for line in (trainer.run.path / "predictions.tsv").read_text().splitlines()[1:]]
    assert np.mean([row[4] == "1" for row in rows]) == pytest.approx(own["accuracy"])


def test_padding_order_and_batch_change_no_probability(run):
    trainer, _ = run
    texts = ["red 1", "blue 2345678", "g", "green", "red 1"]
    alone = [trainer.answers(trainer.examples([text]))[0] for text in texts]
    together = trainer.answers(trainer.examples(texts[::-1]))[::-1]
    for one, other in zip(alone, together, strict=True):
        assert one.text == other.text
        assert one.probability == pytest.approx(other.probability, abs=1e-6)
    data = classification_data(trainer.config)
    encoded = data.test_loader.dataset[0][0]
    logits = trainer.forward(type(encoded)(*(np.asarray(array)[None] for array in encoded)))
    np.testing.assert_allclose(logits, trainer.logits_of(data.splits.test[:1]), atol=1e-5)


def test_a_run_is_opened_predicted_and_saved_for_transformers(run, tmp_path, capsys):
    trainer = load_run(run[0].run.path)
    texts = ["red 1", "blue ü 2", "green 3 and much more text than fits"]
    assert trainer.predict(texts) == run[0].predict(texts)
    trainer.save_transformers(tmp_path / "saved")
    options = {"top_k": None, "truncation": True, "max_length": 13}
    pipeline = transformers.pipeline("text-classification", str(tmp_path / "saved"))
    for text, found in zip(texts, pipeline(texts, **options), strict=True):
        example = trainer.examples([text])
        expected = {each["label"]: each["score"] for each in found}
        (answer,) = trainer.answers(example)
        assert answer.text == found[0]["label"]
        assert answer.probability == pytest.approx(expected[answer.text], abs=1e-5)
    assert load_transformers(tmp_path / "saved").predict(texts[:2]) == trainer.predict(texts[:2])
    with pytest.raises(InputError, match="^--top is 0; it must be at least 1$"):
        predict.carry_out(predict.read_command([str(run[0].run.path), "red 1", "--top", "0"]))
    predict.carry_out(predict.read_command([str(run[0].run.path), "red 1", "--top", "2"]))
    shown = capsys.readouterr().out.splitlines()[1].split("\t")[1]
    assert shown.split("; ")[0].startswith(trainer.predict("red 1"))
    assert trainer.embed(texts[:2]).shape == (2, 12)
    page = inspection_page(trainer, trainer.examples(["red 1"]))
    assert content_of(page)["attribution"]["rows"][0] == "embeddings"


def batch_of(trainer, data):
    inputs, targets = data.train_loader.example()
    batch = type("Batch", (), {"inputs": inputs, "targets": targets})
    logits = torch.tensor(np.asarray(trainer.apply(trainer.params, inputs)))
    elements = trainer.loss_function(trainer.params, batch, None, train=False)
    values, weights = map(np.asarray, elements["loss"])
    weights = np.broadcast_to(weights, values.shape)
    return logits, torch.tensor(np.asarray(targets)), (values * weights).sum() / weights.sum()


KINDS = {
    "classes": ({"class_weights": "balanced"}, [["a", "b", "b"][n % 3] for n in range(40)]),
    "several": ({"multi_label": True}, [["x|y", "y", "", "z|x"][n % 4] for n in range(40)]),
    "numbers": ({"regression": True}, [n % 7 * 10 + 100 for n in range(40)]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_scores_are_those_of_pytorch_and_scikit_learn(kind, tmp_path):
    settings, labels = KINDS[kind]
    data = written(tmp_path / "data.tsv", labels)
    config = ClassificationConfig(
        data=data, checkpoint_dir=tmp_path, second_text_column="other", **settings, **(TINY | {"max_epochs": 1})
    )
    trainer, results = train_classification(config)
    data = classification_data(trainer.config)
    logits, targets, loss = batch_of(trainer, data)
    own, test = results["scores"]["this model"], trainer.logits_of(data.splits.test)
    truth = [each.labels for each in data.splits.test]
    assert isinstance(data.splits.test[0].texts[1], str)
    if kind == "classes":
        numbers = (targets > 0).float().argmax(-1)
        counts = np.array([sum(each.labels == (label,) for each in data.splits.train) for label in trainer.labels])
        weight = torch.tensor(sum(counts) / (len(counts) * counts), dtype=torch.float32)
        expected = torch.nn.functional.cross_entropy(logits, numbers, weight)
        right = [trainer.labels.index(label) for (label,) in truth]
        f1 = sklearn.metrics.f1_score(right, test.argmax(-1), average="macro", zero_division=0)
        assert own["macro_f1"] == pytest.approx(f1)
    elif kind == "several":
        expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)
        right = np.array([[label in each for label in trainer.labels] for each in truth])
        f1 = sklearn.metrics.f1_score(right, test > 0, average="macro", zero_division=0)
        assert own["macro_f1"] == pytest.approx(f1)
        answer = trainer.predict((data.splits.test[0].texts[0], data.splits.test[0].texts[1]))
        assert list(answer) == [label for label, logit in zip(trainer.labels, test[0], strict=True) if logit > 0]
    else:
        expected = torch.nn.functional.mse_loss(logits, targets)
        right = np.array([float(label) for (label,) in truth])
        assert own["mean_absolute_error"] == pytest.approx(np.abs(right - test[:, 0]).mean(), rel=1e-5)
        assert results["test"]["absolute_error"] == pytest.approx(own["mean_absolute_error"], rel=1e-5)
        assert 90 < trainer.predict(data.splits.test[0].texts) < 190
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    trainer.save_transformers(tmp_path / "saved")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert model.config.problem_type == trainer.config.problem
    with torch.no_grad():
        inputs = tokenizer(*data.splits.test[0].texts, return_tensors="pt", truncation=True)
        found = model(**inputs).logits[0].numpy()
    np.testing.assert_allclose(found, test[0], rtol=1e-5, atol=1e-5)


def test_a_head_with_labels_of_the_same_names_is_kept_in_its_order(tmp_path):
    names = {0: "CONTRADICTION", 1: "neutral", 2: "entailment"}
    model, tokenizer = saved(tmp_path / "mnli", "BertForSequenceClassification", id2label=names)
    rows = ["w4 w5\tentailment", "w6\tcontradiction", "w7 w8\tneutral"] * 8
    (tmp_path / "data.tsv").write_text("\n".join(f"{row.split()[0]} w{n % 8 + 4} {row}" for n, row in enumerate(rows)))
    settings = {"data": tmp_path / "data.tsv", "init_from": str(tmp_path / "mnli"), "batch_size": 3}
    trainer, results = train_classification(checkpoint_dir=tmp_path, max_epochs=0, **settings)
    assert trainer.labels == ["contradiction", "neutral", "entailment"]
    text = "w4 w11 w5"
    expected = logits_of(model, tokenizer, text).softmax(-1)
    (answer,) = trainer.answers(trainer.examples([text]))
    assert (answer.text, answer.probability) == (
        trainer.labels[int(expected.argmax())], pytest.approx(float(expected.max()), abs=1e-5)
    )  # fmt: skip
    assert 0 <= results["scores"]["this model"]["accuracy"] <= 1
    (tmp_path / "data.tsv").write_text((tmp_path / "data.tsv").read_text().replace("neutral", "other"))
    with pytest.raises(InputError, match="max_epochs is 0, but .* has no head for the labels entailment, contradic"):
        train_classification(checkpoint_dir=tmp_path, max_epochs=0, **settings)
    tuned, _ = train_classification(checkpoint_dir=tmp_path, max_epochs=1, freeze="encoder,embedding", **settings)
    assert (tuned.config.lr, tuned.labels) == (1e-3, ["entailment", "contradiction", "other"])
    kernels = [
        tree["encoder"]["layers_0"]["feed_forward"]["expand"]["kernel"] for tree in (tuned.params, trainer.params)
    ]
    np.testing.assert_array_equal(*kernels)


def test_the_pooling_is_that_of_the_files_and_a_run_needs_them_no_more(tmp_path, monkeypatch):
    saved(tmp_path / "mini", "BertModel")
    sentence_files(tmp_path / "mini", {"pooling_mode": "mean"})
    data = written(tmp_path / "data.tsv", [WORDS[number % 3] for number in range(40)])
    settings = {"data": data, "init_from": str(tmp_path / "mini"), "checkpoint_dir": tmp_path, "batch_size": 7}
    trainer, results = train_classification(max_epochs=1, **settings)
    assert (trainer.model.pooling, trainer.config.lr) == ("mean", 1e-4)
    inputs = trainer.examples(["w4 w5"])[0].inputs
    head = trainer.params["output_layer"]
    hidden = trainer.model.clone(head="none").apply({"params": trainer.params}, inputs[0])[0].mean(0)
    np.testing.assert_allclose(trainer.forward(inputs)[0], hidden @ head["kernel"] + head["bias"], atol=1e-5)
    with pytest.raises(InputError, match="pooling is mean; classifiers of transformers have only first"):
        trainer.save_transformers(tmp_path / "saved")
    shutil.rmtree(tmp_path / "mini")
    monkeypatch.setattr("transformer_jax.tasks.classification.coding.initial_directory", None)  # not called
    run = load_run(trainer.run.path)
    assert (run.predict(["w4 w5", "w6"]), run.model.pooling) == (trainer.predict(["w4 w5", "w6"]), "mean")
    _, again = train_classification(max_epochs=1, **settings)
    assert again["test"] == results["test"]


@pytest.mark.parametrize("kind", ["DistilBert", "MPNet"])
def test_an_encoder_without_token_types_is_fine_tuned_on_pairs_and_saved(kind, tmp_path):
    saved(tmp_path / "base", f"{kind}ForMaskedLM")
    data = written(tmp_path / "data.tsv", [f"is {number % 2}" for number in range(40)])
    trainer, _ = train_classification(
        data=data, second_text_column="other", init_from=str(tmp_path / "base"), checkpoint_dir=tmp_path,
        max_epochs=1, batch_size=7,
    )  # fmt: skip
    trainer.save_transformers(tmp_path / "saved")
    pair = "w4 w7", "w5"
    found = transformers.pipeline("text-classification", str(tmp_path / "saved"))(
        {"text": pair[0], "text_pair": pair[1]}
    )
    (answer,) = trainer.answers(trainer.examples([pair]))
    assert (answer.text, answer.probability) == (found["label"], pytest.approx(found["score"], abs=1e-5))


@pytest.mark.parametrize(("hidden", "attention"), [(0.4, 0.0), (0.0, 0.5)])
def test_an_encoder_is_fine_tuned_with_the_dropout_of_its_files_in_the_places_of_transformers(
    hidden, attention, tmp_path
):
    kind = "BertForSequenceClassification"
    given = {"hidden_dropout_prob": hidden, "attention_probs_dropout_prob": attention, "num_labels": 3}
    model, _ = saved(tmp_path / "base", kind, **given)
    data = written(tmp_path / "data.tsv", [f"LABEL_{number % 3}" for number in range(40)])
    settings = {"data": data, "init_from": str(tmp_path / "base")}
    config = chosen_config(None, ClassificationConfig(), settings, ClassificationTrainer.name)
    config.check_idle()
    config = config.regularized()
    assert (config.dropout_prob, config.attention_dropout) == (hidden, attention)
    ids = np.tile([2, 4, 5, 6, 7, 3], (3_001, 1))
    shapes, theirs = [], []
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.register_forward_hook(lambda _, inputs, output: theirs.append(output.shape))

    def noted(call, args, kwargs, context):
        if isinstance(context.module, Dropout) and context.module.rate == hidden:
            shapes.append(args[0].shape)
        return call(*args, **kwargs)

    with torch.no_grad():
        expected = model.train()(torch.tensor(ids)).logits.numpy()
    _, variables = from_transformers(tmp_path / "base")
    fine_tuned = ClassificationTrainer(config).model
    with nn.intercept_methods(noted):
        found = fine_tuned.apply(variables, ids, train=True, rngs={"dropout": jax.random.key(0)})
    np.testing.assert_allclose(np.std(found, axis=0), expected.std(0), rtol=0.06)
    if hidden:
        assert shapes == theirs
    changed = dataclasses.replace(config, dropout_prob=0.125, attention_dropout=0.25)
    block = ClassificationTrainer(changed).model.settings
    assert (block.dropout_prob, block.attention.dropout_prob) == (0.125, 0.25)
