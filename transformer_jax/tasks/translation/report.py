"""Scores of a trained translator: measures of the agreement of its texts with their references."""

from collections.abc import Sequence

from transformer_jax.tasks.translation.pairs import TextPair
from transformer_jax.training.trainer import TrainerModule


def score(trainer: TrainerModule, pairs: Sequence[TextPair], *, corpus: bool) -> dict[str, float]:
    """Translate and compare: `exact_match` and `char_error_rate`, with `corpus` also `chrf` and `bleu`; print them."""
    predictions = trainer.predict([pair.source for pair in pairs])
    references = [pair.target for pair in pairs]
    exact, errors = exact_match(predictions, references), char_error_rate(predictions, references)
    scores = {"exact_match": exact, "char_error_rate": errors}
    print(f"Exact match: {exact:.2%} of {len(pairs)}, character errors: {errors:.2%}")
    if corpus:
        scores |= translation_scores(predictions, references)
        print(f"chrF: {scores['chrf']:.1f}, BLEU: {scores['bleu']:.1f}")
    print("Accuracies are of bytes, each predicted after the right ones before it (teacher forcing):")
    return scores


def exact_match(predictions: Sequence[str], references: Sequence[str]) -> float:
    """Fraction of the predictions, at least one, that equal their reference."""
    return sum(a == b for a, b in zip(predictions, references, strict=True)) / len(references)


def char_error_rate(predictions: Sequence[str], references: Sequence[str]) -> float:
    """Insertions, deletions and substitutions that turn predictions into references, per character of the references.

    A character is a Unicode code point. The rate is that of all texts together, and above 1 if predictions are much too
    long (Morris, Maier and Green 2004, equation 1, with characters for words).
    """
    from rapidfuzz.distance import Levenshtein

    errors = sum(Levenshtein.distance(a, b) for a, b in zip(predictions, references, strict=True))
    return errors / sum(map(len, references))


def translation_scores(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """`chrf` (Popović 2015) and `bleu` (Papineni et al. 2002) of the whole corpus, each 0 … 100, from sacrebleu."""
    import sacrebleu

    return {
        "chrf": sacrebleu.corpus_chrf(predictions, [references]).score,
        "bleu": sacrebleu.corpus_bleu(predictions, [references]).score,
    }
