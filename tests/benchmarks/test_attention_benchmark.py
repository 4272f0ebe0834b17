"""The benchmark of attention: all contestants compute the same, and its ratios are what they are said to be."""

import numpy as np
import pytest

from attention import AttentionConfig, contestants

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
