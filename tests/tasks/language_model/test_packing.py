"""Windows filled with whole texts: where each text goes, and that it is read as if it were alone."""

import functools
import json

import jax
import numpy as np
import pytest
from commands import call
from compiled_models import drawn
from part_choices import CHOICES

from transformer_jax import AttentionSettings, BlockSettings, InputError, LanguageModelConfig, TransformerLM, load_run
from transformer_jax.data.batch import load_stacked, pad_batch
from transformer_jax.data.epoch_sampler import EpochIndices
from transformer_jax.nn import RelativePositions
from transformer_jax.tasks import LanguageModelTrainer
from transformer_jax.tasks.language_model.packing import PackedTexts, first_fit
from transformer_jax.tasks.language_model.task import language_model_data
from transformer_jax.tasks.language_model.windows import UNSCORED, load_text
from transformer_jax.tasks.tokenizer_training import train_tokenizer

END, T, V = 10, 7, 13
TEXTS = b"abc\nde\n\nlonger than this\nx"


def as_tokens(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8)


def test_a_text_goes_into_the_first_window_with_room_for_it():
    assert first_fit([5, 4, 3, 2, 7, 1], 7) == [0, 7, 11, 5, 14, 21]
    rng, rooms = np.random.default_rng(0), np.full(211, 31)
    sizes = rng.integers(1, 32, size=211).tolist()
    for size, place in zip(sizes, first_fit(sizes, 31), strict=True):
        window = int((rooms >= size).argmax())
        assert place == 31 * (window + 1) - rooms[window]
        rooms[window] -= size


def test_windows_hold_whole_texts_each_of_which_follows_a_line_feed_and_predicts_one():
    """Line feeds are commas here, as are targets that are not scored."""
    windows, found = PackedTexts(as_tokens(TEXTS), END, T), []
    for (tokens, positions), targets in (windows[number] for number in range(len(windows))):
        rows = [bytes(row.tolist()).decode().replace("\n", ",") for row in (tokens, targets.clip(END))]
        found.append((*rows, "".join(map(str, positions.tolist())), np.count_nonzero(targets != UNSCORED)))
    assert found == [
        (",abc,de", "abc,de,", "0123012", 7),
        (",his,,,", ",is,x,,", "0012000", 5),
        (",longer", "longer ", "0123456", 7),
        (" than t", "than th", "0123456", 7),
    ]
    assert windows.summary() == "Texts: 5, which fill 92.9% of 4 windows; 1 are longer than --seq-len, and cut"
    changed = PackedTexts(as_tokens(TEXTS.replace(b"this", b"that")), END, T)
    assert changed.fingerprint() != windows.fingerprint()


_, LEARNED, *IN_ATTENTION, _ = CHOICES["positions"]
SETTINGS = {type(kind).__name__: BlockSettings(positions=kind) for kind in IN_ATTENTION} | {
    "sinusoidal, blockwise": BlockSettings(attention=AttentionSettings(implementation="blockwise")),
    "learned, scanned": BlockSettings(positions=LEARNED, scan_layers=True, remat="all"),
    "shared table": BlockSettings(positions=RelativePositions(4, 5, is_shared=True)),
}


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_logits_losses_and_gradients_are_those_of_each_text_alone(settings):
    """No position sees the padding at the right of a text that has a row of its own."""
    rng = np.random.default_rng(0)
    texts = [np.append(rng.integers(END, size=size), END) for size in (3, 1, 4, 0, 6)]
    windows = PackedTexts(np.concatenate(texts), END, T)
    packed = load_stacked(windows, EpochIndices(range(3), 0))
    alone = np.full((5, T), END), np.full((5, T), UNSCORED)
    for row, text in enumerate(texts):
        alone[0][row, 1 : len(text)], alone[1][row, : len(text)] = text[:-1], text
    model = TransformerLM(V, 12, 2, 1, 17, settings=settings, max_len=T)
    trainer = LanguageModelTrainer(LanguageModelConfig(seq_len=T), model=model)
    params = drawn(model, alone[0])["params"]

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss_and_logits(params, inputs, targets):
        batch = pad_batch((inputs, targets), len(targets))
        losses, weights = trainer.loss_function(params, batch, None, train=False)["loss"]
        return (losses * weights).sum(), trainer.apply(params, inputs)

    (loss, logits), gradient = loss_and_logits(params, *packed)
    (loss_alone, logits_alone), gradient_alone = loss_and_logits(params, *alone)
    np.testing.assert_allclose(loss, loss_alone, rtol=1e-6)
    in_windows = [0, 1, 3, 2, 4]  # the texts in the order of their places
    of_texts = [logits_alone[text, : len(texts[text])] for text in in_windows]
    np.testing.assert_allclose(logits[packed[1] != UNSCORED], np.concatenate(of_texts), atol=1e-5)
    assert np.abs(logits).max() > 0.1
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), gradient, gradient_alone)


