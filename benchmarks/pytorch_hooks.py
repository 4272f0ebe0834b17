"""Compute the numbers of `benchmarks/real_models.py` with hooks on the PyTorch models of `transformers`."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

Metric = Callable[[np.ndarray], Any]  # number from the logits [B, 1, V] at the last position


def opened(kind: str, directory: Path | str) -> Any:
    """Load a model of `transformers` by the name of its class; eager attention makes it return attention maps."""
    import transformers

    return (
        getattr(transformers, kind).from_pretrained(directory, attn_implementation="eager").eval()
    )


@contextlib.contextmanager
def hooked(*handles: torch.utils.hooks.RemovableHandle) -> Iterator[None]:
    """Run a `with` block without gradients, and remove the hooks at its end."""
    with torch.no_grad():
        yield
    for handle in handles:
        handle.remove()


def attention_maps(model: Any, **inputs: np.ndarray) -> Float[np.ndarray, "L B H T S"]:
    with torch.no_grad():
        found = model(
            **{name: torch.tensor(array) for name, array in inputs.items()}, output_attentions=True
        )
    return torch.stack(found.attentions).numpy()


def losses_without(
    model: Any, tokens: Int[np.ndarray, "B T"], removed: Bool[np.ndarray, "L H"]
) -> Float[np.ndarray, "B T_less_1"]:
    """Loss of each next token with the outputs of some heads of a Llama set to 0 before the output projection."""

    def hook(heads: Bool[np.ndarray, " H"]) -> Callable[..., tuple[torch.Tensor]]:
        kept = torch.tensor(~heads).float()[:, None]
        return lambda module, inputs: (
            (inputs[0].unflatten(-1, (len(heads), -1)) * kept).flatten(-2),
        )

    layers = zip(model.model.layers, removed, strict=True)
    ids = torch.tensor(tokens)
    with hooked(
        *(layer.self_attn.o_proj.register_forward_pre_hook(hook(heads)) for layer, heads in layers)
    ):
        logits = model(ids).logits[:, :-1]
        return torch.nn.functional.cross_entropy(logits.mT, ids[:, 1:], reduction="none").numpy()


def streams(model: Any, tokens: Int[np.ndarray, "B T"]) -> list[torch.Tensor]:
    """The residual stream `[B, T, D]` of a Llama before the first layer and after each one."""
    seen: list[torch.Tensor] = []
    layers = model.model.layers
    first = layers[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    others = [
        layer.register_forward_hook(lambda module, inputs, output: seen.append(output))
        for layer in layers
    ]
    with hooked(first, *others):
        model(torch.tensor(tokens))
    return seen


def logit_lens(model: Any, tokens: Int[np.ndarray, "B T"]) -> Float[np.ndarray, "L_plus_1 B V"]:
    """Logits of the language-model head from each residual stream at the last position."""
    with torch.no_grad():
        return torch.stack(
            [model.lm_head(model.model.norm(x[:, -1])) for x in streams(model, tokens)]
        ).numpy()


def restored_by_streams(
    model: Any, clean: Int[np.ndarray, "B T"], corrupted: Int[np.ndarray, "B T"], metric: Metric
) -> Float[np.ndarray, "L T"]:
    """Share of a metric that the clean residual stream restores in a corrupted pass, by layer and position."""
    length, restored = clean.shape[1], []
    for layer, value in zip(model.model.layers, streams(model, clean)[1:], strict=True):

        def hook(
            module: Any, inputs: Any, output: torch.Tensor, value: torch.Tensor = value
        ) -> torch.Tensor:
            copies = output.unflatten(0, (length, -1)).clone()
            for place, copy in enumerate(copies):
                copy[:, place] = value[:, place]
            return copies.flatten(0, 1)

        with hooked(layer.register_forward_hook(hook)):
            restored.append(_of_copies(model, corrupted, length, metric))
    return _restored(model, np.array(restored), clean, corrupted, metric)


def restored_by_heads(
    model: Any,
    layer: int,
    clean: Int[np.ndarray, "B T"],
    corrupted: Int[np.ndarray, "B T"],
    metric: Metric,
) -> Float[np.ndarray, " H"]:
    """Share of a metric that the clean output of each head of a layer restores in a corrupted pass."""
    projection, num_heads = (
        model.model.layers[layer].self_attn.o_proj,
        model.config.num_attention_heads,
    )
    seen: list[torch.Tensor] = []
    with hooked(
        projection.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    ):
        model(torch.tensor(clean))
    value = seen[0].unflatten(-1, (num_heads, -1))

    def hook(module: Any, inputs: Any) -> tuple[torch.Tensor]:
        copies = inputs[0].unflatten(-1, (num_heads, -1)).unflatten(0, (num_heads, -1)).clone()
        for head, copy in enumerate(copies):
            copy[:, :, head] = value[:, :, head]
        return (copies.flatten(0, 1).flatten(-2),)

    with hooked(projection.register_forward_pre_hook(hook)):
        found = _of_copies(model, corrupted, num_heads, metric)
    return _restored(model, np.array(found), clean, corrupted, metric)


def _of_copies(
    model: Any, tokens: Int[np.ndarray, "B T"], count: int, metric: Metric
) -> list[float]:
    """Metric of each of `count` copies of the input, in one pass; hooks patch each copy differently."""
    logits = model(torch.tensor(np.tile(tokens, (count, 1))), logits_to_keep=1).logits.numpy()
    return [float(metric(copy)) for copy in np.split(logits, count)]


def _restored(
    model: Any,
    patched: Float[np.ndarray, "..."],
    clean: Int[np.ndarray, "B T"],
    corrupted: Int[np.ndarray, "B T"],
    metric: Metric,
) -> Float[np.ndarray, "..."]:
    with torch.no_grad():
        (high,), (low,) = (_of_copies(model, tokens, 1, metric) for tokens in (clean, corrupted))
    return (patched - low) / (high - low)


def mean_pooled(directory: Path | str, texts: list[str]) -> Float[np.ndarray, "B D"]:
    """Mean of an encoder's last hidden states over the tokens of each text, normalized to unit length."""
    import transformers

    batch = transformers.AutoTokenizer.from_pretrained(directory)(
        texts, padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        vectors = opened("AutoModel", directory)(**batch).last_hidden_state
    valid = batch.attention_mask[..., None]
    return torch.nn.functional.normalize((vectors * valid).sum(1) / valid.sum(1)).numpy()
