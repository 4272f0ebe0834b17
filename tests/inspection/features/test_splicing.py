import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiled_models import drawn
from tiny_models import predictor

from transformer_jax import load_run
from transformer_jax.data.loader import make_loader
from transformer_jax.errors import InputError
from transformer_jax.inspection import Inspected, SparseDictionary, Transcoders, loss_recovered, splice, swap, zero
from transformer_jax.inspection.names import ActivationSite
from transformer_jax.tasks.reverse import ReverseDataset

pytestmark = pytest.mark.slow  # they compile

NAME = "encoder.layers.0.output"
READ, WRITTEN = "encoder.layers.0.after_attention", "encoder.layers.0.feed_forward.output"


def dictionary(width: int = 12, **fields) -> SparseDictionary:
    model = SparseDictionary(23, width, **fields)
    return model.bind(drawn(model, np.zeros((1, width), np.float32)))


@pytest.fixture(scope="module")
def inspected():
    case = predictor()
    return Inspected(*case[:2]), case.inputs


@pytest.mark.parametrize("fields", [{"k": 3}, {}])
def test_a_pass_goes_on_with_what_is_reconstructed_or_with_the_error_as_it_was(inspected, fields):
    (model, x), of = inspected, dictionary(**fields)
    clean, seen = model.capture(x, [NAME])
    spliced = model.patch(x, {NAME: splice(of)})
    np.testing.assert_allclose(spliced, model.patch(x, {NAME: swap(of(seen[NAME]).output)}), atol=1e-5)
    assert abs(spliced - clean).max() > 0.1
    np.testing.assert_allclose(model.patch(x, {NAME: splice(of, keep_error=True)}), clean, atol=1e-5)


def test_features_are_changed_as_any_activation(inspected):
    (model, x), of = inspected, dictionary(k=3)
    _, seen = model.capture(x, [NAME])
    features = of.encode(seen[NAME])
    busiest = int((features > 0).sum((0, 1)).argmax())
    for change in (zero(units=[busiest]), lambda f: f.at[..., busiest].set(0)):
        _, changed = model.patch(x, {NAME: splice(of, keep_error=True, change=change)}, [NAME])
        gone = features[..., busiest, None] * of.directions[busiest]
        np.testing.assert_allclose(changed[NAME], seen[NAME] - gone, atol=1e-5)
    with pytest.raises(InputError, match=r"units of features of encoder\.layers\.0\.output holds 23"):
        model.patch(x, {NAME: splice(of, change=zero(units=[23]))})


def test_the_error_gets_no_gradient():
    of, x = dictionary(k=3), np.random.default_rng(0).normal(size=(2, 7, 12)).astype(np.float32)

    def gradient(keep_error):
        patch = splice(of, keep_error=keep_error)
        return jax.grad(lambda x: patch.apply(x, ActivationSite(NAME, "B T D", x.shape)).sum())(x)

    np.testing.assert_allclose(gradient(True), gradient(False), atol=1e-5)
    assert abs(gradient(True) - 1).max() > 0.1  # that of the pass as it is


def test_a_transcoder_gives_one_activation_from_another(inspected):
    (model, x), of = inspected, dictionary(output_dim=12, k=3)
    _, seen = model.capture(x, [READ])
    _, spliced = model.patch(x, {WRITTEN: splice(of, reads=seen[READ])}, [WRITTEN])
    np.testing.assert_allclose(spliced[WRITTEN], of(seen[READ]).output, atol=1e-5)


@pytest.mark.parametrize(("fields", "name", "reads"), [({}, NAME, None), ({"output_dim": 32}, WRITTEN, READ)])
def test_the_recovered_loss_is_its_formula(fields, name, reads):
    run, of, data = load_run("reverse"), dictionary(32, k=5, **fields), ReverseDataset(size=131, seed=44)
    (x,) = run.model_inputs(data.inputs)

    def loss(patches):
        logits = run.inspected.patch(x, patches)
        return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(data.inputs[:, ::-1])).mean()

    seen = {} if reads is None else run.inspected.capture(x, [reads])[1]
    clean, spliced, zeroed = (loss(each) for each in ({}, {name: splice(of, reads=seen.get(reads))}, {name: zero()}))
    found = loss_recovered(run.fitted, of, name, make_loader(data, 128), reads=reads)
    np.testing.assert_allclose(found, (clean, spliced, zeroed), rtol=1e-4)
    np.testing.assert_allclose(found.recovered, (zeroed - spliced) / (zeroed - clean), rtol=1e-4)
    if reads is not None:
        transcoders = Transcoders.of([of], [reads], [name])
        assert loss_recovered(run.fitted, transcoders, loader=make_loader(data, 128)) == found


def test_mistakes_are_named():
    unbound = SparseDictionary(23, 12, k=3)
    for call in (lambda: splice(unbound), lambda: Transcoders.of([unbound], [READ], [WRITTEN])):
        with pytest.raises(InputError, match="dictionary has no variables; it must be bound to variables"):
            call()
    with pytest.raises(InputError, match="reads is None; only a transcoder needs it"):
        splice(dictionary(output_dim=12, k=3))
    with pytest.raises(InputError, match="reads is given; only a transcoder needs it"):
        splice(dictionary(k=3), reads=jnp.zeros((2, 7, 12)))
    with pytest.raises(InputError, match="reads is given; only a transcoder needs it"):
        loss_recovered(load_run("reverse"), dictionary(32, k=3), NAME, reads=READ)
    with pytest.raises(InputError, match="dictionaries has an autoencoder; all must be transcoders"):
        Transcoders.of([dictionary(k=3)], [READ], [WRITTEN])
    patch = splice(dictionary(output_dim=5, k=3), reads=jnp.zeros((2, 7, 12)))
    with pytest.raises(
        InputError, match=rf"dictionary gives \(2, 7, 5\); to replace {NAME}, it must give \(2, 7, 12\)"
    ):
        patch.apply(jnp.zeros((2, 7, 12)), ActivationSite(NAME, "B T D", (2, 7, 12)))
