"""The command line of a paper: flags for its settings, and one flag each for settings that belong together."""

from collections.abc import Callable, Mapping

from transformer_jax import TaskData, TrainerModule, TrainingConfig, cli, train_and_test

Report = Callable[[TrainerModule, TaskData], Mapping[str, object]]


def main(trainer_class: type[TrainerModule], presets: Mapping[str, dict], report: Report | None = None) -> None:
    """Train and test with this process's arguments.

    Args:
        trainer_class: of the paper's task; the defaults of its `config_class` are the paper's setting.
        presets: other defaults by the flag that chooses them; each paper has `quick`, which takes seconds.
        report: as of `train_and_test`.
    """
    flags = {f"--{name}": settings for name, settings in presets.items()}

    def read_config(arguments: list[str]) -> TrainingConfig:
        config_class, chosen = trainer_class.config_class, [flags[flag] for flag in arguments if flag in flags]
        default = config_class(**{name: value for settings in chosen for name, value in settings.items()})
        others = [argument for argument in arguments if argument not in flags]
        words = f"{config_class.__doc__} Other defaults: {', '.join(flags)}."
        return cli.parse(config_class, others, default=default, description=words, task=trainer_class.name)

    cli.run(read_config, lambda config: train_and_test(trainer_class, config, trainer_class.load_data, report))
