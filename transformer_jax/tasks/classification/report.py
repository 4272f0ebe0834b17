"""Report on a trained classifier: scores beside a linear model's, a confusion matrix, calibration."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.devices.processes import say
from transformer_jax.errors import visible
from transformer_jax.fit.attention_pictures import attention_picture
from transformer_jax.outside_files import Json
from transformer_jax.runs.loggers import LogPosition, open_loggers
from transformer_jax.tasks.classification.config import ClassificationConfig
from transformer_jax.tasks.classification.examples import (
    Targets,
    Texts,
    class_targets,
    number_targets,
)
from transformer_jax.tasks.text_classes import ONE_CLASS
from transformer_jax.training.inspected_example import probabilities_of

if TYPE_CHECKING:
    from transformer_jax.tasks.classification.task import ClassificationData, ClassificationTrainer

NUM_BINS = 15  # of the calibration error
CONFUSION = "confusion.png"  # in the directory of a run
MOST_SHOWN = 12  # classes of a confusion matrix whose counts are written

Logits = Float[np.ndarray, "N C"]
Classes = Int[np.ndarray, " N"]


def report(trainer: "ClassificationTrainer", data: "ClassificationData") -> Json:
    """Score the test set; print the scores beside those of simple models, and save the confusion matrix."""
    config = trainer.config
    labels = trainer.labels
    train, _, test = data.splits
    train_targets = true_targets(config, train, labels)
    targets = true_targets(config, test, labels)
    logits = trainer.logits_of(test)
    models = {"this model": logits, **simple_models(config, train, test, train_targets)}
    scored = {name: scores(config, targets, output, labels) for name, output in models.items()}
    say(f"Scores of the {len(test)} test texts:")
    classes = scored["this model"].get("classes", {})  # none with regression
    for name, values in (*scored.items(), *classes.items()):
        shown = [f"{key} {value:.4f}" for key, value in values.items() if key != "classes"]
        say(f"  {name:<24}  {'  '.join(shown)}")
    results: Json = {"scores": scored}
    if config.problem == ONE_CLASS:
        is_right, is_predicted = answers(config, targets, logits)  # [N, C]
        right = is_right.argmax(-1)
        predicted = is_predicted.argmax(-1)
        results["calibration_error"] = calibration_error(logits, right)
        say(f"Calibration error: {results['calibration_error']:.2%}")
        _save_confusion(trainer, right, predicted)
    return results


def true_targets(config: ClassificationConfig, texts: Texts, labels: Sequence[str]) -> Targets:
    """A row for each text with 1 for each of its labels, or with its number."""
    return number_targets(texts) if config.regression else class_targets(texts, labels)


def answers(
    config: ClassificationConfig, targets: Targets, logits: Logits
) -> tuple[Int[np.ndarray, "N C"], Int[np.ndarray, "N C"]]:
    """The right and the predicted labels of each text, as 0 and 1.

    Of several right answers of a single label, the predicted one counts, or else the first.
    """
    if config.multi_label:
        return (targets > 0).astype(int), (logits > 0).astype(int)
    one_hot = np.eye(targets.shape[1], dtype=int)
    predicted = one_hot[logits.argmax(-1)]
    preference = targets + targets * predicted  # [N C]
    return one_hot[preference.argmax(-1)], predicted


def scores(
    config: ClassificationConfig, targets: Targets, outputs: Logits, labels: Sequence[str]
) -> Json:
    """Accuracy, macro F1 and scores of each class, or mean absolute error and R² of numbers, by scikit-learn."""
    from sklearn.metrics import classification_report, mean_absolute_error, r2_score

    if config.regression:
        error = mean_absolute_error(targets, outputs)
        return {"mean_absolute_error": float(error), "r2": float(r2_score(targets, outputs))}
    right, predicted = answers(config, targets, outputs)  # 0 and 1, [N, C]
    # A column that is always 0 lets scikit-learn see a single label as one of several.
    one_column = (0, 0), (0, 1)
    table = classification_report(
        np.pad(right, one_column), np.pad(predicted, one_column), output_dict=True, zero_division=0
    )
    classes = {label: table[str(number)] for number, label in enumerate(labels)}
    f1 = np.array([values["f1-score"] for values in classes.values()])  # [C]
    occurs = (right | predicted).any(0)  # the F1 of a class that does not occur would count as 0
    return {
        "accuracy": float((right == predicted).all(-1).mean()),
        "macro_f1": float(f1[occurs].mean()),
        "classes": classes,
    }


def simple_models(
    config: ClassificationConfig, train: Texts, test: Texts, targets: Targets
) -> dict[str, Float[np.ndarray, "num_test C"]]:
    """Answers to the test texts: the most frequent one, and those of a linear model on n-grams."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import Ridge
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_union
    from sklearn.svm import LinearSVC

    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4), sublinear_tf=True)
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")
    ngrams = make_union(characters, words)
    of_train = ngrams.fit_transform(["\n".join(example.texts) for example in train])
    of_test = ngrams.transform(["\n".join(example.texts) for example in test])
    constant = targets.mean(0)
    if config.regression:
        linear = Ridge().fit(of_train, targets).predict(of_test).reshape(-1, 1)
    else:
        constant = constant - 0.5
        # a label of no training text is never the answer, one of all training texts always
        varies = targets.min(0) < targets.max(0)
        linear = np.tile(np.where(constant > 0, np.inf, -np.inf), (len(test), 1))
        if varies.any():
            models = OneVsRestClassifier(LinearSVC(tol=0.1, random_state=0))
            models.fit(of_train, targets[:, varies] > 0)
            linear[:, varies] = models.decision_function(of_test).reshape(len(test), -1)
    most_frequent = np.broadcast_to(constant, linear.shape)
    return {"linear model on n-grams": linear, "most frequent answer": most_frequent}


def calibration_error(logits: Logits, right: Classes) -> float:
    """Expected calibration error (Guo et al. 2017): mean distance of probability and accuracy in each of 15 bins."""
    probabilities = probabilities_of(logits).max(-1)
    bins = np.minimum((probabilities * NUM_BINS).astype(int), NUM_BINS - 1)
    gaps = np.bincount(bins, probabilities - (logits.argmax(-1) == right))
    return float(np.abs(gaps).sum() / len(bins))


def _save_confusion(trainer: "ClassificationTrainer", right: Classes, predicted: Classes) -> None:
    """Draw the confusion matrix: rows are right answers, columns predictions."""
    from matplotlib.figure import Figure
    from sklearn.metrics import ConfusionMatrixDisplay

    labels = [*map(visible, trainer.labels)]
    run = trainer.run
    steps = trainer.steps
    side = max(4.0, 0.25 * len(labels))
    figure = Figure(figsize=(side, side), layout="constrained")
    axes = figure.add_subplot()
    display = ConfusionMatrixDisplay.from_predictions(
        right,
        predicted,
        labels=range(len(labels)),
        display_labels=labels,
        include_values=len(labels) <= MOST_SHOWN,
        xticks_rotation="vertical",
        colorbar=False,
        ax=axes,
    )
    for tick in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        tick.set_parse_math(False)  # a label may hold $
    run.save_figure(CONFUSION, figure)
    matrix = display.confusion_matrix[None].astype(np.float32)
    picture = attention_picture(matrix, labels, labels)
    with open_loggers(
        trainer.create_loggers, run.path, LogPosition(steps), run.settings
    ) as loggers:
        for logger in loggers:
            logger.log_image(steps, "test/confusion", picture)
