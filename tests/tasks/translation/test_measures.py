"""Measures of text, with answers worked out by hand."""

import sys

import pytest
import sacrebleu

from transformer_jax import InputError, train_translation
from transformer_jax.tasks.translation.measures import error_rate, exact_match, tokenizer_for, translation_scores


def test_exact_match_counts_whole_texts():
    assert exact_match(["2017-01-03", "2017-01-03", ""], ["2017-01-03", "2017-01-04", ""]) == 2 / 3


def test_character_error_rate_counts_edits_per_reference_character():
    # kitten -> sitting: two substitutions and an insertion, 7 characters; é is one character; one deletion.
    assert error_rate(["kitten", "é", "abc"], ["sitting", "e", "ab"]) == (3 + 1 + 1) / (7 + 1 + 2)
    assert error_rate(["aaaa"], ["b"]) == 4
    assert error_rate([""], ["abc"]) == 1
    assert error_rate([["a", "cat", "sat"]], [["the", "cat", "sat", "down"]]) == (1 + 1) / 4


def test_translation_scores_of_the_corpus():
    scores = translation_scores(["the cat sat on the mat"], ["the cat sat on the mat"])
    assert "case:mixed|eff:no|tok:13a" in scores.pop("bleu_signature")
    assert scores == pytest.approx({"chrf": 100, "bleu": 100, "word_error_rate": 0})
    in_lower_case = translation_scores(["The cat sat on the mat"], ["the cat sat on the Mat"], lower_case=True)
    assert "case:lc" in in_lower_case["bleu_signature"]
    assert in_lower_case["bleu"] == pytest.approx(100)
    # 4 of 5 words, 3 of 4 pairs, 2 of 3 triples and 1 of 2 quadruples agree; the length penalty is 1.
    scores = translation_scores(["a b c d e"], ["a b c d f"])
    assert scores["bleu"] == pytest.approx(100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** (1 / 4))
    assert 0 < scores["chrf"] < 100


@pytest.mark.parametrize(
    ("reference", "tokenizer"),
    [
        ("他明天要去北京开会。", "zh"),
        ("iPhone 和 の 都在这张桌子上面放着", "zh"),
        ("彼は明日、会議のために北京へ行きます。", "char"),
        ("พรุ่งนี้เขาจะไปประชุม", "char"),
        ("그는 내일 회의를 하러 베이징에 간다.", "13a"),  # with spaces
        ("On 5 May he goes to 北京.", "13a"),
        ("", "13a"),
    ],
)
def test_the_tokenizer_of_bleu_follows_from_the_script_of_the_references(reference, tokenizer):
    assert tokenizer_for([reference]) == tokenizer


def test_bleu_of_texts_without_spaces_is_sacrebleus_with_its_tokenizer_for_them():
    prediction, reference = ["他明天去北京开会，然后回家。"], ["他明天要去北京开会，然后回家。"]
    scores = translation_scores(prediction, reference)
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(prediction, [reference], tokenize="zh").score)
    assert scores["bleu"] > 60
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(prediction, [reference]).score)
    assert "|tok:zh|" in scores["bleu_signature"]
    by_words = translation_scores(prediction, reference, tokenizer="13a")
    assert "|tok:13a|" in by_words["bleu_signature"]
    assert by_words["bleu"] == 0


def test_a_tokenizer_whose_library_is_missing_is_an_error_of_one_line_before_the_training(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    with pytest.raises(InputError, match=r"^bleu_tokenize is ja-mecab, .* pip install sacrebleu\[ja\]$"):
        train_translation(data=tmp_path / "missing.tsv", bleu_tokenize="ja-mecab", checkpoint_dir=tmp_path)
    assert not list(tmp_path.iterdir())
