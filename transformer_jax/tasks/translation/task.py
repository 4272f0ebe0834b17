"""Task: translate text, byte by byte: dates of many languages into ISO 8601, or any file of sentence pairs."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Int, PRNGKeyArray

from transformer_jax.argument_checks import check_arguments, check_scores
from transformer_jax.attention.masks.arrays import padding_mask
from transformer_jax.config import percent
from transformer_jax.data.batch import Batch, pad_rows
from transformer_jax.decoding.token_by_token import Decoded, greedy_decode
from transformer_jax.devices.mesh import own_device
from transformer_jax.devices.processes import say
from transformer_jax.nn.cached_decoding import DecodingCache
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.tasks.architecture import ARCHITECTURE, architecture_of
from transformer_jax.tasks.block_settings import block_settings
from transformer_jax.tasks.byte_text import Ids, pad
from transformer_jax.tasks.experiment import Results, chosen_config, train_and_test
from transformer_jax.tasks.generation import best_of_beams
from transformer_jax.tasks.text_examples import (
    TextTrainer,
    encode_all,
    texts_in,
    translation_examples,
)
from transformer_jax.tasks.translation.config import (
    JOINT_TOKENIZER,
    SOURCE_TOKENIZER,
    TARGET_TOKENIZER,
    TASK,
    TranslationData,
    tokenizers_of,
    translation_data,
)
from transformer_jax.tasks.translation.config import TranslationConfig as TranslationConfig
from transformer_jax.tasks.translation.measures import (
    bleu_with,
    error_rate,
    exact_match,
    translation_scores,
)
from transformer_jax.tasks.translation.pairs import PairInputs, TextPair
from transformer_jax.training.inspected_example import InspectedExample
from transformer_jax.training.metrics import Elements
from transformer_jax.training.token_losses import cross_entropies
from transformer_jax.trees import Arrays, Params

# texts are padded to a multiple of it; each length is compiled, for one text and for a batch
LENGTH_STEP = 16


class TranslationTrainer(TextTrainer):
    """Trains a `Transformer` over bytes or other tokens, teacher-forced; `predict` translates texts."""

    name = TASK
    config_class = TranslationConfig
    config: TranslationConfig
    attention_picture = "cross_attention.png"

    def __init__(
        self, config: TranslationConfig, constants: Arrays = None, model: nn.Module | None = None
    ) -> None:
        self.counted = config.counted
        self.tokenizers = tokenizers_of(config)
        self.architecture = architecture_of(config.architecture, config, self.name)
        super().__init__(config, constants, model)
        # With several processes, each translates all texts.
        self._own_devices = self.devices if jax.process_count() == 1 else own_device()
        self._translate = jax.jit(self._own_devices.share(self._decode, returns_rows=True))

    load_data = staticmethod(translation_data)

    def create_model(self) -> Transformer:
        config = self.config
        source, target = self.tokenizers
        longest = _padded_length(config.max_bytes + 2)
        if self.architecture is not None:
            model = self.architecture.model(Transformer, config, "max_bytes", longest)
            check = self.architecture.check_vocabulary
            check("source_tokenizer", source.vocabulary_size, model.source_vocabulary_size)
            check("target_tokenizer", target.vocabulary_size, model.target_vocabulary_size)
            return model
        return Transformer(
            source_vocabulary_size=source.vocabulary_size,
            target_vocabulary_size=target.vocabulary_size,
            model_dim=config.model_dim,
            num_heads=config.num_heads,
            num_encoder_layers=config.num_layers,
            num_decoder_layers=config.num_layers,
            dim_feedforward=config.dim_feedforward,
            settings=block_settings(config, longest),
            tie_embeddings=source.file == target.file,
        )

    def model_files(self) -> Mapping[str, str]:
        source, target = self.tokenizers
        if self.config.joint_tokenizer is None:
            files = {SOURCE_TOKENIZER: source.file, TARGET_TOKENIZER: target.file}
        else:
            files = {JOINT_TOKENIZER: source.file}
        if self.architecture is not None:
            files[ARCHITECTURE] = self.architecture.text()
        return {name: content for name, content in files.items() if content is not None}

    def model_inputs(self, inputs: PairInputs) -> tuple[ArrayLike, ArrayLike, Array]:
        is_token = jnp.asarray(inputs.source) != self.tokenizers.source.pad
        return inputs.source, inputs.target, padding_mask(is_token)

    def loss_function(
        self, params: Params, batch: Batch, key: PRNGKeyArray | None, *, train: bool
    ) -> Elements:
        logits = self.apply(params, batch.inputs, key, train=train)  # [B T V]
        smoothing = self.config.label_smoothing if train else 0.0
        values = cross_entropies(logits, batch.targets, smoothing)  # of [B T]
        is_token = batch.targets != self.tokenizers.target.pad
        values["accuracy"] = logits.argmax(-1) == batch.targets
        return {name: (value, is_token) for name, value in values.items()}

    def predict(self, inputs: str | Sequence[str]) -> Any:  # str for str, a list for a list
        """Translate a text, or each text of a list.

        Texts are cleaned like the training texts, e.g. of no-break spaces and direction marks in dates.

        Raises:
            InputError: `inputs` is not a text or a list of texts, or is empty; a text is empty or longer than
                `max_bytes`; or the model's logits are NaN.
        """
        ids = self._translations(self._sources(inputs))
        translations = list(map(self.tokenizers.target.decode, ids))
        return translations[0] if isinstance(inputs, str) else translations

    def pictured_example(self, inputs: PairInputs) -> InspectedExample:
        source = np.asarray(inputs.source)[0]
        target = np.asarray(inputs.target)[0]
        source = source[source != self.tokenizers.source.pad]
        target = target[1:]  # without the start, which is the pad in some models
        target = target[target != self.tokenizers.target.pad]
        return translation_examples([source], [target], _padded_length, self.tokenizers)[0]

    def examples(self, inputs: str | Sequence[str]) -> list[InspectedExample]:
        """Examples of a text, or of each text of a list, with the translations that `predict` returns.

        Raises:
            InputError: as `predict`.
        """
        sources = self._sources(inputs)
        return translation_examples(
            sources, self._translations(sources), _padded_length, self.tokenizers
        )

    def test_examples(self, numbers: Sequence[int]) -> list[InspectedExample]:
        """Examples of the texts with these numbers in the test set, with the model's translations and the right ones.

        Raises:
            InputError: a number is not in the test set.
        """
        pairs: list[TextPair] = self.test_samples(numbers)
        sources = [self.tokenizers.source.encode(pair.source) for pair in pairs]
        expected = [pair.target for pair in pairs]
        translations = self._translations(sources)
        return translation_examples(
            sources, translations, _padded_length, self.tokenizers, expected
        )

    @functools.cached_property
    def test_set(self) -> Sequence[TextPair]:
        """The pairs of the test set."""
        return self.config.test_pairs()

    def _sources(self, inputs: object) -> list[Ids]:
        """The ids of a text, or of the texts of a list."""
        texts = list(map(self.config.cleaned, texts_in(inputs, str)))
        return encode_all(texts, self.config.max_bytes, self.tokenizers.source, counts_bytes=True)

    def _translations(self, sources: Sequence[Ids]) -> list[Ids]:
        """The ids of the best translation of each source, up to and including the end token."""
        params = self._own_devices.place({"params": self.params})["params"]
        # Two sizes to compile: one text alone, and as many as have batch_size hypotheses.
        rows = 1 if len(sources) == 1 else max(1, self.config.batch_size // self.config.beam_width)
        rows = self._own_devices.rows_that_divide(rows)
        # texts of similar lengths together
        order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
        translations: dict[int, Ids] = {}
        for start in range(0, len(order), rows):
            batch = order[start : start + rows]
            length = _padded_length(len(sources[batch[-1]]))
            texts = [sources[index] for index in batch]
            source = pad_rows(pad(texts, length, self.tokenizers.source.pad), rows)
            decoded = jax.device_get(self._translate(params, source))
            check_scores(decoded.scores)
            for index, ids, size in zip(batch, decoded.tokens, decoded.lengths, strict=False):
                translations[index] = ids[:size]
        return [translations[index] for index in range(len(sources))]

    def _decode(self, params: Params, source: Int[Array, "B S"]) -> Decoded:
        """The best translation of each row: by beam search, or by greedy decoding if `beam_width` is 1."""
        config = self.config
        target = self.tokenizers.target
        apply = functools.partial(self.model.apply, {"params": params})
        search: Callable[..., Decoded] = greedy_decode
        if config.beam_width > 1:
            search = functools.partial(
                best_of_beams,
                beam_width=config.beam_width,
                length_penalty=config.length_penalty,
            )
        step = functools.partial(apply, method=self.model.decode_step)
        mask = padding_mask(source != self.tokenizers.source.pad)
        cache = apply(source, mask, method=self.model.start_decoding)
        return search(
            step,
            cache,
            len(source),
            start_token=target.start,
            end_token=target.end,
            pad_token=target.pad,
            max_length=config.max_translation,
            grow=DecodingCache.grow,
        )


def _padded_length(length: int) -> int:
    """Round up to a multiple of `LENGTH_STEP`, limited to the positions of the model."""
    return min(-(-length // LENGTH_STEP) * LENGTH_STEP, Transformer.max_len)


def report(trainer: TranslationTrainer, data: TranslationData) -> Results:
    """Translate and score the test set; print the scores, for pairs from a file also `translation_scores`."""
    config = trainer.config
    pairs = data.splits.test
    predictions = trainer.predict([pair.source for pair in pairs])
    references = [pair.target for pair in pairs]
    exact = exact_match(predictions, references)
    errors = error_rate(predictions, references)
    scores: Results = {"exact_match": exact, "char_error_rate": errors}
    say(f"Exact match: {percent(exact)} of {len(pairs)}, character errors: {percent(errors)}")
    if config.data is not None:
        scores |= translation_scores(
            predictions, references, lower_case=config.lower_case, tokenizer=config.bleu_tokenize
        )
        scores["pairs"] = data.splits.counts()
        say(f"Word errors: {percent(scores['word_error_rate'])}, chrF: {scores['chrf']:.1f}")
        say(f"BLEU: {scores['bleu']:.1f} ({scores['bleu_signature']})")
    say(
        f"Accuracies are of {config.counted}, each predicted after the right ones (teacher forcing)"
    )
    return scores


@check_arguments
def train_translation(
    config: TranslationConfig | None = None, **settings: object
) -> tuple[TranslationTrainer, Results]:
    """Train and test; leave a run directory with checkpoints, results and attention maps.

    Args:
        config: the run's settings; the defaults of `TranslationConfig` if None.
        **settings: fields of the config to replace.

    Returns:
        As `train_and_test`.
    """
    config = chosen_config(config, TranslationConfig(), settings, TranslationTrainer.name)
    if config.bleu_tokenize != "auto":
        bleu_with(config.bleu_tokenize)  # raises an error now, not after the training
    return train_and_test(TranslationTrainer, config, translation_data, report)
