"""The benchmarks of a character-level GPT and of a translator measure both contestants."""

import pytest
import torch

import characters
import translation
from reference_gpt import GPT, Training

pytestmark = pytest.mark.slow


def test_a_gpt_over_characters_is_measured_beside_pytorch(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("to be, or not to be: that is the question. " * 200)
    found = characters.measure(characters.CharactersConfig(data=text, turns=1, steps=8))
    assert list(found) == ["forward and backward", "a step"]
    assert all(set(of_what) == {"transformer-jax", "eager PyTorch"} for of_what in found.values())


def test_a_translator_is_measured_beside_pytorch():
    sizes = {"model_dim": 16, "num_heads": 2, "num_layers": 1, "dim_feedforward": 7, "rows": 3, "length": 5}
    found = translation.measure(translation.SizesConfig(**sizes, sources=11, targets=13, turns=1))
    assert list(found) == ["forward and backward", "a step"]
    assert all(set(of_what) == {"transformer-jax", "torch.nn.Transformer"} for of_what in found.values())


def test_the_reference_sees_no_later_characters_and_learns():
    torch.manual_seed(0)
    model, tokens = GPT(7, 11, 16, 2, 2), torch.randint(7, (3, 12))
    later = tokens.clone()
    later[:, 6:] = 0
    first, second = (model(ids[:, :-1]).detach() for ids in (tokens, later))
    torch.testing.assert_close(first[:, :6], second[:, :6])
    training = Training(model)
    before = training.gradients(tokens).item()
    for _ in range(60):
        training.step(tokens)
    assert training.gradients(tokens).item() < before / 2
