"""Descriptor lists: rows of (address, bytes, device number) in one array, so that thousands cost no Python object each."""

from __future__ import annotations

import io
import itertools
import pickle
import pickletools
from collections.abc import Callable, Iterator
from operator import index as integer
from typing import Any, ClassVar

import numpy as np

from hmc.integrations.nixl._errors import nixlMismatchError, nixlNotFoundError
from hmc.integrations.nixl._types import nixl_mem_t

__all__ = ["descriptor_list", "nixlRegDList", "nixlRemoteDList", "nixlXferDList", "octets", "restore"]

_ROW = np.dtype(np.uint64)


def _rows(descs: Any, width: int) -> tuple[Any, list[Any]]:
    """The numbers of some descriptors as an (n, 3) array, and their fourth fields where width is 4."""
    if isinstance(descs, np.ndarray):
        if descs.ndim != 2 or descs.shape[1] != 3 or descs.dtype not in (np.uint64, np.int64):
            raise ValueError(f"an array of descriptors has shape (n, 3) and type uint64 or int64, not {descs.shape} {descs.dtype}")
        if descs.dtype == np.int64 and descs.size and int(descs.min()) < 0:
            raise ValueError("descriptors hold a negative number")
        return descs.astype(_ROW), []
    listed = list(descs)
    if any(len(one) != width for one in listed):
        raise ValueError(f"Each descriptor tuple must have exactly {width} elements")
    # By operator.index(): an array of floats would lose digits of the addresses.
    flat = map(integer, itertools.chain.from_iterable(one[:3] for one in listed) if width == 4 else itertools.chain(*listed))
    try:
        numbers = np.fromiter(flat, _ROW, 3 * len(listed)).reshape(len(listed), 3)
    except OverflowError as error:
        raise ValueError(f"descriptors hold integers from 0 to 2**64 - 1: {error}") from error
    return numbers, [one[3] for one in listed] if width == 4 else []


def octets(value: Any) -> bytes:
    """A text or bytes-like object as bytes. TypeError for anything else: bytes() would make as many zeros of a number."""
    if type(value) is bytes:
        return value  # not copied: a serialised list may name one object many times
    return value.encode() if isinstance(value, str) else memoryview(value).tobytes()


class _DList:
    """What the lists have in common. Not thread-safe while it is changed."""

    width: ClassVar[int] = 3

    def __init__(self, type: Any, descs: Any = 0) -> None:
        """``type``: a nixl_mem_t. ``descs``: a number of empty rows, a list of tuples, or an (n, 3) array of uint64 or int64."""
        self._type = nixl_mem_t(type)
        self._extras: list[Any] = []
        if isinstance(descs, (int, np.integer)):
            self._array = np.zeros((int(descs), 3), _ROW)
        else:
            self._array, self._extras = _rows(descs, self.width)
        if self.width == 4 and not self._extras:
            self._extras = [self._no_extra()] * len(self._array)
        self._count = len(self._array)

    @staticmethod
    def _no_extra() -> Any:
        return b""

    @staticmethod
    def _extra(value: Any) -> Any:
        return value

    @property
    def rows(self) -> Any:
        """The numbers as an (n, 3) array of uint64: address, bytes, device number."""
        return self._array[: self._count]

    @property
    def extras(self) -> list[Any]:
        """The fourth fields, where the list has them."""
        return self._extras

    def getType(self) -> nixl_mem_t:
        """The kind of memory."""
        return self._type

    def descCount(self) -> int:
        """The number of descriptors."""
        return self._count

    def isEmpty(self) -> bool:
        """True without descriptors."""
        return self._count == 0

    def append(self, desc: tuple[Any, ...]) -> None:
        """Adds a descriptor at the end. ValueError for a tuple of another length."""
        if len(desc) != self.width:
            raise ValueError(f"Each descriptor tuple must have exactly {self.width} elements")
        if self._count == len(self._array):
            grown = np.zeros((max(16, 2 * self._count), 3), _ROW)
            grown[: self._count] = self._array
            self._array = grown
        extra = [self._extra(one) for one in desc[3:]]  # may raise, so before the list changes
        self._array[self._count] = [integer(number) for number in desc[:3]]
        self._count += 1
        self._extras += extra

    addDesc = append

    def remDesc(self, index: int) -> None:
        """Removes a descriptor. IndexError."""
        at = self._at(index)
        self._array = np.delete(self.rows, at, axis=0)
        self._count -= 1
        if self.width == 4:
            del self._extras[at]

    def clear(self) -> None:
        """Removes every descriptor."""
        self._array, self._count, self._extras = np.zeros((0, 3), _ROW), 0, []

    def index(self, desc: tuple[Any, ...]) -> int:
        """The place of a descriptor. Raises nixlNotFoundError."""
        for at, one in enumerate(self):
            if one == tuple(desc):
                return at
        raise nixlNotFoundError(f"the list of {self._count} descriptors does not have {desc}")

    def print(self) -> None:
        """Prints the descriptors, one a line."""
        print(f"DescList of mem type {int(self._type)}")
        for one in self:
            print(f"    {one}")

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        at = self._at(index)
        numbers = tuple(int(number) for number in self._array[at])
        return (*numbers, self._extras[at]) if self.width == 4 else numbers

    def __setitem__(self, index: int, desc: tuple[Any, ...]) -> None:
        if len(desc) != self.width:
            raise ValueError(f"Each descriptor tuple must have exactly {self.width} elements")
        at = self._at(index)
        extra = [self._extra(one) for one in desc[3:]]  # may raise, so before the list changes
        self._array[at] = [integer(number) for number in desc[:3]]
        if self.width == 4:
            self._extras[at : at + 1] = extra

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return (self[at] for at in range(self._count))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _DList) or type(other) is not type(self):
            return False
        return self._type == other._type and np.array_equal(self.rows, other.rows) and self._extras == other._extras

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _made, (type(self).__name__, int(self._type), self.rows.astype("<u8").tobytes(), list(self._extras))

    def _at(self, index: int) -> int:
        if not 0 <= index < self._count:
            raise IndexError(f"descriptor {index} of a list of {self._count}")
        return int(index)


