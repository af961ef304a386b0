"""Arrays of the caller in and out: NumPy, torch, hmc.tensors.Tensor, on the CPU or on a device."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any, Protocol

import numpy as np

from hmc import _core, tensors
from hmc._deadline import Deadline
from hmc._streams import wait_for
from hmc.errors import HmcTimeoutError, InvalidArgumentError, UnsupportedError
from hmc.experts._memory import Area, Counts
from hmc.tensors import _dtypes
from hmc.tensors._register import is_dense
from hmc.tensors._storage import check_storage

#: Memory, and what is queued before it may be read.
_Source = tuple[_core.Memory, list[_core.StreamMark]]

# Seconds. What was queued just now and takes some microseconds does not fail a call with timeout=0, which would never succeed.
_LEAST = 0.001

# Types that NumPy does not have: an array of integers of their size stands for them.
_BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8"}


class Fresh:
    """A new array of the caller's kind. What was queued before it was made may still use its memory."""

    def __init__(self, array: Any, memory: _core.Memory, marks: list[_core.StreamMark]) -> None:
        self.array = array
        self.memory = memory
        self.queued = marks

    def wait(self, deadline: Deadline, after: str) -> None:
        """Until its memory may be written. HmcTimeoutError says ``after``: what to do then."""
        wait("result", self.queued, deadline, after)


class Like(Protocol):
    """Makes arrays like one of the caller's."""

    def view(self, rows: Area, dtype: str, columns: int) -> Any:
        """Of these rows. Rows of a device are not copied."""

    def empty(self, rows: int, dtype: str, columns: int) -> Fresh:
        """On the device of the caller's array."""


class Rows:
    """Rows of the caller's array."""

    def __init__(self, what: str, array: Any, dtype: str, columns: int, most: int | None, counts: Counts) -> None:
        found, shape = described(array)
        bits = isinstance(array, np.ndarray) and found == _BITS.get(dtype)
        if found != dtype and not bits:
            raise InvalidArgumentError(f"{what}: elements of {found}; this Buffer was made for {dtype}")
        if len(shape) != 2 or shape[1] != columns:
            raise InvalidArgumentError(f"{what}: shape {shape}; pass (rows, {columns})")
        if most is not None and shape[0] > most:
            raise InvalidArgumentError(f"{what}: {shape[0]} rows; this Buffer was made for at most {most}")
        self.what = what
        self.count = shape[0]
        self.row_bytes = columns * _dtypes.size_of(dtype)
        self.of_torch = is_torch(array)
        self.like: Like = _Torch(array.device, counts) if self.of_torch else _like_of(array, found, counts)
        self.array = plain(array) if self.of_torch else array
        self._counts = counts
        self._source: _Source | None = None

    def look(self, made: Fresh | None = None) -> None:
        """Finds the bytes, and what is queued now on the array's stream: copy_to() comes behind it, and not behind later work.

        ``made``: what ``like`` has made since. torch makes it on that stream, so that what is queued before it includes the rows.
        """
        behind = made.queued if made is not None and self.of_torch else []
        self._source = _source_of(self.array, self.row_bytes, behind)

    def copy_to(self, area: Area, deadline: Deadline, after: str) -> None:
        """``area``: of as many rows. Comes behind what is queued on the array's stream. Does nothing where it is that memory.

        HmcTimeoutError says ``after``: what to do then.
        """
        if self.count == 0:
            return
        if self._source is None:
            self.look()
        assert self._source is not None
        source, marks = self._source
        wait(self.what, marks, deadline, after)
        target = area.memory
        if source.address != target.address or source.device != target.device:
            self._counts.copy(target, source)


def wait(what: str, marks: list[_core.StreamMark], deadline: Deadline, after: str) -> None:
    """For what is queued on streams, and empties ``marks``. HmcTimeoutError says ``what`` is queued and what to do ``after`` it."""
    if not marks:
        return
    began = time.monotonic()

    def check() -> None:
        if deadline.left() == 0 and time.monotonic() - began > _LEAST:
            raise HmcTimeoutError(f"{what}: its stream has not come so far within {deadline.timeout} s: {after}")

    wait_for(marks, check)
    marks.clear()


