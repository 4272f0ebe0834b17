"""The reference loops of the benchmark: the model and the procedure that they are said to be, and both learn."""

import dataclasses
import functools
import math

import jax
import numpy as np
import pytest
import torch

import reference_jax
import reference_torch
from reference_jax import ReferenceJax
from reference_tasks import TASKS, AnomalyDataset, AnomalyTask, ReverseTask
from reference_torch import ReferenceTorch
from transformer_jax import TransformerPredictor

pytestmark = pytest.mark.slow

SMALL = {"num_heads": 2, "batch_size": 31, "warmup": 3, "epochs": 7, "lr": 5e-3}
REVERSE = ReverseTask(**SMALL, model_dim=22, num_categories=3, seq_len=5, size=997)
ANOMALY = AnomalyTask(
    **SMALL, model_dim=26, num_layers=2, dropout_prob=0.0, input_dropout_prob=0.0, set_size=5, num_image_classes=7,
    images_per_class=137, feature_dim=17, class_spread=3.0,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread():
    """Threads only get in each other's way on models this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def torch_parameters(params: dict, task: ReverseTask | AnomalyTask) -> dict[str, torch.Tensor]:
    """Parameters of the JAX reference under the names of the PyTorch one."""
    renamed = {"input_net.1": params["Dense_0"], "output_net.0": params["Dense_1"]}
    renamed |= {"output_net.1": params["LayerNorm_0"], "output_net.4": params["Dense_2"]}
    for layer in range(task.num_layers):
        block = params[f"EncoderBlock_{layer}"]
        names = {
            "self_attn.qkv_proj": block["SelfAttention_0"]["Dense_0"],
            "self_attn.output_proj": block["SelfAttention_0"]["Dense_1"],
            "feed_forward.0": block["Dense_0"],
            "feed_forward.3": block["Dense_1"],
            "norm1": block["LayerNorm_0"],
            "norm2": block["LayerNorm_1"],
        }
        renamed |= {f"encoder.{layer}.{name}": leaves for name, leaves in names.items()}
    state = {}
    for name, leaves in renamed.items():
        for leaf, value in leaves.items():
            suffix = "bias" if leaf == "bias" else "weight"
            state[f"{name}.{suffix}"] = torch.tensor(np.asarray(value).T)
    return state


@pytest.mark.parametrize(("name", "expected"), [("reverse", 10_346), ("anomaly", 2_306_305)])
def test_models_have_as_many_parameters_as_the_predictor(name, expected):
    task = TASKS[name]
    inputs = np.zeros((2, 3, task.input_dim), np.float32)
    predictor = TransformerPredictor(task.model_dim, task.num_classes, task.num_heads, task.num_layers)
    initialize_jax = functools.partial(reference_jax.Predictor(task).init, train=False)
    for initialize in (predictor.init, initialize_jax):
        shapes = jax.eval_shape(initialize, jax.random.key(0), inputs)
        assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == expected
    assert sum(parameter.numel() for parameter in reference_torch.Predictor(task).parameters()) == expected


def test_parameters_are_drawn_as_the_predictor_draws_its_own():
    """The deviation and the largest value of each kind of kernel, of some 10⁴ draws."""
    task = dataclasses.replace(ANOMALY, model_dim=106, num_layers=1, feature_dim=101)
    inputs = np.zeros((2, 3, task.input_dim), np.float32)
    predictor = TransformerPredictor(task.model_dim, task.num_classes, task.num_heads, task.num_layers)
    params = jax.jit(predictor.init)(jax.random.key(5), inputs)["params"]
    block = params["encoder"]["layers_0"]
    initialize_jax = jax.jit(functools.partial(reference_jax.Predictor(task).init, train=False))
    in_jax = torch_parameters(initialize_jax(jax.random.key(3), inputs)["params"], task)
    in_torch = reference_torch.Predictor(task).state_dict()
    for name, layer in {
        "encoder.0.self_attn.qkv_proj": block["self_attn"]["query_proj"],
        "encoder.0.self_attn.output_proj": block["self_attn"]["output_proj"],
        "encoder.0.feed_forward.0": block["feed_forward"]["expand"],
        "input_net.1": params["input_layer"],
    }.items():
        expected = np.asarray(layer["kernel"])
        for parameters in (in_jax, in_torch):
            kernel = parameters[f"{name}.weight"].numpy()
            assert kernel.std() == pytest.approx(expected.std(), rel=0.03), name
            assert np.abs(kernel).max() == pytest.approx(np.abs(expected).max(), rel=0.02), name
            assert not parameters[f"{name}.bias"].any(), name


@pytest.mark.parametrize("task", [REVERSE, ANOMALY], ids=["reverse", "anomaly"])
def test_from_the_same_parameters_both_take_the_same_steps_and_learn(task):
    """Model, loss, gradient clipping, Adam, schedule and order of the samples are the same, also across epochs."""
    in_jax, in_torch = ReferenceJax(task, seed=3), ReferenceTorch(task, seed=3)
    in_torch.model.load_state_dict(torch_parameters(in_jax.state.params, task))
    steps = len(in_jax.train_loader) + 2
    for loop in (in_jax, in_torch):
        assert loop.run(steps) > 0
        assert loop.losses.shape == (steps,)
    np.testing.assert_allclose(in_jax.losses[:5], in_torch.losses[:5], rtol=1e-5)
    np.testing.assert_allclose(in_jax.losses, in_torch.losses, rtol=0.02)  # rounding grows
    for loop in (in_jax, in_torch):
        loop.run(100)
        assert loop.losses[-29:].mean() < 0.3 * loop.losses[:3].mean()


@pytest.mark.parametrize("contestant", [ReferenceJax, ReferenceTorch])
def test_dropout_is_drawn_anew_in_each_step(contestant):
    loop = contestant(dataclasses.replace(ANOMALY, dropout_prob=0.1, input_dropout_prob=0.1), seed=2)
    batch = next(iter(loop.train_loader))
    first, second = loop.fetch([loop.train_step(batch), loop.train_step(batch)])[:, 0]
    assert abs(first - second) > 1e-3  # the first step's learning rate is 0: only the dropout can make a difference


def test_positions_are_the_sinusoidal_table():
    expected = [[math.sin(3), math.cos(3), math.sin(3 / 10_000 ** (2 / 5)), math.cos(3 / 10_000 ** (2 / 5))]]
    np.testing.assert_allclose(reference_jax.positions(7, 5)[3:4, :4], expected, rtol=1e-6)
    in_torch = reference_torch.Positions(7, 5)(torch.zeros(1, 7, 5))[0]
    np.testing.assert_allclose(in_torch, reference_jax.positions(7, 5), atol=1e-6)


def test_a_set_holds_distinct_images_of_one_class_and_one_of_another():
    features = np.arange(5 * 7 * 3, dtype=np.float32).reshape(5, 7, 3)
    dataset = AnomalyDataset(features, set_size=7, seed=0)
    classes_drawn = set()
    for index in range(35):
        chosen, members, label = dataset[index]
        np.testing.assert_array_equal(chosen, features.reshape(35, 3)[members])
        assert (label, members[label], len(set(members))) == (6, index, 7)
        (image_class,) = set(members[:6] // 7)
        assert image_class != index // 7
        classes_drawn.add(image_class)
    assert classes_drawn == {0, 1, 2, 3, 4}


def test_reverse_draws_the_data_of_the_experiment():
    dataset = TASKS["reverse"].dataset(seed=0)
    assert len(dataset) == 50_000
    assert dataset[0][0].tolist() == [0, 7, 6, 4, 4, 8, 0, 6, 2, 0, 5, 9, 7, 7, 7, 7]
    assert dataset[0][1].tolist() == dataset[0][0].tolist()[::-1]
