"""The documents are true: their code runs as it is written, their commands are read, their links lead somewhere."""

import contextlib
import dataclasses
import json
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import jax
import numpy as np
import pytest
from commands import call
from finished_runs import reverse_run
from flax.traverse_util import flatten_dict
from repository import REPOSITORY

import transformer_jax
from transformer_jax import (
    ALiBiPositions,
    AttentionSettings,
    BlockSettings,
    GatedFeedForward,
    InputError,
    RMSNorm,
    load_run,
)
from transformer_jax.data.loader import make_loader
from transformer_jax.inspection.__main__ import read_command as read_inspection
from transformer_jax.runs.__main__ import main as list_runs
from transformer_jax.tasks.experiment import TaskData

PAGES = ["README.md", "CONTRIBUTING.md", *(str(p.relative_to(REPOSITORY)) for p in REPOSITORY.glob("docs/**/*.md"))]
MAX_WORDS = 1200  # of the README
MAX_LINES = 18  # of a part that is changed


def text_of(page: str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


def blocks_of(page: str, language: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text_of(page), re.DOTALL | re.MULTILINE)  # an end looks like a begin
    return [block for its_language, block in blocks if its_language == language]


def prose_of(page: str) -> str:
    return re.sub(r"^```.*?^```|`[^`\n]*`", "", text_of(page), flags=re.DOTALL | re.MULTILINE)


def headings_of(page: str) -> set[str]:
    """The anchors of a page, as GitHub and MkDocs both make them of headings in plain words."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_the_readme_is_short():
    assert len(text_of("README.md").split()) <= MAX_WORDS


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (REPOSITORY / page).parent / path if path else REPOSITORY / page
        assert target.is_file(), link
        if anchor:
            assert anchor in headings_of(str(target.resolve().relative_to(REPOSITORY))), link


def test_the_reference_has_each_public_name_once():
    package = REPOSITORY / "transformer_jax"
    public = {
        f"{'.'.join(stub.parent.relative_to(REPOSITORY).parts)}.{module}.{name}"
        for stub in package.rglob("*.pyi")
        for module, name in re.findall(r"from \.(\S+) import (\w+)", stub.read_text())
    }
    listed = [name for page in PAGES for name in re.findall(r"^::: (\S+)$", text_of(page), re.MULTILINE)]
    assert len(listed) == len(set(listed))
    assert public <= set(listed)
    for name in set(listed) - public:  # of modules without a face, such as `transformer_jax.plots`
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute), name


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """The repository's root as a reader has it after `make reverse`; what the documents' code writes stays there."""
    root = tmp_path_factory.mktemp("root")
    for path in REPOSITORY.iterdir():
        if not path.name.startswith(".") and path.name not in ("checkpoints", "site"):
            (root / path.name).symlink_to(path)
    shutil.copytree(reverse_run(tmp_path_factory) / "ReverseTask", root / "checkpoints" / "ReverseTask")
    (whole_task, *_) = blocks_of("docs/new_task.md", "python")
    (root / "sort.py").write_text(whole_task, encoding="utf-8")
    (settings,) = blocks_of("docs/runs.md", "toml")
    (root / "settings.toml").write_text(settings, encoding="utf-8")
    return root


@contextlib.contextmanager
def inside(root: Path) -> Iterator[None]:
    """A block in which Python runs as it is started there."""
    modules = set(sys.modules)
    with contextlib.chdir(root), mock.patch.object(sys, "path", [str(root), *sys.path]):
        yield
    for name in set(sys.modules) - modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(root):
            del sys.modules[name]


def run_page(page: str, root: Path, first: int = 0) -> dict:
    """The names that a page's code defines, all of it in its order; from the block number `first` on."""
    file = root / f"{Path(page).stem}_page.py"
    file.write_text("\n\n".join(blocks_of(page, "python")[first:]), encoding="utf-8")
    with inside(root):
        return runpy.run_path(str(file))


def commands_of(page: str) -> list[str]:
    lines = [line for block in blocks_of(page, "") for line in block.splitlines()]
    lines += re.findall(r"`(make [^`\n]+)`", text_of(page))
    return [line for line in lines if re.match(r"(\.venv/bin/)?python |make ", line)]


def read_alone(read: Callable[[list[str]], object], train: object) -> None:
    """In the place of `transformer_jax.cli.run`: read the settings, and train nothing."""
    read(sys.argv[1:])


def refusal_of(command: str) -> str | None:
    """Why a command would not begin: an unknown script, flag, setting or target; None if it would."""
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        makefile = text_of("Makefile")
        recipe = re.search(rf"^{words[1]}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
        if recipe is None:
            return f"no target {words[1]}"
        given = [word.removeprefix("ARGS=") for word in words[2:]]
        script = re.search(r"(?:experiments|benchmarks)/\w+\.py", recipe[1])
        return refusal_of(f"python {script[0]} {' '.join(given)}") if script else None
    if words[1:3] == ["-m", "transformer_jax.runs"]:
        list_runs(words[3:])
    elif words[1:3] == ["-m", "transformer_jax.inspection"]:
        read_inspection(words[3:])
    elif words[1] != "-m":
        with (
            mock.patch("transformer_jax.cli.run", read_alone),
            mock.patch.dict(vars(transformer_jax), run=read_alone),  # the package keeps what was once imported from it
        ):
            try:
                outcome = call(str(Path.cwd() / words[1]), *words[2:])
            except InputError as error:
                return str(error)
        return f"status {outcome.status}: {outcome.stderr}" if outcome.status else None
    return None


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)])
def test_commands_are_read(root, page):
    with inside(root):
        refusals = {command: refusal_of(command) for command in commands_of(page)}
    assert refusals == dict.fromkeys(commands_of(page))


