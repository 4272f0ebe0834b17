"""The documentation is correct: its code runs as written, its commands parse, its links have targets."""

import contextlib
import dataclasses
import json
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import HTTPServer
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from unittest import mock
from urllib.request import urlopen

import jax
import numpy as np
import pytest
import torch
from commands import call
from finished_runs import reverse_run
from flax.traverse_util import flatten_dict
from inspection_pages import content_of, unpacked
from memory import free_programs_if_full
from repository import REPOSITORY

import transformer_jax
from documents import blocks_of, text_of
from transformer_jax import (
    BlockSettings,
    load_run,
)
from transformer_jax.data.loader import make_loader
from transformer_jax.inspection.__main__ import read_command as read_inspection
from transformer_jax.runs.__main__ import main as list_runs
from transformer_jax.tasks.task_data import TaskData

PAGES = ["README.md", "CONTRIBUTING.md", *(str(p.relative_to(REPOSITORY)) for p in REPOSITORY.glob("docs/**/*.md"))]
MAX_LINES = 18  # of a part that is changed


def prose_of(page: str) -> str:
    return re.sub(r"^```.*?^```|`[^`\n]*`", "", text_of(page), flags=re.DOTALL | re.MULTILINE)


def headings_of(page: str) -> set[str]:
    """Return the anchors of a page, as both GitHub and MkDocs make them from headings in plain words."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_the_readme_is_short():
    assert len(text_of("README.md").split()) <= 900


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
        for module, name in re.findall(r"from \.(\w\S*) import (\w+)", stub.read_text())
    }
    listed = [name for page in PAGES for name in re.findall(r"^::: (\S+)$", text_of(page), re.MULTILINE)]
    assert len(listed) == len(set(listed))
    assert public <= set(listed)
    for name in set(listed) - public:  # of modules without a face, such as `transformer_jax.plots`
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute), name


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A root directory like the repository's after `make reverse`, in which the documents' code runs."""
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
    """Run a `with` block as if Python were started in a directory."""
    modules = set(sys.modules)
    with contextlib.chdir(root), mock.patch.object(sys, "path", [str(root), *sys.path]):
        yield
    for name in set(sys.modules) - modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(root):
            del sys.modules[name]


def run_page(page: str, root: Path, *changed: tuple[str, str]) -> dict:
    """Run a page's code blocks in order, and return the names that they define."""
    file = root / f"{Path(page).stem}_page.py"
    code = "\n\nfree_programs_if_full()\n\n".join(blocks_of(page, "python"))
    for text, other in changed:
        assert text in code
        code = code.replace(text, other)
    file.write_text(code, encoding="utf-8")
    with inside(root):
        return runpy.run_path(str(file), {"free_programs_if_full": free_programs_if_full})


def run_blocks(page: str, root: Path) -> list[dict]:
    """Run each code block of a page alone, and return the names that each defines."""
    names = []
    for number, block in enumerate(blocks_of(page, "python")):
        file = root / f"{Path(page).stem}_block_{number}.py"
        file.write_text(block, encoding="utf-8")
        with inside(root):
            names.append(runpy.run_path(str(file)))
        free_programs_if_full()
    return names


def commands_of(page: str) -> list[str]:
    lines = [line for block in blocks_of(page, "") for line in block.splitlines()]
    lines += re.findall(r"`(make [^`\n]+)`", text_of(page))
    return [line for line in lines if re.match(r"(\.venv/bin/)?python |make ", line)]


