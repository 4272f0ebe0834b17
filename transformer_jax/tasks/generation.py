"""How the files of a model of HuggingFace Transformers say that it generates, key by key.

The rule is that of `config.json`: a key is honoured, or has a value that changes nothing, or is an error. What
`transformers` does not know, it passes over, and so is it here.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
from jaxtyping import Int, PRNGKeyArray

from transformer_jax.decoding.beam_search import beam_search
from transformer_jax.decoding.logits_processors import (
    LogitsProcessor,
    excluded_sequences,
    forced_token,
    no_repeated_ngrams,
    repetition_penalty,
    suppressed_tokens,
    suppressed_until,
)
from transformer_jax.decoding.token_by_token import Decoded, greedy_decode, sample
from transformer_jax.errors import InputError, check_value, meant, shortened
from transformer_jax.outside_files import Json, read_json
from transformer_jax.weights.huggingface.pretrained import CONFIG

GENERATION = "generation_config.json"
DEFAULT_NEW = 64  # tokens, if neither the call nor the file says how many
Tokens = tuple[int, ...]
# Keys that are not supported, with the values at which they change nothing, beside None.
UNSUPPORTED: Mapping[str, object] = {
    "constraints": None, "dola_layers": None, "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None, "force_words_ids": None, "guidance_scale": 1.0, "max_time": None,
    "num_return_sequences": 1, "penalty_alpha": 0.0, "prompt_lookup_num_tokens": None, "remove_invalid_values": False,
    "sequence_bias": None, "stop_strings": None, "token_healing": False, "use_mtp": False, "watermarking_config": None,
    "assistant_early_exit": None,
}  # fmt: skip
UNSUPPORTED_DRAWS = {"epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "min_p": None, "top_h": None, "typical_p": 1.0}
UNSUPPORTED_BEAMS = {"diversity_penalty": 0.0, "num_beam_groups": 1, "renormalize_logits": False}
DRAWS = "temperature", "top_k", "top_p"


@dataclasses.dataclass(frozen=True)
class Generation:
    """Keys of `generation_config.json` that are honoured, with the values of a file that lacks them."""

    # Length.
    max_length: int | None = None  # tokens with the prompt, or with the start token of an encoder-decoder
    max_new_tokens: int | None = None
    min_length: int = 0
    min_new_tokens: int | None = None
    # The search.
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50  # 0: all
    top_p: float = 1.0
    num_beams: int = 1
    length_penalty: float = 1.0  # power of the length that divides a hypothesis' log-probability
    early_stopping: bool | Literal["never"] = False
    # Tokens.
    bos_token_id: int | None = None
    decoder_start_token_id: int | None = None
    eos_token_id: Tokens | int = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    # Logits.
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    bad_words_ids: tuple[Tokens, ...] = ()
    suppress_tokens: Tokens = ()
    begin_suppress_tokens: Tokens = ()

    @property
    def end_tokens(self) -> Tokens:
        """Tokens that end a text: none, one or several."""
        return (self.eos_token_id,) if isinstance(self.eos_token_id, int) else self.eos_token_id

    @property
    def start_token(self) -> int:
        """The first token of an encoder-decoder's answers.

        Raises:
            InputError: the file has none.
        """
        found = self.bos_token_id if self.decoder_start_token_id is None else self.decoder_start_token_id
        if found is None:
            raise InputError(f"decoder_start_token_id is not in {GENERATION}, nor is bos_token_id; pass one of them")
        return found

    def num_new(self, prompt_length: int) -> int:
        """The most tokens of an answer to a prompt; the start token of an encoder-decoder is a prompt of one.

        Raises:
            InputError: there is room for none.
        """
        if self.max_new_tokens is None and self.max_length is None:
            return DEFAULT_NEW
        found = (self.max_length or 0) - prompt_length if self.max_new_tokens is None else self.max_new_tokens
        if found < 1:
            raise InputError(f"max_length is {self.max_length} with a prompt of {prompt_length} tokens; pass max_new")
        return found

    def processors(self, num_new: int) -> list[LogitsProcessor]:
        """The functions of logits, in the order of `transformers`.

        Args:
            num_new: the most tokens of the answer.
        """
        found: list[LogitsProcessor] = []
        if self.repetition_penalty != 1:
            found.append(repetition_penalty(self.repetition_penalty))
        if self.no_repeat_ngram_size:
            found.append(no_repeated_ngrams(self.no_repeat_ngram_size))
        bad_words = [word for word in self.bad_words_ids if len(word) != 1 or word[0] not in self.end_tokens]
        if bad_words:
            found.append(excluded_sequences(bad_words))
        if self.min_new_tokens is not None:
            found.append(suppressed_tokens(self.end_tokens, stop=self.min_new_tokens))
        elif self.min_length:
            found.append(suppressed_until(self.end_tokens, self.min_length))
        begin = 0
        if self.forced_bos_token_id is not None:
            found.append(forced_token(self.forced_bos_token_id, 0))
            begin = 1
        if self.forced_eos_token_id is not None:
            found.append(forced_token(self.forced_eos_token_id, num_new - 1))
        if self.suppress_tokens:
            found.append(suppressed_tokens(self.suppress_tokens))
        if self.begin_suppress_tokens:
            found.append(suppressed_tokens(self.begin_suppress_tokens, begin, begin + 1))
        return found

    def search(self, num_new: int, key: PRNGKeyArray, prompt: Int[jax.Array, "B P"] | None) -> Callable[..., Decoded]:
        """The decoding function, which still needs a step, its cache, the batch size, and tokens of start and padding.

        Args:
            num_new: the most tokens of the answer.
            key: of the draws.
            prompt: tokens before the answer; None for those of an encoder-decoder.

        Returns:
            A function that gives one result for each batch element.
        """
        options: dict[str, Any] = {"processors": self.processors(num_new), "prompt": prompt, "max_length": num_new}
        options["end_token"] = self.end_tokens
        if self.do_sample:
            draws: dict[str, Any] = {name: getattr(self, name) for name in DRAWS}
            return partial(sample, key=key, **draws | {"top_k": self.top_k or None}, **options)
        if self.num_beams == 1:
            return partial(greedy_decode, **options)
        options |= {"beam_width": self.num_beams, "n_best": 1, "early_stopping": self.early_stopping}
        search = partial(beam_search, length_penalty=lambda length: length**self.length_penalty, **options)
        return lambda *arguments, **more: jax.tree.map(lambda leaf: leaf[:, 0], search(*arguments, **more))


def read_generation(directory: Path) -> Json:
    """The keys of `generation_config.json`; of a directory without it those of `config.json`, as `transformers` does.

    Raises:
        InputError: the file can't be read.
    """
    has_own = os.path.lexists(directory / GENERATION)
    return read_json(directory / (GENERATION if has_own else CONFIG))


def generation_of(keys: Mapping[str, object], chosen: Mapping[str, object], *, is_translator: bool) -> Generation:
    """What a model's file and a call say together.

    Args:
        keys: of the file. None is a key that is not there.
        chosen: keys of a call, in the place of those of the file; None removes one (of `top_k`, the limit). Any of
            `DRAWS` makes it draw.
        is_translator: whether the model is an encoder-decoder.

    Raises:
        InputError: a chosen key is unknown, a value is impossible, or a key has one that is not supported.
    """
    fields = {field.name: field.type for field in dataclasses.fields(Generation)}
    known = [*fields, *UNSUPPORTED, *UNSUPPORTED_DRAWS, *UNSUPPORTED_BEAMS]
    if unknown := [name for name in chosen if name not in known]:
        raise InputError(f"{unknown[0]} is given; it must be a key of {GENERATION}{meant(unknown[0], known)}")
    draws = {name: chosen[name] for name in DRAWS if chosen.get(name) is not None}
    merged = {**keys, **({"do_sample": True} if draws else {}), **chosen}
    values = {name: value for name, value in merged.items() if value is not None}
    if "top_k" in chosen:
        values.setdefault("top_k", 0)
    found = Generation(
        **{name: check_value(name, values[name], kind) for name, kind in fields.items() if name in values}
    )
    neutral = {**UNSUPPORTED, "forced_bos_token_id": values.get("forced_bos_token_id") if is_translator else None}
    neutral |= UNSUPPORTED_DRAWS if found.do_sample else {}
    neutral |= UNSUPPORTED_BEAMS if found.num_beams > 1 else {}
    neutral |= {"do_sample": False} if found.num_beams > 1 else {}
    for name, value in neutral.items():
        if values.get(name, value) != value:
            raise InputError(
                f"{name} is {shortened(values[name])}, a key of {GENERATION}, which is not supported"
                f"{f' with num_beams = {found.num_beams}' if name == 'do_sample' else ''}; pass {name}={value}"
            )
    return found
