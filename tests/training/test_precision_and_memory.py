"""Options that save memory: accumulation and recomputation (same results), and bfloat16 (nearly the same)."""

import dataclasses
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_models import assert_close, drawn

from transformer_jax import AttentionSettings, ReverseConfig, TransformerEncoder, TransformerPredictor
from transformer_jax.data.batch import pad_batch
from transformer_jax.dropout import part_of_device
from transformer_jax.errors import InputError
from transformer_jax.fit.programs import update_rule
from transformer_jax.mesh_axis import all_rows, with_value
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.embeddings import rows_of, token_embedding
from transformer_jax.nn.layers import Dense, counter_bits
from transformer_jax.nn.position_kinds import LearnedEncoding
from transformer_jax.tasks import ReverseTrainer
from transformer_jax.training.step import gradients_and_sums, initial_state

pytestmark = pytest.mark.slow  # they compile

CONFIG = ReverseConfig(
    batch_size=12, seq_len=5, num_categories=3, model_dim=14, num_heads=2, num_layers=2, dropout_prob=0.3, warmup=2
)
INPUTS = np.random.default_rng(0).integers(3, size=(7, 5)).astype(np.int32)
BATCH = pad_batch((INPUTS, INPUTS[:, ::-1].copy()), 12)  # five rows are padding


def gradients_of(config: ReverseConfig, num_parts: int = 1):
    """Gradients and sums of the batch, with parameters of a fixed seed."""
    task = ReverseTrainer(dataclasses.replace(CONFIG, num_devices=1))
    params = drawn(task.model, jnp.zeros((1, 5, 3)))["params"]
    task = ReverseTrainer(config)
    rule = update_rule(task, 50)
    state = initial_state(params, rule.optimizer, jax.random.key(5))
    return jax.jit(lambda state: gradients_and_sums(state, BATCH, None, task.batch_loss, num_parts))(state)


def test_parts_of_a_batch_and_computing_activations_again_change_no_gradient_dropout_and_padding_included():
    expected, _ = gradients_of(CONFIG)
    for remat, num_parts in (("dots", 4), ("all", 2)):
        found, sums = gradients_of(dataclasses.replace(CONFIG, remat=remat), num_parts)
        assert sums["loss"][1] == 7 * 5
        assert_close(found, expected, 1e-6)


def test_each_layer_of_a_loop_drops_elements_of_its_own():
    settings = BlockSettings(dropout_prob=0.5, norm_first=True, scan_layers=True)
    stack, x = TransformerEncoder(2, 64, 2, 5, settings=settings, final_norm=False), jnp.zeros((1, 3, 64))

    def only_the_bias_of_the_feed_forward(path, leaf):
        return jnp.full_like(leaf, "contract/bias" in jax.tree_util.keystr(path, simple=True, separator="/"))

    params = jax.tree_util.tree_map_with_path(only_the_bias_of_the_feed_forward, stack.init(jax.random.key(0), x))
    # Each layer adds 2 where it keeps an element: in half of the places the two layers must differ.
    sums = np.asarray(stack.apply(params, x, train=True, rngs={"dropout": jax.random.key(1)}))
    assert set(np.unique(sums)) == {0, 2, 4}
    assert 0.3 < (sums == 2).mean() < 0.7


def test_in_a_loop_recomputation_keeps_fewer_activations():
    def temporaries(remat):
        attention = AttentionSettings(implementation="plain")
        settings = BlockSettings(remat=remat, scan_layers=True, attention=attention)
        model = TransformerPredictor(24, 3, num_heads=4, num_layers=6, settings=settings)
        x = jnp.zeros((1, 131, 3))
        params = jax.eval_shape(model.init, jax.random.key(0), x)
        program = jax.jit(jax.grad(lambda params: model.apply(params, x, train=True).sum())).lower(params)
        return program.compile().memory_analysis().temp_size_in_bytes

    none, dots, everything = (temporaries(remat) for remat in ("none", "dots", "all"))
    weights = 4 * 131 * 131 * 4  # bytes, of one layer
    assert everything < dots < none
    assert dots - everything < 3 * weights  # of none of the six layers are they kept
    assert dots < none - 6 * weights


