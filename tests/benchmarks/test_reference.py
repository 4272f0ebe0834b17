"""The reference loops of the benchmark have the model and the procedure that they claim."""

import math

import jax
import numpy as np
import pytest
import torch

import reference_torch
from reference_jax import ReferenceJax
from reference_tasks import TASKS, AnomalyTask, ReverseTask
from reference_torch import ReferenceTorch
from transformer_jax import TransformerPredictor

pytestmark = pytest.mark.slow

SMALL = {"num_heads": 2, "batch_size": 31, "warmup": 3, "epochs": 7, "lr": 5e-3}
REVERSE = ReverseTask(**SMALL, model_dim=22, input_dim=3, num_classes=3, seq_len=5, size=317)
ANOMALY = AnomalyTask(
    **SMALL, model_dim=26, num_layers=2, dropout_prob=0.0, input_dropout_prob=0.0, set_size=5, num_image_classes=7,
    images_per_class=41, input_dim=17, class_spread=3.0,
)  # fmt: skip


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
    predictor = TransformerPredictor(task.model_dim, task.num_classes, task.num_heads, task.num_layers)
    shapes = jax.eval_shape(predictor.init, jax.random.key(0), np.zeros((2, 3, task.input_dim), np.float32))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == expected
    assert sum(parameter.numel() for parameter in reference_torch.Predictor(task).parameters()) == expected


@pytest.mark.parametrize("task", [REVERSE, ANOMALY], ids=["reverse", "anomaly"])
def test_from_the_same_parameters_both_take_the_same_steps(task):
    """Model, loss, gradient clipping, Adam, schedule and order of the samples are the same, also across epochs."""
    in_jax, in_torch = ReferenceJax(task, seed=3), ReferenceTorch(task, seed=3)
    in_torch.model.load_state_dict(torch_parameters(in_jax.state.params, task))
    steps = len(in_jax.train_loader) + 2
    for loop in (in_jax, in_torch):
        assert loop.run(steps) > 0
        assert loop.losses.shape == (steps,)
        assert loop.finish((1, 3))[1] == pytest.approx(loop.losses[1:3].mean())
    np.testing.assert_allclose(in_jax.losses[:5], in_torch.losses[:5], rtol=1e-5)
    np.testing.assert_allclose(in_jax.losses, in_torch.losses, rtol=0.02)  # rounding grows
