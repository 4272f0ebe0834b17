"""Generation settings of a HuggingFace model, read from its files key by key.

As in `config.json`, a key is either honoured, or has a value without effect, or raises an error. Keys that
`transformers` does not know are ignored, as `transformers` does.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
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
from transformer_jax.tasks.language_model.continuation import DRAWS
from transformer_jax.weights.huggingface.pretrained import CONFIG

GENERATION = "generation_config.json"
DEFAULT_NEW = 64  # tokens, if neither the call nor the file says how many
Tokens = tuple[int, ...]
# Unsupported keys, with the value, besides None, at which they have no effect.
UNSUPPORTED: Mapping[str, object] = {
    "constraints": None, "dola_layers": None, "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None, "force_words_ids": None, "guidance_scale": 1.0, "max_time": None,
    "num_return_sequences": 1, "penalty_alpha": 0.0, "prompt_lookup_num_tokens": None, "remove_invalid_values": False,
    "sequence_bias": None, "stop_strings": None, "token_healing": False, "use_mtp": False, "watermarking_config": None,
    "assistant_early_exit": None,
}  # fmt: skip
UNSUPPORTED_DRAWS = {
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "min_p": None,
    "top_h": None,
    "typical_p": 1.0,
}
UNSUPPORTED_BEAMS = {
    "do_sample": False, "diversity_penalty": 0.0, "num_beam_groups": 1, "renormalize_logits": False,
}  # fmt: skip
MAX_BEAMS = 1024
REFUSAL = (
    f"the keys of {GENERATION} and of the call leave no token to choose; pass None for a key that"
    " excludes tokens, such as suppress_tokens"
)


@dataclasses.dataclass(frozen=True)
class Generation:
    """Supported keys of `generation_config.json`, with their default values."""

    # Length.
    # tokens with the prompt, or with the start token of an encoder-decoder
    max_length: int | None = None
    max_new_tokens: int | None = None
    min_length: int = 0
    min_new_tokens: int | None = None
    # The search.
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50  # 0: all
    top_p: float = 1.0
    num_beams: int = 1
    # a hypothesis' log-probability is divided by its length to this power
    length_penalty: float = 1.0
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
            InputError: no key sets it.
        """
        for token in (self.decoder_start_token_id, self.bos_token_id):
            if token is not None:
                return token
        raise InputError(
            f"decoder_start_token_id is not in {GENERATION}, nor is bos_token_id; pass one of them"
        )

    def num_new(self, prompt_length: int) -> int:
        """Maximum number of new tokens after a prompt; the start token of an encoder-decoder is a prompt of length 1.

        Raises:
            InputError: the prompt leaves no room.
        """
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        if self.max_length is None:
            return DEFAULT_NEW
        if self.max_length <= prompt_length:
            raise InputError(
                f"max_length is {self.max_length} with a prompt of {prompt_length} tokens; pass"
                " max_new"
            )
        return self.max_length - prompt_length

    def processors(self, num_new: int) -> Iterator[LogitsProcessor]:
        """Yield the logits processors, in the order of `transformers`.

        Args:
            num_new: maximum number of new tokens.
        """
        if self.repetition_penalty != 1:
            yield repetition_penalty(self.repetition_penalty)
        if self.no_repeat_ngram_size:
            yield no_repeated_ngrams(self.no_repeat_ngram_size)
        bad_words = [
            word for word in self.bad_words_ids if len(word) != 1 or word[0] not in self.end_tokens
        ]
        if bad_words:
            yield excluded_sequences(bad_words)
        if self.min_new_tokens is not None:
            yield suppressed_tokens(self.end_tokens, stop=self.min_new_tokens)
        elif self.min_length:
            yield suppressed_until(self.end_tokens, self.min_length)
        begin = 0
        if self.forced_bos_token_id is not None:
            yield forced_token(self.forced_bos_token_id, 0)
            begin = 1
        if self.forced_eos_token_id is not None:
            yield forced_token(self.forced_eos_token_id, num_new - 1)
        if self.suppress_tokens:
            yield suppressed_tokens(self.suppress_tokens)
        if self.begin_suppress_tokens:
            yield suppressed_tokens(self.begin_suppress_tokens, begin, begin + 1)

    def search(
        self, num_new: int, key: PRNGKeyArray, prompt: Int[jax.Array, "B P"] | None
    ) -> Callable[..., Decoded]:
        """Create the decoding function, which takes a step, its cache, the batch size, and start and padding tokens.

        Args:
            num_new: maximum number of new tokens.
            key: random key for sampling.
            prompt: tokens before the answer; None for an encoder-decoder.

        Returns:
            A function that returns one result for each batch element.
        """
        options: dict[str, Any] = {
            "processors": list(self.processors(num_new)),
            "prompt": prompt,
            "max_length": num_new,
            "end_token": self.end_tokens,
        }
        if self.do_sample:
            return partial(
                sample,
                key=key,
                temperature=self.temperature,
                top_k=self.top_k or None,
                top_p=self.top_p,
                **options,
            )
        if self.num_beams == 1:
            return partial(greedy_decode, **options)
        return partial(
            best_of_beams,
            beam_width=self.num_beams,
            length_penalty=lambda length: length**self.length_penalty,
            early_stopping=self.early_stopping,
            **options,
        )


