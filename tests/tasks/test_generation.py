"""`generation_config.json`: what `predict` makes of its keys, compared with `generate` of `transformers`."""

import json
from random import Random

import pytest
import tokenizers
import torch
import transformers
from huggingface_models import drawn
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from transformer_jax import InputError, load_transformers

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # they compile; theirs warns of many keys

WORDS = [f"w{number}" for number in range(31)]
TEXT = "w3 w17 w5 w30 w17"
FAMILIES = "gpt2", "llama", "t5", "marian"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A directory with a model of each family and a tokenizer without special tokens, of the same 31."""
    found = {}
    for family in FAMILIES:
        models = (drawn(family, Random(seed)) for seed in range(99))
        model = next(model for model in models if model.config.vocab_size == len(WORDS))
        found[family] = tmp_path_factory.mktemp(family)
        model.save_pretrained(found[family])
        tokenizer = tokenizers.Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="w0"))
        tokenizer.pre_tokenizer = Whitespace()
        tokenizer.save(str(found[family] / "tokenizer.json"))
    return found


def written(directory, keys, file="generation_config.json"):
    """The directory with these keys in its file."""
    content = json.loads((directory / file).read_text()) if file == "config.json" else {}
    (directory / file).write_text(json.dumps(content | keys))
    return directory


def theirs(directory, **options):
    """The answer of `generate`, as words before the first end token."""
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
    return " ".join(WORDS[token] for token in new[:end])


def drawn_keys(pick, is_translator):
    """Keys of a generation_config.json, each there in one of three."""

    def token():
        return pick.randrange(2, len(WORDS))

    def some(most):
        return [token() for _ in range(pick.randint(1, most))]

    options = {
        "eos_token_id": lambda: pick.choice([token(), some(3), some(6)]),
        "num_beams": lambda: pick.choice([1, 2, 3, 4]),
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
        "forced_eos_token_id": lambda: pick.choice([token(), some(2)]),
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
    if pick.random() < 0.5:  # as most files
        found["eos_token_id"] = some(3)
    if is_translator:
        found["decoder_start_token_id"] = 0
    return {"max_length": 13} | found


def test_fifty_drawn_files_give_the_text_of_transformers_or_an_error(models, tmp_path):
    equal, errors, differing = 0, [], []
    for seed in range(50):
        pick = Random(seed)
        family = FAMILIES[seed % 4]
        keys = drawn_keys(pick, family in ("t5", "marian"))
        directory = written(models[family], keys)
        expected = theirs(directory)
        try:
            found = load_transformers(directory).predict(TEXT)
        except InputError as error:
            errors.append((keys, str(error)))
            continue
        equal += found == expected
        if found != expected:
            differing.append((family, keys, found, expected))
    print(equal, len(errors), errors)
    assert not differing, differing