def is_torch(array: Any) -> bool:
    """Whether it is a tensor of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def described(array: Any) -> tuple[str, tuple[int, ...]]:
    """(element type, shape)."""
    if is_torch(array):
        return _dtypes.name_of(array.dtype), tuple(array.shape)
    found = tensors.describe(array)
    return found.dtype, found.shape


def plain(tensor: Any) -> Any:
    """A tensor of torch in C order, without gradients; the same memory where it can be. InvalidArgumentError: it has none."""
    if tensor.is_meta or tensor.layout is not sys.modules["torch"].strided:
        raise InvalidArgumentError(f"a Tensor of {tensor.layout} on {tensor.device}: pass a dense one with memory")
    check_storage(tensor)
    if tensor.requires_grad:
        tensor = tensor.detach()
    return (tensor if tensor.is_contiguous() else tensor.contiguous()).resolve_neg()


def _source_of(array: Any, row_bytes: int, behind: list[_core.StreamMark]) -> _Source:
    """A tensor of torch is in C order, without gradients. ``behind``: not empty: instead of what is queued now."""
    if is_torch(array):
        if not array.is_cpu:
            return (_core.Memory.from_array(bare(array)), behind) if behind else marked(array)
        return _core.Memory.from_array(array.reshape(-1).view(sys.modules["torch"].uint8)), []
    if isinstance(array, np.ndarray):
        return _core.Memory.from_array(np.ascontiguousarray(array).view(np.uint8).reshape(-1, row_bytes)), []
    if not isinstance(array, tensors.Tensor):
        return marked(array)
    return in_order(array), []


def in_order(tensor: tensors.Tensor) -> _core.Memory:
    """The elements in C order. InvalidArgumentError: they lie in another order, or have gaps."""
    if not is_dense(tensor):
        raise InvalidArgumentError(f"a Tensor of shape {tensor.shape} with strides of {tensor.strides} bytes; pass one in C order")
    return tensor.memory()


def bare(array: Any) -> Any:
    """Not every torch hands out its types of 8 bits."""
    return array.view(sys.modules["torch"].uint8) if is_torch(array) and array.element_size() == 1 else array


def marked(array: Any) -> _Source:
    """An array's memory, and what is queued now on the stream that the array is produced on."""
    memory, mark = _core.marked_memory(bare(array))
    return memory, [] if mark is None else [mark]


def _like_of(array: Any, dtype: str, counts: Counts) -> Like:
    """``array``: none of torch."""
    if isinstance(array, np.ndarray):
        return _Numpy(dtype in _BITS.values())
    device = array.device if isinstance(array, tensors.Tensor) else _core.Memory.from_array(array).device
    return _Tensors(str(device), counts)


class _Numpy:
    """``bits``: integers stand for types that NumPy does not have. Else those of ml_dtypes do, where that is installed."""

    def __init__(self, bits: bool) -> None:
        self._bits = bits

    def _type(self, dtype: str) -> np.dtype[Any]:
        if not self._bits:
            with contextlib.suppress(UnsupportedError):
                return _dtypes.numpy_type(dtype)
        return np.dtype(_BITS.get(dtype, dtype))

    def view(self, rows: Area, dtype: str, columns: int) -> Any:
        if not rows.on_cpu:
            return _tensor(rows, dtype, columns)
        return rows.bytes().view(self._type(dtype)).reshape(-1, columns)

    def empty(self, rows: int, dtype: str, columns: int) -> Fresh:
        made = np.empty((rows, columns * _dtypes.size_of(dtype)), np.uint8)
        return Fresh(made.view(self._type(dtype)), _core.Memory.from_array(made), [])


class _Torch:
    def __init__(self, device: Any, counts: Counts) -> None:
        self._device = device
        self._counts = counts

    def view(self, rows: Area, dtype: str, columns: int) -> Any:
        found = rows.torch(_dtypes.torch_type(dtype), columns)
        if not rows.on_cpu or self._device.type == "cpu":
            return found
        self._counts.add("bytes_staged", rows.memory.nbytes)
        return found.to(self._device)

    def empty(self, rows: int, dtype: str, columns: int) -> Fresh:
        torch = sys.modules["torch"]
        made = torch.empty((rows, columns), dtype=_dtypes.torch_type(dtype), device=self._device)
        if made.is_cpu:
            return Fresh(made, _core.Memory.from_array(made.reshape(-1).view(torch.uint8)), [])
        return Fresh(made, *marked(made))


class _Tensors:
    """hmc.tensors.Tensor on a device or the CPU."""

    def __init__(self, device: str, counts: Counts) -> None:
        self._device = device
        self._counts = counts

    def view(self, rows: Area, dtype: str, columns: int) -> Any:
        if self._device == "cpu" or not rows.on_cpu:
            return _tensor(rows, dtype, columns)
        copy = self.empty(rows.count, dtype, columns)
        self._counts.copy(copy.memory, rows.memory)
        return copy.array

    def empty(self, rows: int, dtype: str, columns: int) -> Fresh:
        row_bytes = columns * _dtypes.size_of(dtype)
        made = Area(_core.Memory(rows * row_bytes, self._device), rows, row_bytes)
        return Fresh(_tensor(made, dtype, columns), made.memory, [])


def _tensor(rows: Area, dtype: str, columns: int) -> tensors.Tensor:
    return tensors.view(rows.memory, dtype, (rows.count, columns))
