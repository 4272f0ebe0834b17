"""Lenses: the Jacobian lens by its formula in PyTorch, finite differences and a linear model; the tuned lens."""

import itertools
from random import Random

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from compiled_models import drawn
from huggingface_models import Sizes, llama, opened
from tiny_models import Case, in_float64

from transformer_jax import TransformerLM
from transformer_jax.errors import InputError
from transformer_jax.inspection import (
    Inspected,
    Lens,
    add,
    fit_jacobian_lens,
    fit_tuned_lens,
    lens_divergence,
    lens_logits,
    load_lens,
    logit_lens,
    rotated,
    shuffled_texts,
)
from transformer_jax.inspection.inspected_call import forward_pass
from transformer_jax.nn.causal import CausalBlock

pytestmark = pytest.mark.slow  # they compile

V, D, L, T = 23, 12, 3, 21
TEXTS = np.random.default_rng(0).integers(V, size=(5, T + 2))  # cut to T; four positions of a text count
NO_END = pytest.warns(UserWarning, match="the lens has not converged after . texts: its distance is .*; give it more")


def made_llama() -> torch.nn.Module:
    torch.manual_seed(0)
    kind, config = llama(Sizes(V, 3, 4, L, 17), Random(0))
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def theirs():
    return made_llama()


@pytest.fixture(scope="module")
def inspected(theirs):
    return Inspected(*opened(theirs))


def by_reference(model, text: np.ndarray) -> list[np.ndarray]:
    """Jacobians of a text by the published recipe: cotangents at all valid targets, means over valid sources."""
    streams = []
    hooks = [layer.register_forward_hook(lambda *call: streams.append(call[2])) for layer in model.model.layers]
    model(torch.tensor(text[None]))
    for hook in hooks:
        hook.remove()
    valid = range(16, len(text) - 1)
    rows = []
    for dimension in range(D):
        cotangent = torch.zeros_like(streams[-1])
        cotangent[0, valid, dimension] = 1
        gradients = torch.autograd.grad(streams[-1], streams[:-1], cotangent, retain_graph=True)
        rows.append([gradient[0, valid].mean(0).numpy() for gradient in gradients])
    return np.array(rows).swapaxes(0, 1)


def test_jacobians_are_those_of_the_published_recipe_in_pytorch(inspected, theirs, tmp_path):
    with NO_END:
        lens = fit_jacobian_lens(inspected, TEXTS, tmp_path / "lens.safetensors", length=T, tolerance=1e-9)
    expected = np.array([by_reference(theirs, text[:T]) for text in TEXTS])  # [texts, N, D, D]
    assert lens.layers.tolist() == [0, 1]
    assert lens.num_texts == 5
    np.testing.assert_allclose(lens.maps, expected.mean(0), rtol=0, atol=2e-6 * np.abs(expected).max())
    squares = np.square(expected - expected.mean(0)).sum((0, 2, 3)) / 5 / 4
    error = np.sqrt(squares / np.square(expected.mean(0)).sum((1, 2))).max()
    with pytest.warns(UserWarning, match=f"its distance is {error:.3g}, above the tolerance 1e-09"):
        fit_jacobian_lens(inspected, TEXTS, tmp_path / "lens.safetensors", length=T, tolerance=1e-9)
    same = fit_jacobian_lens(inspected, iter(()), tmp_path / "lens.safetensors", length=T, tolerance=error * 1.01)
    np.testing.assert_array_equal(same.maps, lens.maps)


def test_jacobians_are_those_of_finite_differences_in_float64(theirs, tmp_path):
    with jax.enable_x64(True):
        model, variables = opened(theirs)
        variables = in_float64(Case(model, variables, ())).variables
        with NO_END:
            lens = fit_jacobian_lens(Inspected(model, variables), TEXTS[:1], tmp_path / "x.safetensors", length=T)
        assert lens.maps.dtype == np.float64
        call = forward_pass(model, variables, (TEXTS[:1, :T],), {})
        site, last = (f"decoder.layers.{layer}.output" for layer in (0, L - 1))

        @jax.jit
        def summed(direction):  # over valid positions, after a step at all of them
            patch = {site: add(direction, positions=list(range(16, T - 1)))}
            return call.run([last], patch)[1][last][0, 16:-1].sum(0)

        step = 1e-5
        columns = [(summed(step * axis) - summed(-step * axis)) / (2 * step) for axis in np.eye(D)]
        np.testing.assert_allclose(lens.maps[0], np.array(columns).T / (T - 17), rtol=0, atol=1e-8)


