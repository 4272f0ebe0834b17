"""The pickles in PyTorch's files, interpreted without running any code.

A pickle is a program for a stack machine that may call any function. This machine calls none: it knows the operations
that `torch.save` writes, and puts a description in the place of each tensor. Thus no pickle can run code, and none can
ask for more memory than its operations take, as it could with `torch.load(weights_only=True)`, which calls
`bytearray(n)` and `torch.Tensor(n)`.
"""

import io
import pickletools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from transformer_jax.errors import InputError

MAX_BYTES = 2**26  # of a pickle; a tensor takes about 150
MAX_OPERATIONS = 500_000  # in a pickle; a tensor takes about 40
MAX_DIMENSIONS = 32
MAX_INTEGER = 2**127

PLAIN = int | float | str | None  # types of the dictionaries' keys

DTYPES: dict[str, np.dtype[Any]] = {
    "torch.HalfStorage": np.dtype(np.float16),
    "torch.BFloat16Storage": np.dtype(jnp.bfloat16),
    "torch.FloatStorage": np.dtype(np.float32),
    "torch.DoubleStorage": np.dtype(np.float64),
    "torch.BoolStorage": np.dtype(np.bool_),
    "torch.ByteStorage": np.dtype(np.uint8),
    "torch.CharStorage": np.dtype(np.int8),
    "torch.ShortStorage": np.dtype(np.int16),
    "torch.IntStorage": np.dtype(np.int32),
    "torch.LongStorage": np.dtype(np.int64),
}
TENSOR, PARAMETER = "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter"
DICTIONARY = "collections.OrderedDict"
# Classes and functions of objects that stand beside the weights and are not needed.
UNNEEDED = {
    *("collections.Counter", "torch.Size", "torch.device", "__builtin__.set", "builtins.set", "_codecs.encode"),
    *(f"torch.{name}" for name in ("bfloat16", "float16", "float32", "float64", "int32", "int64")),
}


class Storage(NamedTuple):
    """Description of numbers that the file holds outside of the pickle."""

    key: str
    dtype: np.dtype[Any]
    size: int  # count of numbers


class Tensor(NamedTuple):
    """Description of a tensor: which numbers of a storage it holds."""

    storage: Storage
    offset: int  # of its first number in the storage
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in numbers


class Unneeded(NamedTuple):
    """An object of a class that is not needed, or the class."""

    name: str


class Name(NamedTuple):
    """Name of a class or function that the machine knows."""

    name: str


def interpret(stream: io.BytesIO) -> tuple[Any, dict[str, Storage]]:
    """Read one pickle: plain values, lists, tuples and dictionaries, and descriptions of the tensors.

    Args:
        stream: of at most `MAX_BYTES`; it stands behind the pickle afterwards.

    Returns:
        The value, and all storages by key.

    Raises:
        InputError: the pickle asks for other classes or functions, or is too long.
        Exception: it is damaged; of any class.
    """
    machine = _Machine()
    for count, (operation, argument, _) in enumerate(pickletools.genops(stream)):
        if count >= MAX_OPERATIONS:
            raise InputError(f"has a pickle of more than {MAX_OPERATIONS} operations, too many for a file of weights")
        if operation.name == "STOP":
            break
        machine.step(operation.name, argument)
    return machine.stack.pop(), machine.storages


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []  # sizes of the stack
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}
        self.operations: dict[str, Callable[[], object]] = {
            "MARK": lambda: self.marks.append(len(self.stack)),
            "EMPTY_DICT": lambda: self.stack.append({}),
            "EMPTY_LIST": lambda: self.stack.append([]),
            "EMPTY_TUPLE": lambda: self.stack.append(()),
            "TUPLE": lambda: self.stack.append(tuple(self._above_mark())),
            "TUPLE1": lambda: self.stack.append(tuple(self._pop(1))),
            "TUPLE2": lambda: self.stack.append(tuple(self._pop(2))),
            "TUPLE3": lambda: self.stack.append(tuple(self._pop(3))),
            "BINPERSID": lambda: self._add(_storage(*self.stack.pop())),
            "REDUCE": lambda: self.stack.append(_result(*self._pop(2))),
            "BUILD": lambda: self._pop(1),  # attributes of the object below, which are not needed
            "APPEND": lambda: self._append(self._pop(1)),
            "APPENDS": lambda: self._append(self._above_mark()),
            "SETITEM": lambda: self._set(self._pop(2)),
            "SETITEMS": lambda: self._set(self._above_mark()),
        }

    def step(self, operation: str, argument: Any) -> None:
        match operation:
            case "PROTO":
                pass
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                self.stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[operation])
            case (
                "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT" | "BINUNICODE" | "BINSTRING" | "SHORT_BINSTRING"
            ):
                if isinstance(argument, int) and abs(argument) > MAX_INTEGER:
                    raise InputError("holds a whole number of more than 128 bits; it must be a file of weights")
                self.stack.append(argument)
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = self.stack[-1]
            case "BINGET" | "LONG_BINGET":
                self.stack.append(self.memo[argument])
            case "GLOBAL":
                self.stack.append(_known(argument.replace(" ", ".")))
            case _:
                self.operations[operation]()

    def _pop(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError("the stack of the pickle is empty")
        popped = self.stack[-count:]
        del self.stack[-count:]
        return popped

    def _above_mark(self) -> list[Any]:
        mark = self.marks.pop()
        above = self.stack[mark:]
        del self.stack[mark:]
        return above

    def _add(self, storage: Storage) -> None:
        if self.storages.setdefault(storage.key, storage) != storage:
            raise ValueError("a storage is described in two ways")
        self.stack.append(storage)

    def _append(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise ValueError("the pickle appends to what is no list")
        self.stack[-1].extend(values)

    def _set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise ValueError("the pickle sets an item of what is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, PLAIN):  # a nested tuple's hash may take for ever
                raise InputError(
                    "holds a dictionary with a key that is no number and no text; it must hold arrays only"
                )
            target[key] = value


def _known(name: str) -> Name | Unneeded:
    if name in DTYPES or name in (TENSOR, PARAMETER, DICTIONARY):
        return Name(name)
    if name in UNNEEDED:
        return Unneeded(name)
    raise InputError(
        f"asks for {ascii(name)[1:-1]:.100}; only tensors and plain values are read, since anything else could run code"
    )


def _storage(tag: str, kind: Name, key: str, location: str, size: int, view: None = None) -> Storage:
    if tag != "storage" or view is not None or not isinstance(key, str) or not _are_sizes(size):
        raise ValueError("the pickle describes no storage")
    return Storage(key, DTYPES[kind.name], size)


def _result(function: Name | Unneeded, arguments: tuple[Any, ...]) -> Any:
    """Description of what a call returns."""
    match function, arguments:
        case Name(name=name), [Storage() as storage, offset, tuple() as shape, tuple() as strides, *_] if (
            name == TENSOR
        ):
            if not _are_sizes(offset, *shape, *strides) or not len(shape) == len(strides) <= MAX_DIMENSIONS:
                raise ValueError("the pickle describes no tensor")
            return Tensor(storage, offset, shape, strides)
        case Name(name=name), [Tensor() as tensor, *_] if name == PARAMETER:
            return tensor
        case Name(name=name), [] if name == DICTIONARY:
            return {}
        case Unneeded(), _:
            return function
    raise ValueError("the pickle calls a function with other arguments")


def _are_sizes(*numbers: object) -> bool:
    return all(isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**63 for number in numbers)
