"""The benchmark of attention: all contestants compute the same, and its ratios are what they are said to be."""

import numpy as np
import pytest

from attention import AttentionConfig, contestants, print_table, summarize
from transformer_jax import InputError

pytestmark = pytest.mark.slow

CONFIG = AttentionConfig(lengths=(19,), num_heads=2, head_width=5)


def test_all_contestants_run_and_ours_agree():
    calls, sizes = contestants(CONFIG, 19)
    for name in ("", " causal"):
        for plain, blockwise in zip(calls["plain" + name](), calls["blockwise" + name](), strict=True):
            np.testing.assert_allclose(plain, blockwise, atol=1e-5)
    assert set(calls) - set(sizes) == {"pytorch", "pytorch causal"}
    for call in calls.values():
        call()


def test_the_summary_takes_medians_and_their_ratios(capsys):
    names = "plain", "plain causal", "blockwise", "blockwise causal", "pytorch"
    times = {name: [number, 100.0, number] for number, name in enumerate(names, 1)}
    row = {"length": 7, "clock_ms": times, "processor_ms": times, "temporary_bytes": {"plain": 2**21}}
    (result,) = summarize(CONFIG, [row])["rows"]
    assert result["ms"]["pytorch"] == 5
    assert (result["causal_over_full"], result["plain_over_blockwise"]) == (4 / 3, 1 / 3)
    print_table({"rows": [result]})
    assert "2.0" in capsys.readouterr().out


def test_lengths_must_be_positive():
    with pytest.raises(InputError, match="lengths is"):
        AttentionConfig(lengths=(0,))