@pytest.mark.slow
def test_the_readmes_code_runs(root):
    names = run_page("README.md", root)
    assert names["results"]["test_acc"] > 0.9
    assert str(names["run"].predict(names["numbers"])) in text_of("README.md")
    assert names["seen"].maps["encoder"][0].shape == (1, 16, 16)
    assert (root / "attention.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_code_on_models_runs(root):
    names = run_page("docs/models.md", root)
    assert names["run"].config.seq_len == 8
    assert json.loads((root / "checkpoints/short/results.json").read_text())["steps"] == 30
    assert names["dates"].predict(["March 3, 2004", "3. Januar 2017"]) == ["2004-03-03", "2017-01-03"]
    assert names["seen"].maps["cross"][-1].shape == (4, 11, 14)  # start and 10 characters, 14 characters
    assert names["tokens"].shape == (2, 9)
    assert names["next_bytes"].shape == (2, 8, 256)
    assert names["continued"].shape == (2, 24)
    for name in ("maps.png", "cross.png"):
        assert (root / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_code_on_inspection_runs(root):
    names = run_page("docs/inspection.md", root)
    whole, ablated = names["accuracies"]
    assert whole > 0.99
    assert ablated < 0.2  # its only head reverses; chance is 0.1
    assert names["letters"]["encoder.layers.0.attention.weights"] == "B H T S"
    assert names["weights"].shape == (100, 1, 16, 16)
    assert not names["seen"][names["weights_of_layer"]][:, :, 0, 15].any()
    assert names["of_heads"].shape == (1, 100, 16, 10)
    assert np.abs(names["gradient"]).max() > 0
    assert names["table"].without["encoder"].round(4).tolist() == [[0.0995]]
    assert names["lens"].shape == (2, 100, 16, 10)
    assert names["restored"].argmax() == 15  # what stands first in the answer is last in the input
    assert names["page"].answers[0].text == "3 9 7 9 8 5 3 5 6 2 9 5 1 4 1 3"
    assert names["spelled"].examples[0].labels == ["d", "b", "e", "b", "f"]
    for name in ("inspection.html", "letters.html"):
        assert (root / name).read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.slow
def test_the_code_on_fine_tuning_runs(root):
    tuned = flatten_dict(run_page("docs/fine_tuning.md", root)["trainer"].params, sep="/")
    shipped = flatten_dict(load_run("reverse").params, sep="/")
    assert tuned["input_layer/kernel"].shape[0] == 12
    frozen = [path for path in shipped if path.startswith("encoder/")]
    assert frozen
    for path in frozen:
        np.testing.assert_array_equal(tuned[path], shipped[path])


@pytest.mark.slow
def test_the_code_on_pytorch_prints_what_it_says(root, capsys):
    run_page("docs/pytorch_export.md", root)
    assert capsys.readouterr().out == "2017-01-03\n"


@pytest.mark.slow
def test_the_code_on_attention_prints_what_the_page_shows(root, capsys):
    names = run_page("docs/attention.md", root)
    assert capsys.readouterr().out == "".join(blocks_of("docs/attention.md", "text"))
    assert names["gradient"].shape == (4,)
    assert abs(names["gradient"]).min() > 0
    assert names["rows"].shape == (3, 1, 2, 600)
    assert [of_layer.shape for of_layer in names["maps"]] == 2 * [(1, 1, 3, 600)]


def test_the_code_on_circuits_prints_what_it_says(tmp_path, capsys):
    run_page("docs/circuits.md", tmp_path)
    assert capsys.readouterr().out == "1.0 1.0\n"


def test_other_pages_have_no_code_of_python():
    pages = "attention", "models", "inspection", "new_task", "fine_tuning", "pytorch_export", "circuits"
    run = {
        "README.md",
        "docs/runs.md",
        "docs/scaling.md",
        *(f"docs/{name}.md" for name in pages),
    }  # runs.md: tests/runs/test_checkpoints.py; scaling.md: tests/devices/test_sharded.py
    assert {page for page in PAGES if blocks_of(page, "python")} == run


@pytest.fixture(scope="module")
def new_task(root) -> dict:
    """The names that all code of docs/new_task.md defines, in its order."""
    for change in blocks_of("docs/new_task.md", "python")[2:]:
        assert sum(bool(line.strip()) for line in change.splitlines()) <= MAX_LINES
    with inside(root):
        whole_task = runpy.run_path("sort.py")
    return whole_task | run_page("docs/new_task.md", root, first=1)


@pytest.mark.slow
def test_the_new_task_learns_and_comes_back(new_task):
    assert new_task["results"]["test_acc"] > 0.9
    np.testing.assert_array_equal(new_task["sorter"].predict(np.array([[3, 1, 2, 0]])), [[0, 1, 2, 3]])
    assert new_task["sorter"].test()["test"] == pytest.approx(new_task["results"]["test"], rel=1e-5)


@pytest.mark.slow
def test_each_setting_of_the_new_tasks_model_is_used(new_task):
    settings = {"model_dim": 15, "num_heads": 5, "num_layers": 3, "dropout_prob": 0.25}
    of_blocks = {"remat": "all", "scan_layers": True, "norm_first": True}
    of_parts = {"positions": "alibi", "norm": "rms", "feed_forward": "geglu"}
    of_attention = {"num_kv_heads": 1, "qk_norm": True, "attention_dropout": 0.5, "attention": "plain"}
    parts = of_parts | of_attention
    model = new_task["SortTrainer"](new_task["SortConfig"](**settings, **of_blocks, **parts)).model
    assert {name: getattr(model, name) for name in settings} == settings
    assert {name: getattr(model.settings, name) for name in of_blocks} == of_blocks
    assert type(model.settings.positions) is ALiBiPositions
    assert (model.settings.norm, model.settings.feed_forward) == (RMSNorm, GatedFeedForward)
    assert model.settings.attention == AttentionSettings(1, RMSNorm, 0.5, "plain")
    assert settings.keys() | of_blocks.keys() | parts.keys() == new_task["SortConfig"].fields_with("of_model")


def train_shortly(directory: Path, new_task: dict, trainer_class: str, **settings) -> tuple:
    """Train a changed part for 20 steps."""
    config = new_task["SortConfig"](seq_len=4, max_epochs=2, batch_size=32, warmup=3, eval_every=1)
    config = dataclasses.replace(config, checkpoint_dir=directory, **settings)
    dataset = new_task["SortDataset"]
    loaders = [make_loader(dataset(320, 4, seed), 32, drop_last=seed == 1) for seed in (1, 2, 3)]
    return new_task["train_and_test"](new_task[trainer_class], config, lambda config: TaskData(*loaders))


@pytest.mark.slow
def test_the_changed_optimizer_decays_weights(new_task):
    trainer = new_task["AdamWTrainer"](new_task["SortConfig"](lr=0.5, warmup=0))
    optimizer = trainer.create_optimizer(7)
    weights, no_gradient = {"kernel": np.full((2, 3), 5.0, np.float32)}, {"kernel": np.zeros((2, 3), np.float32)}
    updates, _ = optimizer.update(no_gradient, optimizer.init(weights), weights)
    np.testing.assert_allclose(updates["kernel"], -0.5 * 0.01 * weights["kernel"], rtol=1e-6)


@pytest.mark.slow
def test_the_schedule_of_the_table_is_constant_after_the_warm_up(new_task):
    settings = {"lr": 0.5, "warmup": 5}
    trainer = new_task["ConstantTrainer"](dataclasses.replace(new_task["constant_config"], **settings))
    assert [float(trainer.create_schedule(11)(step)) for step in (0, 1, 5, 11)] == pytest.approx([0, 0.1, 0.5, 0.5])


@pytest.mark.slow
def test_the_changed_metric_chooses_the_best_model(tmp_path, new_task):
    trainer, results = train_shortly(tmp_path, new_task, "WholeTrainer", best_by=new_task["whole_config"].best_by)
    whole = {step: trainer.run.checkpoints.metrics(step)["whole"] for step in trainer.run.checkpoints.steps}
    assert whole[trainer.run.checkpoints.best_step] == max(whole.values())
    assert results["val"]["whole"] < results["val"]["accuracy"]  # a whole sequence is harder than a number


@pytest.mark.slow
def test_the_changed_block_computes_attention_and_feed_forward_side_by_side(new_task):
    model = new_task["parallel_model"].clone(num_layers=1, settings=BlockSettings(norm_first=True))
    x = np.random.default_rng(0).normal(size=(2, 5, 7)).astype(np.float32)
    bound = model.bind(model.init(jax.random.key(0), x))
    block = bound.encoder.layers[0]
    h = np.asarray(bound.input_layer(x))
    normed = block.self_attn_residual.norm(h)
    expected = h + block.self_attn(normed) + block.feed_forward(normed, train=False)
    np.testing.assert_allclose(block(h), expected, atol=1e-5)
    assert "feed_forward_residual" not in bound.variables["params"]["encoder"]["layers_0"]


@pytest.mark.slow
def test_the_plain_flax_model_trains_and_predicts(tmp_path, new_task, capsys):
    trainer, _ = train_shortly(tmp_path, new_task, "RecurrentTrainer")
    assert "Attention:" not in capsys.readouterr().out  # it has none
    assert "Dense_0" in trainer.params
    assert "encoder" not in trainer.params
    assert trainer.predict(np.array([[3, 1, 2, 0]])).shape == (1, 4)


@pytest.mark.slow
def test_the_callback_ends_the_training_and_goes_through_a_kill(tmp_path, new_task):
    callback = new_task["StopWhenSolved"]()
    for accuracy in (0.5, 1.0):
        assert not callback.wants_to_stop
        callback.on_evaluation(SimpleNamespace(metrics={"accuracy": accuracy}))
    again = new_task["StopWhenSolved"]()
    again.restore(json.loads(json.dumps(callback.state())))
    assert callback.wants_to_stop
    assert again.wants_to_stop
    with mock.patch.object(new_task["StopWhenSolved"], "on_evaluation", lambda self, _: setattr(self, "solved", True)):
        trainer, _ = train_shortly(tmp_path, new_task, "ShortTrainer")
    assert trainer.steps == 10  # of 20


@pytest.mark.slow
def test_weights_and_biases_get_the_curves_in_ten_lines(tmp_path, new_task):
    (block,) = (block for block in blocks_of("docs/new_task.md", "python") if "wandb" in block)
    logger = block.split("class WandbLogger")[1].split("class WandbTrainer")[0]
    assert sum(bool(line.strip()) for line in logger.splitlines()) <= 10
    wandb_run = mock.Mock()
    with mock.patch.dict(sys.modules, wandb=SimpleNamespace(init=mock.Mock(return_value=wandb_run))):
        train_shortly(tmp_path, new_task, "WandbTrainer", logger=new_task["wandb_config"].logger)
    logged = {name: call.kwargs["step"] for call in wandb_run.log.call_args_list for name in call.args[0]}
    assert {"train/loss", "val/accuracy", "test/accuracy"} <= logged.keys()
    assert logged["val/accuracy"] == 20
    assert wandb_run.finish.call_count == 2  # of the training, and of the test
