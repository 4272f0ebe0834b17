"""Make the archives beside this file: `README.md` lists them.

    git worktree add /tmp/earlier 8469dce
    cd /tmp/earlier
    PYTHONPATH=$PWD python CLONE/tests/older_runs/make.py reverse before_optimizers

trains with the package of commit 8469dce, and writes `reverse_before_optimizers.tar.xz` beside this file.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SHARED = {"max_epochs": 2, "batch_size": 7, "warmup": 1, "eval_every": 1, "num_layers": 1}
SETTINGS = {  # of each task
    "reverse": {
        "model_dim": 6, "num_heads": 3, "train_size": 14, "val_size": 7, "test_size": 7, "seq_len": 5,
        "num_categories": 3,
    },
    "translation": {"model_dim": 4, "num_heads": 2, "max_bytes": 17, "dim_feedforward": 3},
    "language_model": {"model_dim": 4, "num_heads": 2, "train_size": 35, "seq_len": 11, "dim_feedforward": 3},
}  # fmt: skip
WORDS = {"source_tokenizer": "words", "target_tokenizer": "words"}
TEXTS = {
    "translation": "".join(f"{n % 11} a\t{n % 7} b\n" for n in range(140)),
    "language_model": "a bee sees a sea, " * 31,
}
# Files that a run does not need, of an archive that should be small.
BULK = ("*.png", "events.out.tfevents.*", "*.txt", "*.tsv", ".lock")


def settings_for(task: str, name: str) -> dict:
    """Return the settings of a run in the current directory, and write its data."""
    settings = {**SHARED, **SETTINGS[task], "checkpoint_dir": Path()}
    if task in TEXTS:
        settings["data"] = Path("data.tsv")
        settings["data"].write_text(TEXTS[task], encoding="utf-8")
    return settings | (WORDS if name.endswith("words") else {})


def train(task: str, settings: dict) -> tuple:
    """Train; return the trainer and the results."""
    import transformer_jax  # of the commit

    train, config_class = {
        "reverse": ("train_reverse", "ReverseConfig"),
        "translation": ("train_translation", "TranslationConfig"),
        "language_model": ("train_language_model", "LanguageModelConfig"),
    }[task]
    return getattr(transformer_jax, train)(getattr(transformer_jax, config_class)(**settings))


def main(task: str, name: str) -> None:
    """Train a run and archive it."""
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        trainer, _ = train(task, settings_for(task, name))
        (run,) = (path for path in Path().iterdir() if path.is_dir())
        if name.endswith("saved"):
            trainer.save(run := Path("saved"))
        for pattern in BULK:
            for file in run.glob(pattern):
                file.unlink()
        shutil.make_archive(str(HERE / f"{task}_{name}"), "xztar", run)


if __name__ == "__main__":
    main(*sys.argv[1:])