@pytest.mark.parametrize(("remat", "barriers", "more"), [("none", 0, 0), ("dots", 1, 2), ("all", 1, 8)])
def test_a_block_computes_its_activations_again_behind_a_barrier(remat, barriers, more):
    num_layers, x = 3, jnp.zeros((1, 7, 3))
    model = TransformerPredictor(24, 3, num_heads=4, num_layers=num_layers, settings=BlockSettings(remat=remat))
    params = jax.eval_shape(model.init, jax.random.key(0), x)
    text = jax.jit(jax.grad(lambda params: model.apply(params, x, train=True).sum())).lower(params).as_text()
    assert text.count("optimization_barrier") == barriers * num_layers
    # A block has 8 products (query, key, value, logits, values, output, 2 of the feed-forward), 2 of them of
    # activations alone, and two gradients of each; 7 are outside of the blocks.
    assert text.count("dot_general") == 7 + (3 * 8 + more) * num_layers


def test_a_part_draws_the_bits_of_its_rows():
    key = jax.random.key(3)
    whole = counter_bits(key, (12, 5))
    with with_value(part_of_device, (1, 3)):
        np.testing.assert_array_equal(counter_bits(key, (4, 5)), whole[4:8])


def test_a_loss_that_compares_rows_is_refused_in_parts():
    with (
        with_value(part_of_device, (0, 4)),
        pytest.raises(InputError, match="accumulate is 4; it must be 1 for a loss that compares"),
    ):
        all_rows(jnp.zeros((2, 3)))


def types_in(program: str, operation: str) -> set[str]:
    """Types of an operation's operands in a program's text."""
    lines = [line.split(" -> ")[0] for line in program.splitlines() if f"stablehlo.{operation} " in line]
    return {name for line in lines for name in re.findall(r"x(b?f[0-9]+)>", line)}


@pytest.mark.parametrize(("dtype", "short"), [("float32", "f32"), ("bfloat16", "bf16")])
def test_the_model_multiplies_in_the_chosen_type_and_softmax_loss_and_gradients_are_float32(dtype, short):
    task = ReverseTrainer(dataclasses.replace(CONFIG, dtype=dtype))
    params = drawn(task.model, jnp.zeros((1, 5, 3)))["params"]
    state = initial_state(params, update_rule(task, 50).optimizer, jax.random.key(5))
    traced = jax.jit(lambda state: gradients_and_sums(state, BATCH, None, task.batch_loss)).trace(state)
    program = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert [types_in(program, operation) for operation in ("dot_general", "exponential")] == [{short}, {"f32"}]
    gradients, sums = traced.out_info
    assert {str(leaf.dtype) for leaf in jax.tree.leaves((gradients, sums))} == {"float32"}


class OneToken(nn.Module):
    """8191 embeddings of one token."""

    @nn.compact
    def __call__(self, _):
        return rows_of(token_embedding(2, 3).embedding, jnp.zeros(8191, jnp.int32))


class OnePosition(nn.Module):
    """8191 texts of one token, all of which are at one of two positions."""

    @nn.compact
    def __call__(self, x):
        return LearnedEncoding(3, max_len=2)(x, jnp.zeros((8191, 1), jnp.int32), 2)


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (Dense(3), np.zeros((8191, 3), jnp.bfloat16)),
        (LearnedEncoding(3, max_len=1), np.zeros((8191, 1, 3), jnp.bfloat16)),
        (OneToken(), None),
        (OnePosition(), np.zeros((8191, 1, 3), jnp.bfloat16)),
    ],
)
def test_a_gradient_of_bfloat16_is_summed_over_the_rows_in_float32(module, inputs):
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), module.init(jax.random.key(0), inputs))
    weights = np.random.default_rng(0).normal(1, size=(8191, 3)).astype(jnp.bfloat16)
    gradient = jax.grad(lambda p, w: (module.apply(p, inputs).reshape(-1, 3) * w).astype(jnp.float32).sum())
    lowered = jax.jit(gradient).lower(params, weights)
    # The second pattern is of a scatter.
    sums = re.findall(r"(?:applies stablehlo.add across|: \(tensor<2x3x\w+>, ).*", lowered.as_text())
    assert sums
    assert not any("bf16" in line for line in sums)
    leaf = jax.tree.leaves(lowered.compile()(params, weights))[0]
    np.testing.assert_allclose(leaf.reshape(-1, 3)[0].astype(np.float32), weights.astype(np.float32).sum(0), rtol=0.01)
