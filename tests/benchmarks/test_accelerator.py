"""The accelerator benchmark with tiny sizes, on a machine without accelerator; its times are not tested."""

import json
import re

import jax
import numpy as np
import pytest
from commands import call
from torch import nn

import accelerator
import attention
import gpt_contestants
import plain_gpt
from gpt_sizes import SIZES
from reference_gpt import GPT

pytestmark = pytest.mark.slow


def test_it_prints_a_row_for_each_thing_that_it_measures(monkeypatch, capsys):
    def ended_here(kind, *command):
        if kind == "task":
            assert call(command[0].removeprefix("experiments/"), *command[1:]).status == 0
        if kind == "GPT-2":
            config = gpt_contestants.ContestantConfig(size="tiny", steps=2, profile=True)
            return json.dumps(gpt_contestants.measure(config)), 1.0
        return "done", 1.0

    monkeypatch.setattr(attention, "TURN_SECONDS", 0.01)
    monkeypatch.setattr(accelerator, "ended", ended_here)
    accelerator.main(accelerator.AcceleratorConfig(tiny=True, tasks=("reverse",), steps=2))
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    names = [row.split("|")[1].split(",")[0].strip() for row in rows]
    assert names == ["tests", "reverse", "GPT-2", "---", "tiny", "attention"]
    assert "| done |" in rows[0]
    assert re.search(r"accuracy .* \| compilation \d+ s \|", rows[1])
    assert re.search(r"ours \| \d+ \| \d+\.\d \| [\d,]+ \| unknown \|", rows[4])
    assert "nan" not in rows[5]


def test_contestants_train_the_same_gpt2_and_count_its_parameters():
    sizes = SIZES["tiny"]
    model = GPT(sizes.vocabulary, sizes.length, sizes.model_dim, 2, 1, bias=True, activation=nn.ReLU)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert sizes.parameters == count - sizes.length * sizes.model_dim
    params = plain_gpt.initial_params(sizes, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == count
    step = gpt_contestants.ours(gpt_contestants.ContestantConfig(size="tiny"), sizes)
    plain = gpt_contestants.plain_jax(sizes)
    before, after = float(plain()), [float(plain()) for _ in range(30)][-1]
    assert after < before
    total, weight = step().of_each(1)[0]["loss"]
    assert total / weight == pytest.approx(before, rel=0.2)  # both begin near log(307)


def test_the_tokens_are_of_the_whole_vocabulary():
    tokens = gpt_contestants.tokens_of(SIZES["124 M"])[: 32 * 1024]
    assert len(np.unique(tokens)) > 20_000
    assert tokens.max() < 50304


def test_kinds_of_kernels():
    kinds = {
        "nvjet_sm90_tst_128x128_64x6": "products",
        "gemm_fusion_dot_731": "products",
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop": "attention",
        "loop_maximum_fusion": "rest",
    }
    assert {kernel: gpt_contestants.kind_of(kernel) for kernel in kinds} == kinds


def test_a_command_that_fails_or_takes_too_long_says_so(monkeypatch):
    assert accelerator.ended("task", "-c", "raise SystemExit('lr is 0')")[0] == "lr is 0"
    monkeypatch.setitem(accelerator.SECONDS, "task", 1)
    assert accelerator.ended("task", "-c", "import time; time.sleep(9)")[0] == "stopped after 1 s"
