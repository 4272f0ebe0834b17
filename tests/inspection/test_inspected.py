import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import SETTINGS, encoder_decoder, language_model, logit_difference, predictor

from transformer_jax import patch
from transformer_jax.errors import InputError
from transformer_jax.inspection import (
    Activations,
    Inspected,
    PatchGrid,
    add,
    attribute_logits,
    generate,
    knock_out,
    patch_activations,
    swap,
    zero,
)

pytestmark = pytest.mark.slow  # they compile

HEADS = "encoder.layers.1.attention.head_outputs"
DRAWS = np.random.default_rng(2)


@pytest.fixture(scope="module")
def case():
    return predictor(SETTINGS["pre_norm"])


@pytest.fixture(scope="module")
def bound(case):
    return Inspected(case.model, case.variables)


def test_a_bound_model_captures_and_patches_as_the_functions_do(case, bound):
    (x,) = case.inputs
    patches = {HEADS: [zero(heads=[2]), lambda y: 2 * y]}
    patched, seen = bound.patch(x, patches, ["*.output"])
    expected, values = patch(case.model, case.variables, x, patches=patches, names=["*.output"])
    np.testing.assert_allclose(patched, expected, rtol=1e-4, atol=1e-5)  # sums in another order
    assert list(seen) == list(values)
    for name, value in values.items():
        np.testing.assert_allclose(seen[name], value, rtol=1e-4, atol=1e-5)
    output, _ = bound.capture(x, [HEADS])
    parts = bound.apply(attribute_logits, x, of=lambda logits: logits[:, 3, 1] - logits[:, 3, 4] + 0.7)
    total = sum(part.reshape(-1, 2).sum(0) for part in parts.values())  # of a difference and a constant, too
    np.testing.assert_allclose(total, output[:, 3, 1] - output[:, 3, 4] + 0.7, rtol=1e-4, atol=1e-5)


def test_one_activation_of_each_layer_stacks_in_their_order():
    seen = Activations({f"layers.{n}.{end}": jnp.full(3, n) for n in range(11) for end in ("weights", "output")})
    np.testing.assert_array_equal(seen.stack("layers.*.output")[:, 0], np.arange(11))  # 10 behind 9, not behind 1
    assert repr(seen).startswith("layers.0.weights (3,)\nlayers.0.output (3,)\n")
    with pytest.raises(InputError, match=r"must match one activation of each layer: layers.\?.weights or layers.\?.o"):
        seen.stack("layers.*")


def test_alike_arguments_share_a_program(case, bound, monkeypatch):
    (x,) = case.inputs
    traced = []
    apply = type(case.model).apply
    monkeypatch.setattr(type(case.model), "apply", lambda *args, **kwargs: traced.append(1) or apply(*args, **kwargs))
    direction = np.ones(4, np.float32)
    once = bound.patch(x, {HEADS: add(direction, heads=[1])})
    number = len(traced)
    twice = bound.patch(x + 1, {HEADS: add(2 * direction, heads=[1])})
    assert len(traced) == number > 0
    assert np.abs(once - twice).max() > 1e-3
    bound.patch(x, {HEADS: add(direction, heads=[2])})
    assert len(traced) > number


def test_a_patch_grid_holds_what_patching_restores_layer_by_layer(case, bound):
    clean, corrupted = case.inputs[0], predictor(seed=5).inputs[0]

    def metric(logits):
        return logit_difference(logits).sum()

    by = "positions", "layers", "heads"
    grid = bound.patch_grid(clean, corrupted, "head_outputs", by=by, metric=metric)
    assert (grid.values.shape, grid.by) == ((7, 2, 3), by)
    options = {"names": [HEADS], "metric": metric, "by": ("positions", "heads")}
    expected = bound.apply(patch_activations, [clean], [corrupted], **options)[HEADS]
    np.testing.assert_allclose(grid.values[:, 1], expected, atol=1e-3)  # quotients of small differences, in float32


def test_a_patch_grid_is_drawn():
    values = DRAWS.normal(size=(2, 7, 3))
    for grid, tokens, first, num_frames in (
        (PatchGrid(values, ("layers", "positions", "heads")), list("abcdefg"), values[..., 0], 3),
        (PatchGrid(values[0], ("heads", "layers")), None, values[0].T, 1),
    ):
        axes = grid.plot(tokens).axes
        assert len(axes) == num_frames + 1  # a frame for each head, and the bar
        np.testing.assert_array_equal(axes[0].images[0].get_array(), first)


