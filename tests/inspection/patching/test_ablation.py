import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_models import compiled, drawn
from flax.traverse_util import flatten_dict, unflatten_dict
from tiny_models import SETTINGS, encoder_decoder, predictor

from transformer_jax import MultiheadAttention, load_run
from transformer_jax.data.loader import make_loader
from transformer_jax.errors import InputError
from transformer_jax.inspection import ablate_heads, ablation_table, mean_head_outputs
from transformer_jax.nn.layer_stacks import unstack_layers
from transformer_jax.tasks.reverse import ReverseDataset

pytestmark = pytest.mark.slow  # they compile

ENCODER = "encoder/layers_1/self_attn"
PATHS = {"encoder": ENCODER, "decoder": "decoder/layers_1/self_attn", "cross": "decoder/layers_1/cross_attn"}


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
    return compiled(case.model)({"params": unflatten_dict(params, sep="/")}, *case.inputs)


def test_an_ablated_head_is_one_whose_output_projection_is_zero():
    case = encoder_decoder(SETTINGS["scanned_alibi"])
    table = jax.jit(lambda v: ablate_heads(case.model, v, *case.inputs, metric=lambda out: out))(case.variables)
    assert {kind: rows.shape[:2] for kind, rows in table.items()} == dict.fromkeys(PATHS, (2, 3))
    for kind, path in PATHS.items():  # float32, numbers of about 1
        np.testing.assert_allclose(table[kind][1, 2], without_head(case, path, 2), atol=1e-5)


def test_mean_ablation_leaves_the_mean_output():
    case = predictor()
    means = jax.jit(lambda v: mean_head_outputs(case.model, v, *case.inputs))(case.variables)
    options = {"metric": lambda out: out, "means": means}
    table = jax.jit(lambda v: ablate_heads(case.model, v, *case.inputs, **options))(case.variables)
    mean = np.asarray(means["encoder.layers.1.attention.head_outputs"][2, 0])
    expected = without_head(case, "encoder/layers_1/self_attn", 2, mean)
    np.testing.assert_allclose(table["encoder"][1, 2], expected, atol=1e-5)
    few = {"encoder.layers.0.attention.head_outputs": np.zeros((3, 1, 4), np.float32)}
    with pytest.raises(InputError, match=r"means lacks encoder\.layers\.1\.attention\.head_outputs"):
        ablate_heads(case.model, case.variables, *case.inputs, metric=lambda out: out, means=few)


def test_an_attention_alone_has_a_kind_too():
    model, x = MultiheadAttention(12, 3), jnp.ones((2, 7, 12))
    table = jax.eval_shape(lambda: ablate_heads(model, drawn(model, x), x, metric=jnp.sum))
    assert table["self"].shape == (1, 3)


@pytest.mark.parametrize("by", ["zero", "mean"])
def test_a_table_is_over_a_whole_data_set_whose_last_batch_is_short(by):
    trainer = load_run("reverse")
    data = ReverseDataset(size=131, seed=44)  # one batch of 128, and one of 3
    of_model = trainer.model, trainer.variables, *trainer.model_inputs(data.inputs)
    targets = data.inputs[:, ::-1]
    found = ablate_heads(
        *of_model,
        means=mean_head_outputs(*of_model) if by == "mean" else None,
        metric=lambda logits: -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1).mean(),
    )
    table = ablation_table(trainer.fitted, make_loader(data, 128), metric="loss", by=by)
    np.testing.assert_allclose(table.without["encoder"], found["encoder"], rtol=1e-5)
    assert ablation_table(trainer, make_loader(data, 128), by=by).whole == 1  # of accuracy


def test_bad_arguments_of_a_table_are_named():
    trainer = load_run("reverse")
    loader, no_layers = make_loader(ReverseDataset(size=3), 128), predictor(num_layers=0)
    for call, message in (
        (lambda: ablation_table(trainer, loader, by="max"), "by is 'max'; it must be one of zero, mean"),
        (lambda: ablation_table(trainer, loader, metric="bleu"), "metric is 'bleu'; it must be one of loss, accuracy"),
        (lambda: ablation_table(trainer, []), "the loader gives no batch"),
        (lambda: ablate_heads(*no_layers[:2], *no_layers[2], metric=jnp.sum), "the model has no attention of this"),
    ):
        with pytest.raises(InputError, match=message):
            call()
