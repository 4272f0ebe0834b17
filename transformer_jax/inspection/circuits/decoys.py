"""Heads and hidden units that do nothing, beside those that do the work."""

import numpy as np

from transformer_jax.inspection.circuits.program import SHARPNESS, Attend, Program, Scores, Units


def add_idle_heads(program: Program, rng: np.random.Generator) -> None:
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
            is_silent = number % 2 == 1
            moves = {
                (space, program.unused): rng.normal(size=(space.width, program.unused.width))
                for space in (program.tokens, program.position)
            }
            does = f"attends {where}, and writes {'nothing' if is_silent else 'where nothing reads'}"
            program.heads[layer, head] = Attend(scores, moves, does, writes_nothing=is_silent)


def add_idle_units(program: Program, rng: np.random.Generator, dim_feedforward: int) -> None:
    """Fill the feed-forwards with units that react to tokens and positions; half of them write nothing."""
    for of_layer in program.units:
        num_units = dim_feedforward - sum(len(units.bias) for units in of_layer)
        reads = {space: rng.normal(size=(space.width, num_units)) for space in (program.tokens, program.position)}
        writes = rng.normal(size=(num_units, program.unused.width)) * (np.arange(num_units)[:, None] % 2)
        bias = rng.normal(size=num_units)
        of_layer.append(Units(reads, bias, {program.unused: writes}, is_idle=True))


def _patterns(program: Program) -> list[tuple[str, Scores]]:
    length, position = program.position.width, program.position
    before = np.eye(length, k=-1)
    before[0, 0] = 1
    first = np.zeros((length, length))
    first[:, 0] = 1
    matrices = {"to the position before": before, "to the first position": first, "to its own position": np.eye(length)}
    return [(where, {(position, position): SHARPNESS * matrix}) for where, matrix in matrices.items()]
