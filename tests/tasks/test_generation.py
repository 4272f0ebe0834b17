"""`generation_config.json`: how `predict` uses its keys, compared with `generate` of `transformers`."""

import dataclasses
import functools
import json
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

import pytest
import tokenizers
import torch
import transformers
from huggingface_models import DYNAMIC, YARN, drawn_of_31_tokens
from tokenizers import decoders, normalizers
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import Whitespace

from transformer_jax import InputError, load_transformers, predict
from transformer_jax.tasks.generation import (
    GENERATION,
    UNSUPPORTED,
    UNSUPPORTED_BEAMS,
    UNSUPPORTED_DRAWS,
    Generation,
    generation_of,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs warns of many keys

WORDS = [f"w{number}" for number in range(31)]
LETTERS = ["▁", *"abcdefghijklmnopqrstuvwxyz.,?!"]
TEXT = "w3 w17 w5 w30 w17"
FAMILIES = "gpt2", "llama", "t5", "marian"


@functools.cache
def saved(family):
    """Directory with a model of 31 tokens and its tokenizer, without special tokens."""
    directory = Path(tempfile.mkdtemp())
    drawn_of_31_tokens(family).save_pretrained(directory)
    tokenizer = tokenizers.Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture
def made(tmp_path):
    """Make a directory with a model of a family, and only these keys in its `generation_config.json`."""

    def make(family, keys):
        directory = shutil.copytree(saved(family), tmp_path / str(len(list(tmp_path.iterdir()))))
        (directory / GENERATION).write_text(json.dumps(keys))
        return directory

    return make


def theirs(directory, **options):
    """The answer of `generate`, as words before the first end token; a continuation begins with a space."""
    config = transformers.AutoConfig.from_pretrained(directory)
    kind = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    model = kind.from_pretrained(directory)
    ids = torch.tensor([[WORDS.index(word) for word in TEXT.split()]])
    with torch.no_grad():
        found = model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0].tolist()
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    new = found[1 if config.is_encoder_decoder else ids.shape[1] :]
    end = next((place for place, token in enumerate(new) if token in ends), len(new))
    words = [WORDS[token] for token in new[:end]]
    return " ".join(words if config.is_encoder_decoder else ["", *words])


def drawn_keys(pick, is_translator):
    """Draw keys of a generation_config.json, each in a third of the files, beams and end tokens more often."""

    def token():
        return pick.randrange(2, len(WORDS))

    def some(most):
        return [token() for _ in range(pick.randint(1, most))]

    options = {
        "eos_token_id": lambda: pick.choice([token(), some(3), some(6)]),
        "length_penalty": lambda: pick.choice([0.0, 0.5, 2.0, -1.0]),
        "early_stopping": lambda: pick.choice([False, True, "never"]),
        "do_sample": lambda: False,
        "temperature": lambda: 0.7,
        "top_k": lambda: pick.choice([0, 7]),
        "suppress_tokens": lambda: some(5),
        "begin_suppress_tokens": lambda: some(5),
        "repetition_penalty": lambda: pick.choice([0.8, 1.0, 1.3, 2.0]),
        "no_repeat_ngram_size": lambda: pick.choice([0, 1, 2, 3]),
        "bad_words_ids": lambda: [some(3) for _ in range(5)],
        "forced_eos_token_id": token,
        "min_length": lambda: pick.choice([0, 5, 9]),
        "min_new_tokens": lambda: pick.choice([2, 5]),
        "max_length": lambda: pick.choice([13, 17]),
        "max_new_tokens": lambda: pick.choice([1, 11]),
        "pad_token_id": token,
        "use_cache": lambda: True,
        "typical_p": lambda: 0.9,
    }
    if is_translator:
        options |= {"forced_bos_token_id": token, "bos_token_id": token}
    if pick.random() < 0.15:
        unsupported = {"encoder_no_repeat_ngram_size": 1, "encoder_repetition_penalty": 1.5}
        key = pick.choice([*unsupported])
        options[key] = lambda: unsupported[key]
    found = {key: value() for key, value in options.items() if pick.random() < 1 / 3}
    if pick.random() < 0.5:
        found["num_beams"] = pick.choice([1, 2, 3, 4])
    if pick.random() < 0.5:
        found["eos_token_id"] = some(3)
    if is_translator:
        found["decoder_start_token_id"] = 0
    return {"max_length": 13} | found