class LinearBlock(CausalBlock):
    """A block without attention: x + x W."""

    def setup(self):
        self.dense = nn.Dense(self.input_dim, use_bias=False)

    def __call__(self, x, mask=None, *, train=False, bias=None):
        return x + self.dense(x)


def test_in_a_linear_model_the_lens_is_exact_after_every_block_and_a_rotated_one_is_not(tmp_path):
    model = TransformerLM(V, D, 3, L, 17, block=LinearBlock)
    variables = drawn(model, TEXTS)
    inspected = Inspected(model, variables)
    endless = itertools.repeat(TEXTS[0])  # of one text, whose mean is known after two
    lens = fit_jacobian_lens(inspected, endless, tmp_path / "lens.safetensors", length=T)
    assert lens.num_texts == 2
    *maps, _ = (np.eye(D) + variables["params"]["decoder"][f"layers_{n}"]["dense"]["kernel"].T for n in (1, 2, 0))
    np.testing.assert_allclose(lens.maps, [maps[1] @ maps[0], maps[1]], atol=1e-5)
    logits = inspected.apply(lens_logits, TEXTS, lens=lens)
    np.testing.assert_allclose(logits, np.broadcast_to(logits[-1], logits.shape), atol=2e-4)
    control = rotated(lens, seed=3)
    divergences = [np.asarray(inspected.apply(lens_divergence, TEXTS, lens=each)) for each in (lens, control)]
    assert divergences[0].max() < 1e-6
    assert divergences[1].min() > 0.1
    values = [np.linalg.svd(each.maps)[1] for each in (lens, control)]
    np.testing.assert_allclose(*values, rtol=1e-4)