def test_a_site_must_be_one_activation_of_each_layer():
    case = encoder_decoder()
    bound = Inspected(case.model, case.variables)
    arguments = {"metric": jnp.sum}
    with pytest.raises(InputError, match=r"decoder.layers.\?.attention.head_outputs or decoder.layers.\?.cross_attent"):
        bound.patch_grid(case.inputs, case.inputs, "head_outputs", **arguments)
    with pytest.raises(InputError, match="'head_output' is not an activation"):
        bound.patch_grid(case.inputs, case.inputs, "head_output", **arguments)
    with pytest.raises(InputError, match="must be a list with 'layers'"):
        bound.patch_grid(case.inputs, case.inputs, "output", by=["positions"], **arguments)


def test_generation_takes_every_token_from_a_patched_pass_with_a_cache_and_without():
    case = language_model(SETTINGS["pre_rms_grouped"])
    bound, prompt = Inspected(case.model, case.variables), case.inputs[0][:, :3]
    direction, others = 3 * DRAWS.normal(size=12), DRAWS.normal(size=(2, 3, 7, 4))
    outputs = "decoder.layers.1.attention.head_outputs"
    patches = {
        "decoder.layers.0.output": add(direction.astype(np.float32), positions=[[1, 4], [0, 5]]),  # of each text
        outputs: swap(others.astype(np.float32), heads=1, positions=np.arange(7) % 2 == 0),
        "decoder.layers.1.attention.weights": knock_out([2, 5], [1, 4]),
        "logits": add(DRAWS.normal(size=(7, 13)).astype(np.float32)),
    }
    tokens, seen = generate(bound, prompt, 4, patches=patches, names=[outputs, "logits"])
    np.testing.assert_array_equal(tokens[:, 3:], seen["logits"][:, 2:-1].argmax(-1))  # of the whole patched pass
    _, expected = bound.patch(tokens, patches, [outputs])
    np.testing.assert_allclose(seen[outputs], expected[outputs], rtol=1e-4, atol=1e-5)
    by_function = {**patches, outputs: lambda y: y.at[:, 1, ::2].set(others[:, 1, ::2].astype(np.float32))}
    np.testing.assert_array_equal(generate(bound, prompt, 4, patches=by_function)[0], tokens)


def test_generation_draws():
    case = language_model(SETTINGS["post_norm"])
    bound, prompt = Inspected(case.model, case.variables), case.inputs[0][:, :3]
    cold, seen = generate(bound, prompt, 2, names=["logits"], key=jax.random.key(0), temperature=1e-6)
    np.testing.assert_array_equal(cold[:, 3:], seen["logits"][:, 2:-1].argmax(-1))
    drawn, _ = generate(bound, np.repeat(prompt, 200, axis=0), 1, key=jax.random.key(0))
    assert len(np.unique(drawn[:200, 3])) > 1
    bound.variables = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), bound.variables)
    with pytest.raises(InputError, match="the patched model returned logits that are NaN .* for row 0"):
        generate(bound, prompt, 2, names=["logits"], key=jax.random.key(0), temperature=1e-6)


def test_token_ids_that_are_not_there_are_errors_before_a_program_runs():
    case = language_model(SETTINGS["pre_norm"])
    (tokens,) = case.inputs
    bound, size = Inspected(case.model, case.variables), case.model.vocabulary_size
    for call, message in (
        (lambda: bound.capture(tokens + size, ["logits"]), "tokens holds the token id "),
        (lambda: bound.patch_grid(tokens, tokens + size, "output", metric=jnp.sum), "tokens holds the token id "),
        (lambda: generate(bound, tokens + size, 2), "prompt holds the token id "),
        (lambda: generate(bound, "hello", 2), "prompt"),
        (lambda: generate(bound, tokens * 1.0, 2), "prompt has type"),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_a_grid_without_a_change_to_restore_or_of_several_numbers_is_an_error(case, bound):
    (x,) = case.inputs
    with pytest.raises(InputError, match="metric is the same for the clean and the corrupted input, or not finite"):
        bound.patch_grid(x, x, "encoder.layers.?.output", metric=jnp.sum)
    with pytest.raises(InputError, match="metric must return a number"):
        bound.patch_grid(x, x + 1, "encoder.layers.?.output", metric=lambda logits: logits[0, 0])
