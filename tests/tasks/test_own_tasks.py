"""User-defined tasks: the results of `predict` are the answers, and `--trainer` opens runs on the command line."""

import dataclasses
import json
import sys
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import pytest
import tiny_own_task
from inspection_pages import content_of
from tiny_own_task import LargestConfig, LargestTrainer, largest_data

from transformer_jax import (
    AttentionSettings,
    InputError,
    ReverseConfig,
    TrainerModule,
    TransformerEncoder,
    TransformerPredictor,
    block_settings,
    dot_product_attention,
    load_run,
    padding_mask,
    predict,
    train_and_test,
)
from transformer_jax.errors import InputWarning
from transformer_jax.fields import setting
from transformer_jax.inspection import __main__ as inspection_command
from transformer_jax.inspection import ablation_table, inspection_page
from transformer_jax.nn import Positions
from transformer_jax.nn.attention_maps import attention_maps
from transformer_jax.tasks import ReverseTrainer
from transformer_jax.trained import __main__ as trained_command
from transformer_jax.training import Callback
from transformer_jax.training.inspected_example import Answer, InspectedExample

ROWS = np.random.default_rng(2).integers(7, size=(11, 5)).astype(np.int32)  # more than a batch


def with_params(trainer_class, config=None):
    """A trainer with fresh parameters."""
    trainer = trainer_class(LargestConfig() if config is None else config)
    trainer.params = trainer.initial_params(jax.random.key(3), ROWS[:1], jax.numpy.arange(7)[::-1])
    return trainer


class EachPosition(LargestTrainer):
    """A task whose model inputs differ from the numbers of the data set, which `predict` takes."""

    def prepare(self, inputs, constants):
        return jax.numpy.arange(7)[::-1][inputs]

    def predict(self, inputs):
        return self.forward(inputs).argmax(-1)


class Words(LargestTrainer):
    def predict(self, inputs):
        return ["even" if number % 2 == 0 else "odd" for number in super().predict(inputs)]


class Worded(LargestTrainer):
    def examples(self, inputs):
        def at_the_end(output):
            return Answer(str(output[-1].argmax()), 0.5, ())

        return [InspectedExample(inputs=row[None], answer=at_the_end) for row in inputs]


class Pair(LargestTrainer):
    def predict(self, inputs):
        return super().predict(inputs), 3


class Ragged(LargestTrainer):
    def predict(self, inputs):
        return super().predict(np.stack([np.pad(row, (0, 5 - len(row))) for row in inputs]) + np.arange(2))


class Padded(LargestTrainer):
    """A task whose rows are padded with zeros, in a model whose blocks are in a stack named `tower`."""

    def create_model(self):
        return Tower()

    def model_inputs(self, inputs):
        return (inputs,)

    def real_positions(self, inputs):
        return inputs != 0

    def predict(self, inputs):
        return self.forward(inputs).argmax(-1)


class Tower(nn.Module):
    def setup(self):
        self.embedding, self.output = nn.Embed(7, 6), nn.Dense(7)
        self.tower = TransformerEncoder(2, 6, 2, 5)

    def __call__(self, ids, *, train=False):
        return self.output(self.tower(self.embedding(ids), padding_mask(ids != 0), train=train))

    def get_attention_maps(self, ids):
        return list(attention_maps(self, ids).values())


class Otherwise(ReverseTrainer):
    def predict(self, inputs):
        return (super().predict(inputs) + 1) % 7


WORDS = 'vocabulary = "zero one two three four five six".split()'
REVERSE = ReverseConfig(seq_len=5, num_categories=7, model_dim=6, batch_size=7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer_class", "config"),
    [(LargestTrainer, None), (Words, None), (Worded, None), (EachPosition, None), (Otherwise, REVERSE)],
)
def test_an_answer_is_what_predict_says(trainer_class, config):
    trainer = with_params(trainer_class, config)
    answers = trainer.answers(trainer.examples(ROWS))
    said = [" ".join(map(str, np.ravel(row).tolist())) for row in trainer.predict(ROWS)]
    assert [answer.text for answer in answers] == said
    logits = np.asarray(trainer.forward(ROWS), np.float64)
    by_position = [" ".join(map(str, row)) for row in logits.argmax(-1)]
    assert (said == by_position) == (trainer_class is EachPosition)
    if trainer_class is EachPosition:  # the probabilities are those of the answer
        softmax = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        np.testing.assert_allclose([a.probability for a in answers], softmax.max(-1).prod(-1), rtol=1e-5)


