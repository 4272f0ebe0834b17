"""Low-rank adapters in PEFT's layout: `adapter_config.json` and `adapter_model.safetensors`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax.scipy.linalg import block_diag

from transformer_jax.argument_checks import check_arguments
from transformer_jax.errors import InputError
from transformer_jax.nn.blocks import SettingsModule
from transformer_jax.outside_files import Json, replacing, write_arrays
from transformer_jax.trees import Adapter, Changes
from transformer_jax.weights.huggingface.saving import STAYING, family_of
from transformer_jax.weights.layouts import Layout, fuse

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # of all names of arrays
# PEFT's name for the task of a class of `transformers`, by the end of its name
TASKS = {
    "CausalLM": "CAUSAL_LM",
    "LMHeadModel": "CAUSAL_LM",
    "SequenceClassification": "SEQ_CLS",
    "TokenClassification": "TOKEN_CLS",
    "ConditionalGeneration": "SEQ_2_SEQ_LM",
    "MTModel": "SEQ_2_SEQ_LM",
}


@check_arguments
def save_adapters(
    directory: str | Path,
    model: SettingsModule,
    adapters: Changes,
    *,
    original: str | Path | None = None,
) -> None:
    """Write low-rank adapters as `peft` does: `PeftModel.from_pretrained(base, directory)` opens them.

        trained = load_run("checkpoints/tuned")
        save_adapters("adapters", trained.model, trained.adapters, original="smollm2/")

    Where `transformers` fuses the projections to queries, keys and values, their adapters become one, with the sum of
    their ranks. Arrays that were trained in full become PEFT's `modules_to_save`.

    Args:
        directory: created if missing; adapters in it are replaced. `README.md`, `LICENSE` and hidden files stay.
        model: the model, which `save_transformers` could write.
        adapters: of a run, `trained.adapters`.
        original: directory or hub name of the model to which the adapters belong, for PEFT's config.

    Raises:
        InputError: no family has such a model, there are no adapters (a saved model has none), one belongs to no
            linear layer of the model, or the directory cannot be written.
    """
    if getattr(model, "head", None) == "classes" and model.pad_token is None:
        model = model.clone(has_pooler=True)  # as the files of classifiers have it
    family, content, like = family_of(model, {}, {})
    layout, architecture = family.layout(model), content["architectures"][0]
    unknown = {
        path
        for path, each in adapters.items()
        if path not in like or (isinstance(each, Adapter) and path in layout.reshaped)
    }
    if unknown or not any(isinstance(each, Adapter) for each in adapters.values()):
        raise InputError(
            f"adapters has {min(unknown, default='no low-rank adapter')}; it must have adapters of"
            " linear layers of the model, as a training with lora has"
        )
    task = next((TASKS[end] for end in TASKS if architecture.endswith(end)), None)
    whole = {
        path: np.asarray(each) for path, each in adapters.items() if not isinstance(each, Adapter)
    }
    # a class without a head has no prefix in its names
    prefix = family.prefix if architecture.endswith("Model") and task is None else ""
    named = layout.to_theirs(whole).items()
    arrays = {name.removeprefix(prefix): array for name, array in named}
    saved = sorted({name.rpartition(".")[0] for name in arrays})
    ranks: dict[str, int] = {}
    alphas: dict[str, float] = {}
    for name, paths in layout.names(like).items():
        if any(isinstance(adapters.get(path), Adapter) for path in paths):
            module = name.removesuffix(".weight").removeprefix(prefix)
            a, b, scale = _fused([adapters.get(path, like[path]) for path in paths], layout)
            arrays[f"{module}.lora_A.weight"] = a.T
            arrays[f"{module}.lora_B.weight"] = b.T
            ranks[module] = len(b)
            alphas[module] = len(b) * scale
    partly = _trained_in_part(layout.names(like), whole) | (ranks.keys() & set(saved))
    if partly:
        raise InputError(
            f"adapters trains a part of {min(partly)} in full; PEFT's files have adapters or all of"
            " a module"
        )
    config = {
        **_ranks_in_peft(ranks, alphas),
        "task_type": task,
        "base_model_name_or_path": original and str(original),
        "modules_to_save": saved,
        "fan_in_fan_out": not layout.transposed,
    }
    names = {CONFIG, WEIGHTS}
    with replacing(directory, "adapters of PEFT", lambda _: names, STAYING) as new:
        (new / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        prefixed = {PREFIX + name: array for name, array in arrays.items()}
        write_arrays(new / WEIGHTS, prefixed, metadata={"format": "pt"})


def _ranks_in_peft(ranks: Mapping[str, int], alphas: Mapping[str, float]) -> Json:
    """Entries of PEFT's config for modules with these ranks and α."""
    return {
        "peft_type": "LORA",
        "r": max(ranks.values()),
        "lora_alpha": max(alphas.values()),
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "target_modules": [*ranks],
    }


def _trained_in_part(
    names: Mapping[str, Sequence[str]], whole: Mapping[str, np.ndarray]
) -> set[str]:
    """Names of arrays that fuse several of ours, of which some are trained in full, but not all."""
    found = set()
    for name, paths in names.items():
        count = sum(path in whole for path in paths)
        if 0 < count < len(paths):
            found.add(name)
    return found


def _fused(parts: Sequence[Any], layout: Layout) -> tuple[np.ndarray, np.ndarray, float]:
    """A, B and α / r of one adapter for several arrays that `layout` fuses; some are shapes, without an adapter."""
    adapters = []
    for part in parts:
        if not isinstance(part, Adapter):
            rows, columns = part.shape
            part = Adapter(np.zeros((rows, 0)), np.zeros((0, columns)), 0.0)
        adapters.append(part)
    scale = max(float(np.asarray(part.scale)) for part in adapters)
    b = block_diag(*[part.b * (part.scale / scale) for part in adapters])
    if len(parts) > 1:
        b = fuse(np.split(b, len(parts), axis=1), layout.num_groups)
    return np.concatenate([part.a for part in adapters], axis=1), b, scale
