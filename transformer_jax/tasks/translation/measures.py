"""Measures of the agreement of texts with their references."""

import re
from collections.abc import Sequence
from typing import Any, Literal

from transformer_jax.errors import InputError, in_one_line
from transformer_jax.tasks.experiment import Results

# sacrebleu's names, and `auto` for `tokenizer_for`.
BleuTokenizer = Literal[
    "auto",
    "none",
    "13a",
    "intl",
    "zh",
    "char",
    "ja-mecab",
    "ko-mecab",
    "flores101",
    "flores200",
    "spBLEU-1K",
]
CHINESE = re.compile("[\u3400-\u9fff]")
# Other scripts without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, Japanese.
WITHOUT_SPACES = re.compile("[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff]")


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


def tokenizer_for(references: Sequence[str]) -> str:
    """Choose sacrebleu's tokenizer by the script of most letters, among those that need no other library.

    It is `zh` for Chinese, `char` for Japanese, Thai and other scripts without spaces between words, and `13a`, which
    is sacrebleu's default, for all others.
    """
    text = "".join(references)
    num_chinese = len(CHINESE.findall(text))
    num_others = len(WITHOUT_SPACES.findall(text))
    if 2 * (num_chinese + num_others) <= sum(map(str.isalpha, text)):
        return "13a"
    return "zh" if num_chinese > 9 * num_others else "char"  # Chinese texts quote some Japanese


# sacrebleu.BLEU, which is not typed
def bleu_with(tokenizer: str, *, lower_case: bool = False) -> Any:
    """Return sacrebleu's BLEU with a tokenizer.

    Raises:
        InputError: a library or file that the tokenizer needs is missing.
    """
    import sacrebleu

    try:
        return sacrebleu.BLEU(lowercase=lower_case, tokenize=tokenizer)
    except (ImportError, RuntimeError, OSError) as error:
        lacks = f"bleu_tokenize is {tokenizer}, which sacrebleu cannot use here"
        raise InputError(f"{lacks}: {in_one_line(error)}") from None


def translation_scores(
    predictions: Sequence[str],
    references: Sequence[str],
    *,
    lower_case: bool = False,
    tokenizer: BleuTokenizer = "auto",
) -> Results:
    """Return `chrf` (Popović 2015) and `bleu` (Papineni et al. 2002) of the whole corpus, 0 … 100, from sacrebleu.

    `bleu_signature` states sacrebleu's settings and version, as Post 2018 asks of every reported BLEU; `lower_case` is
    one of them, the `tokenizer` of BLEU another. `word_error_rate` is the `error_rate` of words.

    Raises:
        InputError: as `bleu_with`.
    """
    import sacrebleu

    chosen = tokenizer_for(references) if tokenizer == "auto" else tokenizer
    bleu = bleu_with(chosen, lower_case=lower_case)
    chrf = sacrebleu.CHRF(lowercase=lower_case)
    predicted_words = [text.split() for text in predictions]
    reference_words = [text.split() for text in references]
    return {
        "chrf": chrf.corpus_score(predictions, [references]).score,
        "bleu": bleu.corpus_score(predictions, [references]).score,
        "bleu_signature": str(bleu.get_signature()),
        "word_error_rate": error_rate(predicted_words, reference_words),
    }