def refusal_of(command: str) -> str | None:
    """Return why a command would not start (unknown script, flag, setting or target); None if it would."""
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        recipe = re.search(rf"^{words[1]}:.*\n((?:\t.*\n)+)", text_of("Makefile"), re.MULTILINE)
        if recipe is None:
            return f"no target {words[1]}"
        script = re.search(r"(?:experiments|benchmarks)/\w+\.py", recipe[1])
        given = [word.removeprefix("ARGS=") for word in words[2:]]
        return refusal_of(f"python {script[0]} {' '.join(given)}") if script else None
    if words[1:3] == ["-m", "transformer_jax.runs"]:
        list_runs(words[3:])
    elif words[1:3] == ["-m", "transformer_jax.inspection"]:
        read_inspection(words[3:])
    elif words[1] != "-m":
        outcome = call(str(Path.cwd() / words[1]), *words[2:])
        return f"status {outcome.status}: {outcome.stderr}" if outcome.status else None
    return None


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)])
def test_commands_are_read(root, page, monkeypatch):
    def read_alone(read: Callable[[list[str]], object], train: object) -> None:
        read(sys.argv[1:])  # and train nothing

    monkeypatch.setattr("transformer_jax.cli.run", read_alone)
    monkeypatch.setitem(vars(transformer_jax), "run", read_alone)  # the package keeps what was once imported from it
    with inside(root):
        refusals = {command: refusal_of(command) for command in commands_of(page)}
    assert refusals == dict.fromkeys(commands_of(page))


