"""Source of an exported model: classes of `torch_blocks` and `torch_models`, and a function that loads the weights."""

import inspect
from collections.abc import Mapping
from typing import NamedTuple

import torch

from transformer_jax.weights import torch_blocks

# The classes and the function of `torch_blocks`, in their order there.
PARTS = [part for part in vars(torch_blocks).values() if getattr(part, "__module__", None) == torch_blocks.__name__]

FIRST_LINE = (
    '"""Transformer in PyTorch, exported from transformer-jax; it needs PyTorch alone.'  # of every exported file
)
HEADER = '''
    model = load_model()  # with the trained weights, from weights.pt beside this file
    logits = {call}

B batch, T query or target length, S key or source length, D model width, H heads, d = D / H, F feed-forward width,
L layers, C classes, V vocabulary.
"""

{imports}from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
'''
LOAD_MODEL = '''def load_model() -> {name}:
    """The trained model in evaluation mode, on the CPU; its `train()` turns dropout on, for fine-tuning."""
    settings = BlockSettings(
{settings}
    )
    model = {name}(
{arguments}
    )
    weights = torch.load(Path(__file__).with_name("weights.pt"), map_location="cpu", weights_only=True)
    model.load_state_dict(weights)
    return model.eval()
'''


class TorchModel(NamedTuple):
    """A model in PyTorch, as `load_model` makes it."""

    model_class: type[torch.nn.Module]  # of `torch_models`
    settings: Mapping[str, str]  # arguments of `BlockSettings`, as source
    arguments: Mapping[str, str]  # of the model's class beside the settings, as source
    call: str  # an example
    imports: str = ""  # lines beside those that every file has


def source_of(model: TorchModel) -> str:
    """Content of a Python file with the model's classes and the function `load_model`."""
    load_model = LOAD_MODEL.format(
        name=model.model_class.__name__,
        settings=_lines(model.settings),
        arguments=_lines({"settings": "settings", **model.arguments}),
    )
    header = FIRST_LINE + "\n" + HEADER.format(call=model.call, imports=model.imports)
    return "\n\n".join(
        (header, *(inspect.getsource(part).rstrip() + "\n" for part in (*PARTS, model.model_class)), load_model)
    )


def _lines(arguments: Mapping[str, str]) -> str:
    """Arguments of a call, one in a line."""
    return "\n".join(f"        {name}={value}," for name, value in arguments.items())
