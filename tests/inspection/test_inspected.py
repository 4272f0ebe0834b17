import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_models import drawn
from tiny_models import SETTINGS, encoder_decoder, language_model, logit_difference, predictor

from transformer_jax import TransformerEncoder, load_run, patch
from transformer_jax.errors import InputError
from transformer_jax.inspection import (
    Inspected,
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
    parts = bound.apply(attribute_logits, x, of=lambda logits: logits[:, 3, 1])
    total = sum(part.reshape(-1, 2).sum(0) for part in parts.values())
    np.testing.assert_allclose(total, output[:, 3, 1], rtol=1e-4, atol=1e-5)


def test_layers_come_and_stack_in_their_order_and_a_question_mark_is_any_of_them():
    model, x = TransformerEncoder(11, 4, 1, 3), np.ones((2, 5, 4), np.float32)
    bound = Inspected(model, drawn(model, x))
    _, seen = bound.capture(x, ["layers.?.output", "*.weights"])
    order = [f"layers.{layer}.{end}" for layer in range(11) for end in ("attention.weights", "output")]
    assert list(seen) == order  # 10 behind 9, not behind 1
    np.testing.assert_array_equal(seen.stack("layers.*.output"), [seen[name] for name in order[1::2]])


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


def test_what_is_not_one_activation_of_each_layer_cannot_be_stacked(case, bound):
    _, seen = bound.capture(case.inputs[0], ["encoder.layers.0.*"])
    with pytest.raises(InputError, match=r"must fit one activation of each layer: encoder.layers.\?.input or"):
        seen.stack("encoder.layers.0.*")


@pytest.mark.parametrize("by", [("layers", "positions", "heads"), ("heads", "layers")])
def test_a_patch_grid_holds_what_patching_restores_layer_by_layer(by, case, bound):
    clean, corrupted = case.inputs[0], predictor(seed=5).inputs[0]

    def metric(logits):
        return logit_difference(logits).sum()

    grid = bound.patch_grid(clean, corrupted, "head_outputs", by=by, metric=metric)
    assert grid.values.shape == tuple({"layers": 2, "positions": 7, "heads": 3}[axis] for axis in by)
    expected = patch_activations(
        case.model, case.variables, [clean], [corrupted], names=[HEADS], metric=metric,
        by=[axis for axis in by if axis != "layers"],
    )[HEADS]  # fmt: skip
    of_layer = np.moveaxis(grid.values, by.index("layers"), 0)[1]
    np.testing.assert_allclose(of_layer, expected, atol=1e-3)  # quotients of small differences, in float32
    axes = grid.plot(list("abcdefg") if "positions" in by else None).axes
    assert len(axes) == (4 if len(by) == 3 else 2)  # a frame for each head, and the bar
    drawn = axes[0].images[0].get_array()
    first = grid.values[..., 0] if len(by) == 3 else grid.values.T
    np.testing.assert_array_equal(drawn, first)


def test_a_site_must_be_one_activation_of_each_layer():
    case = encoder_decoder()
    bound = Inspected(case.model, case.variables)
    arguments = {"metric": jnp.sum}
    with pytest.raises(InputError, match=r"decoder.layers.\?.attention.head_outputs or decoder.layers.\?.cross_attent"):
        bound.patch_grid(case.inputs, case.inputs, "head_outputs", **arguments)
    with pytest.raises(InputError, match="'head_output' is no activation"):
        bound.patch_grid(case.inputs, case.inputs, "head_output", **arguments)
    with pytest.raises(InputError, match="must be a list with 'layers'"):
        bound.patch_grid(case.inputs, case.inputs, "output", by=["positions"], **arguments)


def test_a_run_has_its_model_bound():
    run = load_run("reverse")
    numbers = np.arange(16) % 10
    output, _ = run.inspected.capture(np.eye(10, dtype=np.float32)[None, numbers], ["logits"])
    np.testing.assert_array_equal(output.argmax(-1)[0], numbers[::-1])


@pytest.mark.parametrize("settings", ["post_norm", "pre_rms_grouped"])
def test_generation_takes_every_token_from_a_patched_pass_with_a_cache_and_without(settings):
    case = language_model(SETTINGS[settings])
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
    _, expected = patch(case.model, case.variables, tokens, patches=patches, names=[outputs])
    np.testing.assert_allclose(seen[outputs], expected[outputs], rtol=1e-4, atol=1e-5)
    by_function = {**patches, outputs: lambda y: y.at[:, 1, ::2].set(others[:, 1, ::2].astype(np.float32))}
    np.testing.assert_array_equal(generate(bound, prompt, 4, patches=by_function)[0], tokens)
    one, _ = generate(bound, prompt[:, :1], 6, patches=patches, names=["logits"])
    logits = patch(case.model, case.variables, one, patches=patches)
    np.testing.assert_array_equal(one[:, 1:], logits[:, :-1].argmax(-1))
    assert (generate(bound, prompt, 4)[0] != tokens).any()


def test_generation_draws():
    case = language_model(SETTINGS["post_norm"])
    bound, prompt = Inspected(case.model, case.variables), case.inputs[0][:, :3]
    cold, _ = generate(bound, prompt, 2, key=jax.random.key(0), temperature=1e-6)
    np.testing.assert_array_equal(cold, generate(bound, prompt, 2)[0])
    drawn, _ = generate(bound, np.repeat(prompt, 200, axis=0), 1, key=jax.random.key(0))
    assert len(np.unique(drawn[:200, 3])) > 1


def test_a_bound_model_takes_traced_heads(case, bound):
    (x,) = case.inputs
    outputs = jax.vmap(lambda head: bound.patch(x, {HEADS: zero(heads=head)}))(jnp.arange(3))
    np.testing.assert_allclose(outputs[2], bound.patch(x, {HEADS: zero(heads=2)}), rtol=1e-4, atol=1e-5)
    _, seen = bound.capture(x + 1, [HEADS])
    whole = bound.patch(x, {HEADS: swap(seen[HEADS])})
    np.testing.assert_allclose(whole, bound.patch(x, {HEADS: seen[HEADS]}), rtol=1e-4, atol=1e-5)


def test_token_ids_that_are_not_there_are_errors_before_a_program_runs():
    case = language_model(SETTINGS["pre_norm"])
    (tokens,) = case.inputs
    bound, size = Inspected(case.model, case.variables), case.model.vocabulary_size
    for call, name in (
        (lambda: bound.capture(tokens + size, ["logits"]), "tokens"),
        (lambda: bound.patch(tokens - size, {}), "tokens"),
        (lambda: bound.patch_grid(tokens, tokens + size, "output", metric=jnp.sum), "tokens"),
        (lambda: generate(bound, tokens + size, 2), "prompt"),
    ):
        with pytest.raises(InputError, match=f"{name} holds the token id "):
            call()
    for prompt, message in (("hello", "prompt"), (tokens[0], "prompt has shape"), (tokens * 1.0, "prompt has type")):
        with pytest.raises(InputError, match=message):
            generate(bound, prompt, 2)


def test_a_grid_without_a_change_to_restore_or_of_several_numbers_is_an_error(case, bound):
    (x,) = case.inputs
    with pytest.raises(InputError, match="metric is the same for the clean and the corrupted input, or not finite"):
        bound.patch_grid(x, x, "encoder.layers.?.output", metric=jnp.sum)
    with pytest.raises(InputError, match="the metric was no number"):
        bound.patch_grid(x, x + 1, "encoder.layers.?.output", metric=lambda logits: logits[0, 0])


def test_activations_are_listed_by_name_and_shape(case, bound):
    (x,) = case.inputs
    _, seen = bound.capture(x, [HEADS])
    assert repr(seen) == f"{HEADS} {seen[HEADS].shape}"