@pytest.mark.slow
def test_the_readmes_code_runs(root):
    names = run_page("README.md", root, ('if __name__ == "__main__":', "if True:"))
    assert names["results"]["test_acc"] > 0.9
    assert str(names["trained"].predict(names["numbers"])) in text_of("README.md")
    assert (root / "attention.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_code_on_models_runs(root):
    names = run_page("docs/models.md", root)
    assert json.loads((root / "checkpoints/short/results.json").read_text())["steps"] == 30
    assert names["dates"].predict(["March 3, 2004", "3. Januar 2017"]) == ["2004-03-03", "2017-01-03"]
    assert names["seen"].maps["cross"][-1].shape == (4, 11, 14)  # start and 10 characters, 14 characters
    assert names["tokens"].shape == (2, 9)
    assert names["continued"].shape == (2, 24)


@pytest.mark.slow
def test_the_examples_of_the_reference_run(root):
    pages = {page.stem: run_page(f"docs/api/{page.name}", root) for page in REPOSITORY.glob("docs/api/*.md")}
    assert pages["models"]["logits"].shape == (8, 16, 10)
    assert pages["inspection"]["seen"]["encoder.layers.0.attention.weights"].shape == (1, 1, 16, 16)
    assert pages["training"]["results"]["steps"] == 100
    assert (root / "maps.png").is_file()


@pytest.mark.slow
def test_every_block_on_inspection_runs_alone(root):
    blocks = run_blocks("docs/inspection.md", root)
    result, captured, patched, bound, methods, _, own_task = blocks
    cross = content_of(result["page"])["kinds"][2]["layers"]  # by layer
    assert result["page"].answers[0].text == "2017-01-03"
    assert [answer["text"] for layer in cross for answer in layer["ablated"]] == [
        "2017-01-02" if number == 4 else "2017-01-03" for number in range(8)
    ]
    stored = cross[1]["map"]  # its head 0, which writes the last digit, reads the 3 of `mardi 3 janvier 2017`
    blob = re.search(rf'id="blob-{stored["blob"]}">(.*?)<', result["page"].text)[1]
    weights = np.frombuffer(unpacked(blob), "<u2").reshape(stored["shape"]) / 10_000
    assert weights[0, 9, 6] == pytest.approx(0.98, abs=0.005)
    assert captured["accuracies"] == [1, pytest.approx(0.1, abs=0.02)]  # its only head reverses; chance is 0.1
    assert captured["letters"]["encoder.layers.0.attention.weights"] == "B H T S"
    assert captured["weights"].shape == (100, 1, 16, 16)
    assert not patched["seen"][patched["weights"]][:, :, 0, 15].any()
    assert patched["ablated"].shape == (1, 100, 16, 10)
    assert bound["streams"].shape == (1, 100, 16, 32)
    grid = bound["grid"].values
    assert np.unravel_index(grid.argmax(), (1, 16, 1)) == (0, 0, 0)  # the head, at the answer's place
    assert methods["table"].without["encoder"].round(4).tolist() == [[0.0995]]
    assert methods["restored"].argmax() == 15  # what stands first in the answer is last in the input
    assert own_task["spelled"].examples[0].labels == ["d", "b", "e", "b", "f"]
    for name in ("inspection.html", "model.html", "letters.html"):
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
def test_the_code_on_labels_runs_with_a_table_of_a_spreadsheet(root):
    texts = [f'"{word}, {number}",{label}' for number in range(40) for word, label in (("A film", "a"), ("Dull", "b"))]
    (root / "reviews.csv").write_text("\n".join(["text,label", *texts]) + "\n")
    names = run_page("docs/labels.md", root)
    assert set(names["trained"].predict(["A film", "Dull"])) <= {"a", "b"}
    assert (root / "saved" / "model.safetensors").is_file()


@pytest.mark.slow
def test_the_code_on_deployment_answers_in_a_service_in_pytorch_and_in_onnx(root, capsys):
    names = run_page("docs/deployment.md", root)
    assert names["arrays"].keys() == flatten_dict(names["reopened"].params, sep="/").keys()
    assert capsys.readouterr().out == "2017-01-03\n2017-01-03\n"
    assert names["difference"] < 1e-5 * abs(names["logits"]).max()
    with HTTPServer(("127.0.0.1", 0), names["Answers"]) as server:
        asked = ThreadPoolExecutor().submit(server.handle_request)
        with urlopen(f"http://127.0.0.1:{server.server_port}", b'["March 3, 2004"]') as reply:
            assert json.load(reply) == ["2004-03-03"]
        asked.result()


@pytest.mark.slow
def test_the_code_on_the_modules_alone_learns_to_reverse(root):
    names = run_page("docs/only_the_modules.md", root)
    assert names["losses"][:, -1].max() < 0.1  # of each seed
    assert names["nnx_logits"].shape == (1, 8, 10)
    assert names["logits"].argmax(-1).tolist() == [[6, 2, 9, 5, 1, 4, 1, 3]]


@pytest.mark.slow
def test_the_port_has_the_outputs_the_loss_curve_and_the_predictions_of_the_pytorch_project(tmp_path):
    names = run_page("docs/porting.md", tmp_path)
    trainer, torch_tagger = names["trainer"], names["torch_tagger"]
    rows = [line.split(",") for line in (tmp_path / "checkpoints/Tagger/metrics.csv").read_text().splitlines()[1:]]
    curve = [float(value) for _, name, value in rows if name == "train/loss"]
    np.testing.assert_allclose(curve, names["expected"], rtol=0, atol=1e-5)
    assert len(curve) == 60
    assert len(text_of("docs/porting.md").split()) <= 800
    assert curve[-1] < 0.7 * curve[0]
    ids, tags = next(iter(names["data"].val_loader))
    with torch.no_grad():
        logits = torch_tagger(torch.from_numpy(ids)).numpy()
    carried = names["params_of"](torch_tagger)
    np.testing.assert_allclose(trainer.forward(ids, params=carried)[ids != 0], logits[ids != 0], atol=1e-5)
    assert names["results"]["val"]["f1"] == pytest.approx(trainer.evaluate(names["data"].val_loader)["f1"])
    answers = trainer.answers(trainer.examples(ids))
    assert [len(answer.text.split()) for answer in answers] == (ids != 0).sum(1).tolist()
    right = [(row.argmax(-1) == tag)[tag != -100].mean() for row, tag in zip(logits, tags, strict=True)]
    assert np.mean(right) > 0.8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "shown"),
    [("docs/attention.md", blocks_of("docs/attention.md", "text")), ("docs/circuits.md", "1.0 1.0\n")],
)
def test_code_prints_what_the_page_shows(page, shown, tmp_path, capsys):
    run_page(page, tmp_path)
    assert capsys.readouterr().out == "".join(shown)


@pytest.mark.slow
def test_the_code_on_induction_heads_trains_and_its_identities_hold(root):
    """With 20 steps instead of 1 200, no head has formed, but the identities hold."""
    names = run_page("docs/induction.md", root, ("STEPS, V, T = 1200", "STEPS, V, T = 20"))
    assert names["losses"].shape == (20,)
    assert names["losses"][-1] < names["losses"][0]
    assert names["exact"].shape == names["estimate"].shape == (3, 4, 4)
    assert names["lost"].shape == (2, 4)
    plain = names["model"].apply(names["variables"], names["tokens"])
    np.testing.assert_allclose(names["folded"].apply({"params": names["weights"]}, names["tokens"]), plain, atol=1e-4)
    assert names["previous"].argmax() == names["note"]


