import re
from html import unescape

import numpy as np
import pytest
from compiled_models import drawn

from transformer_jax import load_run
from transformer_jax.errors import InputError
from transformer_jax.inspection import SparseDictionary, feature_page

pytestmark = pytest.mark.slow  # they compile


@pytest.fixture(scope="module")
def dates():
    return load_run("dates")


@pytest.fixture(scope="module")
def dictionary(dates):
    model = SparseDictionary(13, dates.config.model_dim, k=2)
    return model.bind(drawn(model, np.zeros((1, dates.config.model_dim), np.float32)))


TEXTS = ["March 3, 2004", "3 janvier 2017", "<b>1.2.1999"]
NAME = "encoder.layers.0.output"


def test_each_feature_has_its_best_examples_coloured_by_it(dates, dictionary):
    examples = dates.examples(TEXTS)
    page = feature_page(dates, dictionary, NAME, examples, best=2)
    found = []
    for example in examples:
        _, seen = dates.inspected.capture(tuple(dates.model_inputs(example.inputs)), [NAME])
        found.append(np.asarray(dictionary.encode(seen[NAME]))[0, : len(example.labels["encoder"])])
    assert any(len(of) < 16 for of in found)  # padding is not shown
    sections = re.findall(r"<h2>Feature (\d+)</h2>.*?above 0 at ([\d.]+)%.*?<ol>\n(.*?)</ol>", page.text, re.DOTALL)
    assert len(sections) == sum(any(of[:, n].any() for of in found) for n in range(13))
    largest = []
    for number, rate, lines in sections:
        values = [of[:, int(number)] for of in found]
        assert float(rate) == pytest.approx(100 * (np.concatenate(values) > 0).mean(), abs=0.051)
        order = [n for n in np.argsort([-of.max() for of in values], kind="stable") if values[n].any()][:2]
        largest.append(values[order[0]].max())
        for line, n in zip(re.findall("<li>(.*?)</li>", lines), order, strict=True):
            shown = re.findall(r'<b style="--a:([\d.]+)" title="[^"]*">(.*?)</b>', line)
            assert [unescape(text) for _, text in shown] == examples[n].labels["encoder"]
            shares = values[n] / largest[-1]
            np.testing.assert_allclose([float(share) for share, _ in shown], shares, atol=0.0051)
    assert largest == sorted(largest, reverse=True)


def test_features_are_chosen_and_mistakes_are_named(dates, dictionary):
    examples = dates.examples(TEXTS[:1])
    page = feature_page(dates.fitted, dictionary, NAME, examples, features=[7, 2])
    assert re.findall(r"Feature (\d+)", page.text) == ["7", "2"]
    with pytest.raises(InputError, match="features is 13; it must be a whole number, 0 … 12"):
        feature_page(dates, dictionary, NAME, examples, features=[13])
