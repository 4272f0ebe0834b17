"""Configs from flags and from a file that flags override, and the texts of --help and errors."""

import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import Literal

import pytest
from commands import call

from transformer_jax import Cifar100Config, DigitsConfig, LanguageModelConfig, ReverseConfig, TranslationConfig
from transformer_jax.cli import parse
from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError
from transformer_jax.fields import setting, type_hints
from transformer_jax.flags import comments, flag_of, naming_flags
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.setting_groups import COMMON, GROUPS
from transformer_jax.tasks import ClassificationConfig
from transformer_jax.trained.load import SHIPPED


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnConfig(TrainingConfig):
    """Learn a task of one's own. It is a small one.

    This explains more.

    Raises:
        InputError: for values that cannot work.
    """

    length: int = 7  # numbers in a sequence
    width: int = setting(5, defines_model=True)  # width of the first layer
    # directory
    # of the data
    folder: Path | None = setting(None, per_machine=True)
    mix: tuple[float, ...] = (0.5, 0.25)  # shares of the sources
    order: Literal["up", "down"] = "up"  # direction of the numbers
    shuffled: bool = False  # draw the sequences in another order


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which settings there are."""

    kind: Literal["one", "two"] = "one"  # kind of the data


def read(*arguments: object, **options) -> OwnConfig:
    return parse(OwnConfig, list(map(str, arguments)), **options)


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "settings.toml") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_the_flags_of_a_configs_settings_give_the_config_again():
    config = OwnConfig(folder=Path("a b/it's"), mix=(0.5, 1e-05), shuffled=True, lr=0.25, ema=0.5, name="7")
    line = " ".join(flag_of(name, value) for name, value in config.changed().items())
    assert "--shuffled" in line.split()
    assert read(*shlex.split(line)) == config
    neither = [flag_of("shuffled", False), flag_of("ema", None), flag_of("folder", None)]
    assert neither == ["--no-shuffled", "--ema none", "--folder none"]
    assert read(*shlex.split(" ".join(neither)), default=config).ema is None


def test_flags_win_over_the_file_and_the_file_over_the_defaults(write):
    file = write('lr = 0.25\nmax_epochs = 3\nmix = [1, 2.5]\norder = "down"\nshuffled = true\nfolder = "there"\n')
    expected = OwnConfig(lr=0.125, max_epochs=3, num_heads=2, mix=(1.0, 2.5), order="down", folder=Path("there"))
    assert read("--config", file, "--lr", 0.125, "--no-shuffled", "--num-heads=2") == expected
    default = OwnConfig(max_epochs=11, batch_size=13)
    assert read(f"--config={file}", default=default) == dataclasses.replace(
        expected, lr=0.25, num_heads=1, shuffled=True, batch_size=13
    )
    assert read("--lr", 0.125, "--config", file, "--max-epochs", 5).max_epochs == 5


def test_flags_are_spelled_with_hyphens_or_as_the_fields_and_take_none():
    default = OwnConfig(folder=Path("x"), best_by="val/loss:min", shuffled=True)
    found = read("--folder", "none", "--best_by=none", "--no-shuffled", "--mix", 1, 2.5, default=default)
    assert found == OwnConfig(mix=(1.0, 2.5))


def test_a_flag_may_correct_a_setting_of_the_file_that_is_invalid_alone(write):
    file = write("num_heads = 3")
    assert read("--config", file, "--model-dim=33").num_heads == 3
    message = f"--num-heads is 3; it must be at least 1 and divide the model's width 32 (with the settings of {file})"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        read("--config", file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr = 'fast'", "{file}: lr is 'fast'; it must be float"),
        ("num_layer = 3", "{file}: num_layer is not a setting of this task; did you mean num_layers?"),
        ("dataset = 'digits'", "{file}: dataset is not a setting of this task"),
        ("task = 'OtherTask'", "{file}: task is OtherTask; it must be OwnTask, the task of this command"),
        ("lr = ", "{file} is not TOML, or damaged: TOMLDecodeError: Invalid value"),
    ],
)
def test_an_error_names_the_file_and_the_key(text, message, write):
    file = write(text)
    with pytest.raises(InputError, match=f"^{re.escape(message.format(file=file))}"):
        read("--config", file, task="OwnTask")


def test_a_runs_settings_are_taken_without_those_of_its_machine(tmp_path):
    config = OwnConfig(checkpoint_dir=tmp_path, name="third", folder=Path("there"), lr=0.25, mix=(1.0,), num_workers=2)
    with RunDirectory(config, "OwnTask") as directory:
        run = directory.path
    for path in (run, run / "config.json"):
        assert read("--config", path, task="OwnTask") == OwnConfig(lr=0.25, mix=(1.0,))
    config = read("--config", run, "--name=fourth", "--lr=0.5", default=OwnConfig(num_workers=3))
    assert config == OwnConfig(lr=0.5, mix=(1.0,), name="fourth", num_workers=3)
    with pytest.raises(InputError, match="config.json: task is OwnTask; it must be ReverseTask, the task of this"):
        read("--config", run, task="ReverseTask")
    stored = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**stored, "format": 1}))
    with pytest.raises(InputError, match="config.json has format 1; this version reads 5 and 4"):
        read("--config", run)


def test_the_file_of_settings_chooses_the_data_set_of_the_anomaly_task(write):
    shipped = SHIPPED / "digits"
    errors = {
        (write("dataset = 'digits'\nset_size = 1"), "--set-size=0"): "--set-size is 0; it must be at least 2",
        (shipped, "--set-size=1"): "--set-size is 1; it must be at least 2",
        (shipped, "--dataset=cifar100"): "task is SetAnomalyTask_digits; it must be SetAnomalyTask_cifar100",
        (write("dataset = 'digit'", "a.toml"),): "dataset is 'digit'; it must be one of cifar100, digits, files",
    }
    for (path, *flags), message in errors.items():
        outcome = call("anomaly.py", "--config", path, *flags)
        assert outcome.status == 2
        assert message in outcome.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--learning-rate=3", "unknown argument: --learning-rate=3; did you mean --lr?"),
        ("--heads=3 --d-model=5", "unknown argument: --heads=3; did you mean --num-heads?"),
        ("--Lr=3 --sed 5", "unknown argument: --Lr=3; did you mean --lr?"),
        ("--confg=x --kin one", "unknown argument: --confg=x; did you mean --config?"),
        ("--zebra", "unknown argument: --zebra"),
        ("length 3 --zebra", "unknown argument: length; did you mean --length?"),
        ("--lr", "argument --lr: expected one argument"),
        ("--mix 1 x", "--mix is 'x'; it must be float"),
        ("--shuffled=3", "argument --shuffled/--no-shuffled: ignored explicit argument '3'"),
        ("--config nowhere.toml", "nowhere.toml can't be read: No such file"),
        ("--config a.txt", "--config is a.txt; it must be a TOML file, NAME.toml, or a run's config.json"),
        ("--config", "argument --config: expected one argument"),
    ],
)
def test_an_error_is_a_sentence_and_names_the_flag_that_was_meant(arguments, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        read(*arguments.split(), choices=Choice)


@pytest.mark.parametrize(
    ("message", "in_flags"),
    [
        ("lr is 0; it must be above 0", "--lr is 0; it must be above 0"),
        ("a.toml: lr is 0", "a.toml: --lr is 0"),
        ("sweep is lr=1,2 ema=3, seeds is 1", "--sweep is lr=1,2 ema=3, --seeds is 1"),
        ("settings: max_epochs was 2 and is 5, seed was 1", "settings: --max-epochs was 2 and is 5, --seed was 1"),
        ("settings: init_from was None and is a", "settings: --init-from was none and is a"),
        ("a divisor of batch_size / accumulate, 128", "a divisor of --batch-size / --accumulate, 128"),
        ("other data: set overwrite=True, resume=False, name=…", "other data: set --overwrite, --no-resume, --name …"),
        ("pretrained is sweep; it must be one of dates, lora", "--pretrained is sweep; it must be one of dates, lora"),
        ("min_lr is 1; it may be at most lr, 0", "--min-lr is 1; it may be at most --lr, 0"),
        ("freeze has 'a', lr is None; or be None", "--freeze has 'a', --lr is none; or be none"),
        ("schedule is a, norm is b, and max_steps is 3", "--schedule is a, --norm is b, and --max-steps is 3"),
        ("runs/norm_first=True,seed=1 is in use", "runs/norm_first=True,seed=1 is in use"),  # a path
        ("the data of this seed are new, and its name is long", "the data of this seed are new, and its name is long"),
    ],
)
def test_a_command_writes_the_settings_in_a_message_as_flags(message, in_flags):
    with pytest.raises(InputError, match=f"^{re.escape(in_flags)}$"), naming_flags(ReverseConfig):
        raise InputError(message)


def test_help_is_one_sentence_then_the_flags_in_groups_then_the_rules(capsys):
    default = OwnConfig(length=11, mix=(1.5,), lr=0.125)
    with pytest.raises(SystemExit, match="^0$"):
        read("--zebra", "--lr=fast", "--help-all", default=default, choices=Choice)
    text = " ".join(capsys.readouterr().out.split())
    parts = [
        "[OPTIONS] Learn a task of one's own. It is a small one. options: -h, --help",
        "--help-all show all settings and exit",
        "--kind <one of one, two> kind of the data (default: one)",
        "--config <Path or none> ",
        "task: --length <int> numbers in a sequence (default: 11)",
        "--width <int> width of the first layer (default: 5)",
        "--folder <Path or none> directory of the data (default: none)",
        "--mix [<float> ...] shares of the sources (default: (1.5,))",
        "--order <one of up, down> direction of the numbers (default: up)",
        "--shuffled, --no-shuffled draw the sequences in another order (default: False)",
    ]
    for title, group in GROUPS.items():
        parts += [f"{title}: --", *(f"--{name.replace('_', '-')}" for name in group.__dataclass_fields__)]
    places = [text.find(part) for part in [*parts, "Rules for a run's directory, in this order: 1. If the"]]
    assert places == sorted(places)
    assert -1 not in places
    assert "peak learning rate of the schedule (default: 0.125)" in text


@pytest.mark.parametrize(
    ("config", "most"),
    [
        (OwnConfig, 22),
        (ReverseConfig, 22),
        (DigitsConfig, 21),
        (Cifar100Config, 25),
        (TranslationConfig, 25),
        (LanguageModelConfig, 24),
        (ClassificationConfig, 25),
    ],
)
def test_the_help_shows_common_settings_and_the_way_to_the_others(config, most, capsys):
    with pytest.raises(SystemExit, match="^0$"):
        parse(config, ["--help"])
    text = capsys.readouterr().out
    shown = {name.replace("-", "_") for name in re.findall(r"^  --([\w-]+)", text, re.MULTILINE)}
    own = [name for name in type_hints(config) if not hasattr(TrainingConfig, name)]
    assert {*COMMON, "help_all", "config"} <= shown
    assert {*own} - {*config.rarely_changed} <= shown
    assert {*config.rarely_changed} <= {*own} - shown
    assert len(shown) <= most
    assert "--coordinator" not in text
    assert text.endswith("--help-all shows all settings, and the rules for a run's directory.\n")


@pytest.mark.parametrize(
    "config",
    [ReverseConfig, DigitsConfig, Cifar100Config, TranslationConfig, LanguageModelConfig, ClassificationConfig],
)
def test_every_flag_of_the_experiments_is_explained(config):
    explained = [name for name, said in comments(config).items() if re.search("[a-z]{2}.*[a-z]{2}", said)]
    assert set(explained) == set(config.__dataclass_fields__)
