"""Report on a trained classifier: scores beside a linear model's, a confusion matrix, calibration, mistakes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Num

from transformer_jax.errors import visible
from transformer_jax.fit.attention_pictures import attention_picture
from transformer_jax.outside_files import Json
from transformer_jax.runs.loggers import LogPosition, open_loggers
from transformer_jax.tasks.classification.config import ClassificationConfig
from transformer_jax.tasks.classification.examples import (
    Splits,
    Targets,
    Texts,
    class_targets,
    number_targets,
)
from transformer_jax.tasks.classification.files import SEPARATOR
from transformer_jax.tasks.experiment import MAX_MISTAKES, PREDICTIONS
from transformer_jax.training.inspected_example import in_one_cell

if TYPE_CHECKING:
    from transformer_jax.tasks.classification.task import ClassificationData, ClassificationTrainer

NUM_BINS = 15  # of the calibration error
CONFUSION = "confusion.png"  # in the directory of a run
MOST_SHOWN = 12  # classes of a confusion matrix whose counts are written

# Of each text: the number of its class [N], whether it has each label [N C], or a number [N].
Predicted = Num[np.ndarray, "N *C"]


def report(trainer: "ClassificationTrainer", data: "ClassificationData") -> Json:
    """Score the test set; print the scores beside those of simple models, and save tables and pictures."""
    config, labels, splits = trainer.config, trainer.labels, data.splits
    answers = trainer.scores_of([each.texts for each in splits.test])  # [N C]
    targets = _targets(config, splits.test, labels)
    predicted = _predicted(config, answers)
    models = {"this model": predicted, **simple_models(config, splits, labels)}
    scored = {name: scores(config, targets, found) for name, found in models.items()}
    print(f"Scores of the {len(splits.test)} test texts:", table(scored), sep="\n")
    results: Json = {"scores": scored}
    results["texts"] = {name: len(part) for name, part in splits._asdict().items()}
    if not config.regression:
        right = _right_answers(targets, predicted)
        results["classes"] = _by_class(right, predicted, labels)
        if not config.multi_label:
            is_right = right == predicted
            results["calibration_error"] = calibration_error(answers.max(-1), is_right)
            print(f"Calibration error: {results['calibration_error']:.2%}")
            _save_confusion(trainer, right, predicted)
    _save_predictions(trainer, splits.test, targets, answers)
    return results


def _targets(config: ClassificationConfig, texts: Texts, labels: Sequence[str]) -> Targets:
    return number_targets(texts) if config.regression else class_targets(texts, labels)


def _predicted(config: ClassificationConfig, answers: Float[np.ndarray, "N C"]) -> Predicted:
    """What is predicted, from probabilities or numbers."""
    if config.regression:
        return answers[:, 0]
    return answers > 0.5 if config.multi_label else answers.argmax(-1)


def _right_answers(targets: Targets, predicted: Predicted) -> Predicted:
    """The right answers; of several right classes the predicted one, or else the first."""
    if predicted.ndim > 1:
        return targets > 0
    is_right = np.take_along_axis(targets, predicted[:, None], -1)[:, 0] > 0
    return np.where(is_right, predicted, targets.argmax(-1))


def scores(
    config: ClassificationConfig, targets: Targets, predicted: Predicted
) -> dict[str, float]:
    """The scores of predictions by name, computed by scikit-learn."""
    from sklearn import metrics

    if config.regression:
        found = {
            "mean_absolute_error": metrics.mean_absolute_error(targets[:, 0], predicted),
            "r2": metrics.r2_score(targets[:, 0], predicted),
        }
    else:
        right = _right_answers(targets, predicted)
        found = {
            "accuracy": metrics.accuracy_score(right, predicted),
            "macro_f1": metrics.f1_score(right, predicted, average="macro", zero_division=0),
        }
        if config.multi_label:
            found["micro_f1"] = metrics.f1_score(right, predicted, average="micro", zero_division=0)
    return {name: float(value) for name, value in found.items()}


def _by_class(right: Predicted, predicted: Predicted, labels: Sequence[str]) -> Json:
    """Print precision, recall and F1 of each class, and return them."""
    from sklearn.metrics import classification_report

    numbers = range(len(labels))
    options: Json = {"labels": [*numbers], "target_names": labels, "zero_division": 0}
    print(classification_report(right, predicted, **options, digits=3))
    found = classification_report(right, predicted, **options, output_dict=True)
    return {label: found[label] for label in labels}


def table(scored: Mapping[str, Mapping[str, float]]) -> str:
    """A line of scores for each model."""
    width = max(map(len, scored))
    lines = []
    for name, values in scored.items():
        shown = [f"{score.replace('_', ' ')} {value:.4f}" for score, value in values.items()]
        lines.append(f"  {name:<{width}}  {'  '.join(shown)}")
    return "\n".join(lines)


def simple_models(
    config: ClassificationConfig, splits: Splits, labels: Sequence[str]
) -> dict[str, Predicted]:
    """Predictions of the test set: the most frequent answer, and those of a linear model on n-grams."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import Ridge
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline, make_union
    from sklearn.svm import LinearSVC

    train, test = (["\n".join(each.texts) for each in part] for part in (splits.train, splits.test))
    targets = _targets(config, splits.train, labels)
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4), sublinear_tf=True)
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")
    if config.regression:
        constant, linear, known = targets.mean(0)[0], Ridge(), targets[:, 0]
    elif config.multi_label:
        constant, known = targets.mean(0) > 0.5, targets
        linear = OneVsRestClassifier(LinearSVC(tol=0.1, random_state=0))
    else:
        constant, linear = targets.sum(0).argmax(), LinearSVC(tol=0.1, random_state=0)
        rows, known = np.nonzero(targets)  # a text of several languages counts for each
        train = [train[row] for row in rows]
    model = make_pipeline(make_union(characters, words), linear).fit(train, known)
    return {
        "linear model on n-grams": model.predict(test),
        "most frequent answer": np.broadcast_to(constant, (len(test), *np.shape(constant))),
    }


