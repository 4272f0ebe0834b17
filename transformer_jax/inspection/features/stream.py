"""Activations of a model over a data set, as one stream of vectors."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float

from transformer_jax.argument_checks import Count, Size, check_arguments
from transformer_jax.data.batch import Samples, num_rows, pad_rows
from transformer_jax.data.loader import Loader
from transformer_jax.errors import InputError
from transformer_jax.inspection.activations import capture
from transformer_jax.inspection.inspected import Inspected
from transformer_jax.inspection.names import matches
from transformer_jax.trees import Inputs, Targets, Variables

Rows = Float[np.ndarray, "N D"]
HEADER = 128  # bytes of the header of an `.npy` file of two axes, whatever their lengths


class ActivationStream:
    """Activation vectors at all positions of a data set except padding, in shuffled order.

    The stream is divided into chunks. Each has the rows of K batches, in an order that depends only on the seed and the
    chunk's number, so the stream has no state and may start at any chunk. Later layers are not computed.

    Args:
        model: bound to its variables: `trained.inspected`.
        loader: loader of batches, of which epoch 0 is read.
        names: names or patterns of activations `[B, T, D]` or `[B, D]`. Several activations are concatenated along D,
            in the order of the names, as a transcoder's data are.
        inputs: function from a batch's inputs to the model's input or tuple of inputs, such as `trained.model_inputs`,
            compiled with the pass; None for the batch's inputs as they are.
        valid: function from a batch's inputs and targets, both in NumPy, to a mask `[B, T]` of the positions that are
            not padding; None for all positions.
        chunk: K, the number of batches per chunk.
        seed: random seed of the order.
    """

    @check_arguments
    def __init__(
        self,
        model: Inspected,
        loader: Loader,
        names: Sequence[str],
        *,
        inputs: Callable[[Inputs], object] | None = None,
        valid: Callable[[Inputs, Targets], Bool[ArrayLike, "..."]] | None = None,
        chunk: Size = 16,
        seed: Count = 0,
    ) -> None:
        self.model = model
        self.loader = loader
        self.names = tuple(names)
        self._inputs = inputs
        self._valid = valid
        self._chunk = chunk
        self._seed = seed
        self._program = jax.jit(self._activations)

    def __len__(self) -> int:
        """Number of chunks."""
        return -(-len(self.loader) // self._chunk)

    def __iter__(self) -> Iterator[Rows]:
        return self.chunks()

    def chunks(self, first: int = 0) -> Iterator[Rows]:
        """Yield the rows of each chunk, starting with chunk `first`.

        Raises:
            InputError: a name is not an activation; or the positions of activations, or of `valid`, differ.
        """
        batches = self._batches(first * self._chunk)
        for number in range(first, len(self)):
            rows = np.concatenate(list(itertools.islice(batches, self._chunk)))
            yield rows[np.random.default_rng([self._seed, number]).permutation(len(rows))]

    @check_arguments
    def write(self, path: str | Path) -> np.ndarray:
        """Write all rows to a `.npy` file, and return it as a memory-mapped array `[N, D]`.

        The file appears when it is complete, and replaces an earlier file of this name.

        Raises:
            InputError: as in `chunks`.
        """
        path = Path(path)
        unfinished = path.with_name(f"{path.name}.unfinished")
        num_rows = 0
        with unfinished.open("wb") as file:
            file.write(bytes(HEADER))
            for rows in self:
                file.write(rows.tobytes())  # in C order, whatever that of a device is
                num_rows += len(rows)
            file.seek(0)
            shape = num_rows, rows.shape[1]
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
        unfinished.replace(path)
        return np.load(path, mmap_mode="r")

    def _batches(self, first: int) -> Iterator[Rows]:
        """Yield the rows of each batch, fetched once the next batch's pass has been started."""
        started = None
        for samples in self.loader.epoch(0, first):
            inputs = pad_rows(samples[0], self.loader.batch_size)
            activations = self._program(self.model.variables, inputs)
            if started is not None:
                yield self._rows(*started)
            started = samples, activations
        if started is not None:
            yield self._rows(*started)

    def _activations(self, variables: Variables, inputs: Inputs) -> Float[Array, "B ... D"]:
        """The activations of a batch, side by side in the order of their names."""
        model_inputs = inputs if self._inputs is None else self._inputs(inputs)
        arguments = model_inputs if isinstance(model_inputs, tuple) else (model_inputs,)
        _, captured = capture(self.model.model, variables, *arguments, names=self.names)
        by_name = {}  # in the order of `names`
        for pattern in self.names:
            for name, array in captured.items():
                if matches(name, pattern):
                    by_name[name] = array.astype(jnp.float32)
        arrays = list(by_name.values())
        if len({x.shape[:-1] for x in arrays}) != 1:
            shapes = ", ".join(f"{name} is {x.shape}" for name, x in captured.items())
            raise InputError(
                f"names has activations at different positions, or none: {shapes or '[]'}"
            )
        return jnp.concatenate(arrays, -1)

    def _rows(self, samples: Samples, activations: Array) -> Rows:
        """The activations of a batch at the positions that are not padding."""
        array = np.asarray(activations)[: num_rows(samples[0])]
        if self._valid is None:
            return array.reshape(-1, array.shape[-1])
        valid = np.asarray(self._valid(*samples))
        shape = array.shape[:-1]
        if valid.shape != shape or valid.dtype != bool:
            raise InputError(f"valid gives {valid.dtype} {valid.shape}; it must give bool {shape}")
        return array[valid]
