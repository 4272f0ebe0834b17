"""Make the archives beside this file: `python make.py reverse format_4` with a checkout of a commit on PYTHONPATH.

    git worktree add /tmp/earlier 8469dce
    cd /tmp/earlier
    PYTHONPATH=$PWD python CLONE/tests/older_runs/make.py reverse without_optimizer

trains with the package of commit 8469dce, and writes `reverse_without_optimizer.zip` beside this file.
"""

import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SHARED = {"max_epochs": 2, "batch_size": 7, "warmup": 1, "eval_every": 1, "model_dim": 6, "num_heads": 3}
SETTINGS = {  # of each task
    "reverse": {"train_size": 14, "val_size": 7, "test_size": 7, "seq_len": 5, "num_categories": 3, "num_layers": 1},
    "digits": {"set_size": 3, "num_layers": 1, "batch_size": 97},
    "translation": {"max_bytes": 17, "num_layers": 1, "dim_feedforward": 5},
    "language_model": {"seq_len": 11, "num_layers": 1, "dim_feedforward": 5},
}
WORDS = {"source_tokenizer": "words:20", "target_tokenizer": "words:20"}
TEXTS = {
    "translation": "".join(f"{n % 11}\t{n % 7}{n % 5}\n" for n in range(140)),
    "language_model": "a bee sees a sea, " * 31,
}
BULK = ("*.png", "events.out.tfevents.*", "*.txt", "*.tsv", ".lock", "_strings.json", "_sharding")


def settings_for(task: str, name: str, parent: Path) -> dict:
    """Return the settings of a run, and write its data."""
    settings = {**SHARED, **SETTINGS[task], "checkpoint_dir": parent}
    if task in TEXTS:
        settings["data"] = parent / "data.tsv"
        settings["data"].write_text(TEXTS[task], encoding="utf-8")
    return settings | (WORDS if name.endswith("words") else {})


def train(task: str, settings: dict) -> object:
    """Train; return the trainer and the results."""
    from transformer_jax import tasks  # of the commit

    train, config_class = {
        "reverse": ("train_reverse", "ReverseConfig"),
        "digits": ("train_anomaly", "DigitsConfig"),
        "translation": ("train_translation", "TranslationConfig"),
        "language_model": ("train_language_model", "LanguageModelConfig"),
    }[task]
    return getattr(tasks, train)(getattr(tasks, config_class)(**settings))


def main(task: str, name: str) -> None:
    """Train a run and archive it."""
    with tempfile.TemporaryDirectory() as directory:
        trainer, _ = train(task, settings_for(task, name, Path(directory)))
        (run,) = (path for path in Path(directory).iterdir() if path.is_dir())
        archive = HERE / f"{task}_{name}"
        if name.endswith("saved"):
            trainer.save(run := Path(directory, "saved"))
        for pattern in BULK:
            for file in run.glob(pattern):
                file.unlink()
        shutil.make_archive(str(archive), "zip", run)


if __name__ == "__main__":
    main(*sys.argv[1:])