@pytest.mark.slow
def test_the_code_on_grokking_trains_and_its_identities_hold(root):
    """With 200 steps modulo 11, the rule is not yet learned, but shares sum to 1 and the identities hold."""
    names = run_page("docs/grokking.md", root, ("SHARE, STEPS = 53, 64, 0.5, 4000", "SHARE, STEPS = 11, 8, 0.5, 200"))
    assert names["curves"][0].shape == names["curves"][1].shape == (2,)
    assert names["curves"][0][-1] < names["curves"][0][0]
    for shares in (names["spectrum"], *names["by_head"], names["of_answers"]):
        assert shares.shape == (5,)
        np.testing.assert_allclose(shares.sum(), 1, rtol=1e-5)
    assert (names["of_frequency"].sum(0) < 1 + 1e-5).all()
    assert 0 < names["explained"] < 1
    plain = names["accuracy"](names["logits"])
    assert names["accuracy_with"]({"token_embeddings": names["add"](names["filtered"](np.full(6, True)))}) == plain
    assert names["without_head"].shape == (4,)


@pytest.mark.slow
def test_the_code_on_features_finds_the_known_ones_and_its_identities_hold(tmp_path):
    """With fewer rows, steps and passes than on the page, and one measurement of speed."""
    fewer = ("12, 2000", "12, 1000"), ("100_000, 20, 20, 2_000", "30_000, 20, 4, 500"), (", 50)", ", 10)")
    smaller = "trained = load_run(model)\n    trained.config = dataclasses.replace(trained.config, test_size=1000)"
    fewer += ("import optax", "import dataclasses, optax"), ("trained = load_run(model)", smaller)
    names = run_page("docs/features.md", tmp_path, *fewer, ("range(9)", "range(1)"))
    assert names["recovered"].mean() > 0.9
    assert names["loss"].recovered > 0.9
    np.testing.assert_allclose(names["same"], names["clean"], atol=1e-4)
    assert abs(names["changed"] - names["clean"]).max() > 0.1
    assert names["of_transcoder"].recovered > 0.5
    assert names["transcoded"].shape == names["clean"].shape
    np.testing.assert_allclose(names["values"], names["graph"].nodes.value, atol=1e-4)
    assert names["mirrored"] == 13
    for page in ("features.html", "graph.html"):
        assert (tmp_path / page).read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.fixture(scope="module")
def new_task(root) -> dict:
    """Run each block of docs/new_task.md alone, beside the whole task, and return the names that they define."""
    for change in blocks_of("docs/new_task.md", "python")[2:]:
        assert sum(bool(line.strip()) for line in change.splitlines()) <= MAX_LINES
    with inside(root):
        names = dict(vars(import_module("sort")))
        for of_block in run_blocks("docs/new_task.md", root)[1:]:
            names |= of_block
    return names


@pytest.mark.slow
def test_the_new_task_learns_and_comes_back(new_task, root):
    assert new_task["results"]["test_acc"] > 0.9
    np.testing.assert_array_equal(new_task["sorter"].predict(np.array([[3, 1, 2, 0]])), [[0, 1, 2, 3]])
    assert new_task["seen"].key_labels == {"encoder": ["3", "1", "2", "0"]}
    assert (root / "checkpoints/SortTask/attention_maps.png").is_file()
    assert new_task["sorter"].test()["test"] == pytest.approx(new_task["results"]["test"], rel=1e-5)


@pytest.mark.slow
def test_the_scale_of_the_training_set_goes_with_the_model_to_another_machine(new_task, tmp_path, monkeypatch):
    trainer = new_task["ScaledTrainer"](new_task["ScaledConfig"](seq_len=5))
    trainer.params = trainer.initial_params(jax.random.key(0), np.zeros((1, 5), np.int32))
    trainer.save(tmp_path / "scaled")
    monkeypatch.delitem(new_task["ScaledTrainer"].model_files.__globals__, "SortDataset")  # no data there
    opened = load_run(tmp_path / "scaled", new_task["ScaledTrainer"])
    assert opened.scale == trainer.scale == pytest.approx([4.5, 33**0.5 / 2], abs=0.02)