def descriptor_list(value: Any) -> _DList:
    """The argument of a call that takes a descriptor list only. Raises TypeError."""
    if not isinstance(value, _DList):
        raise TypeError(
            f"a descriptor list is required, as get_xfer_descs() and register_memory() return, not {type(value).__name__}"
        )
    return value


class nixlXferDList(_DList):
    """Descriptors of a transfer: (address, bytes, device number)."""


class nixlRegDList(_DList):
    """Descriptors of a registration: (address, bytes, device number, meta data). HMC keeps the meta data and does not use it."""

    width = 4

    def __init__(self, type: Any, descs: Any = 0) -> None:
        super().__init__(type, descs)
        self._extras = [self._extra(one) for one in self._extras]

    @staticmethod
    def _extra(value: Any) -> Any:
        return octets(value)

    def trim(self) -> nixlXferDList:
        """The same descriptors without their meta data."""
        return nixlXferDList(self._type, self.rows)


class nixlRemoteDList(_DList):
    """Descriptors at other agents: (address, bytes, device number, agent name)."""

    width = 4

    @staticmethod
    def _no_extra() -> Any:
        return ""


_LISTS: dict[str, type[_DList]] = {one.__name__: one for one in (nixlXferDList, nixlRegDList, nixlRemoteDList)}


def _made(name: str, kind: int, rows: bytes, extras: list[Any]) -> Any:
    # By type first: a tuple of a hundred thousand tuples overflows the stack when it is hashed or compared.
    if not (type(name) is str and isinstance(kind, int) and type(rows) is bytes and type(extras) is list):
        raise ValueError("the parts of a descriptor list are a text, an integer, bytes and a list")
    fields = (str, bytes) if name == nixlRemoteDList.__name__ else (bytes,)
    if any(type(one) not in fields for one in extras):
        raise ValueError("the fourth fields of descriptors are bytes, or the names of agents")
    numbers = np.frombuffer(rows, "<u8").reshape(-1, 3)
    if _LISTS[name].width == 3:
        return _LISTS[name](kind, numbers.astype(_ROW))
    return _LISTS[name](kind, [(*map(int, row), extra) for row, extra in zip(numbers, extras, strict=True)])


# What pickle.dumps() writes for a list by protocols 4 and 5. Others could change an object's attributes (BUILD), or allocate
# gigabytes by a few bytes (LONG_BINPUT).
_OPCODES = {
    *("PROTO", "FRAME", "MEMOIZE", "BINGET", "LONG_BINGET", "STACK_GLOBAL", "REDUCE", "STOP"),
    *("SHORT_BINUNICODE", "BINUNICODE", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BININT", "BININT1", "BININT2"),
    *("EMPTY_LIST", "MARK", "APPEND", "APPENDS", "TUPLE"),
}


class _Unpickler(pickle.Unpickler):
    """Makes descriptor lists and nothing else: the bytes come from another process."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (_made.__module__, _made.__name__):
            return _made
        raise nixlMismatchError(
            f"the bytes name {module}.{name}; serialised descriptors hold descriptor lists of HMC's drop-in only"
        )


def restore(data: bytes) -> Any:
    """The descriptor list of these bytes. Raises nixlMismatchError for anything else."""
    data = octets(data)
    try:
        for code, _, _ in pickletools.genops(data):
            if code.name not in _OPCODES:
                raise nixlMismatchError(f"{len(data)} bytes are no serialised descriptor list: they hold {code.name}")
        found = _Unpickler(io.BytesIO(data)).load()
    except nixlMismatchError:
        raise
    except Exception as error:
        raise nixlMismatchError(f"{len(data)} bytes are no serialised descriptor list: {error}") from error
    if not isinstance(found, _DList):
        raise nixlMismatchError(f"{len(data)} bytes hold a {type(found).__name__}, not a descriptor list")
    return found
