"""Models of HuggingFace Transformers with their tokenizers: text in, and text or classes out."""

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from transformer_jax.argument_checks import check_arguments
from transformer_jax.config import TrainingConfig
from transformer_jax.data.batch import Batch
from transformer_jax.errors import InputError, check_sizes
from transformer_jax.inspection.inspected import Activations, Inspected
from transformer_jax.inspection.page.token_text import token_text
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.nn.masked_language_model import TransformerMLM
from transformer_jax.outside_files import Json, read_json
from transformer_jax.tasks.chat_template import Message, chat_text
from transformer_jax.tasks.generation import (
    UNSUPPORTED,
    UNSUPPORTED_BEAMS,
    Generation,
    generation_of,
    read_generation,
)
from transformer_jax.tasks.generator import Generator, check_length
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

MASKS = "[MASK]", "<mask>"
KEYS = {"max_new": "max_new_tokens", "beam_width": "num_beams"}  # arguments that are keys of `generation_config.json`


class PretrainedText(TextTrainer):
    """A pretrained model of texts, with its tokenizer: `predict`, `attention` and the inspection page take texts.

    Args:
        config: of which the devices and the batch size matter.
        model: a language model, a masked one, or an encoder-decoder.
        tokenizer: its own.
        directory: with the files of the tokenizer, of which `chat` reads the template.
        labels: names of classes, by their numbers as text.
        generation: keys of `generation_config.json`, by which texts are generated.
    """

    inspected: Inspected
    name = "PretrainedText"
    config_class = TrainingConfig

    def __init__(
        self,
        config: TrainingConfig,
        model: Any,
        tokenizer: "tokenizers.Tokenizer | SentencePieces",
        directory: Path,
        labels: Mapping[str, str],
        generation: Json,
    ) -> None:
        super().__init__(config, model=model)
        self.tokenizer, self.directory, self.labels, self.generation = tokenizer, directory, labels, generation
        self.stack = "decoder" if isinstance(model, TransformerLM) else "encoder"
        self._generator = Generator(model)

    def model_inputs(self, inputs: Any) -> tuple[Any, ...]:
        return inputs if isinstance(inputs, tuple) else (inputs,)

    def loss_function(self, params: Params, batch: Batch, key: PRNGKeyArray | None, *, train: bool) -> Elements:
        raise InputError("PretrainedText is not trained; the tasks train such a model further with init_from")

    def predict(
        self,
        inputs: str | Sequence[str],
        *,
        max_new: int | None = None,
        beam_width: int | None = None,
        seed: int = 0,
        **settings: object,
    ) -> Any:  # str after str, a list after a list
        """What the model makes of a text, or of each text of a list.

        Texts are generated as the model's `generation_config.json` says, and the arguments are in the place of its
        entries: greedily, by beam search if it has `num_beams`, or drawn if it has `do_sample`.

        Args:
            inputs: text or texts.
            max_new: most tokens that are generated; None for `max_new_tokens` or `max_length` of the file, else 64.
            beam_width: of the search; 1 takes the most probable token at each position. None for `num_beams`.
            seed: of the draws.
            **settings: keys of `generation_config.json`, e.g. `repetition_penalty`, or `temperature`, `top_k` and
                `top_p`, each of which makes it draw. None removes a key.

        Returns:
            The continuation by a language model, the translation by an encoder-decoder, the class by a classifier, and
            the text with words in the places of its masks by a masked language model.

        Raises:
            InputError: `inputs` is no text and no list of texts, a text has more tokens than the model takes, or a
                setting, of the call or the file, is impossible, not supported, or of another kind of model.
        """
        texts: list[str] = texts_in(inputs, str)
        chosen = self._chosen(max_new, beam_width, settings)
        check_sizes(0, seed=seed)
        keys = jax.random.split(jax.random.key(seed), len(texts))
        found = [self._answer_to(self._encode(text), key, chosen) for text, key in zip(texts, keys, strict=True)]
        return found[0] if isinstance(inputs, str) else found

    def chat(
        self,
        messages: Sequence[Message],
        *,
        max_new: int | None = None,
        beam_width: int | None = None,
        seed: int = 0,
        **settings: object,
    ) -> str:
        """A language model's answer to a conversation, whose text the template of the tokenizer's files makes.

        Args:
            messages: of the conversation, e.g. `[{"role": "user", "content": "Why is the sky blue?"}]`.
            max_new, beam_width, seed, **settings: as those of `predict`.

        Raises:
            InputError: as `predict`; or the files have no template, or one that refuses the messages.
        """
        if not isinstance(self.model, TransformerLM):
            raise InputError(f"a {type(self.model).__name__} does not chat; predict takes texts")
        text = chat_text(self.directory, messages)
        check_sizes(0, seed=seed)
        ids = self._encode(text, add_special_tokens=False)  # which the template has written
        return self._answer_to(ids, jax.random.key(seed), self._chosen(max_new, beam_width, settings))

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
        # Keys that are not supported are an error of `predict` alone.
        generation = self._generation({**UNSUPPORTED, **UNSUPPORTED_BEAMS, "do_sample": False, "max_new_tokens": 64})
        answer = self._generator(self.params, ids, jax.random.key(0), generation)
        target = np.concatenate([[generation.start_token], answer])[None]
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

    def _chosen(self, max_new: int | None, beam_width: int | None, settings: Mapping[str, object]) -> Json:
        """Keys of `generation_config.json` that a call has."""
        given = {name: size for name, size in (("max_new", max_new), ("beam_width", beam_width)) if size is not None}
        check_sizes(**given)
        if (given or settings) and isinstance(self.model, TransformerMLM):
            raise InputError(f"{[*given, *settings][0]} is given; a {type(self.model).__name__} generates no text")
        return {**settings, **{KEYS[name]: size for name, size in given.items()}}

    def _answer_to(self, ids: Int[np.ndarray, "1 T"], key: PRNGKeyArray, chosen: Json) -> str:
        if isinstance(self.model, TransformerLM | Transformer):
            answer = self._generator(self.params, ids, key, self._generation(chosen))
            return str(self.tokenizer.decode(answer.tolist()))
        if self.model.head == "classes":
            return self._label(int(self.forward(ids)[0].argmax()))
        masked = [token for token in map(self.tokenizer.token_to_id, MASKS) if token is not None]
        filled = np.where(np.isin(ids, masked), self.forward(ids).argmax(-1), ids)
        return str(self.tokenizer.decode(filled[0].tolist()))

    def _generation(self, chosen: Json) -> Generation:
        return generation_of(self.generation, chosen, is_translator=isinstance(self.model, Transformer))

    def _encode(self, text: str, **options: bool) -> Int[np.ndarray, "1 T"]:
        ids = np.array([self.tokenizer.encode(text, **options).ids], np.int32)
        if not ids.size:
            raise InputError(f"the text {text!r:.60} has no tokens")
        check_length(self.model, ids.shape[1])
        return ids

    def _names(self, ids: Sequence[int] | Int[np.ndarray, " T"]) -> list[str]:
        """Tokens as text."""
        return [token_text(self.tokenizer.id_to_token(int(token)) or f"#{token}") for token in ids]

    def _label(self, number: int) -> str:
        return str(self.labels.get(str(number), number))


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
    labels = read_json(directory / CONFIG).get("id2label") or {}
    is_of_pieces = os.path.lexists(directory / SOURCE) and not os.path.lexists(directory / TOKENIZER)
    tokenizer = SentencePieces(directory) if is_of_pieces else read_pieces(directory / TOKENIZER)
    found = PretrainedText(TrainingConfig(), model, tokenizer, directory, labels, read_generation(directory))
    found.params = variables["params"]
    found.inspected = Inspected(model, variables)
    return found
