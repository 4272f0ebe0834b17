"""The same model exported to PyTorch, with forward hooks there: its activations are ours."""

import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from compiled_models import drawn

from transformer_jax import BlockSettings, Transformer, TransformerPredictor, capture, export_torch

B, T, S, D, H, F, C, V = 2, 5, 7, 12, 3, 13, 4, 11
DRAWS = np.random.default_rng(5)
X = DRAWS.normal(size=(B, T, 6)).astype(np.float32)
SOURCE, TARGET = DRAWS.integers(V, size=(B, S)), DRAWS.integers(V, size=(B, T))
SETTINGS = {"post-norm": BlockSettings(), "pre-norm": BlockSettings(norm_first=True)}
# What modules of a layer there return, by the names here.
HOOKS = {
    "self_attn": "attention.output",
    "cross_attn": "cross_attention.output",
    "self_attn_residual": "after_attention",
    "cross_attn_residual": "after_cross_attention",
    "feed_forward_residual": "output",
    "feed_forward": "feed_forward.output",
}


def hooked(module: torch.nn.Module, inputs: list[torch.Tensor], num_heads: int) -> dict[str, np.ndarray]:
    """Activations of a pass in PyTorch, by our names."""
    seen: dict[str, np.ndarray] = {}

    def keep(name: str, change: Callable[[torch.Tensor], torch.Tensor] = lambda x: x, *, is_input: bool = False):
        def hook(_, given, output):
            seen[name] = change(given[0] if is_input else output).detach().numpy()

        return hook

    def in_heads(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)

    for path, part in module.named_modules():
        layer, _, rest = path.partition(".layers.")
        number, _, rest = rest.partition(".")
        name = f"{layer}.layers.{number}"
        if rest in HOOKS:
            part.register_forward_hook(keep(f"{name}.{HOOKS[rest]}"))
        if rest == "feed_forward.contract":  # the activation is one module for all layers
            part.register_forward_hook(keep(f"{name}.feed_forward.hidden", is_input=True))
        attention, _, projection = rest.partition("_attn.")
        if projection:
            attention = f"{name}.{'cross_' if attention == 'cross' else ''}attention"
            ours = {"query_proj": "queries", "key_proj": "keys", "value_proj": "values", "output_proj": "head_outputs"}
            is_input = projection == "output_proj"
            part.register_forward_hook(keep(f"{attention}.{ours[projection]}", in_heads, is_input=is_input))
        if path in ("encoder", "decoder"):
            part.register_forward_hook(keep(f"{path}.output"))
        if path == "output_layer":
            part.register_forward_hook(keep("logits"))
    module(*inputs)
    return seen


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("kind", ["predictor", "encoder-decoder"])
def test_activations_are_those_that_hooks_see_in_pytorch(tmp_path: Path, settings, kind):
    if kind == "predictor":
        model, inputs = TransformerPredictor(D, C, H, 2, settings=settings), [X]
    else:
        model, inputs = Transformer(V, V, D, H, 2, 1, F, settings=settings), [SOURCE, TARGET]
    variables = drawn(model, *inputs)
    module = runpy.run_path(str(export_torch(model, variables["params"], tmp_path)))["load_model"]()
    expected = hooked(module, [torch.from_numpy(x) for x in inputs], H)
    found = capture(model, variables, *inputs, names=list(expected))[1]
    assert len(expected) == {"predictor": 2 * 9 + 2, "encoder-decoder": 2 * 9 + 15 + 3}[kind]
    for name, array in found.items():
        largest = np.abs(expected[name]).max()
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-5 * largest, err_msg=name)
