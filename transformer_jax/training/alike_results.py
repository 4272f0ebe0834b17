"""Compute results that differ only in literals, such as the initial parameters of a stack's layers, in one loop.

A program that draws each array of 48 layers by itself takes XLA twenty times as long to compile as that of four layers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from transformer_jax.trees import Arrays

Values = Mapping[Any, Any]  # of a program's variables


class Slice(NamedTuple):
    """The equations of a program that one of its results needs, and the result's variable or literal."""

    equations: tuple[JaxprEqn, ...]
    result: Any

    @classmethod
    def of(cls, result: Any, makers: Mapping[Any, tuple[int, JaxprEqn]]) -> "Slice":
        """The slice for a result; `makers` has the equation that makes a variable, and its place in the program."""
        found: dict[int, JaxprEqn] = {}
        needed = [result]
        while needed:
            atom = needed.pop()
            if not isinstance(atom, Literal) and atom in makers and makers[atom][0] not in found:
                place, equation = makers[atom]
                found[place] = equation
                needed.extend(equation.invars)
        return cls(tuple(found[place] for place in sorted(found)), result)

    def form(self) -> tuple[Any, ...]:
        """Hashable form of a slice without its literals' values: slices of one form differ in these alone."""
        names: dict[Any, Any] = {}

        def name(atom: Any) -> Any:
            if isinstance(atom, Literal):
                return str(atom.aval)
            return names.get(atom, atom)  # the program's own arguments are the same variables in all slices

        form = []
        for equation in self.equations:
            inputs = tuple(map(name, equation.invars))
            params = tuple(sorted((key, _comparable(value)) for key, value in equation.params.items()))
            form.append((equation.primitive.name, inputs, params))
            names |= {variable: len(names) + i for i, variable in enumerate(equation.outvars)}
        return (*form, name(self.result))

    def literals(self) -> list[Any]:
        """The values of the literals, in the order in which `compute` takes them."""
        atoms = [atom for equation in self.equations for atom in equation.invars] + [self.result]
        return [atom.val for atom in atoms if isinstance(atom, Literal)]

    def compute(self, values: Values, literals: Sequence[Any]) -> Any:
        """The result, for these values of the program's arguments and these literals."""
        known, rest = dict(values), iter(literals)

        def read(atom: Any) -> Any:
            return next(rest) if isinstance(atom, Literal) else known[atom]

        for equation in self.equations:
            bound = equation.primitive.get_bind_params(equation.params)
            functions, params = bound if isinstance(bound, tuple) else ((), bound)  # JAX has had both
            results = equation.primitive.bind(*functions, *map(read, equation.invars), **params)
            many = results if equation.primitive.multiple_results else [results]
            known |= dict(zip(equation.outvars, many, strict=True))
        return read(self.result)


def in_loops(function: Callable[..., Arrays], stack: Callable[[Arrays], Arrays], *arguments: Any) -> Any:
    """The results of a function, those that are to be stacked computed in a loop where they are computed alike.

    Args:
        function: of arrays, to a pytree of arrays.
        stack: of such a pytree, the same with some of its arrays stacked along a leading axis.
        *arguments: of the function.

    Returns:
        What `stack` makes of the results, the same bit for bit.
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    program: Jaxpr = closed.jaxpr
    values = dict(zip(program.invars, jax.tree.leaves(arguments), strict=True))
    values |= dict(zip(program.constvars, closed.consts, strict=True))
    makers = {variable: (i, one) for i, one in enumerate(program.eqns) for variable in one.outvars}
    slices = [Slice.of(result, makers) for result in program.outvars]
    structure = jax.tree.structure(shapes)
    positions = jax.tree.unflatten(structure, [np.array(i) for i in range(len(slices))])
    places, stacked_structure = jax.tree.flatten(stack(positions))
    alike: dict[int, list[Slice]] = {}  # by the place among the stacked results
    results: dict[int, Any] = {}
    for at, place in enumerate(places):
        chosen = [slices[i] for i in place.ravel()]
        if place.ndim and len({one.form() for one in chosen}) == 1:
            alike[at] = chosen
        else:
            computed = [one.compute(values, one.literals()) for one in chosen]
            results[at] = jnp.stack(computed) if place.ndim else computed[0]
    results |= _loop(alike, values)
    return jax.tree.unflatten(stacked_structure, [results[at] for at in range(len(places))])


def _loop(alike: Mapping[int, Sequence[Slice]], values: Values) -> dict[int, Any]:
    """The results of slices, by their place and stacked; those of one number are computed in one loop."""
    results: dict[int, Any] = {}
    for length in {len(slices) for slices in alike.values()}:
        chosen = {at: slices for at, slices in alike.items() if len(slices) == length}

        def compute(differing: Mapping[int, Mapping[int, Any]], chosen: Mapping[int, Sequence[Slice]] = chosen) -> Any:
            def result(at: int, one: Slice) -> Any:
                return one.compute(values, [differing[at].get(i, value) for i, value in enumerate(one.literals())])

            return {at: result(at, slices[0]) for at, slices in chosen.items()}

        # Where no literal differs, the loop still has to have its length.
        looped = {at: _differing_literals(slices) | {-1: np.arange(length)} for at, slices in chosen.items()}
        results |= jax.lax.map(compute, looped)
    return results


def _differing_literals(slices: Sequence[Slice]) -> dict[int, np.ndarray]:
    """The literals in which slices of one form differ, stacked, by their place."""
    by_place = enumerate(zip(*(one.literals() for one in slices), strict=True))
    # Compared by their bits: 0 and -0 differ.
    different = [(place, values) for place, values in by_place if len({np.asarray(v).tobytes() for v in values}) > 1]
    return {place: np.array(values) for place, values in different}


def _comparable(value: Any) -> Any:
    """A parameter of an equation, as something that can be compared and hashed."""
    try:
        hash(value)
    except TypeError:
        return str(value)
    return value