@pytest.mark.slow
def test_drawn_files_give_the_text_of_transformers_or_an_error(made):
    num_equal, errors = 0, []
    for seed in range(20):
        pick, family = Random(seed), FAMILIES[seed % 4]
        keys = drawn_keys(pick, family in ("t5", "marian"))
        directory = made(family, keys)
        expected = theirs(directory)
        try:
            found = load_transformers(directory).predict(TEXT)
        except InputError as error:
            errors.append(str(error).split()[0])
        else:
            num_equal += 1
            assert found == expected, (family, keys)
    assert num_equal == 19
    assert Counter(errors) == {"encoder_no_repeat_ngram_size": 1}


@pytest.mark.slow
@pytest.mark.parametrize("rope", [DYNAMIC, YARN])
def test_with_scaled_rotary_positions_a_text_may_be_longer_than_max_position_embeddings(rope, made):
    directory = made("llama", {"max_new_tokens": 13})
    config = json.loads((directory / "config.json").read_text())
    config |= {"max_position_embeddings": 4, "rope_parameters": rope}
    (directory / "config.json").write_text(json.dumps(config))
    assert load_transformers(directory).predict(TEXT) == theirs(directory)


@pytest.mark.slow
def test_without_the_file_the_keys_of_config_json_count_and_with_it_none_of_them(made):
    directory = made("marian", {})
    (directory / GENERATION).unlink()
    config = json.loads((directory / "config.json").read_text())
    bad = [[number] for number in range(9)]
    config |= {"bad_words_ids": bad, "num_beams": 2, "max_length": 9, "task_specific_params": {"x": {"num_beams": 9}}}
    (directory / "config.json").write_text(json.dumps(config))
    answer = load_transformers(directory).predict(TEXT)
    assert answer == theirs(directory)
    assert not set(answer.split()) & set(WORDS[:9])
    (directory / GENERATION).write_text(json.dumps({"decoder_start_token_id": 0, "max_length": 11}))
    changed = load_transformers(directory).predict(TEXT)
    assert (changed == answer, changed) == (False, theirs(directory))


@pytest.mark.slow
def test_a_call_has_the_last_word_and_draws_are_those_of_the_seed(made):
    directory = made("gpt2", {"do_sample": True, "temperature": 5.0, "max_new_tokens": 13, "typical_p": 1.0})
    run = load_transformers(directory)
    first, again, other = (run.predict(TEXT, seed=seed) for seed in (0, 0, 1))
    assert first == again != other
    greedy = theirs(directory, do_sample=False)
    assert run.predict(TEXT, do_sample=False) == run.predict(TEXT, top_k=1) == run.predict(TEXT, top_p=1e-6) == greedy
    assert run.predict(TEXT, do_sample=False, max_new=7) == " ".join(["", *greedy.split()[:7]])
    penalised = run.predict(TEXT, do_sample=False, repetition_penalty=2.0)
    assert penalised == theirs(directory, do_sample=False, repetition_penalty=2.0) != greedy
    assert run.predict(TEXT, do_sample=False, beam_width=3) == theirs(directory, do_sample=False, num_beams=3)


@pytest.mark.slow
def test_keys_that_exclude_every_token_are_an_error(made):
    for keys in ({"suppress_tokens": [*range(31)]}, {"suppress_tokens": [*range(31)], "num_beams": 2}):
        run = load_transformers(made("gpt2", keys))
        with pytest.raises(InputError, match="^the keys of generation_config.json and of the call leave no token"):
            run.predict(TEXT, max_new=3)


def test_the_number_of_beams_has_a_bound():
    for keys, chosen in (({"num_beams": 10**6}, {}), ({}, {"num_beams": 1025}), ({"num_beams": 0}, {})):
        with pytest.raises(
            InputError, match="^num_beams is .*generation_config.json or beam_width; it must be 1 … 1024"
        ):
            generation_of(keys, chosen, is_translator=False)
    assert generation_of({"num_beams": 1024}, {}, is_translator=False).num_beams == 1024


