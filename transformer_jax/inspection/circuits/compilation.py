"""From a program to the weights of a `TransformerPredictor`."""

import math

import flax.linen as nn
import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.errors import check_whole
from transformer_jax.inspection.circuits.circuit import Circuit, CircuitHead, CircuitTask, Edge
from transformer_jax.inspection.circuits.program import (
    LOGIT,
    SHARPNESS,
    Attend,
    Matrices,
    Matrix,
    Program,
    Role,
    Space,
    Units,
    before,
)
from transformer_jax.nn.block_settings import BlockSettings
from transformer_jax.nn.position_kinds import LearnedPositions
from transformer_jax.nn.predictor import TransformerPredictor

Flat = dict[str, np.ndarray]  # parameters in float64, by path
READERS = ("query_proj", "key_proj", "value_proj", "expand", "output_hidden")  # of the residual stream
WRITERS = ("input_layer", "output_proj", "contract")


class NoNorm(nn.Module):
    """The identity in the place of a norm, without parameters: what one sub-layer writes, the next read exactly."""

    epsilon: float = 1e-6  # that every norm is given; not used

    def __call__(self, x: Float[ArrayLike, "*leading D"]) -> Float[ArrayLike, "*leading D"]:
        """Return `x`."""
        return x


def compile_circuit(
    program: Program, answer: Space, task: CircuitTask, seed: int | None, edges: tuple[Edge, ...] = ()
) -> Circuit:
    """Write a program's weights, with decoys in all heads and hidden units that it does not use.

    Args:
        program: is completed with the decoys.
        answer: the subspace whose coordinate of the right class is 1 at the end.
        task: what it computes.
        seed: of a random rotation of the residual stream, and of the decoys; None for no rotation.
        edges: which heads read what another one wrote.

    Raises:
        InputError: `seed` is no whole number of at least 0.
    """
    if seed is not None:
        check_whole("seed", seed, 0, "; None for no rotation")
    rng = np.random.default_rng(0 if seed is None else seed)
    _add_idle_heads(program, rng)
    model = TransformerPredictor(
        program.num_heads * program.width,  # so that a head has room for all subspaces
        len(task.classes),
        program.num_heads,
        program.num_layers,
        settings=BlockSettings(norm=NoNorm, norm_first=True, positions=LearnedPositions()),
        max_len=task.max_length,
    )
    _add_idle_units(program, rng, 2 * model.model_dim)
    params = _empty(model, len(task.vocabulary))
    _write(program, answer, params)
    if seed is not None:
        _rotate(params, np.linalg.qr(rng.normal(size=(model.model_dim, model.model_dim)))[0])
    variables = {"params": unflatten_dict({path: leaf.astype(np.float32) for path, leaf in params.items()}, sep="/")}
    heads = tuple(
        CircuitHead(*place, head.role, head.does, head.attention) for place, head in sorted(program.heads.items())
    )
    units = [np.concatenate([np.full(len(part.bias), not part.is_idle) for part in parts]) for parts in program.units]
    return Circuit(task, model, variables, heads, edges, np.stack(units))


def _add_idle_heads(program: Program, rng: np.random.Generator) -> None:
    """Make decoys of the heads that a program does not use.

    Of those of one layer every second writes nothing, the others where nothing reads. The first one attends as the
    layer's first working head does, if there is one; the others to the position before, to the first, or to their own.
    """
    patterns = _patterns(program)
    for layer in range(program.num_layers):
        working = [head for head in range(program.num_heads) if (layer, head) in program.heads]
        idle = [head for head in range(program.num_heads) if head not in working]
        for number, head in enumerate(idle):
            if number == 0 and working:
                scores, where = program.heads[layer, working[0]].scores, f"as head {working[0]} does"
            else:
                where, scores = patterns[(layer + number) % len(patterns)]
            role: Role = "writes nothing" if number % 2 == 1 else "writes where nothing reads"
            moves = {
                (space, program.unused): rng.normal(size=(space.width, program.unused.width))
                for space in (program.tokens, program.position)
            }
            program.heads[layer, head] = Attend(scores, moves, f"attends {where}, and {role}", role=role)


