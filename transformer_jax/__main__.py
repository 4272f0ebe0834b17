"""Every command by one name: `python -m transformer_jax reverse --lr 1e-3`, or `transformer-jax reverse …`."""

if __name__ == "__main__":  # the imports below take seconds
    from transformer_jax.fit.signals import end_at_signals

    end_at_signals()

import runpy
import sys
from functools import partial

from transformer_jax.cli import parse, run
from transformer_jax.errors import meant
from transformer_jax.flags import ALL, end_with

# Experiments: the names, in `tasks`, of the config class and the function, and the name of the task.
TRAINED = {
    "reverse": ("ReverseConfig", "train_reverse", "ReverseTask"),
    "anomaly": ("DigitsConfig", "train_anomaly", "SetAnomalyTask_digits"),
    "translate": ("TranslationConfig", "train_translation", "TranslationTask"),
    "language-model": ("LanguageModelConfig", "train_language_model", "LanguageModelTask"),
    "classify": ("ClassificationConfig", "train_classification", "ClassificationTask"),
}
COMMANDS = {
    "reverse": "train a Transformer to reverse sequences of numbers",
    "anomaly": "train a model that finds the odd image in a set",
    "translate": "train a translation model on dates, or on pairs of texts in a file",
    "language-model": "train a language model on a text",
    "classify": "train a classifier of texts, or fine-tune a published encoder",
    "predict": "print a trained model's answers",
    "inspection": "write a page that shows a trained model's attention",
    "runs": "list the runs below a directory, or compare two runs",
    "trained": "export a trained model",
}
PROGRAM = "transformer_jax"


def main() -> None:
    """Run the command that the first argument names, with the remaining arguments."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help", ALL):
        print(f"usage: python -m {PROGRAM} COMMAND [OPTIONS]\n\ncommands:")
        for command, words in COMMANDS.items():
            print(f"  {command:16}{words}")
        return
    if name not in COMMANDS:
        known = f"{meant(name, COMMANDS)}; commands are {', '.join(COMMANDS)}"
        end_with(f"{PROGRAM}: error: unknown command: {name}{known}\n", 2)
    del sys.argv[1]
    if name not in TRAINED:
        runpy.run_module(f"{PROGRAM}.{name}", run_name="__main__", alter_sys=True)
        return
    from transformer_jax import tasks  # not for the other commands

    config_class, train, task = TRAINED[name]
    sys.argv[0] = f"python -m {PROGRAM} {name}"  # for the help and for errors
    run(partial(parse, getattr(tasks, config_class), task=task), getattr(tasks, train))


if __name__ == "__main__":
    main()