def test_pieces_are_those_of_each_line_and_no_line_is_in_two_parts(tmp_path):
    """In a longer text, a tokenizer may join a line feed to what is around it."""
    path = tmp_path / "lines.txt"
    path.write_bytes(TEXTS * 40)
    parts = load_text(path, by_lines=True)
    assert np.concatenate(parts).tobytes() == TEXTS * 40
    assert [part.tobytes()[-1:] for part in parts] == [b"\n", b"\n", b"x"]
    tokenizer = train_tokenizer("bpe:300", [TEXTS.decode() * 40])
    ids = tokenizer.encode_file(parts.test, "the text for test", by_lines=True)
    (feed,) = tokenizer.encode("\n")
    lines = parts.test.tobytes().split(b"\n")
    assert (ids == feed).sum() == len(lines) - 1
    expected = [tokenizer.encode(line) for line in lines]
    ends = np.flatnonzero(ids == feed)
    for line, found in zip(expected, np.split(ids, ends), strict=True):
        assert found[found != feed].tolist() == line.tolist()


def test_settings_of_other_windows_have_no_effect():
    for name in ("train_size", "stride"):
        with pytest.raises(
            InputError, match=f"^{name} is 3, which has no effect: pack is given, which takes every text once"
        ):
            LanguageModelConfig(pack="lines", **{name: 3}).check_idle()


@pytest.mark.slow
def test_lines_are_learned_scored_one_by_one_and_continued_to_their_ends(tmp_path):
    lines = ["The quick brown fox", "jumps over", "the lazy dog.", "", "A bee sees a sea and the seas see a bee"]
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(lines * 60), encoding="utf-8")
    flags = {
        "data": path, "pack": "lines", "checkpoint_dir": tmp_path, "positions": "learned", "seq_len": 31, "top_k": 1,
        "model_dim": 16, "num_heads": 2, "num_layers": 1, "dim_feedforward": 32, "batch_size": 4, "max_epochs": 10,
        "warmup": 3, "lr": 1e-2, "max_new": 29, "eval_every": 5, "mesh": "fsdp=2",
    }  # fmt: skip
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    outcome = call("language_model.py", *arguments, "--scan-layers")
    assert (outcome.status, outcome.stderr) == (0, "")
    summary = "Texts: 271, which fill 92.3% of 163 windows; 54 are longer than --seq-len, and cut\n"
    assert outcome.stdout.startswith(summary)
    directory = tmp_path / "LanguageModelTask"
    results = json.loads((directory / "results.json").read_text())
    assert results["test"]["bits_per_byte"] < 0.5
    run = load_run(directory)
    assert run.predict(["The q", "jumps o"], max_new=40) == ["uick brown fox", "ver"]
    with pytest.raises(InputError, match="has 31 bytes; it may have 0 to 30"):  # after the line feed
        run.examples("a" * 31)
    assert run.attention("the").query_labels == {"decoder": ["\\n", "t", "h", "e"]}
    examples = [(example.title, example.expected) for example in run.test_examples([0])]
    assert examples == [("\\n" + lines[0], lines[0] + "\\n")]

    # each line of the test text alone, as far as it fits into a window
    alone = []
    for line in language_model_data(run.config).text.test.tobytes().splitlines(keepends=True):
        ids = np.frombuffer(b"\n" + line, np.uint8).astype(np.int32)
        for begin in range(0, len(line), 31):
            part = ids[begin : begin + 32]
            logits = run.forward(np.pad(part[:-1], (0, 32 - len(part)))[None])[0, : len(part) - 1]
            log_probs = jax.nn.log_softmax(logits)[np.arange(len(part) - 1), part[1:]]
            alone.append(-log_probs.sum() / np.log(2))
    expected = np.sum(alone) / results["bytes"]["test"]
    np.testing.assert_allclose(results["test"]["bits_per_byte"], expected, rtol=1e-4)
