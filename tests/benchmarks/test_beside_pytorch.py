"""The benchmarks of a character-level GPT, a translator and sets of photographs measure both contestants."""

import itertools

import numpy as np
import pytest
import torch
from tiny_encoders import saved

import characters
import decoding
import labels
import photographs
import translation
import translation_epochs
from reference_gpt import GPT, Training
from translation_epochs import EpochsConfig

pytestmark = pytest.mark.slow

SIZES = {"model_dim": 16, "num_heads": 2, "num_layers": 1, "dim_feedforward": 7, "rows": 3, "length": 5}
SIZES |= {"sources": 11, "targets": 13, "turns": 1}
OF_THE_MODEL = "model_dim", "num_heads", "num_layers", "dim_feedforward"


def test_a_gpt_over_characters_is_measured_beside_pytorch(tmp_path, monkeypatch):
    text = tmp_path / "text.txt"
    monkeypatch.setattr(characters, "SIZES", characters.SIZES | {name: SIZES[name] for name in OF_THE_MODEL})
    text.write_text("to be, or not to be: that is the question. " * 200)
    found = characters.measure(characters.CharactersConfig(data=text, turns=1, steps=8))
    assert list(found) == ["forward and backward", "a step"]
    assert all(set(of_what) == {"transformer-jax", "eager PyTorch"} for of_what in found.values())


def test_a_translator_is_measured_beside_pytorch():
    found = translation.measure(translation.SizesConfig(**SIZES))
    assert list(found) == ["forward and backward", "a step"]
    assert all(set(of_what) == {"transformer-jax", "torch.nn.Transformer"} for of_what in found.values())


def test_a_translator_learns_epochs_of_pairs_beside_pytorch(tmp_path):
    english = {"null": "zero", "eins": "one", "zwei": "two", "drei": "three", "vier": "four"}
    texts = [" ".join(words) for length in (2, 3) for words in itertools.product(english, repeat=length)]
    pairs = [f"{text}\t{' '.join(english[word] for word in text.split())}\n" for text in texts]
    (tmp_path / "pairs.tsv").write_text("".join(pairs))
    sizes = {name: SIZES[name] for name in OF_THE_MODEL}
    config = EpochsConfig(data=tmp_path / "pairs.tsv", **sizes, batch_size=5, lr=1e-2, epochs=16)
    found = translation_epochs.measure(config)
    assert set(found["seconds of an epoch"]) == {"transformer-jax", "torch.nn.Transformer"}
    assert max(found["loss on the validation pairs"].values()) < 1.0  # about 1.3 without the sources


def test_sets_of_images_from_files_are_learned_beside_the_tutorials_loops(tmp_path):
    labels = np.repeat([0, 1], 2500)  # of which 56 batches train, so that two epochs are longer than the warm-up
    np.save(tmp_path / "labels.npy", labels)
    np.save(tmp_path / "features.npy", np.random.default_rng(0).normal(6.0 * labels[:, None] - 3, size=(5000, 3)))
    files = {name: tmp_path / f"{name}.npy" for name in ("features", "labels")}
    found = photographs.measure(photographs.PhotographsConfig(**files, max_epochs=2))
    assert set(found["milliseconds of a step"]) == {"ours", "tutorial in JAX", "tutorial in PyTorch"}
    assert min(found["test accuracy"].values()) > 0.9
    assert found["classes"]["linear classifier"] > 0.99  # the means of the classes are far apart


def test_an_encoder_is_fine_tuned_beside_pytorch(tmp_path):
    _, tokenizer = saved(tmp_path / "encoder", "BertModel")
    tokenizer.pad_token, tokenizer.model_input_names = "[PAD]", ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer.save_pretrained(tmp_path / "encoder")
    words = itertools.product(range(4, 13), repeat=3)  # the label is the first of them, if it is small
    rows = [f"{' '.join(f'w{word}' for word in text)}\t{min(text[0], 6)}\n" for text in words]
    for name, part in (("train", rows[::2]), ("val", rows[1::4]), ("test", rows[3::4])):
        (tmp_path / f"{name}.tsv").write_text("".join(part))
    files = {"data": tmp_path / "train.tsv", "val_data": tmp_path / "val.tsv", "test_data": tmp_path / "test.tsv"}
    config = labels.LabelsConfig(**files, init_from=str(tmp_path / "encoder"), batch_size=7, max_epochs=12, lr=1e-2)
    found = labels.measure(config, 0)
    assert set(found["seconds of an epoch"]) == {"transformer-jax", "PyTorch"}
    assert min(found["test accuracy"].values()) > 0.9  # 0.78 have the most frequent label


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


@pytest.mark.parametrize("beams", [1, 3])
def test_decoding_is_measured_beside_pytorch(beams):
    found = decoding.measure(decoding.DecodingConfig(**SIZES, beams=beams))
    assert set(found) == {"transformer-jax", "PyTorch with a cache"}


def test_the_reference_decodes_with_its_cache_as_without_and_beams_find_more_probable_texts():
    torch.manual_seed(0)
    config = decoding.DecodingConfig(**SIZES)
    model, source = translation.TorchTranslator(config).eval(), torch.randint(11, (3, 5))

    def log_probs(tokens):
        given = torch.cat([torch.full((3, 1), decoding.START), tokens[:, :-1]], dim=1)
        with torch.no_grad():
            return model(source, given).log_softmax(-1)

    greedy = decoding.decode_torch(model, source, 5, 1)
    np.testing.assert_array_equal(greedy, log_probs(greedy).argmax(-1))
    # As many beams as there are prefixes of two tokens leave nothing out but by rank of the third.
    found = decoding.decode_torch(model, source, 5, 169)
    score = [log_probs(tokens).gather(2, tokens[..., None]).sum((1, 2)) for tokens in (found, greedy)]
    assert (score[0] >= score[1] - 1e-5).all()
    assert (score[0] > score[1] + 1e-3).any()
