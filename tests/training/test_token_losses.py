"""The loss of a large vocabulary: computed in parts it equals the plain loss, and no array holds all logits."""

import re

import jax
import numpy as np
import pytest
from compiled_models import assert_close, drawn

from transformer_jax import LanguageModelConfig, TransformerLM
from transformer_jax.data.batch import Batch
from transformer_jax.fit.programs import create_programs, update_rule
from transformer_jax.nn import EmbeddingSettings
from transformer_jax.tasks import LanguageModelTrainer
from transformer_jax.tasks.language_model.task import language_model_data
from transformer_jax.training import token_losses
from transformer_jax.training.step import gradients_and_sums, initial_state

pytestmark = pytest.mark.slow  # they compile

B, T, V = 6, 13, 97
TINY = {"model_dim": 8, "num_heads": 2, "num_layers": 1, "dim_feedforward": 11, "seq_len": T, "batch_size": B}
TOKENS = np.random.default_rng(0).integers(V, size=(B, T + 1))
BATCH = Batch(TOKENS[:, :-1], np.where(TOKENS[:, 1:] % 5, TOKENS[:, 1:], -1), np.arange(B) < 5)
FIVE_POSITIONS = 4 * B * 5 * V  # of 13: two parts, and one of three


class Doubled(TransformerLM):
    """A subclass that changes its parent's logits."""

    def __call__(self, *arguments, **options):
        return 2 * super().__call__(*arguments, **options)


def trainer_of(model=None, **settings) -> LanguageModelTrainer:
    config = LanguageModelConfig(**TINY | settings)
    return LanguageModelTrainer(config, model=model or LanguageModelTrainer(config).model.clone(vocabulary_size=V))


def compiled_gradients(trainer: LanguageModelTrainer, batch: Batch = BATCH):
    """Return gradients and sums of the batch, and the text of their program."""
    params = drawn(trainer.model, TOKENS[:1])["params"]
    state = initial_state(params, update_rule(trainer, 1000).optimizer, jax.random.key(5))
    step = jax.jit(lambda state: gradients_and_sums(state, batch, None, trainer.batch_loss)).lower(state).compile()
    return *step(state), step.as_text()


@pytest.mark.parametrize(
    ("fields", "smoothing"),
    [({"tie_embeddings": False}, 0.0), ({"embeddings": EmbeddingSettings(output_bias=True, output_scale=0.5)}, 0.1)],
)
def test_a_loss_in_parts_has_the_gradients_of_the_plain_one_and_never_all_logits(monkeypatch, fields, smoothing):
    trainer = trainer_of(num_devices=1)
    trainer = trainer_of(trainer.model.clone(**fields), num_devices=1, label_smoothing=smoothing)
    gradients, sums, text = compiled_gradients(trainer)
    assert f"f32[{B},{T},{V}]" in text
    monkeypatch.setattr(token_losses, "LARGEST", FIVE_POSITIONS)
    found, found_sums, text = compiled_gradients(trainer)
    assert not re.search(rf"f32\[({B},{T}|{B * T}|{T},{B}),{V}\]", text)
    assert_close(found, gradients, 1e-6)
    assert_close(found_sums, sums, 1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_on_accelerators_the_cross_entropy_and_its_gradient_are_the_same_and_nothing_is_scattered(
    monkeypatch, smoothing
):
    logits = 5 * np.random.default_rng(0).normal(size=(B, T, V)).astype(np.float32)

    def program():
        def total(logits):
            losses = token_losses.cross_entropy(logits, BATCH.targets, smoothing)
            return (losses * (BATCH.targets >= 0)).sum()

        return jax.jit(jax.value_and_grad(total)).lower(logits).compile()

    on_cpu = program()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    elsewhere = program()
    assert "scatter" in on_cpu.as_text()
    assert "scatter" not in elsewhere.as_text()
    assert_close(elsewhere(logits), on_cpu(logits), 1e-6)
    assert np.isnan(token_losses.cross_entropy(logits[0, 0], V))  # no class, as on a CPU


def test_the_logits_that_a_device_holds_at_once_depend_on_its_memory(monkeypatch):
    assert token_losses.largest_logits() == 2**28  # of a CPU, which does not say

    class Device:
        def memory_stats(self):
            return {"bytes_limit": 80 * 2**30}

    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    assert token_losses.largest_logits() == 10 * 2**30


def test_in_bfloat16_the_gradients_of_the_parts_are_added_in_float32(monkeypatch):
    tokens = np.random.default_rng(1).integers(V, size=(B, 500))
    batch = Batch(tokens[:, 1:], tokens[:, :-1], np.ones(B, bool))
    exact, plain = (trainer_of(num_devices=1, seq_len=499, dtype=dtype) for dtype in ("float32", "bfloat16"))
    expected, gradients = (compiled_gradients(trainer, batch)[0] for trainer in (exact, plain))
    monkeypatch.setattr(token_losses, "LARGEST", 4 * B * V)  # a position at a time
    found, _, _ = compiled_gradients(plain, batch)
    errors = [
        np.abs(each["embedding"]["embedding"] - expected["embedding"]["embedding"]) for each in (found, gradients)
    ]
    assert errors[0].mean() < 1.2 * errors[1].mean()


def test_a_subclass_that_overrides_the_logits_is_respected(monkeypatch):
    monkeypatch.setattr(token_losses, "LARGEST", FIVE_POSITIONS)
    model = Doubled(V, 8, 2, 1, 11)
    params = drawn(model, TOKENS[:1])["params"]
    losses = token_losses.token_losses(trainer_of(model), params, TOKENS[:, 1:], TOKENS[:, :-1], None, train=False)
    expected = -jax.nn.log_softmax(model.apply({"params": params}, TOKENS[:, 1:]))
    np.testing.assert_allclose(losses, np.take_along_axis(expected, TOKENS[:, :-1, None], 2)[..., 0], rtol=1e-5)


def test_on_a_mesh_no_device_keeps_the_logits_of_its_rows(monkeypatch, tmp_path):
    text = tmp_path / "fox.txt"
    text.write_bytes(b"The quick brown fox. " * 40)
    trainer = trainer_of(data=text, mesh="fsdp=3", remat="dots", train_size=3 * B, steps_per_call=1, warmup=2)
    loader = language_model_data(trainer.config).train_loader
    monkeypatch.setattr(token_losses, "LARGEST", 4 * (B // 3) * 5 * V)  # of a device
    runner = create_programs(trainer.compiled, loader, num_steps=1000).runner
    traced = runner.program.trace(*runner.arguments(loader.example()))
    shapes = re.findall(r"f32\[([\d,]+)\]", traced.lower().compile().as_text())
    sizes = {np.prod([*map(int, shape.split(","))]) for shape in shapes}
    assert max(sizes) == (B // 3) * 5 * V
