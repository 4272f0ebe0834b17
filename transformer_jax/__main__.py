"""Every command by one name: `python -m transformer_jax reverse --lr 1e-3`, or `transformer-jax reverse …`."""

if __name__ == "__main__":  # the imports below take seconds
    from transformer_jax.fit.signals import end_at_signals

    end_at_signals()

import runpy
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from transformer_jax.cli import parse, run
from transformer_jax.errors import meant
from transformer_jax.flags import end_with

TRAINED = ("reverse", "anomaly", "translate", "language-model", "classify")
OTHERS = ("predict", "inspection", "runs", "trained")
PROGRAM = "transformer_jax"


def experiment(name: str) -> tuple[type[Any], str, Callable[[Any], object]]:
    """The config class, the name of the task and the function of an experiment."""
    from transformer_jax import tasks  # not for the other commands

    commands: dict[str, tuple[type[Any], str, Callable[[Any], object]]] = {
        "reverse": (tasks.ReverseConfig, "ReverseTask", tasks.train_reverse),
        "anomaly": (tasks.DigitsConfig, "SetAnomalyTask_digits", tasks.train_anomaly),
        "translate": (tasks.TranslationConfig, "TranslationTask", tasks.train_translation),
        "language-model": (
            tasks.LanguageModelConfig,
            "LanguageModelTask",
            tasks.train_language_model,
        ),
        "classify": (
            tasks.ClassificationConfig,
            "ClassificationTask",
            tasks.train_classification,
        ),
    }
    return commands[name]


def main() -> None:
    """Run the command that the first argument names, with the remaining arguments."""
    names = (*TRAINED, *OTHERS)
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print(f"usage: python -m {PROGRAM} COMMAND [OPTIONS]\n\ncommands: {', '.join(names)}")
        return
    if name not in names:
        message = f"unknown command: {name}{meant(name, names)}; commands are {', '.join(names)}"
        end_with(f"{PROGRAM}: error: {message}\n", 2)
    del sys.argv[1]
    if name in OTHERS:
        runpy.run_module(f"{PROGRAM}.{name}", run_name="__main__", alter_sys=True)
        return
    config_class, task, train = experiment(name)
    sys.argv[0] = f"{PROGRAM} {name}"  # for the help and for errors
    run(partial(parse, config_class, task=task), train)


if __name__ == "__main__":
    main()
