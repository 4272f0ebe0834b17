"""A config from flags, from a file below them, and what --help and the errors say."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Literal

import pytest
from commands import call

from transformer_jax.cli import parse
from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError
from transformer_jax.fields import setting
from transformer_jax.flags import flag_parser
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.setting_groups import GROUPS
from transformer_jax.trained.shipped import SHIPPED


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnConfig(TrainingConfig):
    """Learn a task of one's own. It is a small one.

    This explains more.

    Raises:
        InputError: for values that cannot work.
    """

    length: int = 7  # numbers in a sequence
    width: int = setting(5, of_model=True)  # width of the first layer
    beams: int = setting(1, neutral=True)  # hypotheses that the search keeps
    folder: Path | None = setting(None, machine=True)  # directory of the data
    mix: tuple[float, ...] = (0.5, 0.25)  # shares of the sources
    order: Literal["up", "down"] = "up"  # direction of the numbers
    shuffled: bool = False  # draw the sequences in another order


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "settings.toml") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def read(*arguments: object, **options) -> OwnConfig:
    return parse(OwnConfig, list(map(str, arguments)), **options)


# Files of settings.


def test_flags_win_over_the_file_and_the_file_over_the_defaults(write):
    file = write(
        'lr = 0.25\nmax_epochs = 3\nmodel_dim = 14\nmix = [1, 2.5]\norder = "down"\nshuffled = true\nfolder = "there"\n'
    )
    config = read("--config", file, "--lr", 0.125, "--no-shuffled", "--num-heads=2")
    expected = OwnConfig(
        lr=0.125, max_epochs=3, model_dim=14, num_heads=2, mix=(1.0, 2.5), order="down", folder=Path("there")
    )
    assert config == expected
    default = OwnConfig(max_epochs=11, batch_size=13)
    assert read(f"--config={file}", default=default) == dataclasses.replace(
        expected, lr=0.25, num_heads=1, shuffled=True, batch_size=13
    )
    assert read("--lr", 0.125, "--config", file, "--max-epochs", 5).max_epochs == 5


def test_a_flag_may_mend_what_in_the_file_alone_cannot_work(write):
    file = write("num_heads = 3")
    assert read("--config", file, "--model-dim=33").num_heads == 3
    with pytest.raises(InputError) as error:
        read("--config", file)
    assert str(error.value) == (
        f"num_heads is 3; it must be at least 1 and divide the model's width 32 (with the settings of {file})"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr = 'fast'", "{file}: lr is 'fast'; it must be a number"),
        ("seed = true", "{file}: seed is True; it must be an integer"),
        ("order = 'left'", "{file}: order is 'left'; it must be up or down"),
        ("lr = 2026-01-02", "{file}: lr is of the type date; it must be a number"),
        ("num-layers = 3", "{file}: 'num-layers' is not a setting of this task; did you mean num_layers?"),
        ("num_layer = 3", "{file}: num_layer is not a setting of this task; did you mean num_layers?"),
        ("dataset = 'digits'", "{file}: dataset is not a setting of this task"),
        ("task = 'OtherTask'", "{file}: task is OtherTask; it must be OwnTask, the task of this command"),
        ("lr = ", "{file} is not TOML, or damaged: TOMLDecodeError Invalid value"),
        ("a = " + "[" * 10**5, "{file} is not TOML, or damaged: RecursionError"),
        ("#" * 2**21, "{file} has 2097152 bytes; it may have at most 1048576"),
    ],
)
def test_an_error_names_the_file_and_the_key(text, message, write):
    file = write(text)
    with pytest.raises(InputError) as error:
        read("--config", file, task="OwnTask")
    assert str(error.value).startswith(message.format(file=file))


def test_a_file_that_is_missing_or_of_another_kind_is_an_error(write, tmp_path):
    with pytest.raises(InputError, match="nowhere.toml can't be read: No such file"):
        read("--config", "nowhere.toml")
    with pytest.raises(InputError, match="it must be a TOML file, NAME.toml, or a run's config.json"):
        read("--config", write("lr = 1", "settings.txt"))
    with pytest.raises(InputError, match="holds no run: config.json is missing"):
        read("--config", tmp_path)
    with pytest.raises(InputError, match="argument --config: expected one argument"):
        read("--config")


@pytest.fixture
def run(tmp_path) -> Path:
    """The directory of a run with settings of its own, and some of a machine."""
    config = OwnConfig(
        checkpoint_dir=tmp_path / "runs", name="third", folder=Path("there"), lr=0.25, mix=(1.0,), num_workers=2
    )
    with RunDirectory(config, "OwnTask") as directory:
        return directory.path


@pytest.mark.parametrize("part", ["", "config.json"])
def test_a_runs_settings_are_taken_without_those_of_its_machine(part, run):
    assert read("--config", run / part, task="OwnTask") == OwnConfig(lr=0.25, mix=(1.0,))
    config = read("--config", run / part, "--name=fourth", "--lr=0.5", default=OwnConfig(num_workers=3))
    assert config == OwnConfig(lr=0.5, mix=(1.0,), name="fourth", num_workers=3)


def test_a_run_of_another_task_or_format_is_an_error(run):
    with pytest.raises(InputError, match="config.json: task is OwnTask; it must be ReverseTask, the task of this"):
        read("--config", run, task="ReverseTask")
    with pytest.raises(InputError, match="config.json: beams is not a setting of this task"):
        parse(TrainingConfig, ["--config", str(run)])
    stored = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**stored, "format": 1}))
    with pytest.raises(InputError, match="config.json is of format 1, this version reads 5 and 4"):
        read("--config", run)


def test_other_dataclasses_take_no_file(write):
    @dataclasses.dataclass(frozen=True)
    class Other:
        """Do something else."""

        lr: float = 1.0  # rate

    with pytest.raises(InputError, match="unknown arguments: --config"):
        parse(Other, ["--config", write("lr = 3")])


# The task whose data set chooses the config.


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which settings there are."""

    kind: Literal["one", "two"] = "one"  # kind of the data
    folder: Path = Path("data")  # directory of the data


