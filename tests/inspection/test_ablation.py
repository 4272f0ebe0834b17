import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from tiny_models import SETTINGS, encoder_decoder, language_model, predictor

from transformer_jax import MultiheadAttention, load_run, patch
from transformer_jax.data.loader import make_loader
from transformer_jax.errors import InputError
from transformer_jax.inspection import ablate_heads, ablation_table, mean_head_outputs, zero
from transformer_jax.nn.layer_stacks import unstack_layers
from transformer_jax.tasks.reverse import ReverseDataset

pytestmark = pytest.mark.slow  # they compile


def without_head(case, path: str, head: int, replacement: np.ndarray | None = None) -> jax.Array:
    """The output of a model whose head writes nothing: its rows of the output projection are zero.

    With a replacement `[d]` it writes this one's projection, which is added to the bias.
    """
    params = {
        name: np.array(leaf) for name, leaf in flatten_dict(unstack_layers(case.variables["params"]), sep="/").items()
    }
    rows = params[f"{path}/output_proj/kernel"][4 * head : 4 * head + 4]  # heads of width 4
    if replacement is not None:
        params[f"{path}/output_proj/bias"] += replacement @ rows
    rows[:] = 0
    return case.model.apply({"params": unflatten_dict(params, sep="/")}, *case.inputs)


@pytest.mark.parametrize("name", ["post_norm", "pre_rms_grouped", "scanned_alibi"])
def test_an_ablated_head_is_one_whose_output_projection_is_zero(name):
    case = predictor(SETTINGS[name])
    table = jax.jit(lambda variables: ablate_heads(case.model, variables, *case.inputs, metric=lambda out: out))(
        case.variables
    )
    assert {kind: rows.shape for kind, rows in table.items()} == {"encoder": (2, 3, 2, 7, 5)}
    for layer, head in ((0, 0), (1, 2)):
        expected = without_head(case, f"encoder/layers_{layer}/self_attn", head)
        np.testing.assert_allclose(table["encoder"][layer, head], expected, atol=1e-5)  # float32, numbers of about 1


@pytest.mark.parametrize(
    ("make", "paths"),
    [
        (encoder_decoder, {"encoder": "encoder/layers_1/self_attn", "cross": "decoder/layers_1/cross_attn"}),
        (language_model, {"decoder": "decoder/layers_1/self_attn"}),
    ],
)
def test_all_kinds_of_attention_have_a_table(make, paths):
    case = make()
    table = jax.jit(lambda v: ablate_heads(case.model, v, *case.inputs, metric=lambda out: out))(case.variables)
    assert set(table) == set(paths) | {"decoder"}
    for kind, path in paths.items():
        np.testing.assert_allclose(table[kind][1, 1], without_head(case, path, 1), atol=1e-5)


def test_mean_ablation_leaves_the_mean_output():
    case = predictor()
    means = mean_head_outputs(case.model, case.variables, *case.inputs)
    table = ablate_heads(case.model, case.variables, *case.inputs, metric=lambda out: out, means=means)
    mean = np.asarray(means["encoder.layers.1.attention.head_outputs"][2, 0])
    expected = without_head(case, "encoder/layers_1/self_attn", 2, mean)
    np.testing.assert_allclose(table["encoder"][1, 2], expected, atol=1e-5)
    few = {"encoder.layers.0.attention.head_outputs": np.zeros((3, 1, 4), np.float32)}
    with pytest.raises(InputError, match=r"means lacks encoder\.layers\.1\.attention\.head_outputs"):
        ablate_heads(case.model, case.variables, *case.inputs, metric=lambda out: out, means=few)


def test_a_model_without_attention_is_named():
    case = predictor(num_layers=0)
    with pytest.raises(InputError, match="the model has no attention of this package"):
        ablate_heads(case.model, case.variables, *case.inputs, metric=lambda out: out)


def test_an_attention_alone_has_a_kind_too():
    model = MultiheadAttention(12, 3)
    x = jnp.ones((2, 7, 12))
    variables = model.init(jax.random.key(0), x)
    assert ablate_heads(model, variables, x, metric=jnp.sum)["self"].shape == (1, 3)


def test_a_table_over_a_data_set_counts_a_short_last_batch_for_what_it_holds():
    trainer = load_run("reverse")
    data = ReverseDataset(size=131, seed=44)  # one batch of 128, and one of 3
    inputs, targets = data.inputs, data.inputs[:, ::-1]
    name = "encoder.layers.0.attention.head_outputs"
    logits = patch(trainer.model, trainer.variables, *trainer.model_inputs(inputs), patches={name: zero(0)})
    table = ablation_table(trainer, make_loader(data, 128))
    assert table.whole == 1
    assert table.without["encoder"] == pytest.approx(float((logits.argmax(-1) == targets).mean()), abs=1e-6)


def test_a_table_of_means_takes_them_over_the_whole_data_set():
    trainer = load_run("reverse")
    data = ReverseDataset(size=131, seed=44)
    inputs, targets = trainer.model_inputs(data.inputs), data.inputs[:, ::-1]
    means = mean_head_outputs(trainer.model, trainer.variables, *inputs)
    found = ablate_heads(
        trainer.model,
        trainer.variables,
        *inputs,
        means=means,
        metric=lambda logits: -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1).mean(),
    )
    table = ablation_table(trainer, make_loader(data, 128), metric="loss", by="mean")
    np.testing.assert_allclose(table.without["encoder"], found["encoder"], rtol=1e-5)


def test_bad_arguments_of_a_table_are_named():
    trainer = load_run("reverse")
    loader = make_loader(ReverseDataset(size=3), 128)
    with pytest.raises(InputError, match="by is 'max'; it must be 'zero' or 'mean'"):
        ablation_table(trainer, loader, by="max")
    with pytest.raises(InputError, match="metric is 'bleu'; it must be one of loss, accuracy"):
        ablation_table(trainer, loader, metric="bleu")
    with pytest.raises(InputError, match="the loader gives no batch"):
        ablation_table(trainer, [])
