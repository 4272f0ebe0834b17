"""Settings of the classification task."""

# mypy: disable-error-code="assignment"
# Some fields are None until `resolved` has made them what the training expects.

import dataclasses
import math
from pathlib import Path
from typing import Any, Literal

from transformer_jax.config import Criterion, TrainingConfig
from transformer_jax.errors import InputError, check_probability
from transformer_jax.fields import setting
from transformer_jax.nn.masked_language_model import Pooling, TransformerMLM
from transformer_jax.setting_groups import MAX_WIDTH, Positions
from transformer_jax.tasks.architecture import ARCHITECTURE, idle_with
from transformer_jax.tasks.text_classes import ANY_CLASSES, ONE_CLASS, SCORES
from transformer_jax.tasks.tokenization import check_tokenizer

TASK = "ClassificationTask"
TOKENIZER, LABELS = "tokenizer.json", "labels.txt"  # in the directory of a run
COLUMNS = "text_column", "second_text_column", "label_column"
ENOUGH_STEPS = 2_000  # in a training from scratch
AUTO = "auto"  # a tokenizer that fits the data
FEWEST_EPOCHS, MOST_EPOCHS = 6, 30


def _check_tokenizer(name: str, value: str) -> None:
    if value != AUTO:
        check_tokenizer(name, value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassificationConfig(TrainingConfig):
    """Train an encoder to label texts.

    Without `--data` it learns to tell which of 40 languages a phrase is in.

    Raises:
        InputError: at construction, for a value that cannot work.
    """

    rarely_changed = (
        "second_text_column",
        "architecture",
        "max_tokens",
        "pooling",
        "dim_feedforward",
        "class_weights",
        "label_smoothing",
    )
    # file of labelled texts: CSV or TSV with a header, text TAB label without one, or JSON lines; none: phrases of 40
    # languages
    data: Path | None = None
    val_data: Path | None = None  # file of validation texts, used with data; none: a part of data
    test_data: Path | None = None  # file of test texts, used with data; none: a part of data
    text_column: str = "text"  # column of the texts
    # column of the second texts, for pairs of texts
    second_text_column: str | None = setting(None, defines_model=True)
    label_column: str = "label"  # column of the labels
    # file with a label on each line, in the order of the classes; none: the order in which the training texts have them
    labels: Path | None = setting(None, defines_model=True, kept_as=LABELS)
    # a text may have any number of labels, separated by |
    multi_label: bool = setting(False, defines_model=True)
    regression: bool = setting(False, defines_model=True)  # the label is a number to predict
    # tokenizer: auto (words:2+; bpe:4000 for phrases); bytes; characters, words, words:2+ (those that occur at least
    # twice), bpe:SIZE or unigram:SIZE, built from the training texts; or a tokenizer.json file
    tokenizer: str = setting(AUTO, defines_model=True, kept_as=TOKENIZER, check=_check_tokenizer)
    # config.json of a HuggingFace encoder, instead of model flags; the tokenizer must be its tokenizer.json
    architecture: Path | None = setting(None, defines_model=True, kept_as=ARCHITECTURE)
    # maximum number of tokens of a text; longer texts are cut
    max_tokens: int = setting(256, defines_model=True, least=3, most=TransformerMLM.max_len)
    # vector of a text: of the first token ([CLS], through BERT's pooler), the mean or the maximum over its tokens, or
    # another pooling of sentence-transformers; none: as the files of init_from say, or first
    pooling: Pooling | None = setting(None, defines_model=True)
    model_dim: int = 128  # width of the model
    num_heads: int = 4  # number of attention heads; it must divide model_dim
    num_layers: int = 2  # number of blocks
    # hidden width of the feed-forward networks
    dim_feedforward: int = setting(256, defines_model=True, least=1, most=MAX_WIDTH)
    positions: Positions = "learned"
    # dropout probability; none: 0.3 from scratch, 0.1 for phrases; with init_from that of its files
    dropout_prob: float | None = None
    # dropout probability of the attention weights; none: 0; with init_from that of its files
    attention_dropout: float | None = None
    # passes over the training set, 0 only evaluates init_from; none: as many as 2000 steps take, from 6 to 30; 3 with
    # init_from; 10 with init_from and freeze or lora
    max_epochs: int | None = setting(None, least=0)
    batch_size: int = 32  # texts per step
    # peak learning rate of the schedule; none: 1e-3, 1e-4 with init_from, 1e-3 with init_from and freeze or
    # lora
    lr: float | None = None
    # warm-up steps of the learning rate; none: a tenth of all steps
    warmup: int | None = None
    eval_every: int = 1  # epochs between evaluations
    patience: int = 5  # evaluations without a better model after which training stops; 0: never
    # balanced: losses are weighted by the inverse frequency of their class; none: equally
    class_weights: Literal["balanced"] | None = None
    # label smoothing: part of each target's probability that all classes share in the training loss, off in
    # evaluation; none: 0.1 from scratch, 0 with init_from or for phrases
    label_smoothing: float | None = setting(None, check=check_probability)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.multi_label and self.regression:
            raise InputError("multi_label is True, and regression is True; give one")
        if self.max_epochs == 0 and self.init_from is None and self.pretrained is None:
            raise InputError("max_epochs is 0, which evaluates init_from; it must be given")
        if self.positions != "learned":
            raise InputError(f"positions is {self.positions}; for texts it must be learned")

    def idle(self) -> dict[str, str]:
        reasons = super().idle() | idle_with(self)
        if self.data is None:
            of_files = ["val_data", "test_data", *COLUMNS]
            if self.init_from is None:  # else these are those of its model
                of_files += ["labels", "multi_label", "regression"]
            reasons |= dict.fromkeys(of_files, "data is None, so the texts are phrases")
        if self.problem != ONE_CLASS:
            of_one = "class_weights", "label_smoothing"
            reasons |= dict.fromkeys(of_one, f"the task is {self.problem}")
        return reasons

    @property
    def problem(self) -> str:
        """What the logits mean, one of `PROBLEMS`."""
        if self.multi_label:
            return ANY_CLASSES
        return SCORES if self.regression else ONE_CLASS

    @property
    def default_criterion(self) -> Criterion:
        """Accuracy; the loss of a regression."""
        return Criterion("loss", "min") if self.regression else Criterion("accuracy", "max")

    def regularized(self) -> "ClassificationConfig":
        """Fill in the dropout, and `label_smoothing` of classes, if they are None.

        Raises:
            InputError: the dropout in the files of `init_from` is not a probability.
        """
        is_own = self.init_from is None and self.data is not None
        defaults = {"dropout_prob": 0.3 if is_own else 0.1, "attention_dropout": 0.0}
        if self.init_from is not None and self.architecture is not None:
            # only for such a model
            from transformer_jax.weights.huggingface.pretrained import dropout_of

            defaults = dropout_of(self.architecture)
        if self.problem == ONE_CLASS:
            defaults["label_smoothing"] = 0.1 if is_own else 0.0
        missing: dict[str, Any] = {
            name: value for name, value in defaults.items() if getattr(self, name) is None
        }
        return dataclasses.replace(self, **missing)

    def resolved(self, steps_per_epoch: int) -> "ClassificationConfig":
        """Fill in `max_epochs` (unless `max_steps` is set), `lr` and `warmup` if they are None."""
        epochs = math.ceil(ENOUGH_STEPS / steps_per_epoch)
        lr = 1e-3
        epochs = min(max(epochs, FEWEST_EPOCHS), MOST_EPOCHS)
        if self.init_from is not None:
            epochs, lr = (3, 1e-4) if self.freeze is self.lora is None else (10, 1e-3)
        if self.max_epochs is not None or self.max_steps is not None:
            epochs = self.max_epochs
        config = dataclasses.replace(self, max_epochs=epochs, lr=self.lr or lr)
        if self.warmup is None:
            config = dataclasses.replace(config, warmup=config.num_steps(steps_per_epoch) // 10)
        return config
