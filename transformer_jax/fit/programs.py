"""Compiled programs of a training run; the states with which it begins and ends."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array
from jax.typing import ArrayLike

from transformer_jax.argument_checks import as_arrays, check_arrays
from transformer_jax.config import TrainingConfig
from transformer_jax.data.loader import Loader
from transformer_jax.devices.compilation import RUN_ONCE_OPTIONS, BackgroundProgram, host_device
from transformer_jax.devices.processes import say, whole
from transformer_jax.devices.sharing import Devices
from transformer_jax.errors import InputError
from transformer_jax.fit.runner import StepRunner
from transformer_jax.fitted.fitted import CompiledTask
from transformer_jax.nn.layer_stacks import stack_layers, unstack_layers
from transformer_jax.runs.checkpoints import Checkpoint
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.state_arrays import digest_of_arrays
from transformer_jax.training.checks import check_full_batches, check_result
from transformer_jax.training.optimizers import average_of, matching, with_average, with_frozen
from transformer_jax.training.schedules import PLATEAU, with_plateau
from transformer_jax.training.step import TrainState, UpdateRule, initial_state
from transformer_jax.training.task import Task
from transformer_jax.trees import VARIABLES, Arrays, Inputs, Params, merged


class InitialParams(NamedTuple):
    """Given arrays with which training begins; none if all are fresh."""

    arrays: Mapping[str, np.ndarray]  # by path; copies, in the model's dtypes
    # lines with path and shape of the given arrays not taken, and of the model's fresh ones
    not_taken: tuple[str, ...]

    @property
    def digest(self) -> str | None:
        """SHA-256 of the arrays, with their names and shapes; None if there are none."""
        return digest_of_arrays(dict(self.arrays)) if self.arrays else None

    def summary(self) -> str:
        """The number of arrays taken, and a line for each array that is not taken or fresh."""
        return "\n".join([f"Arrays that training begins with: {len(self.arrays)}", *self.not_taken])


def choose_initial(given: Params | None, like: Params, config: TrainingConfig) -> InitialParams:
    """Choose the given parameters with which training begins.

    Args:
        given: parameters of a model with the same names and shapes; None for fresh ones.
        like: parameters of this model, or their shapes and dtypes; its layers may be stacked.
        config: `init_only` has patterns (see `matching`) of the model's arrays to take; the names and shapes of all
            other arrays may then differ.

    Raises:
        InputError: a name or a shape differs, an array is not floating-point or not finite, or a pattern matches no
            array.
    """
    if given is None:
        return InitialParams({}, ())
    arrays = as_arrays("initial_params", flatten_dict(given, sep="/"))
    model_arrays = flatten_dict(jax.eval_shape(unstack_layers, like), sep="/")
    expected = model_arrays
    taken = arrays
    if config.init_only is not None:
        chosen_paths = matching(config.init_only, model_arrays.keys(), "init_only")
        expected = {path: leaf for path, leaf in model_arrays.items() if path in chosen_paths}
        taken = {path: arrays[path] for path in expected if path in arrays}
    check_arrays(taken, expected, config.init_from or "initial_params")
    lines = []
    for path in sorted(arrays.keys() - taken.keys()):
        lines.append(f"  not taken: {path} {[*arrays[path].shape]}")
    for path, leaf in model_arrays.items():
        if path not in expected and path not in arrays:
            lines.append(f"  fresh: {path} {[*leaf.shape]}")
    copies = {path: np.array(taken[path], leaf.dtype) for path, leaf in expected.items()}
    return InitialParams(copies, tuple(lines))


def report_initial(config: TrainingConfig, given: InitialParams, *, is_resumed: bool) -> None:
    """Print which given parameters are taken and which are not, unless the run is resumed.

    Raises:
        InputError: `init_from` or `init_only` is set, but no parameters are given.
    """
    if is_resumed:
        return
    if given.arrays:
        say(given.summary())
        return
    for name in ("init_from", "init_only"):
        value = getattr(config, name)
        if value is not None:
            raise InputError(
                f"{name} is {value}, but no parameters are given; use train_and_test, which reads"
                " init_from, or pass initial_params to fit"
            )
    if config.lora is not None:
        say("Low-rank adapters of a model whose other parameters stay random: init_from is none")


class Programs(NamedTuple):
    """Compiled programs of a training run."""

    shapes: TrainState  # and dtypes
    shapes_of_model: Params  # of its parameters, with low-rank adapters merged
    chosen_params: InitialParams  # arrays that replace fresh ones in the initial state
    initial_state: Callable[[], TrainState]  # waits for the compiler
    runner: StepRunner


def update_rule(task: Task, num_steps: int) -> UpdateRule:
    """Create the update rule of a training run of `num_steps` steps; it leaves frozen parameters unchanged."""
    schedule = check_result(task, "create_schedule", task.create_schedule(num_steps), Callable)
    optimizer = task.create_optimizer(num_steps)
    if not hasattr(optimizer, "update"):  # Optax has several classes of optimizers
        check_result(task, "create_optimizer", optimizer, optax.GradientTransformation)
    config = task.config
    if config.freeze is not None and config.lora is None:  # adapters are trained instead of arrays
        optimizer = with_frozen(optimizer, config.freeze)
    if config.schedule == PLATEAU:
        optimizer = with_plateau(optimizer)
    if config.ema:
        optimizer = with_average(optimizer, config.ema)
    return UpdateRule(
        optimizer,
        schedule,
        config.gradient_clip,
        config.accumulate,
        config.log_norms,
        task.loss_terms,
    )


def create_programs(
    compiled: CompiledTask, train_loader: Loader, num_steps: int, given: Params | None = None
) -> Programs:
    """Create the programs of a training run, and start to compile that of the initial state in the background.

    Args:
        compiled: the task to train, with its devices.
        train_loader: loader of the training set.
        num_steps: number of steps of the whole run.
        given: initial parameters, see `choose_initial`; None for fresh ones.

    Raises:
        InputError: see `choose_initial` and `check_full_batches`; or the warm-up is not shorter than training.
    """
    task = compiled.task
    devices = compiled.devices
    rule = update_rule(task, num_steps)
    # traced for the shapes, and again for the program only if arrays are given
    init = jax.jit(functools.partial(_first_state, task, rule.optimizer))
    arguments = np.uint32(task.config.seed), train_loader.example()[0], task.constants
    shapes = init.eval_shape(*arguments, {})
    shapes_of_model = jax.eval_shape(merged, shapes.params)
    if VARIABLES in shapes_of_model:
        check_full_batches(train_loader)
        # Statistics of a batch need the rows of all devices.
        is_divided = devices.partitioned_by_xla or devices.mesh.size > 1
        devices = dataclasses.replace(devices, partitioned_by_xla=is_divided)
    chosen = choose_initial(given, shapes_of_model, task.config)
    # A sharded state is created sharded, so that no device ever holds all of it. An unsharded one is computed by the
    # host, since compiling for an accelerator takes much longer.
    is_sharded = devices.partitioned_by_xla
    program = BackgroundProgram(
        init,
        options=RUN_ONCE_OPTIONS,
        shardings=devices.shardings(shapes) if is_sharded else None,
        device=None if is_sharded else host_device(),
        stopwatch=compiled.stopwatch,
    )
    all_arguments = *arguments, chosen.arrays
    program.begin_to_compile(*all_arguments)
    runner = StepRunner(compiled, devices, rule, shapes, train_loader)
    return Programs(
        shapes, shapes_of_model, chosen, lambda: devices.place(program(*all_arguments)), runner
    )


def _first_state(
    task: Task,
    optimizer: optax.GradientTransformation,
    seed: ArrayLike,
    inputs: Inputs,
    constants: Arrays,
    arrays: Mapping[str, Array],
) -> TrainState:
    """The state before the first step, with given arrays in place of fresh ones; compiled."""
    params_key, step_key = jax.random.split(jax.random.key(seed))
    params = task.initial_params(params_key, inputs, constants)
    if arrays:
        unstacked = flatten_dict(unstack_layers(params), sep="/") | arrays
        params = stack_layers(unflatten_dict(unstacked, sep="/"), params)
    if task.config.lora is not None:
        from transformer_jax.training.low_rank import with_adapters  # only for this setting

        params = with_adapters(params, task.config, params_key)
    return initial_state(params, optimizer, step_key)


def newest(run: RunDirectory, initial: TrainState, devices: Devices) -> Checkpoint:
    """Return the newest checkpoint of a run, with its state on the devices; the initial state if there is none.

    Raises:
        InputError: there are checkpoints, but none can be read.
    """
    like = unstack_layers(initial)
    checkpoint = run.checkpoints.newest(like)
    if checkpoint is None:
        return Checkpoint(0, devices.place(initial), {}, {})
    if run.checkpoints.best_step != checkpoint.step:
        # detects a damaged one now, so that the next best one is kept from here on
        run.checkpoints.best(like)
    del like  # a copy if layers are stacked
    state = stack_layers(checkpoint.state, initial)
    return checkpoint._replace(state=devices.place(state))


def best_params(
    run: RunDirectory, config: TrainingConfig, like: TrainState, devices: Devices
) -> Params:
    """Return the parameters of the best checkpoint, or their moving average if the criterion is a metric of that.

    Raises:
        FloatingPointError: the criterion's metric was not finite in any evaluation.
        InputError: the run's directory has vanished, or its checkpoints can't be read.
    """
    best = run.checkpoints.best(unstack_layers(like))
    if best is None:
        run.check()
        run.checkpoints.check_intact()
        raise FloatingPointError(f"val/{config.criterion.metric} was never a finite number")
    params: Params = average_of(best.state) if config.takes_average else best.state.params
    if jax.process_count() > 1:
        params = whole(params)  # each process evaluates with all parameters
    # A single copy of replicated parameters; sharded ones stay sharded.
    single = None if devices.partitioned_by_xla else devices.mesh.local_devices[0]
    return jax.device_put(params, single)