def best_of_beams(*arguments: Any, **options: Any) -> Decoded:
    """The best result of `beam_search` for each batch element."""
    results = beam_search(*arguments, n_best=1, **options)
    return jax.tree.map(lambda leaf: leaf[:, 0], results)


def read_generation(directory: Path) -> Json:
    """Read the keys of `generation_config.json`, or of `config.json` if there is none, as `transformers` does.

    Raises:
        InputError: the file cannot be read.
    """
    file = directory / GENERATION
    if os.path.lexists(file):
        return read_json(file)
    keys = read_json(directory / CONFIG)
    if keys.get("force_bos_token_to_be_generated"):  # in files of the first BARTs
        keys["forced_bos_token_id"] = keys.get("bos_token_id")
    return keys


def generation_of(
    keys: Mapping[str, object], chosen: Mapping[str, object], *, is_translator: bool
) -> Generation:
    """Combine the generation settings of a model's file and of a call.

    Args:
        keys: keys of the file. A value of None counts as a missing key.
        chosen: keys of the call, which override the file's; None removes a key (for `top_k`, the limit). Any key in
            `DRAWS` turns on sampling.
        is_translator: whether the model is an encoder-decoder.

    Raises:
        InputError: a chosen key is unknown, or a value is invalid or not supported.
    """
    fields = {field.name: field.type for field in dataclasses.fields(Generation)}
    known = [*fields, *UNSUPPORTED, *UNSUPPORTED_DRAWS, *UNSUPPORTED_BEAMS]
    for name in chosen:
        if name not in known:
            raise InputError(
                f"{name} is given; it must be a key of {GENERATION}{meant(name, known)}"
            )
    merged = dict(keys)
    if any(chosen.get(name) is not None for name in DRAWS):
        merged["do_sample"] = True
    merged |= chosen
    values = {name: value for name, value in merged.items() if value is not None}
    if "top_k" in chosen:
        values.setdefault("top_k", 0)
    checked = {
        name: check_value(name, values[name], hint)
        for name, hint in fields.items()
        if name in values
    }
    generation = Generation(**checked)
    if not 1 <= generation.num_beams <= MAX_BEAMS:
        raise InputError(
            f"num_beams is {generation.num_beams}, a key of {GENERATION} or beam_width; it must be 1 …"
            f" {MAX_BEAMS}"
        )
    _check_supported(generation, values, is_translator=is_translator)
    return generation


def _check_supported(
    generation: Generation, values: Mapping[str, Any], *, is_translator: bool
) -> None:
    """Raise an `InputError` if a key has a value that would have an effect in `transformers`, but has none here."""
    without_effect = dict(UNSUPPORTED)
    if not is_translator:
        without_effect["forced_bos_token_id"] = None
    if generation.do_sample:
        without_effect |= UNSUPPORTED_DRAWS
    if generation.num_beams > 1:
        without_effect |= UNSUPPORTED_BEAMS
    for name, value in without_effect.items():
        if values.get(name, value) != value:
            where = "in beam search" if name in UNSUPPORTED_BEAMS else "here"
            raise InputError(
                f"{name} is {shortened(values[name])}, a key of {GENERATION}, which is not"
                f" supported {where}; pass {name}={value}"
            )
