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
from transformer_jax.data.batch import Batch
from transformer_jax.decoding.beam_search import beam_search
from transformer_jax.decoding.token_by_token import Decoded, greedy_decode
from transformer_jax.devices.mesh import own_device
from transformer_jax.nn.cached_decoding import DecodingCache
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.tasks.architecture import ARCHITECTURE, architecture_of
from transformer_jax.tasks.block_settings import block_settings
from transformer_jax.tasks.byte_text import Ids, pad
from transformer_jax.tasks.experiment import Results, chosen_config, train_and_test
from transformer_jax.tasks.text_examples import (
    TextTrainer,
    encode_all,
    texts_in,
    translation_examples,
)
from transformer_jax.tasks.tokenization import name_of_tokens
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
        self.tokenizers = tokenizers_of(config)
        self.architecture = architecture_of(config.architecture, config, self.name)
        super().__init__(config, constants, model)
        # With several processes, each translates all texts.
        self._own_devices = self.devices if jax.process_count() == 1 else own_device()
        self._translate = jax.jit(self._own_devices.share(self._decode, returns_rows=True))

    load_data = staticmethod(translation_data)

    def create_model(self) -> Transformer:
        config = self.config
        if self.architecture is not None:
            model = self.architecture.model(
                Transformer, config, "max_bytes", _padded_length(config.max_bytes + 2)
            )
            sizes = model.source_vocabulary_size, model.target_vocabulary_size
            for side, size, tokenizer in zip(
                ("source", "target"), sizes, self.tokenizers, strict=True
            ):
                self.architecture.check_vocabulary(
                    f"{side}_tokenizer", tokenizer.vocabulary_size, size
                )
            return model
        return Transformer(
            source_vocabulary_size=self.tokenizers.source.vocabulary_size,
            target_vocabulary_size=self.tokenizers.target.vocabulary_size,
            model_dim=config.model_dim,
            num_heads=config.num_heads,
            num_encoder_layers=config.num_layers,
            num_decoder_layers=config.num_layers,
            dim_feedforward=config.dim_feedforward,
            settings=block_settings(config, _padded_length(config.max_bytes + 2)),
            tie_embeddings=self.tokenizers.source.file == self.tokenizers.target.file,
        )

    def model_files(self) -> Mapping[str, str]:
        files = {JOINT_TOKENIZER: self.tokenizers.source.file}
        if self.config.joint_tokenizer is None:
            files = {
                SOURCE_TOKENIZER: self.tokenizers.source.file,
                TARGET_TOKENIZER: self.tokenizers.target.file,
            }
        files[ARCHITECTURE] = None if self.architecture is None else self.architecture.text()
        return {name: content for name, content in files.items() if content is not None}

    def model_inputs(self, inputs: PairInputs) -> tuple[ArrayLike, ArrayLike, Array]:
        return (
            inputs.source,
            inputs.target,
            padding_mask(jnp.asarray(inputs.source) != self.tokenizers.source.pad),
        )

    def loss_function(
        self, params: Params, batch: Batch, key: PRNGKeyArray | None, *, train: bool
    ) -> Elements:
        logits = self.apply(params, batch.inputs, key, train=train)  # [B T V]
        # of [B T]
        losses = cross_entropies(
            logits, batch.targets, self.config.label_smoothing if train else 0.0
        )
        real = batch.targets != self.tokenizers.target.pad
        found = losses | {"accuracy": logits.argmax(-1) == batch.targets}
        return {name: (values, real) for name, values in found.items()}

    def predict(self, inputs: str | Sequence[str]) -> Any:  # str for str, a list for a list
        """Translate a text, or each text of a list.

        Texts are cleaned like the training texts, e.g. of no-break spaces and direction marks in dates.

        Raises:
            InputError: `inputs` is not a text or a list of texts, or is empty; a text is empty or longer than
                `max_bytes`; or the model's logits are NaN.
        """
        translations = [
            self.tokenizers.target.decode(ids) for ids in self._translations(self._sources(inputs))
        ]
        return translations[0] if isinstance(inputs, str) else translations

    def pictured_example(self, inputs: PairInputs) -> InspectedExample:
        source, target = (np.asarray(ids)[0] for ids in inputs)
        # without the start, in some models the pad
        read = target[1:][target[1:] != self.tokenizers.target.pad]
        source = source[source != self.tokenizers.source.pad]
        return translation_examples([source], [read], _padded_length, self.tokenizers)[0]

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
        pairs = self.test_samples(numbers)
        sources, expected = (
            [getattr(pair, side) for pair in pairs] for side in ("source", "target")
        )
        ids = [*map(self.tokenizers.source.encode, sources)]
        return translation_examples(
            ids, self._translations(ids), _padded_length, self.tokenizers, expected
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
        translations = [np.zeros(0, np.int32)] * len(sources)
        # texts of similar lengths together
        order = np.argsort([len(source) for source in sources], kind="stable")
        # Two sizes to compile: one text alone, and as many as have batch_size hypotheses.
        wanted = max(1, self.config.batch_size // self.config.beam_width) if len(sources) > 1 else 1
        size = self._own_devices.rows_that_divide(wanted)
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            rows = [sources[index] for index in batch]
            length = _padded_length(len(rows[-1]))
            rows += [rows[0]] * (size - len(rows))
            found = jax.device_get(
                self._translate(params, pad(rows, length, self.tokenizers.source.pad))
            )
            check_scores(found.scores)
            for index, ids, number in zip(batch, found.tokens, found.lengths, strict=False):
                translations[index] = ids[:number]
        return translations

    def _decode(self, params: Params, source: Int[Array, "B S"]) -> Decoded:
        """The best translation of each row: by beam search, or by greedy decoding if `beam_width` is 1."""
        config, apply = self.config, functools.partial(self.model.apply, {"params": params})
        search: Callable[..., Decoded] = greedy_decode
        if config.beam_width > 1:
            search = functools.partial(
                beam_search,
                beam_width=config.beam_width,
                length_penalty=config.length_penalty,
                n_best=1,
            )
        found = search(
            functools.partial(apply, method=self.model.decode_step),
            apply(
                source,
                padding_mask(source != self.tokenizers.source.pad),
                method=self.model.start_decoding,
            ),
            len(source),
            start_token=self.tokenizers.target.start,
            end_token=self.tokenizers.target.end,
            pad_token=self.tokenizers.target.pad,
            max_length=config.max_translation,
            grow=DecodingCache.grow,
        )
        return found if config.beam_width == 1 else jax.tree.map(lambda leaf: leaf[:, 0], found)


def _padded_length(length: int) -> int:
    """Round up to a multiple of `LENGTH_STEP`, limited to the positions of the model."""
    return min(-(-length // LENGTH_STEP) * LENGTH_STEP, Transformer.max_len)


def report(trainer: TranslationTrainer, data: TranslationData) -> Results:
    """Translate and score the test set; print the scores, for pairs from a file also `translation_scores`."""
    pairs = data.splits.test
    predictions, references = (
        trainer.predict([pair.source for pair in pairs]),
        [pair.target for pair in pairs],
    )
    exact, errors = exact_match(predictions, references), error_rate(predictions, references)
    scores: Results = {"exact_match": exact, "char_error_rate": errors}
    print(f"Exact match: {exact:.2%} of {len(pairs)}, character errors: {errors:.2%}")
    if trainer.config.data is not None:
        config = trainer.config
        scores |= translation_scores(
            predictions, references, lower_case=config.lower_case, tokenizer=config.bleu_tokenize
        )
        scores |= {"pairs": data.splits.counts()}
        print(f"Word errors: {scores['word_error_rate']:.2%}, chrF: {scores['chrf']:.1f}")
        print(f"BLEU: {scores['bleu']:.1f} ({scores['bleu_signature']})")
    tokens = name_of_tokens(trainer.config.joint_tokenizer or trainer.config.target_tokenizer)
    print(
        f"Accuracies are of {tokens}, each predicted after the right ones before it (teacher"
        " forcing):"
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