@pytest.mark.slow
def test_an_answer_that_predict_does_not_give_is_an_error_that_names_the_hook():
    trainer = with_params(Pair)
    for ask in (trainer.answers, lambda examples: inspection_page(trainer, examples)):
        with pytest.raises(InputError, match=r"\w+.predict gives no list or array with an answer for each"):
            ask(trainer.examples(ROWS))


@pytest.mark.slow
def test_a_predict_that_takes_something_else_than_batches_is_an_error_that_names_both_hooks():
    trainer = with_params(Ragged)
    message = r"Ragged.predict can't answer a batch .* override `examples` too \(operands could not be broadcast"
    with pytest.raises(InputError, match=message):
        trainer.answers(trainer.examples(ROWS))


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [True, False])
def test_padding_at_either_end_has_no_label_no_answer_and_no_attention_and_maps_have_the_stacks_name(overrides):
    trainer_class = Padded if overrides else type("Plain", (Padded,), {"writes_predictions": False})
    trainer = with_params(trainer_class)
    rows = np.array([[0, 0, 3, 1, 4], [5, 2, 6, 0, 0], [1, 2, 3, 4, 5]], np.int32)
    logits = trainer.forward(rows)
    examples = trainer.examples(rows)
    for row, example, answer, of_row in zip(rows, examples, trainer.answers(examples), logits, strict=True):
        real = row != 0
        assert example.title == " ".join(map(str, row[real]))
        assert answer.text == " ".join(map(str, of_row.argmax(-1)[real]))
        seen = trainer.maps_of(example)
        assert seen.query_labels == seen.key_labels == {"tower": [str(number) for number in row[real]]}
        alone = trainer.maps_of(trainer.examples(row[None, real])[0])
        assert [layer.shape for layer in seen.maps["tower"]] == [(2, real.sum(), real.sum())] * 2
        np.testing.assert_allclose(seen.maps["tower"], alone.maps["tower"], atol=1e-6)
    if not overrides:
        content = content_of(inspection_page(trainer, examples), 0)
        assert content["places"] == content["kinds"][0]["queries"] == ["3", "1", "4"]
        assert content["kinds"][0]["name"] == "tower"
        assert len(content["attribution"]["values"][0]) == len(content["answer"]["parts"]) == 3