def calibration_error(
    probabilities: Float[np.ndarray, " N"], is_right: Bool[np.ndarray, " N"]
) -> float:
    """Expected calibration error (Guo et al. 2017): mean distance of probability and accuracy, in bins.

    Args:
        probabilities: of the answers.
        is_right: whether they are right.
    """
    bins = np.minimum((probabilities * NUM_BINS).astype(int), NUM_BINS - 1)
    gaps = np.bincount(bins, probabilities - is_right, minlength=NUM_BINS)
    return float(np.abs(gaps).sum() / len(bins))


def _save_confusion(
    trainer: "ClassificationTrainer", right: Predicted, predicted: Predicted
) -> None:
    """Draw the confusion matrix: rows are right answers, columns predictions."""
    from matplotlib.figure import Figure
    from sklearn.metrics import ConfusionMatrixDisplay, confusion_matrix

    labels = trainer.labels
    matrix = confusion_matrix(right, predicted, labels=range(len(labels)))
    side = max(4.0, 0.25 * len(labels))
    figure = Figure(figsize=(side, side), layout="constrained")
    ConfusionMatrixDisplay(matrix, display_labels=[*map(visible, labels)]).plot(
        ax=figure.add_subplot(),
        xticks_rotation="vertical",
        include_values=len(labels) <= MOST_SHOWN,
        colorbar=False,
    )
    trainer.run.save_figure(CONFUSION, figure)
    picture = attention_picture(matrix[None].astype(np.float32), labels, labels)
    position, run = LogPosition(trainer.steps), trainer.run
    with open_loggers(trainer.create_loggers, run.path, position, run.settings) as loggers:
        for logger in loggers:
            logger.log_image(trainer.steps, "test/confusion", picture)


def _save_predictions(
    trainer: "ClassificationTrainer",
    texts: Texts,
    targets: Targets,
    answers: Float[np.ndarray, "N C"],
) -> None:
    """Save the answers to all test texts, and print the worst mistakes, those with the highest probability."""
    config, labels = trainer.config, trainer.labels
    rows, mistakes = [("input", "expected", "answer", "probability", "right")], []
    predicted = _predicted(config, answers)
    for each, target, scores_of_text, found in zip(texts, targets, answers, predicted, strict=True):
        title, expected = "\t".join(each.texts), SEPARATOR.join(each.labels)
        probability, right = "", ""
        if config.regression:
            answer = f"{found:.6g}"
        elif config.multi_label:
            answer = SEPARATOR.join(labels[number] for number in np.flatnonzero(found))
            right = str(int(((target > 0) == found).all()))
        else:
            answer = labels[found]
            probability, right = f"{scores_of_text[found]:.6g}", str(int(target[found] > 0))
            if right == "0":
                mistakes.append((scores_of_text[found], title, answer, expected))
        rows.append((title, expected, answer, probability, right))
    trainer.run.save_text(
        PREDICTIONS, "".join("\t".join(map(in_one_cell, row)) + "\n" for row in rows)
    )
    if mistakes:
        print(f"Mistakes: {len(mistakes)} of {len(texts)}, the most confident:")
    for certainty, title, answer, expected in sorted(mistakes, reverse=True)[:MAX_MISTAKES]:
        print(visible(f"  {title:.100}: {answer} ({certainty:.3f}), expected {expected}"))
