"""Low-rank adapters in PEFT's layout: with them, models of `transformers` have the logits of ours with them merged."""

import json
from random import Random

import jax
import numpy as np
import pytest
import torch
from compiled_models import draw
from huggingface_models import drawn, inputs_of, opened
from safetensors.torch import load_file
from tiny_models import predictor

from transformer_jax import InputError, TrainingConfig, save_adapters
from transformer_jax.training.low_rank import with_adapters
from transformer_jax.trees import changes_in, merged

LORA = "attention:2:6,self_attn/query_proj:3,*norm:full"  # ranks and factors that differ, and arrays trained in full


def written(family, directory):
    """A model of `transformers`, its inputs by name, and our logits with adapters, which the directory gets."""
    theirs = drawn(family, Random(1))
    model, variables = opened(theirs)
    arguments, named = inputs_of(model, Random(2))
    state = with_adapters(variables["params"], TrainingConfig(lora=LORA), jax.random.key(0))
    frozen = {"variables": state.pop("variables")}
    state = jax.tree.map(lambda leaf: leaf + 0.3 * draw(*leaf.shape), state) | frozen
    save_adapters(directory, model, changes_in(state), original="base")
    expected = jax.jit(model.apply)({"params": merged(state)}, *arguments)
    assert np.abs(expected - jax.jit(model.apply)(variables, *arguments)).max() > 0.1
    return theirs, {name: torch.tensor(np.asarray(value)) for name, value in named.items()}, expected


def output_of(model, named):
    with torch.no_grad():
        result = model(**named)
    return result.logits if "logits" in result else result.last_hidden_state


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "bert", "t5"])
def test_logits_are_those_of_the_written_matrices(family, tmp_path):
    theirs, named, expected = written(family, tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    arrays = load_file(tmp_path / "adapter_model.safetensors")
    assert (config["peft_type"], config["base_model_name_or_path"]) == ("LORA", "base")
    assert config["fan_in_fan_out"] == (family == "gpt2")
    state = theirs.state_dict()
    for module in config["target_modules"]:
        a, b = (arrays.pop(f"base_model.model.{module}.lora_{name}.weight") for name in "AB")
        assert len(a) == config["rank_pattern"][module] == b.shape[1]
        change = config["alpha_pattern"][module] / len(a) * (b @ a)
        state[f"{module}.weight"] += change.T if config["fan_in_fan_out"] else change
    for name, array in arrays.items():
        name = name.removeprefix("base_model.model.")
        assert name.rpartition(".")[0] in config["modules_to_save"]
        state[name].copy_(array)
    np.testing.assert_allclose(output_of(theirs, named), expected, rtol=1e-5, atol=2e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT reads an attribute that `transformers` has deprecated
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_peft_opens_them_with_equal_logits(family, tmp_path):
    peft = pytest.importorskip("peft")
    theirs, named, expected = written(family, tmp_path)
    adapted = peft.PeftModel.from_pretrained(theirs, tmp_path).eval()
    np.testing.assert_allclose(output_of(adapted, named), expected, rtol=1e-5, atol=2e-5)


@pytest.mark.slow
def test_adapters_that_no_file_can_hold_are_one_line(tmp_path):
    model, variables = opened(drawn("gpt2", Random(1)))
    for changes in ({}, {"decoder/norm/scale": variables["params"]["decoder"]["norm"]["scale"]}):
        with pytest.raises(
            InputError, match=r"^adapters has no low-rank adapter; it must have adapters of linear layers"
        ):
            save_adapters(tmp_path, model, changes)
    changes = changes_in(with_adapters(variables["params"], TrainingConfig(lora="attention:1"), jax.random.key(0)))
    with pytest.raises(InputError, match=r"^adapters has other/kernel; it must"):
        save_adapters(tmp_path, model, {**changes, "other/kernel": next(iter(changes.values()))})
    with pytest.raises(InputError, match=r"^model is not a model of"):
        save_adapters(tmp_path, predictor().model, changes)
