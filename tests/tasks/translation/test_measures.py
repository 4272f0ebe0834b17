"""Measures of text, with answers worked out by hand."""

import pytest

from transformer_jax.tasks.translation.measures import error_rate, exact_match, translation_scores


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
