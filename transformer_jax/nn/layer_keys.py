"""Random keys for dropout in layers that a loop in the program runs: those that they draw one after another."""

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import NamedTuple

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PRNGKeyArray

from transformer_jax.nn.layer_scan import layer_name


class DropoutKeys(NamedTuple):
    """Where the modules of a layer in a loop draw the keys that they would draw outside of one.

    Flax makes the key of a module from that of the model, by folding in a hash of the path, in which the layer has a
    name. In a loop the name is not known, and the hash is taken from a table.
    """

    root: PRNGKeyArray  # of the model
    path: tuple[str | int, ...]  # what Flax folds into it for the stack
    number: Array  # of the layer
    num_layers: int
    inner: PRNGKeyArray  # that the layer is run with, for modules that draw in another way

    def draw(self, module: nn.Module) -> PRNGKeyArray:
        """The key `dropout` of a module in the layer, for its next draw."""
        drawn: PRNGKeyArray = module.make_rng("dropout")
        scope = module.scope
        if scope is None or scope.rngs["dropout"].rng is not self.inner:  # a key of its own, as inside `nn.vmap`
            return drawn
        of_module = *scope.rngs["dropout"].suffix, scope.rng_counters["dropout"]
        hashes = [path_hash((*self.path, layer_name(layer), *of_module)) for layer in range(self.num_layers)]
        return jax.random.fold_in(self.root, jnp.array(hashes, jnp.uint32)[self.number])


def path_hash(path: Sequence[str | int]) -> int:
    """The 32 bits that Flax folds into a key for a module's path and the number of its draw."""
    digest = hashlib.sha1(usedforsecurity=False)
    for part in path:
        if flax.config.flax_fix_rng_separator:
            digest.update(b"\0")
        digest.update(part.encode() if isinstance(part, str) else part.to_bytes((part.bit_length() + 7) // 8, "big"))
    return int.from_bytes(digest.digest()[:4], "big")


_keys: ContextVar[DropoutKeys | None] = ContextVar("_keys", default=None)


def dropout_key(module: nn.Module) -> PRNGKeyArray:
    """The key `dropout` of a module for its next draw: the same in a loop over layers as outside of one."""
    keys = _keys.get()
    key: PRNGKeyArray = module.make_rng("dropout") if keys is None else keys.draw(module)
    return key


@contextlib.contextmanager
def drawing_from(keys: DropoutKeys | None) -> Iterator[None]:
    """A block that runs a layer of a loop."""
    token = _keys.set(keys)
    try:
        yield
    finally:
        _keys.reset(token)
