"""The findings of docs/real_models.md, by the page's code with fewer tokens and countries, and by PyTorch."""

import numpy as np
import pytest

import pytorch_hooks
import real_models

pytestmark = pytest.mark.slow

# Of float32 through 30 layers; what is restored is a difference of two differences of logits.
LOGITS, RESTORED = 1e-4, 1e-3


def test_eight_heads_continue_a_text_that_repeats_itself(smollm2):
    found = real_models.ran("Induction heads", ("size=(4, 50)", "size=(2, 37)"))
    scores = found["scores"]
    leaders = {divmod(int(place), 9) for place in np.argsort(scores, axis=None)[-3:]}
    assert leaders == {(18, 6), (17, 3), (17, 4)}
    section = real_models.induction(found, draws=1)
    (others,) = real_models.drawn_others(found["leading"], 1)
    assert others.sum() == 8
    assert not (others & found["leading"]).any()
    without_others = found["smollm2"].inspected.apply(found["losses"], found["tokens"], others)
    second_time = [losses[:, 37:].mean() for losses in (found["whole"], without_others, found["without"])]
    assert second_time[0] < 5
    assert second_time[1] < 7
    assert second_time[2] > 10  # the first time it is 14
    assert max(section.differences.values()) < LOGITS


def test_one_layer_moves_the_capital_from_the_country_to_the_last_token(smollm2):
    found = real_models.ran(
        "Where a capital comes from", (', "Germany": " Berlin", "Spain": " Madrid", "Japan": " Tokyo"', "")
    )
    ranks = real_models.ranks_of(found["answers"], np.asarray(found["lens"]))
    assert (ranks[-1] == 1).all()
    assert (ranks[:28] > 20).all()
    restored = np.asarray(found["grid"].values)  # [L, T]
    country, last = restored[:, 3], restored[:, 4]
    np.testing.assert_allclose(country[:23], 1, atol=0.1)
    np.testing.assert_allclose(last[23:], 1, atol=0.1)
    assert np.abs(restored[:, :3]).max() < 0.1
    assert np.argmax(found["of_heads"].values) == 4
    differences = real_models.capitals(found).differences
    assert differences["lens"] < LOGITS
    assert max(differences["grid"], differences["heads"]) < RESTORED


def test_vectors_of_sentences_that_mean_the_same_are_near_each_other(minilm):
    found = real_models.ran("Sentences that mean the same")
    cosines = found["cosines"]
    assert np.diagonal(cosines[::2, 1::2]).min() > 0.4
    assert (cosines - np.kron(np.eye(4), np.ones((2, 2)))).max() < 0.3
    expected = pytorch_hooks.mean_pooled(minilm, found["SENTENCES"])
    np.testing.assert_allclose(found["vectors"], expected, rtol=0, atol=1e-6)
