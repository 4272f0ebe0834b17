"""The benchmark of decoding: its contestants are one model, and its numbers are what they are said to be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from decoding import DecodingConfig, agreement, summarize
from decoding_contestants import CONTESTANTS, TorchTransformer
from transformer_jax import InputError

pytestmark = pytest.mark.slow

B, S, V = 3, 7, 101
CONFIG = DecodingConfig(
    batch_size=B, source_length=S, vocabulary_size=V, model_dim=26, num_heads=2, num_layers=1, dim_feedforward=13
)


@pytest.fixture(autouse=True)
def _one_thread():
    """Threads only get in each other's way on models this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def drawn():
    """A model in which no bias is 0 and no scale 1, and a batch."""
    model = CONFIG.model()
    rng = np.random.default_rng(0)
    source = rng.integers(V, size=(B, S), dtype=np.int32)
    params = jax.jit(model.init)(jax.random.key(0), source, source)
    params = jax.tree.map(lambda leaf: leaf + rng.normal(0, 0.05, leaf.shape).astype(np.float32), params)
    return model, params, jnp.asarray(source)


def test_all_contestants_give_the_most_probable_tokens_of_the_full_model(drawn):
    model, params, source = drawn
    length = 9  # reruns of 2, 4, 6, 8 and 9 positions
    full = jax.jit(model.apply)
    expected = np.zeros((B, length + 1), np.int32)  # the start token, then the others; no position sees a later one
    for position in range(length):
        expected[:, position + 1] = full(params, source, expected)[:, position].argmax(-1)
    for name, prepare in CONTESTANTS.items():
        tokens = prepare(model, params, source, length)()
        np.testing.assert_array_equal(tokens, expected[:, 1:], err_msg=name)
    assert len(np.unique(expected)) > 5  # not the same token again and again


def test_pytorch_has_the_same_logits(drawn):
    model, params, source = drawn
    target = np.random.default_rng(1).integers(V, size=(B, 5))
    module = TorchTransformer(model, params, max_len=S).eval()
    with torch.no_grad():
        x = module.embed(module.target_embedding, torch.tensor(target))
        memory = module.encode(torch.tensor(np.array(source)))
        found = module.output_layer(module.transformer.decoder(x, memory, module.causal[:5, :5]))
    np.testing.assert_allclose(found, model.apply(params, source, target), rtol=0, atol=2e-5)


def test_contestants_may_differ_late_but_not_early():
    tokens = np.zeros((2, 50), int)
    late, early = tokens.copy(), tokens.copy()
    late[0, 32] = early[1, 31] = 1
    assert agreement({"a": tokens, "b": tokens, "c": late}) == 0.99
    with pytest.raises(RuntimeError, match="first 32 tokens"):
        agreement({"a": tokens, "b": early})


def test_the_summary_takes_medians_and_divides_by_tokens():
    rows = [
        {"length": 4, "seconds": {"cached": [2.0, 0.1, 0.2], "rerun": [1.0], "pytorch": [3.0]}, "agreement": 1.0},
        {"length": 8, "seconds": {"cached": [0.8], "rerun": [8.0], "pytorch": [4.0]}, "agreement": 1.0},
    ]
    results = summarize(CONFIG, rows)
    assert rows[0]["ms_per_token"] == {"cached": 50.0, "rerun": 250.0, "pytorch": 750.0}
    assert rows[1]["tokens_per_second"] == {"cached": 30.0, "rerun": 3.0, "pytorch": 6.0}
    assert [results[name] for name in ("cached_growth", "rerun_over_cached", "pytorch_over_cached")] == [2.0, 10.0, 5.0]


@pytest.mark.parametrize("settings", [{"lengths": ()}, {"lengths": (5, 0)}, {"batch_size": 0}, {"num_heads": 3}])
def test_settings_that_cannot_work(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        DecodingConfig(**settings).model()
