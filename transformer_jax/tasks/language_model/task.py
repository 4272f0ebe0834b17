"""Task: predict text byte by byte or token by token: docstrings of Python's standard library, or any file."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from transformer_jax.argument_checks import check_arguments
from transformer_jax.attention.masks.kinds import Segments
from transformer_jax.data.batch import Batch
from transformer_jax.devices.processes import quietly, say
from transformer_jax.errors import MAX_SIZE, InputError, check_sizes
from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.runs.directory import kept_file
from transformer_jax.tasks.architecture import ARCHITECTURE, architecture_of
from transformer_jax.tasks.block_settings import block_settings
from transformer_jax.tasks.experiment import Results, chosen_config, train_and_test
from transformer_jax.tasks.language_model.config import TOKENIZER
from transformer_jax.tasks.language_model.config import LanguageModelConfig as LanguageModelConfig
from transformer_jax.tasks.language_model.continuation import DRAWS, Continuation
from transformer_jax.tasks.language_model.packing import PackedTexts, first_text
from transformer_jax.tasks.language_model.report import other_bits, prompts, save_samples, table
from transformer_jax.tasks.language_model.windows import (
    FIRST,
    UNSCORED,
    RandomWindows,
    ScoredWindows,
    TextSplits,
    load_text,
)
from transformer_jax.tasks.task_data import TaskData, task_loaders
from transformer_jax.tasks.text_examples import TextTrainer, encode_all, text_examples, texts_in
from transformer_jax.tasks.tokenization import Tokenizer, chosen_tokenizer, chunks, text_after
from transformer_jax.tasks.tokenizer_training import stamp, train_tokenizer
from transformer_jax.training.inspected_example import InspectedExample
from transformer_jax.training.metrics import Elements
from transformer_jax.training.token_losses import cross_entropies, token_losses
from transformer_jax.trees import Arrays, Params

AnyText: TypeAlias = str | bytes
# positions of a window in the pictures made during training, and in the examples of the test set
PICTURED = 64


@dataclasses.dataclass(frozen=True)
class LanguageModelData(TaskData):
    """Windows of a text."""

    text: TextSplits


def language_model_data(config: LanguageModelConfig) -> LanguageModelData:
    """Load windows of the docstrings or a file: random ones for training, then windows that score each token once.

    With `pack`, all are filled with whole texts.
    """
    by_lines = config.pack is not None
    text = load_text(config.data, by_lines=by_lines)
    tokenizer = tokenizer_of(config)
    length = config.seq_len
    parts = [
        tokenizer.encode_file(part, f"the text for {name}", by_lines=by_lines)
        for name, part in text._asdict().items()
    ]
    sizes = list(map(len, parts))
    size = min(sizes)
    if size < length:
        name = text._fields[sizes.index(size)]
        raise InputError(
            f"data is {config.data}, too short for seq_len, {length}: the part for {name} has {size} tokens;"
            " give a longer text or a smaller seq_len"
        )
    first = line_feed_of(tokenizer)
    if by_lines:
        packed = [PackedTexts(part, first, length) for part in parts]
        with quietly(config):
            say(packed[0].summary())
        return LanguageModelData(*task_loaders(config, *packed), text)
    train = RandomWindows(parts[0], length, config.train_size, config.seed)
    val = ScoredWindows(parts[1], length, config.scored, first)
    test = ScoredWindows(parts[2], length, config.scored, first)
    return LanguageModelData(*task_loaders(config, train, val, test, shuffle=False), text)


def line_feed_of(tokenizer: Tokenizer) -> int:
    """The token that precedes the first one of a text."""
    return int(tokenizer.encode(FIRST)[0])


def tokenizer_of(config: LanguageModelConfig) -> Tokenizer:
    """The tokenizer that a config selects; a trained tokenizer sees only the training text.

    Raises:
        InputError: as `chosen_tokenizer` and `load_text`.
    """
    kept = kept_file(config, LanguageModelTrainer.name, TOKENIZER)
    train = functools.partial(_trained, config.data, stamp(config.data))
    return chosen_tokenizer(config.tokenizer, kept, train)


@functools.lru_cache(8)  # the data and the model need the same
def _trained(data: Path | None, stamp: object, setting: str) -> Tokenizer:
    text = load_text(data).train.tobytes().decode(errors="replace")
    return train_tokenizer(setting, chunks(text))


class LanguageModelTrainer(TextTrainer):
    """Trains a `TransformerLM` over bytes or other tokens; `predict` continues texts."""

    name = "LanguageModelTask"
    config_class = LanguageModelConfig
    config: LanguageModelConfig
    takes_shorter = True  # it is causal

    def __init__(
        self, config: LanguageModelConfig, constants: Arrays = None, model: nn.Module | None = None
    ) -> None:
        self.tokenizer = tokenizer_of(config)
        # With `pack`, this token is at the end of each text, and before its first one.
        self._ends = [] if config.pack is None else [line_feed_of(self.tokenizer)]
        self.architecture = architecture_of(config.architecture, config, self.name)
        super().__init__(config, constants, model)
        self._continuation = Continuation(self.model, self.tokenizer.size, config.seq_len)

    writes_predictions = False  # it continues texts, which have no right answer
    load_data = staticmethod(language_model_data)

    def create_model(self) -> TransformerLM:
        config = self.config
        if self.architecture is not None:
            model = self.architecture.model(TransformerLM, config, "seq_len", config.seq_len)
            self.architecture.check_vocabulary(
                "tokenizer", self.tokenizer.size, model.vocabulary_size
            )
            return model
        return TransformerLM(
            self.tokenizer.size,
            model_dim=config.model_dim,
            num_heads=config.num_heads,
            num_layers=config.num_layers,
            dim_feedforward=config.dim_feedforward,
            settings=block_settings(config, config.seq_len),
            max_len=config.seq_len,
        )

    def model_files(self) -> Mapping[str, str]:
        files: dict[str, str] = {}
        if self.tokenizer.file is not None:
            files[TOKENIZER] = self.tokenizer.file
        if self.architecture is not None:
            files[ARCHITECTURE] = self.architecture.text()
        return files

    def model_inputs(self, inputs: Any) -> tuple[Any, ...]:  # tokens, or those of `PackedTexts`
        if not isinstance(inputs, tuple):
            return (inputs,)
        tokens, positions = inputs
        texts = jnp.cumsum(positions == 0, axis=1)
        return tokens, Segments(texts, texts), positions

    def loss_function(
        self, params: Params, batch: Batch, key: PRNGKeyArray | None, *, train: bool
    ) -> Elements:
        smoothing = self.config.label_smoothing if train else 0.0
        of_logits = functools.partial(cross_entropies, label_smoothing=smoothing)
        # of [B T]
        losses = token_losses(
            self, params, batch.inputs, batch.targets, key, train=train, of_logits=of_logits
        )
        scored = batch.targets != UNSCORED
        elements = {name: (values, scored) for name, values in losses.items()}
        bits = losses.get("cross_entropy", losses["loss"]) / math.log(2)
        weights = scored
        if self.tokenizer.num_bytes is not None:
            num_bytes = jnp.asarray(self.tokenizer.num_bytes)[jnp.maximum(batch.targets, 0)]
            bits = bits / jnp.maximum(num_bytes, 1)
            weights = scored * num_bytes
        return elements | {"bits_per_byte": (bits, weights)}

    def predict(
        self,
        inputs: AnyText | Sequence[AnyText],
        *,
        max_new: int | None = None,
        seed: int | None = None,
        **draws: object,
    ) -> Any:  # str for str, bytes for bytes, a list of them for a list
        """Continue a text, or each text of a list, by sampling token by token.

        Args:
            inputs: text, or bytes, of any length; the model sees the last tokens (`Continuation`).
            max_new: number of new tokens; None for `config.max_new`.
            seed: random seed for sampling; None for `config.seed`. The same call gives the same text.
            **draws: `temperature`, `top_k` and `top_p`, which override those of the config.

        Returns:
            The continuation without the text: bytes for bytes, else a text in which invalid UTF-8 becomes U+FFFD.

        Raises:
            InputError: `inputs` is not a text or a list of texts, or a text is empty; a sampling option is invalid; or
                the model's logits are NaN.
        """
        texts: list[AnyText] = texts_in(inputs, str, bytes)
        max_new = self.config.max_new if max_new is None else max_new
        check_sizes(max_new=max_new)
        seed = self.config.seed if seed is None else seed
        check_sizes(0, seed=seed)
        chosen = {name: getattr(self.config, name) for name in DRAWS} | draws
        params = jax.device_put(self.params, self.first_device)
        continuations: list[AnyText] = []
        encoded = encode_all(texts, MAX_SIZE, self.tokenizer, before=self._ends)
        for number, ids in enumerate(encoded):
            key = jax.random.fold_in(jax.random.key(seed), number)
            new = self._continuation(params, ids, max_new, key, **chosen)
            is_after_end = np.logical_or.accumulate(np.isin(new, self._ends))
            new = new[~is_after_end]
            if isinstance(texts[number], bytes):
                continuations.append(text_after(self.tokenizer.to_bytes, ids, new))
            else:
                continuations.append(text_after(self.tokenizer.decode, ids, new))
        return continuations[0] if self.is_one(inputs) else continuations

    def pictured_example(self, inputs: Any) -> InspectedExample:
        window = jax.tree.map(lambda rows: np.asarray(rows)[0], inputs)
        return text_examples([first_text(window)[:PICTURED]], self.tokenizer)[0]

    def examples(self, inputs: AnyText | Sequence[AnyText]) -> list[InspectedExample]:
        """Examples of a text, or of each text of a list, with the model's prediction after each token.

        Raises:
            InputError: `inputs` is not a text or a list of texts, or a text is empty or longer than `seq_len`.
        """
        texts: list[AnyText] = texts_in(inputs, str, bytes)
        encoded = encode_all(texts, self.config.seq_len, self.tokenizer, before=self._ends)
        return text_examples(encoded, self.tokenizer)

    def test_examples(self, numbers: Sequence[int]) -> list[InspectedExample]:
        """Examples of the beginnings of the test windows with these numbers, with the actual next tokens.

        With `pack`, an example ends with the first text of the window.

        Raises:
            InputError: a number is not in the test set.
        """
        inputs = [first_text(window)[: PICTURED + 1] for window, _ in self.test_samples(numbers)]
        return text_examples(
            [ids[:-1] for ids in inputs], self.tokenizer, [ids[1:] for ids in inputs]
        )


def report(trainer: LanguageModelTrainer, data: LanguageModelData) -> Results:
    """Compare with compressors on the test text; save samples."""
    model = {"this model": trainer.evaluate(data.test_loader)["bits_per_byte"]}
    bits = model | other_bits(data.text)
    say(f"Bits per byte of the test text, {len(data.text.test)} bytes:", table(bits))
    prompt = trainer.config.prompt
    texts = prompts(data.text.test) if prompt is None else [prompt.encode()]
    if trainer.config.pack is not None:
        texts = [text.strip(FIRST).rpartition(FIRST)[2] for text in texts]
    save_samples(trainer.run, texts, trainer.predict(texts))
    return {"bits_per_byte": bits, "bytes": data.text.sizes()}


@check_arguments
def train_language_model(
    config: LanguageModelConfig | None = None, **settings: object
) -> tuple[LanguageModelTrainer, Results]:
    """Train and test; leave a run directory with checkpoints, results, samples and attention maps.

    Args:
        config: the run's settings; the defaults of `LanguageModelConfig` if None.
        **settings: fields of the config to replace.

    Returns:
        As `train_and_test`.
    """
    config = chosen_config(config, LanguageModelConfig(), settings, LanguageModelTrainer.name)
    return train_and_test(LanguageModelTrainer, config, language_model_data, report)