def test_the_file_of_settings_chooses_the_data_set_of_the_anomaly_task(write):
    shipped = SHIPPED / "digits"
    file = write("dataset = 'digits'\nset_size = 1")
    errors = {
        (file,): "set_size is 1; it must be at least 2",
        (file, "--set-size=0"): "set_size is 0; it must be at least 2",
        (shipped, "--set-size=1"): "set_size is 1; it must be at least 2",
        (shipped, "--dataset=cifar100"): "task is SetAnomalyTask_digits; it must be SetAnomalyTask_cifar100",
        (shipped.parent / "reverse",): "task is ReverseTask; it must be SetAnomalyTask_digits",
        (write("dataset = 'digit'", "a.toml"),): "dataset is 'digit'; it must be auto or cifar100 or digits",
    }
    for (path, *flags), message in errors.items():
        outcome = call("anomaly.py", "--config", path, *flags)
        assert outcome.status == 2
        assert message in outcome.stderr


# Errors.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num-layer", "3"], "unknown arguments: --num-layer 3; did you mean --num-layers?"),
        (["--num_layer=3"], "unknown arguments: --num-layer=3; did you mean --num-layers?"),
        (["--Lr=3", "--sed", "5"], "unknown arguments: --Lr=3 --sed 5; did you mean --lr and --seed?"),
        (["--confg=x"], "unknown arguments: --confg=x; did you mean --config?"),
        (["--kin=one"], "unknown arguments: --kin=one; did you mean --kind?"),
        (["--zebra", "3"], "unknown arguments: --zebra 3"),
        (["length", "3"], "unknown arguments: length 3"),
        (["--lr"], "argument --lr: expected one argument"),
        (["--lr", "fast"], "lr is 'fast'; it must be a number"),
        (["--lr", "none"], "lr is None; it must be a number"),
        (["--lr", "nan"], "lr is nan; it must be finite"),
        (["--num-layers", "1.5"], "num_layers is 1.5; it must be an integer"),
        (["--order=left"], "order is 'left'; it must be up or down"),
        (["--mix", "1", "x"], "mix is 'x'; it must be a number"),
        (["--shuffled=3"], "argument --shuffled/--no-shuffled: ignored explicit argument '3'"),
        (["--name", "a/b"], "name is 'a/b'; it must be the name of one directory: printable, without slashes, of at "
         "most 244 bytes, and not end with _pretrained"),
    ],
)  # fmt: skip
def test_an_error_is_a_sentence_and_names_the_flag_that_was_meant(arguments, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        read(*arguments, choices=Choice)


def test_flags_are_spelled_with_hyphens_or_as_the_fields_and_take_none():
    default = OwnConfig(folder=Path("x"), best_by="val/loss:min", shuffled=True)
    found = read("--folder", "none", "--best_by=none", "--no-shuffled", "--mix", 1, 2.5, default=default)
    assert found == OwnConfig(mix=(1.0, 2.5))


# Help.


def sections(text: str) -> dict[str, str]:
    """The groups of flags by their titles."""
    parts = re.split(r"\n\n(?=[a-z]+:\n)", text.partition("\n\nRules")[0])
    return {title: body for title, _, body in (part.partition(":\n") for part in parts[1:])}


def test_help_is_one_sentence_then_the_flags_in_groups_then_the_rules(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = flag_parser(OwnConfig, [Choice]).format_help()
    assert re.match(r"usage: \S+ \[OPTIONS\]\n\nLearn a task of one's own. It is a small one.\n\ntask:\n", text)
    assert "Raises" not in text
    assert "explains more" not in text
    groups = sections(text)
    flags = {title: re.findall(r"^  (?:-h, )?--([\w-]+)", body, re.M) for title, body in groups.items()}
    assert list(flags) == ["task", *GROUPS, "options"]
    assert flags["task"] == ["length", "width", "beams", "folder", "mix", "order", "shuffled"]
    for title, group in GROUPS.items():
        assert [name.replace("-", "_") for name in flags[title]] == list(group.__dataclass_fields__)
    assert flags["options"] == ["kind", "help"]
    assert "  --folder PATH|none" in text
    assert re.search(r"--mix \[FLOAT ...\]\s+shares of the sources \(default: \(0.5, 0.25\)\)", groups["task"])
    assert max(map(len, text.partition("\n\nRules")[0].splitlines())) < 100
    assert "Rules for a run's directory, in this order:\n\n1. If the directory is empty" in text


def test_help_shows_the_defaults_of_the_task_and_of_the_file_whatever_mistake_is_beside_it(write, capsys):
    file = write("lr = 0.125\nmix = [1.5]")
    with pytest.raises(SystemExit) as end:
        read("--config", file, "--zebra", "-h", default=OwnConfig(length=11), description="Learn.\n\nMore.")
    assert end.value.code == 0
    groups = sections(text := capsys.readouterr().out)
    assert "\n\nLearn.\n\ntask:" in text
    assert "More." not in text
    assert re.search(r"--length INT +numbers in a sequence \(default: 11\)", groups["task"])
    assert re.search(r"--lr FLOAT +[^-]*\(default:\s+0.125\)", groups["training"])
    assert re.search(r"--config PATH\|none\s+file of settings: TOML, or a run's config.json", groups["options"])


@pytest.mark.parametrize("script", ["reverse.py", "anomaly.py", "translate.py", "language_model.py"])
def test_the_help_of_each_experiment_explains_every_flag(script):
    text = call(script, "--help").stdout
    assert "InputError" not in text
    assert list(sections(text)) == ["task", *GROUPS, "options"]
    for flag, explanation in re.findall(r"^  (--[^\n]*?)(?:  +|\n +)(\S[^\n]*)", text, re.M):
        assert not explanation.startswith("("), flag  # a default alone
    if script == "anomaly.py":
        assert "--dataset {auto,cifar100,digits,files}" in sections(text)["options"]
