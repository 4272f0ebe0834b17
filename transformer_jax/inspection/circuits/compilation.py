"""Compile a program to the weights of a `TransformerPredictor`."""

import math

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer_jax.errors import check_whole
from transformer_jax.inspection.circuits.circuit import Circuit, CircuitHead, CircuitTask, Edge
from transformer_jax.inspection.circuits.program import (
    NUM_HEADS,
    NUM_LAYERS,
    SHARPNESS,
    Attend,
    Program,
    Role,
    Space,
    Table,
)
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.layer_kinds import NoNorm
from transformer_jax.nn.position_kinds import LearnedPositions
from transformer_jax.nn.predictor import TransformerPredictor

LOGIT = 10.0  # of the correct class; the other classes have 0
Flat = dict[str, np.ndarray]  # parameters in float64, by path
# of the residual stream
READERS = ("query_proj", "key_proj", "value_proj", "expand", "output_hidden")
WRITERS = ("input_layer", "output_proj", "contract")


def compile_circuit(
    program: Program,
    answer: Space,
    task: CircuitTask,
    seed: int | None,
    edges: tuple[Edge, ...] = (),
) -> Circuit:
    """Write a program's weights, with decoys in all heads and hidden units that the program does not use.

    Args:
        program: the program, to which the decoys are added.
        answer: the subspace in which the coordinate of the correct class is 1 at the end.
        task: what the program computes.
        seed: random seed of the decoys, and of a rotation of the residual stream; None for no rotation.
        edges: which heads read what another head wrote.

    Raises:
        InputError: `seed` is not a nonnegative integer.
    """
    if seed is not None:
        check_whole("seed", seed, 0, "; None for no rotation")
    rng = np.random.default_rng(0 if seed is None else seed)
    _add_idle_heads(program, rng)
    model = TransformerPredictor(
        NUM_HEADS * program.width,  # so that a head has room for all subspaces
        len(task.vocabulary),
        NUM_HEADS,
        NUM_LAYERS,
        settings=BlockSettings(norm=NoNorm, norm_first=True, positions=LearnedPositions()),
        max_len=task.max_length,
    )
    features = jax.ShapeDtypeStruct((1, task.max_length, len(task.vocabulary)), np.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), features)["params"]
    params = {path: np.zeros(leaf.shape) for path, leaf in flatten_dict(shapes, sep="/").items()}

    # Only the weights of the program and its decoys are not 0.
    _write_ends(program, answer, params)
    for (layer, number), head in program.heads.items():
        first = number * program.width
        _write_head(params, f"encoder/layers_{layer}/self_attn", first, program.width, head)
    for layer in range(NUM_LAYERS):
        _write_idle_units(params, f"encoder/layers_{layer}/feed_forward", program, rng)
    working_units = np.zeros((NUM_LAYERS, 2 * model.model_dim), bool)
    for layer, table in program.tables.items():
        _write_table(params, f"encoder/layers_{layer}/feed_forward", table)
        working_units[layer, : len(table.points)] = True
    if seed is not None:
        rotation, _ = np.linalg.qr(rng.normal(size=(model.model_dim, model.model_dim)))
        _rotate(params, rotation)

    heads = [
        CircuitHead(*place, head.role, head.does, head.attention)
        for place, head in sorted(program.heads.items())
    ]
    variables = {"params": jax.tree.map(np.float32, unflatten_dict(params, sep="/"))}
    return Circuit(task, model, variables, tuple(heads), edges, working_units)


def _add_idle_heads(program: Program, rng: np.random.Generator) -> None:
    """Make decoys of the heads that a program does not use.

    In each layer, every second decoy writes nothing, and the others write where nothing reads. The first decoy attends
    like the layer's first working head, if there is one; the others attend to the first position or to their own.
    """
    length = program.position.width
    patterns = [
        ("to the first position", np.eye(1, length)),
        ("to its own position", np.eye(length)),
    ]
    width = program.unused.width
    for layer in range(NUM_LAYERS):
        working = [head for head in range(NUM_HEADS) if (layer, head) in program.heads]
        idle = [head for head in range(NUM_HEADS) if head not in working]
        for number, head in enumerate(idle):
            if number == 0 and working:
                where = f"as head {working[0]} does"
                scores = program.heads[layer, working[0]].scores
            else:
                where, pattern = patterns[(layer + number) % 2]
                scores = {(program.position, program.position): SHARPNESS * pattern}
            moves = {
                (space, program.unused): rng.normal(size=(space.width, width))
                for space in (program.tokens, program.position)
            }
            role: Role = "writes nothing" if number % 2 else "writes where nothing reads"
            program.heads[layer, head] = Attend(scores, moves, f"attends {where}", role=role)


def _write_ends(program: Program, answer: Space, params: Flat) -> None:
    """Write the layers before and after the blocks."""
    tokens = program.tokens
    position = program.position
    params["input_layer/kernel"][:, tokens.part] = np.eye(tokens.width)
    params["positional_encoding/embedding"][:, position.part] = np.eye(position.width)
    params["output_hidden/kernel"][answer.part, : answer.width] = np.eye(answer.width)
    params["output_layer/kernel"][: answer.width] = LOGIT * np.eye(answer.width)


def _write_head(params: Flat, path: str, first: int, width: int, head: Attend) -> None:
    """Write a head: its columns of the projections, from `first` on, and its rows of the output projection.

    The key projection and the output projection copy the subspaces unchanged.
    """
    places = slice(first, first + width)  # of the head
    query, key, value = (
        params[f"{path}/{name}_proj/kernel"][:, places] for name in ("query", "key", "value")
    )
    output = params[f"{path}/output_proj/kernel"][places]
    for kernel, matrices in ((query, head.scores), (value, head.moves)):
        for (source, target), matrix in matrices.items():
            kernel[source.part, target.part] = matrix
    query *= math.sqrt(width)  # attention divides by this
    key[:width] = np.eye(width)
    output[:, :width] = np.eye(width) * (head.role != "writes nothing")


def _write_idle_units(params: Flat, path: str, program: Program, rng: np.random.Generator) -> None:
    """Write hidden units that react to tokens and positions; half of them write nothing."""
    reads = params[f"{path}/expand/kernel"]
    bias = params[f"{path}/expand/bias"]
    for space in (program.tokens, program.position):
        reads[space.part] = rng.normal(size=(space.width, len(bias)))
    bias[:] = rng.normal(size=len(bias))
    writes = params[f"{path}/contract/kernel"][1::2, program.unused.part]
    writes[:] = rng.normal(size=writes.shape)


def _write_table(params: Flat, path: str, table: Table) -> None:
    """Write a table to the first hidden units."""
    units = slice(len(table.points))
    reads = params[f"{path}/expand/kernel"]
    writes = params[f"{path}/contract/kernel"]
    slopes = np.diff(table.rows, axis=0) / np.diff(table.points)[:, None]
    reads[:, units] = 0
    reads[table.source.part, units] = 1
    params[f"{path}/expand/bias"][units] = -table.points
    writes[units] = 0
    # each unit changes the slope at its point
    writes[units, table.target.part] = np.diff(slopes, axis=0, prepend=0, append=0)
    params[f"{path}/contract/bias"][table.target.part] = table.rows[0]


def _rotate(params: Flat, rotation: np.ndarray) -> None:
    """Rotate the residual stream: x becomes `x · rotation`, and all layers that read or write it are adapted."""
    for path, leaf in params.items():
        *_, module, name = path.split("/")
        if module in READERS and name == "kernel":
            params[path] = rotation.T @ leaf
        elif module in WRITERS or name == "embedding":
            params[path] = leaf @ rotation