def test_errors_of_the_tokenizer_are_one_line(made):
    run = load_transformers(made("gpt2", {}))
    with pytest.raises(InputError, match="surrogates not allowed"):
        run.predict("w3 \ud800")
    run.tokenizer.model.unk_token = "not there"
    with pytest.raises(InputError, match="the tokenizer cannot encode 'w3 x': .*Missing .UNK. token"):
        run.predict("w3 x")


def test_a_text_and_its_continuation_are_the_text_of_all_tokens(made):
    """With a tokenizer of Llama's kind, which removes the space before the first word of a text."""
    directory = made("llama", {})
    pieces = tokenizers.Tokenizer(BPE({letter: number for number, letter in enumerate(LETTERS)}, []))
    pieces.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    pieces.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    pieces.save(str(directory / "tokenizer.json"))
    run = load_transformers(directory)
    first = {"begin_suppress_tokens": [*range(1, 31)], "max_new": 3}  # a new word
    texts = ["the cat sat", "the dog"]
    answers = run.predict(texts, **first)
    for text, answer in zip(texts, answers, strict=True):
        assert run.predict(text, **first) == answer
        assert answer.startswith(" ")
        ids = [*pieces.encode(text).ids, *pieces.encode(answer.removeprefix(" ")).ids]
        assert text + answer == pieces.decode(ids)
    run.generation |= {"begin_suppress_tokens": [*range(1, 31)]}
    assert predict.answer_to(run, texts[1], {"max_new": 3}) == f"{answers[1]}\t"  # a line of `--interactive`


def test_every_key_of_transformers_is_known_or_has_no_effect_on_the_text():
    theirs = set(transformers.GenerationConfig().to_dict())
    known = {field.name for field in dataclasses.fields(Generation)} | UNSUPPORTED.keys()
    known |= UNSUPPORTED_DRAWS.keys() | UNSUPPORTED_BEAMS.keys()
    assert known <= theirs
    assert theirs - known == {
        "pad_token_id",  # fills rows that have ended
        "use_cache", "cache_implementation", "cache_config", "max_cache_len", "prefill_chunk_size", "compile_config",
        "disable_compile", "continuous_batching_config",  # how it computes
        "low_memory",  # an error there
        "output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate",
        "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold",
        "max_matching_ngram_size", "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight",
        "speculation_type",  # of a second model
        "transformers_version", "_from_model_config",
    }  # fmt: skip


def test_a_key_that_is_not_supported_is_an_error_where_it_would_change_the_text():
    def of(keys, is_translator=False, **chosen):
        return generation_of(keys, chosen, is_translator=is_translator)

    for keys in (
        {"stop_strings": ["."]},
        {"encoder_repetition_penalty": 1.5},
        {"typical_p": 0.9, "do_sample": True},
        {"num_beam_groups": 2, "num_beams": 4},
        {"do_sample": True, "num_beams": 4},
        {"forced_bos_token_id": 3},
    ):
        name, value = next(iter(keys.items()))
        with pytest.raises(InputError, match=f"^{name} is {re.escape(repr(value))}, .* pass {name}="):
            of(keys)
        chosen = {name: False if name == "do_sample" else None}
        assert of(keys, **chosen) == of({key: keys[key] for key in keys if key != name})
    of({"typical_p": 0.9, "num_beam_groups": 2, "use_cache": False, "of_another_version": 3})
    assert of({"forced_bos_token_id": 3}, is_translator=True).forced_bos_token_id == 3
    with pytest.raises(InputError, match="no_repeat_ngram is given; .*did you mean no_repeat_ngram_size"):
        of({}, no_repeat_ngram=3)
    with pytest.raises(InputError, match="eos_token_id is 'x'; it must be"):
        of({"eos_token_id": "x"})
    with pytest.raises(InputError, match="decoder_start_token_id is not in generation_config.json"):
        _ = of({}, is_translator=True).start_token
    with pytest.raises(InputError, match="max_length is 5 with a prompt of 5 tokens; pass max_new"):
        of({"max_length": 5}).num_new(5)


def test_draws_have_the_settings_that_the_call_and_the_file_lack_from_generate():
    assert generation_of({"top_p": 0.5}, {"temperature": 0.7}, is_translator=False) == Generation(
        do_sample=True, temperature=0.7, top_k=50, top_p=0.5
    )
    assert generation_of({"top_k": 7}, {"top_k": None}, is_translator=False) == Generation(top_k=0)
