"""Measures of the agreement of texts with their references."""

from collections.abc import Sequence

from transformer_jax.tasks.experiment import Results


def exact_match(predictions: Sequence[str], references: Sequence[str]) -> float:
    """Fraction of the predictions that equal their reference; there must be at least one."""
    return sum(a == b for a, b in zip(predictions, references, strict=True)) / len(references)


def error_rate(predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> float:
    """Insertions, deletions and substitutions that turn predictions into references, per element of the references.

    Elements are the characters (Unicode code points) of texts, or the words of lists. The rate is that of all texts
    together, and above 1 if predictions are much too long (Morris, Maier and Green 2004, equation 1).
    """
    from rapidfuzz.distance import Levenshtein

    errors = sum(Levenshtein.distance(a, b) for a, b in zip(predictions, references, strict=True))
    return errors / sum(map(len, references))


def translation_scores(predictions: Sequence[str], references: Sequence[str], *, lower_case: bool = False) -> Results:
    """Return `chrf` (Popović 2015) and `bleu` (Papineni et al. 2002) of the whole corpus, 0 … 100, from sacrebleu.

    `bleu_signature` states sacrebleu's settings and version, as Post 2018 asks of every reported BLEU; `lower_case` is
    one of them. `word_error_rate` is the `error_rate` of words.
    """
    import sacrebleu

    bleu, chrf = sacrebleu.BLEU(lowercase=lower_case), sacrebleu.CHRF(lowercase=lower_case)
    return {
        "chrf": chrf.corpus_score(predictions, [references]).score,
        "bleu": bleu.corpus_score(predictions, [references]).score,
        "bleu_signature": str(bleu.get_signature()),
        "word_error_rate": error_rate(*([text.split() for text in texts] for texts in (predictions, references))),
    }