def _add_idle_units(program: Program, rng: np.random.Generator, dim_feedforward: int) -> None:
    """Fill the feed-forwards with units that react to tokens and positions; half of them write nothing."""
    for of_layer in program.units:
        num_units = dim_feedforward - sum(len(units.bias) for units in of_layer)
        reads = {space: rng.normal(size=(space.width, num_units)) for space in (program.tokens, program.position)}
        writes = rng.normal(size=(num_units, program.unused.width)) * (np.arange(num_units)[:, None] % 2)
        bias = rng.normal(size=num_units)
        of_layer.append(Units(reads, bias, program.unused, writes, is_idle=True))


def _patterns(program: Program) -> list[tuple[str, Matrices]]:
    length, position = program.position.width, program.position
    first = np.tile(np.eye(1, length), (length, 1))
    matrices = {
        "to the position before": before(length),
        "to the first position": first,
        "to its own position": np.eye(length),
    }
    return [(where, {(position, position): SHARPNESS * matrix}) for where, matrix in matrices.items()]


def _empty(model: TransformerPredictor, num_tokens: int) -> Flat:
    features = jax.ShapeDtypeStruct((1, model.max_len, num_tokens), np.float32)
    variables = jax.eval_shape(model.init, jax.random.key(0), features)
    return {path: np.zeros(leaf.shape) for path, leaf in flatten_dict(variables["params"], sep="/").items()}


def _write(program: Program, answer: Space, params: Flat) -> None:
    tokens, position = program.tokens, program.position
    params["input_layer/kernel"][:, tokens.part] = np.eye(tokens.width)
    params["positional_encoding/embedding"][:, position.part] = np.eye(position.width)
    for (layer, number), head in program.heads.items():
        _write_head(params, f"encoder/layers_{layer}/self_attn", number * program.width, program.width, head)
    for layer, of_layer in enumerate(program.units):
        first = 0
        for units in of_layer:
            _write_units(params, f"encoder/layers_{layer}/feed_forward", first, units)
            first += len(units.bias)
    params["output_hidden/kernel"][answer.part, : answer.width] = np.eye(answer.width)
    params["output_layer/kernel"][: answer.width] = LOGIT * np.eye(answer.width)


def _write_head(params: Flat, path: str, first: int, width: int, head: Attend) -> None:
    """The head's columns from `first` on of the projections, and its rows of the output projection.

    Its keys are the subspaces as they are, and what it moves is written as it is.
    """
    query, key, value, output = (params[f"{path}/{name}_proj/kernel"] for name in ("query", "key", "value", "output"))
    for kernel, matrices in ((query, head.scores), (value, head.moves)):
        for (source, target), matrix in matrices.items():
            kernel[source.part, first + target.start : first + target.start + target.width] = matrix
    own = slice(first, first + width)
    query[:, own] *= math.sqrt(width)  # by which attention divides
    key[:width, own] = np.eye(width)
    output[own, :width] = np.eye(width) * (head.role != "writes nothing")


def _write_units(params: Flat, path: str, first: int, units: Units) -> None:
    hidden = slice(first, first + len(units.bias))
    params[f"{path}/expand/bias"][hidden] = units.bias
    for space, matrix in units.reads.items():
        params[f"{path}/expand/kernel"][space.part, hidden] = matrix
    params[f"{path}/contract/kernel"][hidden, units.target.part] = units.writes
    params[f"{path}/contract/bias"][units.target.part] += units.offset


def _rotate(params: Flat, rotation: Matrix) -> None:
    """Turn the residual stream: x becomes `x · rotation`, and everything that reads or writes it follows."""
    for path, leaf in params.items():
        *_, module, name = path.split("/")
        if module in READERS and name == "kernel":
            params[path] = rotation.T @ leaf
        elif module in WRITERS or name == "embedding":
            params[path] = leaf @ rotation
