"""Every command by one name: `python -m transformer_jax reverse --lr 1e-3`, or `transformer-jax reverse …`."""

if __name__ == "__main__":  # the imports below take seconds
    from transformer_jax.fit.signals import end_at_signals

    end_at_signals()

import runpy
import sys
from functools import partial

from transformer_jax.cli import parse, run
from transformer_jax.errors import meant
from transformer_jax.flags import end_with

# Experiments: the names, in `tasks`, of the config class and the function, and the name of the task.
TRAINED = {
    "reverse": ("ReverseConfig", "train_reverse", "ReverseTask"),
    "anomaly": ("DigitsConfig", "train_anomaly", "SetAnomalyTask_digits"),
    "translate": ("TranslationConfig", "train_translation", "TranslationTask"),
    "language-model": ("LanguageModelConfig", "train_language_model", "LanguageModelTask"),
    "classify": ("ClassificationConfig", "train_classification", "ClassificationTask"),
}
OTHERS = ("predict", "inspection", "runs", "trained")
PROGRAM = "transformer_jax"


def main() -> None:
    """Run the command that the first argument names, with the remaining arguments."""
    names = (*TRAINED, *OTHERS)
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print(f"usage: python -m {PROGRAM} COMMAND [OPTIONS]\n\ncommands: {', '.join(names)}")
        return
    if name not in names:
        known = f"{meant(name, names)}; commands are {', '.join(names)}"
        end_with(f"{PROGRAM}: error: unknown command: {name}{known}\n", 2)
    del sys.argv[1]
    if name in OTHERS:
        runpy.run_module(f"{PROGRAM}.{name}", run_name="__main__", alter_sys=True)
        return
    from transformer_jax import tasks  # not for the other commands

    config_class, train, task = TRAINED[name]
    sys.argv[0] = f"{PROGRAM} {name}"  # for the help and for errors
    run(partial(parse, getattr(tasks, config_class), task=task), getattr(tasks, train))


if __name__ == "__main__":
    main()
