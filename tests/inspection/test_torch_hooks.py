"""The same model exported to PyTorch, with forward hooks there: its activations are ours."""

import functools
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import SETTINGS, encoder_decoder, predictor

from transformer_jax import capture, export_torch

# By our names the modules of a layer there that return it; and those that are given it.
OF_ATTENTION = {"queries": "query_proj", "keys": "key_proj", "values": "value_proj"}
RETURNED = {
    **{f"attention.{name}": f"self_attn.{module}" for name, module in OF_ATTENTION.items()},
    **{f"cross_attention.{name}": f"cross_attn.{module}" for name, module in OF_ATTENTION.items()},
    "attention.output": "self_attn",
    "cross_attention.output": "cross_attn",
    "after_attention": "self_attn_residual",
    "after_cross_attention": "cross_attn_residual",
    "feed_forward.output": "feed_forward",
    "output": "feed_forward_residual",
}
GIVEN = {
    "attention.head_outputs": "self_attn.output_proj",
    "cross_attention.head_outputs": "cross_attn.output_proj",
    "feed_forward.hidden": "feed_forward.contract",  # the activation is one module for all layers
}


def hooked(module: torch.nn.Module, inputs: list[torch.Tensor]) -> dict[str, np.ndarray]:
    """Activations of a pass in PyTorch, by our names."""
    seen: dict[str, np.ndarray] = {}

    def watch(part: torch.nn.Module, name: str, *, is_given: bool = False) -> None:
        def hook(_, given, output):
            x = (given[0] if is_given else output).detach()
            in_heads = name.endswith(("queries", "keys", "values", "head_outputs"))  # 3 of them, of width 4
            seen[name] = (x.unflatten(-1, (3, 4)).transpose(1, 2) if in_heads else x).numpy()

        part.register_forward_hook(hook)

    for path, part in module.named_modules():
        layer = re.match(r"(?:en|de)coder\.layers\.\d+\.", path)
        for names, is_given in ((RETURNED, False), (GIVEN, True)) if layer else ():
            for name, of_layer in names.items():
                if path == f"{layer[0]}{of_layer}":
                    watch(part, f"{layer[0]}{name}", is_given=is_given)
        if path in ("encoder", "decoder", "output_layer"):
            watch(part, "logits" if path == "output_layer" else f"{path}.output")
    module(*inputs)
    return seen


@pytest.mark.parametrize("settings", ["post_norm", "pre_norm"])
@pytest.mark.parametrize(
    ("make", "count"), [(predictor, 2 * 9 + 2), (functools.partial(encoder_decoder, tied=False), 2 * 9 + 2 * 15 + 3)]
)
def test_activations_are_those_that_hooks_see_in_pytorch(tmp_path: Path, make, count, settings):
    model, variables, inputs = make(SETTINGS[settings])
    inputs = [np.asarray(x) for x in inputs[:2]]  # without a mask
    module = runpy.run_path(str(export_torch(model, variables["params"], tmp_path)))["load_model"]()
    expected = hooked(module, [torch.from_numpy(x) for x in inputs])
    found = capture(model, variables, *inputs, names=list(expected))[1]
    assert len(expected) == count
    for name, array in found.items():
        largest = np.abs(expected[name]).max()
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-5 * largest, err_msg=name)
