"""Measures of the agreement of predicted texts with their references."""

from collections.abc import Sequence


def exact_match(predictions: Sequence[str], references: Sequence[str]) -> float:
    """Fraction of the predictions that equal their reference.

    Raises:
        ValueError: there are no texts, or the numbers of predictions and references differ.
    """
    _check_pairs(predictions, references)
    return sum(map(str.__eq__, predictions, references)) / len(references)


def char_error_rate(predictions: Sequence[str], references: Sequence[str]) -> float:
    """Insertions, deletions and substitutions that turn predictions into references, per character of the references.

    A character is a Unicode code point. The rate is that of all texts together, and above 1 if predictions are much too
    long (Morris, Maier and Green 2004, equation 1, with characters for words).

    Raises:
        ValueError: as for `exact_match`, or the references are all empty.
    """
    from rapidfuzz.distance import Levenshtein

    _check_pairs(predictions, references)
    characters = sum(map(len, references))
    if characters == 0:
        raise ValueError("the references are all empty; an error rate needs at least one character")
    return sum(map(Levenshtein.distance, predictions, references)) / characters


def translation_scores(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """`chrf` (Popović 2015) and `bleu` (Papineni et al. 2002) of the whole corpus, each 0 … 100, from sacrebleu.

    Raises:
        ValueError: as for `exact_match`.
    """
    import sacrebleu

    _check_pairs(predictions, references)
    return {
        "chrf": sacrebleu.corpus_chrf(predictions, [references]).score,
        "bleu": sacrebleu.corpus_bleu(predictions, [references]).score,
    }


def _check_pairs(predictions: Sequence[str], references: Sequence[str]) -> None:
    if len(predictions) != len(references) or not references:
        raise ValueError(
            f"there are {len(predictions)} predictions and {len(references)} references; "
            "there must be at least one, and as many of each"
        )