@pytest.mark.slow
def test_a_run_leaves_the_answers_of_predict_or_a_line_that_says_which_hook_gives_them(tmp_path, capsys):
    trainer, _ = train_and_test(LargestTrainer, LargestConfig(checkpoint_dir=tmp_path), largest_data)
    rows = [line.split("\t") for line in (tmp_path / "LargestTask" / "predictions.tsv").read_text().splitlines()[1:]]
    inputs = np.array([row[0].split() for row in rows], np.int32)
    assert [row[2] for row in rows] == [str(number) for number in trainer.predict(inputs)]
    assert [row[1] for row in rows] == [str(max(numbers)) for numbers in inputs]  # from the targets
    assert [row[4] for row in rows] == [str(int(row[1] == row[2])) for row in rows]
    capsys.readouterr()
    train_and_test(Pair, LargestConfig(checkpoint_dir=tmp_path, name="pair"), largest_data)
    assert not (tmp_path / "pair" / "predictions.tsv").exists()
    assert (tmp_path / "pair" / "attention_maps.png").exists()
    assert "override `examples`" in capsys.readouterr().out
    with pytest.raises(InputError, match="override `examples`"):  # a page shows answers to outputs that are changed
        inspection_page(trainer, trainer.examples(ROWS))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A saved model of the task, without a run."""
    directory = tmp_path_factory.mktemp("own") / "largest"
    with_params(LargestTrainer).save(directory)
    return directory


TRAINER = f"--trainer={tiny_own_task.__file__}:LargestTrainer"


@pytest.mark.slow
def test_the_commands_open_a_run_with_the_trainer_in_a_file(saved, tmp_path, capsys):
    predict.carry_out(predict.read_command([str(saved), TRAINER, "1 2 3 4 5"]))
    said = with_params(LargestTrainer).predict(np.array([[1, 2, 3, 4, 5]]))[0]
    assert capsys.readouterr().out.splitlines()[1] == f"1 2 3 4 5\t{said}"
    own = saved.parent / "words.py"
    own.write_text(f"from {tiny_own_task.__name__} import LargestTrainer\nclass Words(LargestTrainer):\n    {WORDS}\n")
    predict.carry_out(predict.read_command([str(saved), f"--trainer={own}:Words", "one two three four five"]))
    words = ["zero", "one", "two", "three", "four", "five", "six"]
    assert capsys.readouterr().out == f"input\tanswer\none two three four five\t{words[said]}\n"
    with pytest.raises(InputError, match="inputs holds 'tree', which is not in the vocabulary; did you mean three"):
        predict.carry_out(predict.read_command([str(saved), f"--trainer={own}:Words", "one tree"]))
    worded = f"--trainer={__file__}:Worded"
    page = tmp_path / "page.html"
    inspection_command.carry_out(inspection_command.read_command([str(saved), worded, "1 2 3 4 5", f"--output={page}"]))
    assert f"→ {said}  50.00%" in capsys.readouterr().out
    trained_command.carry_out(trained_command.read_command(["export", str(saved), str(tmp_path / "copy"), TRAINER]))
    assert (tmp_path / "copy" / "model.safetensors").read_bytes() == (saved / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        (
            None,
            "the task is 'LargestTask', which is not one of ReverseTask, .*; give its trainer: load_run.*CLASS.,",
        ),
        ("nowhere.py:X", "must be FILE.py:CLASS of a trainer .*No such file"),
        ("raises.py:X", "must be FILE.py:CLASS of a trainer .division by zero"),
        (f"{tiny_own_task.__file__}:Largest", "must be .* .module 'own_tiny_own_task' has no attribute"),
        (f"{tiny_own_task.__file__}:LargestConfig", "must be .* .LargestConfig is not a TrainerModule"),
        (tiny_own_task.__file__, r"--trainer is .*; it must be FILE.py:CLASS of a trainer \(no CLASS is given\)"),
    ],
)
def test_a_value_that_names_no_trainer_is_a_one_line_error(saved, tmp_path, monkeypatch, trainer, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", sys.path.copy())
    (tmp_path / "raises.py").write_text("1 / 0")
    given = [] if trainer is None else ["--trainer", trainer]
    for command, arguments in (
        (predict, [str(saved), "1"]),
        (inspection_command, [str(saved), "1"]),
        (trained_command, ["export", str(saved), "copy"]),
    ):
        with pytest.raises(InputError, match=message) as caught:
            command.carry_out(command.read_command([*arguments, *given]))
        assert "\n" not in str(caught.value)


class Causal(LargestTrainer):
    takes_shorter = True


def answer(trainer, *batches):
    for rows in batches:
        trainer.predict(rows.tolist())
        trainer.answers(trainer.examples(rows))


@pytest.mark.slow
def test_a_quiet_run_prints_what_its_own_code_prints_and_names_its_trainer_and_lengths_get_one_warning(
    tmp_path, capsys
):
    def report(trainer, data):
        print("mine")
        return {}

    config = LargestConfig(checkpoint_dir=tmp_path, quiet=True)
    trainer, _ = train_and_test(LargestTrainer, config, largest_data, report)
    assert capsys.readouterr().out == "mine\n"
    trainer.save(tmp_path / "saved")
    for found in (trainer, load_run(tmp_path / "saved", LargestTrainer)):
        with pytest.warns(InputWarning, match="^inputs has length 3; the model was trained on length 5 only") as caught:
            answer(found, ROWS[:, :3], ROWS)
        assert [warning.filename for warning in caught] == [__file__]
        with pytest.warns(InputWarning, match="^inputs has length 2; ") as caught:
            found.forward(ROWS[:, :2])
        assert [warning.filename for warning in caught] == [__file__]
    causal = load_run(tmp_path / "LargestTask", Causal)
    with pytest.warns(InputWarning, match="^inputs has length 10; ") as caught:
        answer(causal, ROWS[:, :3], np.tile(ROWS, 2))
    assert [warning.filename for warning in caught] == [__file__]
    own = rf"load_run\(directory, LargestTrainer\), or --trainer {tiny_own_task.__file__}:LargestTrainer in a command$"
    with pytest.raises(InputError, match=own):
        load_run(tmp_path / "LargestTask")


@dataclasses.dataclass(frozen=True)
class OwnPositions(Positions):
    """Positions that add nothing."""


def without_weights(q, k, v, mask, bias, dropout):
    return dot_product_attention(q, k, v, mask, bias)


class OwnParts(LargestTrainer):
    def create_model(self):
        attention = AttentionSettings(implementation=without_weights)
        parts = dataclasses.replace(block_settings(self.config), positions=OwnPositions(), attention=attention)
        return super().create_model().clone(settings=parts)


@pytest.mark.slow
def test_a_training_begins_with_what_own_parts_replace_and_ends_with_answers_though_there_are_no_maps(tmp_path, capsys):
    train_and_test(OwnParts, LargestConfig(checkpoint_dir=tmp_path), largest_data)
    _, positions, maps, *later = capsys.readouterr().out.splitlines()
    assert positions == "Positions: OwnPositions(), which replaces --positions sinusoidal"
    reason = "implementation is without_weights, which returns no weights; it must return (values, weights)"
    assert maps.startswith(f"No maps of attention: {reason}")
    assert [line for line in later if "attention" in line] == [maps.replace("maps", "picture")]
    assert len((tmp_path / "LargestTask" / "predictions.tsv").read_text().splitlines()) == 18


@pytest.mark.slow
def test_targets_that_are_no_classes_are_named_instead_of_a_loss_of_nan(tmp_path):
    class FewClasses(LargestTrainer):
        def create_model(self):
            return TransformerPredictor(self.config.model_dim, 5, 1, 1)

    message = "targets hold 6, the logits of LargestTask have 5 classes, 0 … 4"
    with pytest.raises(InputError, match=message):
        train_and_test(FewClasses, LargestConfig(checkpoint_dir=tmp_path), largest_data)


def test_hooks_that_return_or_take_something_else_get_one_line():
    class Bare(LargestTrainer):
        def model_inputs(self, inputs):
            return jax.nn.one_hot(inputs, 7)

    class WithoutTrain(LargestTrainer):
        def loss_function(self, params, batch, key):
            return {}

    with pytest.raises(InputError, match=r"Bare.model_inputs returned .*; it must return a tuple of the model's arg"):
        with_params(Bare)
    message = (
        r"WithoutTrain.loss_function must take loss_function\(self, params, batch, key, train=…\): got an unexpected"
    )
    with pytest.raises(InputError, match=message):
        WithoutTrain(LargestConfig())
    with pytest.raises(InputError, match="loader is 'accuracy'; it must be Iterable or None"):
        ablation_table(with_params(LargestTrainer), "accuracy")


WRONG_RESULTS = [
    ("create_model", None, "the result of Wrong.create_model is None; it must be Module"),
    ("create_optimizer", None, "the result of Wrong.create_optimizer is None; it must be GradientTransformation"),
    ("create_schedule", 0.1, "the result of Wrong.create_schedule is 0.1; it must be Callable"),
    ("loss_function", {3: (np.ones(5), 1.0)}, r"loss_function returned {3: .*; it must return {.loss.: "),
    ("loss_function", {"loss": ("high", 1.0)}, r"loss of loss_function is \('high', 1.0\); both must be numbers"),
    ("loss_function", {"loss": (None, 1.0)}, r"loss of loss_function is \(None, 1.0\); both must be numbers"),
]
LATER_RESULTS = [  # after compiling
    ("create_callbacks", Callback(), "the result of Wrong.create_callbacks is <.*; it must be a list of Callback"),
    ("create_callbacks", [Callback], r"the result of Wrong.create_callbacks is \[<class .*; it must be a list of Call"),
    ("dataset_metrics", {"f1": "high"}, "f1 of dataset_metrics is 'high'; it must be an array of numbers"),
    ("dataset_metrics", None, "the result of Wrong.dataset_metrics is None; it must be Mapping"),
]


@pytest.mark.usefixtures("without_type_checks")  # of a loss function's result
@pytest.mark.parametrize(
    ("hook", "result", "message"),
    WRONG_RESULTS + [pytest.param(*row, marks=pytest.mark.slow) for row in LATER_RESULTS],
)
def test_a_result_of_another_type_is_an_error_that_names_the_hook(tmp_path, hook, result, message):
    wrong = type("Wrong", (LargestTrainer,), {hook: lambda self, *given, train=False: result})
    wrong.dataset_metric_names = ("f1",) if hook == "dataset_metrics" else ()
    with pytest.raises(InputError, match=message):
        train_and_test(wrong, LargestConfig(checkpoint_dir=tmp_path), largest_data)


def test_a_task_without_a_name_has_that_of_its_class():
    unnamed = type("Unnamed", (TrainerModule,), {})
    tasks = unnamed, type("Changed", (unnamed,), {}), LargestTrainer, EachPosition
    assert [task.name for task in tasks] == ["Unnamed", "Changed", "LargestTask", "LargestTask"]


def test_a_task_without_predict_is_an_error_that_names_it():
    plain = type("Plain", (LargestTrainer,), {"predict": TrainerModule.predict})
    with pytest.raises(
        InputError, match=r"Plain has no predict; define it, for example as self.forward\(inputs\).argma"
    ):
        with_params(plain).predict(ROWS)


def test_dropout_without_a_key_or_without_train_is_an_error():
    trainer = with_params(LargestTrainer, LargestConfig(dropout_prob=0.5))
    with pytest.raises(InputError, match="apply got a key, but train is False; pass train=train"):
        trainer.apply(trainer.params, ROWS, jax.random.key(0))
    with pytest.raises(
        InputError, match="apply got no key for dropout; pass that of loss_function .dropout needs PRNG"
    ):
        trainer.apply(trainer.params, ROWS, train=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfFileConfig(LargestConfig):
    data: Path = Path("numbers.json")  # the classes
    classes: Path | None = setting(None, defines_model=True, kept_as="classes.json")  # none: those of the data


class OfFile(LargestTrainer):
    config_class = OfFileConfig

    def classes(self):
        return json.loads((self.config.classes or self.config.data).read_text())

    def create_model(self):
        return super().create_model().clone(num_classes=len(self.classes()))


class Kept(OfFile):
    def model_files(self):
        return {"classes.json": json.dumps(self.classes())}


def test_a_file_that_the_model_needs_is_kept_with_it_and_its_absence_is_an_error_that_says_how(tmp_path):
    data = tmp_path / "numbers.json"
    data.write_text("[2, 3, 5, 7, 11]", encoding="utf-8")
    for trainer_class in (OfFile, Kept):
        with_params(trainer_class, OfFileConfig(data=data)).save(tmp_path / trainer_class.__name__)
    data.unlink()
    assert load_run(tmp_path / "Kept", Kept).forward(ROWS).shape == (11, 5, 5)
    message = r"OfFile.create_model can't read a file; .*setting\(path, kept_as=NAME\), and model_files .* No such file"
    with pytest.raises(InputError, match=message):
        load_run(tmp_path / "OfFile", OfFile)
