"""HuggingFace Transformers models with their tokenizers: text in, and text, classes or vectors out."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from transformer_jax.config import TrainingConfig
from transformer_jax.data.batch import Batch
from transformer_jax.errors import InputError, check_sizes, shortened
from transformer_jax.inspection.inspected import Activations, Inspected
from transformer_jax.inspection.page.token_text import token_text
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.nn.masked_language_model import Pooling, TransformerMLM
from transformer_jax.outside_files import Json
from transformer_jax.tasks import byte_text
from transformer_jax.tasks.chat_template import Message, chat_text
from transformer_jax.tasks.encoded_texts import EncodedTexts
from transformer_jax.tasks.generation import (
    UNSUPPORTED,
    UNSUPPORTED_BEAMS,
    Generation,
    generation_of,
)
from transformer_jax.tasks.generator import Generator, check_length
from transformer_jax.tasks.padded_texts import Text
from transformer_jax.tasks.sentence_files import Embedding, read_embedding, unit_length
from transformer_jax.tasks.sentencepiece_files import SentencePieces
from transformer_jax.tasks.text_examples import TextTrainer, texts_in
from transformer_jax.tasks.tokenization import Ids, TokenIds, of_library, text_after
from transformer_jax.training.inspected_example import Answer, InspectedExample, answer_of
from transformer_jax.training.metrics import Elements
from transformer_jax.trees import Params

if TYPE_CHECKING:
    import tokenizers

MASKS = "[MASK]", "<mask>"
NO_ANSWER = Answer("", None, ())  # of an encoder without a head
LONGEST_TRANSLATION = 64  # tokens of an example


class PretrainedText(TextTrainer):
    """A pretrained text model with its tokenizer: `predict`, `attention` and the inspection page take texts.

    Args:
        config: settings, of which only the devices and the batch size are used.
        model: a language model, a masked language model, or an encoder-decoder; None for the model of `create_model`.
        tokenizer: the model's tokenizer.
        directory: directory of the tokenizer's files, from which `chat` reads the template.
        generation: keys of `generation_config.json`.
    """

    model: Any
    inspected: Inspected
    name = "PretrainedText"
    config_class = TrainingConfig

    def __init__(
        self,
        config: TrainingConfig,
        model: Any,
        tokenizer: "tokenizers.Tokenizer | SentencePieces",
        directory: Path,
        generation: Json,
    ) -> None:
        super().__init__(config, model=model)
        self.tokenizer = tokenizer
        self.directory = directory
        self.generation = generation
        if isinstance(self.model, TransformerMLM):
            self._encoder = EncodedTexts(self.model)
        else:
            self._generator = Generator(self.model)

    @functools.cached_property
    def _embedding(self) -> Embedding:
        return read_embedding(
            self.directory, self.tokenizer, self.model.model_dim, self.model.longest_text
        )

    def model_inputs(self, inputs: Any) -> tuple[Any, ...]:
        return inputs if isinstance(inputs, tuple) else (inputs,)

    def loss_function(
        self, params: Params, batch: Batch, key: PRNGKeyArray | None, *, train: bool
    ) -> Elements:
        raise InputError(
            "PretrainedText cannot be trained; fine-tune its model in a task with init_from"
        )

    def predict(
        self,
        inputs: Any,
        *,
        max_new: int | None = None,
        beam_width: int | None = None,
        seed: int = 0,
        **settings: object,
    ) -> Any:  # an answer, or a list of answers for a list
        """Answer a text, or each text of a list.

        Text is generated with the settings in the model's `generation_config.json`, which the arguments override: by
        greedy decoding, by beam search with `num_beams`, or by sampling with `do_sample`.

        Args:
            inputs: text or texts; for a classifier of texts also a pair of texts, `(text, other)`, or a list of pairs.
            max_new: maximum number of new tokens; None for `max_new_tokens` or `max_length` of the file, else 64.
            beam_width: number of hypotheses in beam search; 1: greedy decoding; None for `num_beams` of the file.
            seed: random seed for sampling.
            **settings: keys of `generation_config.json`, e.g. `repetition_penalty`, or `temperature`, `top_k` and
                `top_p`, each of which turns on sampling. None removes a key.

        Returns:
            The continuation by a language model, the translation by an encoder-decoder, or the text with its masks
            filled in by a masked language model. For classifiers, see `PretrainedClassifier`.

        Raises:
            InputError: `inputs` is not a text or a list of texts; a text has more tokens than the model takes; or a
                setting of the call or the file is invalid, not supported, or meant for another kind of model.
        """
        texts = [self._encode(text) for text in self._texts(inputs)]
        chosen = self._generation_keys(max_new, beam_width, settings)
        answers = self._answers(texts, seed, chosen)
        return answers[0] if self.is_one(inputs) else answers

    def chat(
        self,
        messages: Sequence[Message],
        *,
        max_new: int | None = None,
        beam_width: int | None = None,
        seed: int = 0,
        **settings: object,
    ) -> str:
        """Reply to a conversation with a language model, using the chat template in the tokenizer's files.

        Args:
            messages: the conversation, e.g. `[{"role": "user", "content": "Why is the sky blue?"}]`.
            max_new, beam_width, seed, **settings: as in `predict`.

        Raises:
            InputError: as `predict`; or the files have no template, or a template that rejects the messages.
        """
        if not isinstance(self.model, TransformerLM):
            raise InputError(f"a {type(self.model).__name__} cannot chat; use predict")
        text = chat_text(self.directory, messages)
        ids = self._encode(text, add_special_tokens=False)  # the template has added them
        chosen = self._generation_keys(max_new, beam_width, settings)
        (answer,) = self._generated([ids], seed, chosen)
        return self._decode(answer)

    def embed(
        self,
        texts: str | Sequence[str],
        pooling: Pooling | None = None,
        *,
        normalize: bool | None = None,
    ) -> Float[np.ndarray, "*texts D"]:
        """Embed a text, or each text of a list, as the model's files of `sentence-transformers` say.

        Without such files, a vector is the mean of the encoder's outputs (Sentence-BERT, Reimers and Gurevych 2019),
        with length 1, so that `a @ b` is the cosine similarity of two texts.

        Args:
            texts: text or texts.
            pooling: the mean over a text's tokens, the vector at the first or last one, the maxima, or the sum divided
                by the square root of their number, with length 1 and no further layers. None: as the files say.
            normalize: whether to divide each vector by its length; None: as above.

        Raises:
            InputError: as `predict`; the model is not an encoder; or its files say something that is not supported.
        """
        if not isinstance(self.model, TransformerMLM):
            raise InputError(
                f"a {type(self.model).__name__} cannot embed texts; use an encoder, such as BERT"
            )
        tokenizer, pooling_of_files, layers = self._embedding
        if pooling is not None:
            layers = [unit_length]
        ids = [self._encoding([text], tokenizer).ids for text in texts_in(texts, str)]
        vectors = self._encoder.vectors(self.params, ids, pooling or pooling_of_files)
        for layer in layers:
            if layer is not unit_length or normalize is not False:
                vectors = layer(vectors)
        if normalize:
            vectors = unit_length(vectors)
        return vectors[0] if isinstance(texts, str) else vectors

    def examples(self, inputs: Any) -> list[InspectedExample]:
        """Examples of a text, or of each text of a list, with the model's answers; an encoder-decoder translates them.

        Raises:
            InputError: as `predict`.
        """
        return [self._example(text) for text in self._texts(inputs)]

    def capture(self, text: Any, names: Sequence[str], **kwargs: object) -> tuple[Any, Activations]:
        """Call `inspected.capture` with the tokens of a text; an encoder-decoder also reads its translation."""
        (example,) = self.examples(text)
        return self.inspected.capture(self.model_inputs(example.inputs), names, **kwargs)

    def _example(self, text: Any) -> InspectedExample:
        ids = self._encode(text)
        labels = self._names(ids)
        if isinstance(self.model, Transformer):
            return self._translation(text, ids, labels)
        answer = functools.partial(self._predicted, labels)
        return InspectedExample(inputs=ids[None], labels=labels, title=text, answer=answer)

    def _translation(self, text: str, ids: Ids, labels: Sequence[str]) -> InspectedExample:
        # Only `predict` raises an error for unsupported keys.
        chosen = {**UNSUPPORTED, **UNSUPPORTED_BEAMS, "max_new_tokens": LONGEST_TRANSLATION}
        (answer,) = self._generated([ids], 0, chosen)
        target = np.array([self._generation(chosen).start_token, *answer], np.int32)
        target_labels = self._names(target)
        return InspectedExample(
            inputs=(ids[None], target[None]),
            labels={"encoder": labels, "decoder": target_labels},
            title=text,
            answer=functools.partial(self._predicted, target_labels),
            found=lambda output: self._predicted(target_labels, output)._replace(
                text=self._decode(answer)
            ),
        )

    def _predicted(self, places: Sequence[str], output: Float[np.ndarray, "T V"]) -> Answer:
        """The most probable token at each place."""
        if getattr(self.model, "head", "") == "none":
            return NO_ANSWER
        answer = answer_of(output, places, lambda token: self._names([token])[0])
        ids = output[: len(places)].argmax(-1)
        return answer._replace(text=self._decode(ids), probability=None)

    def _generation_keys(
        self, max_new: int | None, beam_width: int | None, settings: Mapping[str, object]
    ) -> Json:
        """The arguments of a call as keys of `generation_config.json`."""
        chosen = dict(settings)
        if max_new is not None:
            check_sizes(max_new=max_new)
            chosen["max_new_tokens"] = max_new
        if beam_width is not None:
            check_sizes(beam_width=beam_width)
            chosen["num_beams"] = beam_width
        if chosen and isinstance(self.model, TransformerMLM):
            kind = type(self.model).__name__
            raise InputError(f"a {kind} cannot generate text; leave out {', '.join(chosen)}")
        return chosen

    def _answers(self, texts: Sequence[Any], seed: int, chosen: Json) -> list[Any]:
        """The answers to texts, which are given as tokens."""
        if isinstance(self.model, Transformer):
            return [self._decode(answer) for answer in self._generated(texts, seed, chosen)]
        if isinstance(self.model, TransformerLM):
            pairs = zip(texts, self._generated(texts, seed, chosen), strict=True)
            return [text_after(self._decode, text, answer) for text, answer in pairs]
        if self.model.head == "none":
            raise InputError(
                "the model has no head to answer with; use embed, which returns a vector for each"
                " text"
            )
        answers = self._encoder.answers(self.params, texts)
        tokens = map(self.tokenizer.token_to_id, MASKS)
        masks = [token for token in tokens if token is not None]
        filled = []
        for ids, answer in zip(texts, answers, strict=True):
            is_mask = np.isin(ids, masks)
            filled.append(self._decode(np.where(is_mask, answer[: len(ids)], ids)))
        return filled

    def _generated(self, texts: Sequence[Text], seed: int, chosen: Json) -> list[Text]:
        check_sizes(0, seed=seed)
        keys = jax.random.split(jax.random.key(seed), len(texts))
        return self._generator(self.params, texts, keys, self._generation(chosen))

    def _generation(self, chosen: Json) -> Generation:
        return generation_of(
            self.generation, chosen, is_translator=isinstance(self.model, Transformer)
        )

    def _texts(self, inputs: object) -> list[Any]:
        return texts_in(inputs, str)

    def _encode(self, text: Any, **options: bool) -> Any:
        return np.array(self._encoding([text], self.tokenizer, **options).ids, np.int32)

    def _encoding(self, texts: Sequence[str], tokenizer: Any, **options: bool) -> Any:
        """Encode a text, or a pair of texts."""
        what = f"the text {' '.join(texts)!r:.60}"
        byte_text.encode("".join(texts))  # an `InputError` for a lone surrogate
        with of_library(f"the tokenizer cannot encode {shortened(texts[0])}"):
            encoding = tokenizer.encode(*texts, **options)
        if not encoding.ids:
            raise InputError(f"{what} has no tokens")
        check_length(self.model, len(encoding.ids), what)
        return encoding

    @of_library("the tokenizer cannot decode tokens")
    def _decode(self, ids: Ids) -> str:
        return str(self.tokenizer.decode(ids.tolist()))

    def _names(self, ids: TokenIds) -> list[str]:
        """Tokens as text."""
        return [token_text(self.tokenizer.id_to_token(int(token)) or f"#{token}") for token in ids]
