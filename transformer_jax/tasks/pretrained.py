"""Models of HuggingFace Transformers with their tokenizers: text in, and text or classes out."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

from transformer_jax.argument_checks import check_arguments
from transformer_jax.config import TrainingConfig
from transformer_jax.data.batch import Batch
from transformer_jax.decoding.beam_search import beam_search
from transformer_jax.decoding.checks import Step
from transformer_jax.decoding.token_by_token import Decoded, greedy_decode, sample
from transformer_jax.errors import InputError, check_sizes
from transformer_jax.inspection.inspected import Activations, Inspected
from transformer_jax.inspection.page.token_text import token_text
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.nn.masked_language_model import TransformerMLM
from transformer_jax.outside_files import Json, read_json
from transformer_jax.tasks.language_model.continuation import Apply, open_ended, tokens_after
from transformer_jax.tasks.sentencepiece_files import SOURCE, SentencePieces
from transformer_jax.tasks.text_examples import TextTrainer, texts_in
from transformer_jax.tasks.tokenization import read_pieces
from transformer_jax.training.inspected_example import Answer, InspectedExample, answer_of
from transformer_jax.training.metrics import Elements
from transformer_jax.trees import Params
from transformer_jax.weights.huggingface.hub import local_directory
from transformer_jax.weights.huggingface.pretrained import CONFIG, TOKENIZER, from_transformers

if TYPE_CHECKING:
    import tokenizers

GENERATION = "generation_config.json"
MASKS = "[MASK]", "<mask>"
DRAWS = "temperature", "top_k"  # how a language model draws the next token


class PretrainedText(TextTrainer):
    """A pretrained model of texts, with its tokenizer: `predict`, `attention` and the inspection page take texts.

    Args:
        config: of which the devices and the batch size matter.
        model: a language model, a masked one, or an encoder-decoder.
        tokenizer: its own.
        tokens: ids by the names of `config.json`: `eos_token_id`, `pad_token_id`, `decoder_start_token_id`; and
            `id2label`.
    """

    inspected: Inspected
    name = "PretrainedText"
    config_class = TrainingConfig

    def __init__(
        self, config: TrainingConfig, model: Any, tokenizer: "tokenizers.Tokenizer | SentencePieces", tokens: Json
    ) -> None:
        super().__init__(config, model=model)
        self.tokenizer, self.tokens = tokenizer, tokens
        self.stack = "decoder" if isinstance(model, TransformerLM) else "encoder"
        self._continued = jax.jit(self._continuation, static_argnames=("max_new", *DRAWS))
        self._translated = jax.jit(self._translation, static_argnames=("max_new", "beam_width"))

    def model_inputs(self, inputs: Any) -> tuple[Any, ...]:
        return inputs if isinstance(inputs, tuple) else (inputs,)

    def loss_function(self, params: Params, batch: Batch, key: PRNGKeyArray | None, *, train: bool) -> Elements:
        raise InputError("PretrainedText is not trained; the tasks train such a model further with init_from")

    def predict(
        self, inputs: str | Sequence[str], *, max_new: int = 64, beam_width: int = 1, seed: int = 0, **draws: object
    ) -> Any:  # str after str, a list after a list
        """What the model makes of a text, or of each text of a list.

        Args:
            inputs: text or texts.
            max_new: tokens that are generated at most.
            beam_width: of the search of an encoder-decoder; 1 takes the most probable token at each position.
            seed: of a language model's draws.
            **draws: `temperature` and `top_k` of these; without one of them it takes the most probable tokens.

        Returns:
            The continuation by a language model, the translation by an encoder-decoder, the class by a classifier, and
            the text with words in the places of its masks by a masked language model.

        Raises:
            InputError: `inputs` is no text and no list of texts, a text has more tokens than the model takes, or a
                setting is impossible or of another kind of model.
        """
        check_sizes(max_new=max_new, beam_width=beam_width)
        check_sizes(0, seed=seed)
        if beam_width > 1 and not isinstance(self.model, Transformer):
            raise InputError(f"beam_width is {beam_width}; a {type(self.model).__name__} searches no beams")
        texts: list[str] = texts_in(inputs, str)
        if unknown := [name for name in draws if name not in DRAWS or not isinstance(self.model, TransformerLM)]:
            raise InputError(f"{unknown[0]} is given; a {type(self.model).__name__} takes no such setting")
        keys = jax.random.split(jax.random.key(seed), len(texts))
        found = [self._answer_to(text, max_new, beam_width, key, draws) for text, key in zip(texts, keys, strict=True)]
        return found[0] if isinstance(inputs, str) else found

    def examples(self, inputs: str | Sequence[str]) -> list[InspectedExample]:
        """A text, or the texts of a list, with what the model says at each token; an encoder-decoder translates them.

        Raises:
            InputError: as `predict`.
        """
        return [self._example(text) for text in texts_in(inputs, str)]

    def capture(self, text: str, names: Sequence[str], **kwargs: object) -> tuple[Any, Activations]:
        """`inspected.capture` of the tokens of a text; an encoder-decoder reads its translation too."""
        (example,) = self.examples(text)
        return self.inspected.capture(self.model_inputs(example.inputs), names, **kwargs)

    def _example(self, text: str) -> InspectedExample:
        ids = self._encode(text)
        labels = self._names(ids[0])
        if getattr(self.model, "head", "") == "classes":
            return InspectedExample(inputs=ids, labels=labels, title=text, answer=self._class_of)
        if not isinstance(self.model, Transformer):
            return InspectedExample(inputs=ids, labels=labels, title=text, answer=functools.partial(self._said, labels))
        target = np.concatenate([[self._token("decoder_start_token_id")], self._translate(ids, 64, 1)])[None]
        read = self._names(target[0])
        return InspectedExample(
            inputs=(ids, target.astype(np.int32)),
            labels={"encoder": labels, "decoder": read},
            title=text,
            answer=functools.partial(self._said, read),
        )

    def _class_of(self, output: Float[np.ndarray, " C"]) -> Answer:
        return answer_of(output[None], ["text"], self._label)

    def _said(self, places: Sequence[str], output: Float[np.ndarray, "T V"]) -> Answer:
        """The most probable token at each place."""
        answer = answer_of(output, places, lambda token: self._names([token])[0])
        ids = output[: len(places)].argmax(-1)
        return answer._replace(text=self.tokenizer.decode(ids.tolist()), probability=None)

    def _answer_to(
        self, text: str, max_new: int, beam_width: int, key: PRNGKeyArray, draws: Mapping[str, object]
    ) -> str:
        ids = self._encode(text)
        if isinstance(self.model, Transformer):
            return str(self.tokenizer.decode(self._translate(ids, max_new, beam_width).tolist()))
        if isinstance(self.model, TransformerLM):
            self._check_length(ids.shape[1] + max_new)
            found = self._continued(self.params, ids, key, max_new=max_new, **draws)
            return str(self.tokenizer.decode(self._cut(found).tolist()))
        if self.model.head == "classes":
            return self._label(int(self.forward(ids)[0].argmax()))
        masked = [token for token in map(self.tokenizer.token_to_id, MASKS) if token is not None]
        filled = np.where(np.isin(ids, masked), self.forward(ids).argmax(-1), ids)
        return str(self.tokenizer.decode(filled[0].tolist()))

    def _translate(self, ids: Int[np.ndarray, "1 S"], max_new: int, beam_width: int) -> Int[np.ndarray, " T"]:
        return self._cut(self._translated(self.params, ids, max_new=max_new, beam_width=beam_width))

    def _continuation(
        self, params: Params, prompt: Int[Array, "1 P"], key: PRNGKeyArray, *, max_new: int, **draws: Any
    ) -> Int[Array, " T"]:
        apply = functools.partial(self.model.apply, {"params": params})
        decode: Callable[..., Decoded] = functools.partial(sample, key=key, **draws) if draws else greedy_decode
        ends = {"end_token": self._end_token(), "max_length": max_new}
        return tokens_after(apply, self._step(apply), prompt, prompt.shape[1], decode, **ends).tokens[0]

    def _translation(
        self, params: Params, source: Int[Array, "1 S"], *, max_new: int, beam_width: int
    ) -> Int[Array, " T"]:
        apply = functools.partial(self.model.apply, {"params": params})
        cache = apply(source, length=max_new, method="start_decoding")
        arguments = self._step(apply), cache, 1
        ends: dict[str, Any] = {"end_token": self._end_token(), "pad_token": 0, "max_length": max_new}  # whole numbers
        ends["start_token"] = self._token("decoder_start_token_id")
        if beam_width == 1:
            return greedy_decode(*arguments, **ends).tokens[0]
        return beam_search(*arguments, **ends, beam_width=beam_width, n_best=1, length_penalty=0.0).tokens[0, 0]

    def _step(self, apply: Apply) -> Step:
        banned = [ids[0] for ids in self.tokens.get("bad_words_ids") or [] if len(ids) == 1]
        return open_ended(apply, self._vocabulary_size(), banned)

    def _end_token(self) -> int:
        return (self._end_tokens() or [self._vocabulary_size()])[0]

    def _end_tokens(self) -> list[int]:
        """The tokens that end a text: none, one or several."""
        ends = self.tokens.get("eos_token_id")
        return ends if isinstance(ends, list) else [] if ends is None else [ends]

    def _cut(self, found: Array) -> Int[np.ndarray, " T"]:
        """The tokens before the end; decoding itself stops at the first of several end tokens alone."""
        ids = np.asarray(found)
        ends = np.flatnonzero(np.isin(ids, self._end_tokens()))
        return ids[: ends[0]] if ends.size else ids

    def _vocabulary_size(self) -> int:
        model: Any = self.model  # its class decides which field it has
        return int(model.target_vocabulary_size if hasattr(model, "encoder_block") else model.vocabulary_size)

    def _token(self, name: str) -> int:
        token = self.tokens.get(name, self.tokens.get("pad_token_id"))
        if token is None:
            raise InputError(f"config.json and {GENERATION} have no {name}")
        return int(token)

    def _encode(self, text: str) -> Int[np.ndarray, "1 T"]:
        ids = np.array([self.tokenizer.encode(text).ids], np.int32)
        if not ids.size:
            raise InputError(f"the text {text!r:.60} has no tokens")
        self._check_length(ids.shape[1])
        return ids

    def _check_length(self, length: int) -> None:
        longest = getattr(self.model, "max_len", length)
        if length > longest:
            raise InputError(f"the text and what is generated have {length} tokens; the model takes {longest}")

    def _names(self, ids: Sequence[int] | Int[np.ndarray, " T"]) -> list[str]:
        """Tokens as text."""
        return [token_text(self.tokenizer.id_to_token(int(token)) or f"#{token}") for token in ids]

    def _label(self, number: int) -> str:
        return str((self.tokens.get("id2label") or {}).get(str(number), number))


@check_arguments
def load_transformers(directory: str | Path) -> PretrainedText:
    """A model of texts with its tokenizer, ready to `predict`: `load_transformers("gpt2").predict("Once upon")`.

    Its `model`, `variables` and `tokenizer` are those of the directory, and its `inspected` binds the first two. For
    images, and for tokens without a tokenizer, there is `from_transformers`.

    Args:
        directory: that `save_pretrained` wrote; or the name of a model on HuggingFace's hub, which is then downloaded.

    Raises:
        InputError: as `from_transformers`; the directory has no `tokenizer.json`, nor the files
            of `SentencePieces`; or the model is none of texts.
    """
    directory = local_directory(directory)
    model, variables = from_transformers(directory)
    if not isinstance(model, TransformerLM | TransformerMLM | Transformer):
        raise InputError(f"{directory} holds a {type(model).__name__}; from_transformers opens what takes no texts")
    tokens = read_json(directory / CONFIG)
    if os.path.lexists(directory / GENERATION):
        tokens |= read_json(directory / GENERATION)
    is_of_pieces = os.path.lexists(directory / SOURCE) and not os.path.lexists(directory / TOKENIZER)
    tokenizer = SentencePieces(directory) if is_of_pieces else read_pieces(directory / TOKENIZER)
    found = PretrainedText(TrainingConfig(), model, tokenizer, tokens)
    found.params = variables["params"]
    found.inspected = Inspected(model, variables)
    return found