@pytest.mark.slow
def test_the_changed_optimizer_decays_weights(new_task):
    optimizer = new_task["AdamWTrainer"](new_task["SortConfig"](lr=0.5, warmup=0)).create_optimizer(7)
    weights, no_gradient = {"kernel": np.full((2, 3), 5.0, np.float32)}, {"kernel": np.zeros((2, 3), np.float32)}
    updates, _ = optimizer.update(no_gradient, optimizer.init(weights), weights)
    np.testing.assert_allclose(updates["kernel"], -0.5 * 0.01 * weights["kernel"], rtol=1e-6)


@pytest.mark.slow
def test_the_changed_schedule_falls_on_a_line(new_task):
    trainer = new_task["LinearTrainer"](dataclasses.replace(new_task["linear_config"], lr=0.5))
    assert [float(trainer.create_schedule(10)(step)) for step in (0, 2, 5, 11)] == pytest.approx([0.5, 0.4, 0.25, 0])


@pytest.mark.slow
def test_the_changed_block_computes_attention_and_feed_forward_side_by_side(new_task):
    model = new_task["parallel_model"].clone(num_layers=1, settings=BlockSettings(norm_first=True))
    x = np.random.default_rng(0).normal(size=(2, 5, 7)).astype(np.float32)
    bound = model.bind(model.init(jax.random.key(0), x))
    block = bound.encoder.layers[0]
    h = np.asarray(bound.input_layer(x))
    normed = block.self_attn_residual.norm(h)
    np.testing.assert_allclose(
        block(h), h + block.self_attn(normed) + block.feed_forward(normed, train=False), atol=1e-5
    )


@pytest.mark.slow
def test_metric_model_callback_and_logger_work_in_one_training_of_two_epochs(tmp_path, new_task, monkeypatch):
    parts = [new_task[f"{part}Trainer"] for part in ("Whole", "Recurrent", "Short", "Wandb")]
    config = new_task["SortConfig"](seq_len=4, max_epochs=2, batch_size=32, warmup=3, eval_every=1)
    best_by, logger = new_task["whole_config"].best_by, new_task["wandb_config"].logger
    config = dataclasses.replace(config, checkpoint_dir=tmp_path, best_by=best_by, logger=logger)
    data = TaskData(
        *(make_loader(new_task["SortDataset"](320, 4, seed), 32, drop_last=seed == 1) for seed in (1, 2, 3))
    )
    wandb_run = mock.Mock()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=mock.Mock(return_value=wandb_run)))
    trainer, results = new_task["train_and_test"](type("Changed", tuple(parts), {}), config, lambda config: data)
    whole = {step: trainer.run.checkpoints.metrics(step)["whole"] for step in trainer.run.checkpoints.steps}
    assert whole[trainer.run.checkpoints.best_step] == max(whole.values())
    assert results["val"]["whole"] < results["val"]["accuracy"]  # a whole sequence is harder than a number
    assert "encoder" not in trainer.params
    assert trainer.predict(np.array([[3, 1, 2, 0]])).shape == (1, 4)
    logged = {name: call.kwargs["step"] for call in wandb_run.log.call_args_list for name in call.args[0]}
    assert {"train/loss", "val/accuracy", "test/accuracy"} <= logged.keys()
    assert logged["val/accuracy"] == 20
    assert wandb_run.finish.call_count == 2  # of the training, and of the test


@pytest.mark.slow
def test_the_callback_wants_to_stop_once_the_task_is_solved_and_goes_through_a_kill(new_task):
    callback, again = (new_task["StopWhenSolved"]() for _ in range(2))
    for accuracy in (0.5, 1.0):
        assert not callback.wants_to_stop
        callback.on_evaluation(SimpleNamespace(metrics={"accuracy": accuracy}))
    again.restore(json.loads(json.dumps(callback.state())))
    assert callback.wants_to_stop
    assert again.wants_to_stop
