"""Low-rank adapters in PEFT's layout: `adapter_config.json` and `adapter_model.safetensors`."""

import json
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
from jax.scipy.linalg import block_diag

from transformer_jax.argument_checks import Abstract, check_arguments
from transformer_jax.errors import InputError
from transformer_jax.nn.blocks import SettingsModule
from transformer_jax.outside_files import Json, replacing, write_arrays
from transformer_jax.trees import Adapter, Changes
from transformer_jax.weights.huggingface.saving import STAYING, family_of
from transformer_jax.weights.layouts import Arrays, Layout, fuse

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
    their ranks. B is stored times α / r, so that PEFT's `lora_alpha` is the rank. Arrays that were trained in full are
    PEFT's `modules_to_save`.

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
    layout = family.layout(model)
    architecture = content["architectures"][0]
    low_rank = {path for path, change in adapters.items() if isinstance(change, Adapter)}
    unknown = (adapters.keys() - like.keys()) | (low_rank & layout.reshaped.keys())
    if unknown or not low_rank:
        raise InputError(
            f"adapters has {min(unknown, default='no low-rank adapter')}; it must have adapters of"
            " linear layers of the model, as a training with lora has"
        )
    task = next((TASKS[end] for end in TASKS if architecture.endswith(end)), None)
    has_head = task is not None or not architecture.endswith("Model")
    prefix = "" if has_head else family.prefix  # which the names of a class without a head lack
    config, arrays = _in_peft(adapters, low_rank, layout, like, prefix)
    config |= {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": original and str(original),
        "fan_in_fan_out": not layout.transposed,
    }
    with replacing(directory, "adapters of PEFT", lambda _: {CONFIG, WEIGHTS}, STAYING) as new:
        (new / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        write_arrays(new / WEIGHTS, arrays, metadata={"format": "pt"})


def _in_peft(
    adapters: Changes, low_rank: Set[str], layout: Layout, like: Abstract, prefix: str
) -> tuple[Json, Arrays]:
    """Entries of PEFT's config for the ranks, α and modules, and the arrays by name."""
    arrays: Arrays = {}
    ranks: dict[str, int] = {}  # of modules with adapters
    modules_in_full: set[str] = set()  # modules with an array that was trained in full
    modules_partly_in_full: set[str] = set()
    for name, paths in layout.names(like).items():
        name = name.removeprefix(prefix)
        module = name.rpartition(".")[0]
        changed_paths = adapters.keys() & set(paths)
        trained_in_full = {path: np.asarray(adapters[path]) for path in changed_paths - low_rank}
        if len(trained_in_full) == len(paths):
            [array] = layout.to_theirs(trained_in_full).values()
            arrays[PREFIX + name] = np.asarray(array)
            modules_in_full.add(module)
        elif trained_in_full:
            modules_partly_in_full.add(module)
        elif changed_paths:
            a, b = _fused(paths, adapters, layout, like)
            arrays[f"{PREFIX}{module}.lora_A.weight"] = a.T
            arrays[f"{PREFIX}{module}.lora_B.weight"] = b.T
            ranks[module] = len(b)
    modules_partly_in_full |= modules_in_full & ranks.keys()
    if modules_partly_in_full:
        raise InputError(
            f"adapters trains a part of {min(modules_partly_in_full)} in full; PEFT's files have adapters or all of"
            " a module"
        )
    highest_rank = max(ranks.values())
    config = {
        "r": highest_rank,
        "lora_alpha": highest_rank,
        "rank_pattern": ranks,
        "alpha_pattern": ranks,
        "target_modules": [*ranks],
        "modules_to_save": sorted(modules_in_full),
    }
    return config, arrays


def _fused(
    paths: Sequence[str], adapters: Mapping[str, Any], layout: Layout, like: Abstract
) -> tuple[np.ndarray, np.ndarray]:
    """A and α / r · B of one adapter for several arrays that `layout` fuses; some may be without an adapter."""
    parts: list[Adapter] = []
    for path in paths:
        rows, columns = like[path].shape
        no_adapter = Adapter(np.zeros((rows, 0)), np.zeros((0, columns)), 0.0)
        parts.append(adapters.get(path, no_adapter))
    a = np.concatenate([part.a for part in parts], axis=1)  # [in ranks]
    b = block_diag(*[part.b * part.scale for part in parts])  # [ranks outs]
    if len(parts) > 1:
        b = fuse(np.split(b, len(parts), axis=1), layout.num_groups)
    return a, b