def test_the_tuned_lens_begins_as_the_logit_lens_and_its_divergence_falls_until_it_stops(inspected, tmp_path):
    begin = Lens(jnp.stack([jnp.eye(D)] * 2), jnp.zeros((2, D)), jnp.arange(2), 0)
    expected = inspected.apply(logit_lens, TEXTS)[1:]
    np.testing.assert_allclose(inspected.apply(lens_logits, TEXTS, lens=begin), expected, atol=1e-5)
    file = tmp_path / "lens.safetensors"
    few = {"length": T, "window": 10, "optimizer": optax.adam(0.01)}
    lens = fit_tuned_lens(inspected, itertools.islice(itertools.cycle(TEXTS), 500), file, tolerance=0.03, **few)
    before, after = (np.asarray(inspected.apply(lens_divergence, TEXTS, lens=each)) for each in (begin, lens))
    assert (after < 0.6 * before).all()
    assert 20 < lens.num_texts < 500
    loaded = load_lens(file)
    for one, other in zip(loaded, lens, strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(InputError, match="the lens has a bias; keep the file of its fit"):
        lens.save(tmp_path / "lens.pt")
    with pytest.warns(UserWarning, match="the fit diverges after"):
        fit_tuned_lens(
            inspected, itertools.cycle(TEXTS), tmp_path / "worse.safetensors", **few | {"optimizer": optax.sgd(np.nan)}
        )


@pytest.mark.parametrize("fit", [fit_jacobian_lens, fit_tuned_lens])
def test_a_fit_that_was_interrupted_continues_to_the_same_bits(fit, inspected, tmp_path):
    found = []
    for counts in ((5,), (2, 5)):
        for count in counts:
            with NO_END:
                lens = fit(inspected, TEXTS[:count], tmp_path / f"{len(counts)}.safetensors", length=T, tolerance=1e-9)
        found.append(lens)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    contents = [(tmp_path / f"{number}.safetensors").read_bytes() for number in (1, 2)]
    assert contents[0] == contents[1]


def test_published_lenses_load_and_ours_have_their_form(tmp_path):
    rng = np.random.default_rng(0)
    maps = rng.normal(size=(2, D, D)).astype(np.float32)
    published = {
        "J": {7: torch.tensor(maps[1]).half(), 2: torch.tensor(maps[0]).half()},
        "n_prompts": 100,
        "source_layers": [2, 7],
        "d_model": D,
    }
    torch.save(published, tmp_path / "published.pt")
    lens = load_lens(tmp_path / "published.pt")
    np.testing.assert_array_equal(lens.maps, maps.astype(np.float16).astype(np.float32))
    assert (lens.layers.tolist(), int(lens.num_texts), lens.bias.shape) == ([2, 7], 100, (2, D))
    assert not lens.bias.any()
    lens.save(tmp_path / "ours.pt")
    ours = torch.load(tmp_path / "ours.pt", weights_only=True)
    assert [*ours] == [*published]
    assert {name: ours[name] for name in ours if name != "J"} == {name: published[name] for name in ours if name != "J"}
    for layer, jacobian in published["J"].items():
        assert torch.equal(ours["J"][layer], jacobian.float())


def test_a_file_that_is_no_lens_or_of_another_one_is_an_error(inspected, tmp_path):
    torch.save({"jacobian_sum": {}, "n_done": 3}, tmp_path / "fit.pt")
    with pytest.raises(InputError, match=r"fit\.pt is not a Jacobian lens \(J, n_prompts\), or damaged"):
        load_lens(tmp_path / "fit.pt")
    torch.save({"J": {0: torch.zeros(1).expand(999, 999)}, "n_prompts": 1}, tmp_path / "wide.pt")
    with pytest.raises(InputError, match="declares arrays larger than the file"):
        load_lens(tmp_path / "wide.pt")
    with NO_END:
        fit_jacobian_lens(inspected, TEXTS[:1], tmp_path / "fit.safetensors", length=T)
    with pytest.raises(InputError, match=r"fit\.safetensors lacks divergences"):
        fit_tuned_lens(inspected, TEXTS, tmp_path / "fit.safetensors", length=T)
    other = Inspected(inspected.model, jax.tree.map(lambda leaf: 2 * leaf, inspected.variables))
    for model, length in ((other, T), (inspected, T + 1)):
        with pytest.raises(
            InputError, match=r"fit\.safetensors is a fit to another model or length; give another file"
        ):
            fit_jacobian_lens(model, TEXTS, tmp_path / "fit.safetensors", length=length)
    wide = Lens(jnp.zeros((2, D + 1, D + 1)), jnp.zeros((2, D + 1)), jnp.arange(2), 0)
    with pytest.raises(InputError, match=r"lens has maps \(2, 13, 13\); the model has 3 blocks of width 12"):
        inspected.apply(lens_logits, TEXTS, lens=wide)
    with pytest.raises(InputError, match="texts holds the token id 23; ids may be 0 … 22"):
        fit_jacobian_lens(inspected, np.full((1, T), V), tmp_path / "x.safetensors", length=T)
    with pytest.raises(InputError, match="length is 17; it must be at least 18"):
        fit_jacobian_lens(inspected, TEXTS, tmp_path / "x.safetensors", length=17)
    with pytest.raises(InputError, match=r"lens\.pt; its name must end in \.safetensors"):
        fit_jacobian_lens(inspected, TEXTS, tmp_path / "lens.pt", length=T)
    deeper = Lens(jnp.zeros((2, D, D)), jnp.zeros((2, D)), jnp.array([0, 7]), 0)
    assert np.isnan(inspected.apply(lens_logits, TEXTS, lens=deeper)[1]).all()


def test_shuffled_texts_have_the_tokens_of_the_texts():
    shuffled = list(shuffled_texts(TEXTS))
    np.testing.assert_array_equal(np.sort(shuffled), np.sort(TEXTS))
    assert (np.array(shuffled) != TEXTS).mean() > 0.5
    np.testing.assert_array_equal(shuffled, list(shuffled_texts(TEXTS)))
