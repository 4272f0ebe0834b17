"""Published models by name and by path: they solve the reverse task, downloads are complete or absent, clear errors."""

import hashlib

import flax.serialization
import jax
import numpy as np
import pytest
from local_server import UNREACHABLE, serve
from tutorial_models import PUBLISHED, evaluate, flax_tree, needs_published

from transformer_jax import load_pretrained
from transformer_jax.errors import InputError
from transformer_jax.tasks.reverse import ReverseDataset
from transformer_jax.trained import published as pretrained

FEATURES, D, C, H, L = 11, 22, 5, 2, 1
FLAX = flax.serialization.msgpack_serialize(flax_tree(FEATURES, D, C, L))
BY_HAND = r"put the file at .*/reverse-jax.ckpt by hand"


@pytest.fixture
def published(monkeypatch):
    """Function that replaces the published file by another one."""

    def replace(url: str, content: bytes | None = FLAX, num_heads: int = H) -> None:
        digest = None if content is None else hashlib.sha256(content).hexdigest()
        monkeypatch.setitem(pretrained.PUBLISHED, "reverse-jax", pretrained.Published(url, num_heads, digest))

    return replace


@pytest.mark.slow
@needs_published
def test_the_published_reverse_model_solves_its_task_with_the_logits_of_the_formulas(tmp_path):
    (tmp_path / "reverse-jax.ckpt").write_bytes(PUBLISHED.read_bytes())  # as by hand, and checked against the digest
    model, params = load_pretrained("reverse-jax", cache_dir=tmp_path)
    assert (model.model_dim, model.num_heads, model.num_layers, model.num_classes) == (32, 1, 1, 10)
    inputs = ReverseDataset(size=10_000, seed=44).inputs  # [N T]
    one_hot = np.eye(10, dtype=np.float32)[inputs]
    logits = jax.jit(model.apply)({"params": params}, one_hot)  # [N T C]
    assert (logits.argmax(-1) == inputs[:, ::-1]).mean() == 1.0
    expected = evaluate(flax.serialization.msgpack_restore(PUBLISHED.read_bytes()), one_hot, num_heads=1)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda array: array.astype(np.float64), ({"params": params}, one_hot))
        np.testing.assert_allclose(jax.jit(model.apply)(*wide), expected, rtol=0, atol=1e-5)


def test_a_name_is_downloaded_once_and_knows_its_heads(tmp_path, published):
    cache_dir = tmp_path / "not" / "yet"
    with serve({"/a.ckpt": FLAX}) as (url, requests):
        published(f"{url}/a.ckpt")
        model, params = load_pretrained("reverse-jax", cache_dir=cache_dir)
        assert (model.num_heads, len(requests)) == (H, 1)
        again = load_pretrained("reverse-jax", cache_dir=str(cache_dir), num_heads=H)
        assert len(requests) == 1
    jax.tree.map(np.testing.assert_array_equal, params, again[1])
    assert [path.name for path in cache_dir.iterdir()] == ["reverse-jax.ckpt"]
    assert (cache_dir / "reverse-jax.ckpt").read_bytes() == FLAX
    with pytest.raises(InputError, match="num_heads is 11; that of reverse-jax is 2"):
        load_pretrained("reverse-jax", cache_dir=cache_dir, num_heads=11)


def test_a_failed_download_says_what_to_do_and_leaves_no_file(tmp_path, published):
    published(UNREACHABLE)
    with pytest.raises(InputError, match=rf"reverse-jax could not be downloaded from http.*; {BY_HAND}") as error:
        load_pretrained("reverse-jax", cache_dir=tmp_path)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_the_published_one_is_named(tmp_path, published):
    path = tmp_path / "reverse-jax.ckpt"
    with serve({"/a": FLAX[:-1] + b"!"}) as (url, _):
        published(f"{url}/a")
        with pytest.raises(InputError, match=rf"its SHA-256 is \w{{64}}, not \w{{64}}; remove {path} to download"):
            load_pretrained("reverse-jax", cache_dir=tmp_path)
    published(UNREACHABLE, content=None)
    path.write_bytes(FLAX[:1000])
    with pytest.raises(InputError, match=rf"{path} is not a Flax msgpack, .*; remove {path} to download it again"):
        load_pretrained("reverse-jax", cache_dir=tmp_path)


@pytest.mark.parametrize("what", ["reverse", "nowhere/model.ckpt", "."])
def test_what_is_neither_a_name_nor_a_file_is_an_error(what):
    with pytest.raises(InputError, match=rf"what is {what}; it must be a file, or one of reverse-jax, reverse-py"):
        load_pretrained(what)
