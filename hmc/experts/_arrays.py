"""Arrays of the caller in and out: NumPy, torch, hmc.tensors.Tensor, on the CPU or on a device."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hmc import _core, tensors
from hmc._deadline import Deadline
from hmc._streams import queued, wait_for
from hmc.errors import HmcTimeoutError, InvalidArgumentError, UnsupportedError
from hmc.experts._memory import Area, Counts
from hmc.tensors import _dtypes
from hmc.tensors._storage import check_storage

Bytes = NDArray[np.uint8]

# Seconds. What was queued just now and takes some microseconds does not fail a call with timeout=0, which would never succeed.
_LEAST = 0.001

# Types that NumPy does not have: an array of integers of their size stands for them.
_BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8"}


class Fresh:
    """A new array of the caller's kind. What was queued before it was made may still use its memory."""

    def __init__(self, array: Any, memory: _core.Memory, marks: list[_core.StreamMark]) -> None:
        self.array = array
        self.memory = memory
        self._queued = marks

    def wait(self, deadline: Deadline, after: str) -> None:
        """Until its memory may be written. HmcTimeoutError says ``after``: what to do then."""
        _wait("result", self._queued, deadline, after)


class Like(Protocol):
    """Makes arrays like one of the caller's."""

    def view(self, rows: Area, dtype: str, columns: int) -> Any:
        """Of these rows. Rows of a device are not copied."""

    def empty(self, rows: int, dtype: str, columns: int) -> Fresh:
        """On the device of the caller's array."""


class Rows:
    """Rows of the caller's array."""

    def __init__(self, what: str, array: Any, dtype: str, columns: int, most: int | None, counts: Counts) -> None:
        found, shape = _described(array)
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
        self.like: Like = _like_of(array, found, counts)
        self._counts = counts
        if _torch_tensor(array):
            array = _plain(array)
        self._host, self._memory, self._queued = _bytes_of(array, self.row_bytes)

    def copy_to(self, area: Area, deadline: Deadline, after: str) -> None:
        """``area``: of as many rows. Comes behind what is queued on the array's stream. Does nothing where it is that memory.

        HmcTimeoutError says ``after``: what to do then.
        """
        if self.count == 0:
            return
        _wait(self.what, self._queued, deadline, after)
        source = _core.Memory.from_array(self._host) if self._memory is None else self._memory
        if source.address != area.memory.address or source.device != area.memory.device:
            self._counts.copy(area.memory, source)


def _wait(what: str, marks: list[_core.StreamMark], deadline: Deadline, after: str) -> None:
    began = time.monotonic()

    def check() -> None:
        if deadline.left() == 0 and time.monotonic() - began > _LEAST:
            raise HmcTimeoutError(f"{what}: its stream has not come so far within {deadline.timeout} s: {after}")

    wait_for(marks, check)


def _torch_tensor(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _described(array: Any) -> tuple[str, tuple[int, ...]]:
    """(element type, shape)."""
    if _torch_tensor(array):
        return _dtypes.name_of(array.dtype), tuple(array.shape)
    found = tensors.describe(array)
    return found.dtype, found.shape


def _plain(tensor: Any) -> Any:
    """A tensor of torch in C order, without gradients; the same memory where it can be. InvalidArgumentError: it has none."""
    check_storage(tensor)
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _bytes_of(array: Any, row_bytes: int) -> tuple[Bytes | None, _core.Memory | None, list[_core.StreamMark]]:
    """(bytes in CPU memory, None, []) or (None, the Memory of a device, what is queued before it may be read).

    A tensor of torch is in C order, without gradients.
    """
    if _torch_tensor(array):
        if not array.is_cpu:
            return None, *marked(array)
        return array.reshape(-1).view(sys.modules["torch"].uint8).numpy().reshape(-1, row_bytes), None, []
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array).view(np.uint8).reshape(-1, row_bytes), None, []
    if not isinstance(array, tensors.Tensor):
        memory, marks = marked(array)
    elif array.nbytes == (memory := array.memory()).nbytes:
        marks = []
    else:
        raise InvalidArgumentError("a Tensor with gaps between its rows; pass one in C order")
    return (memory.numpy().reshape(-1, row_bytes), None, []) if memory.device == "cpu" else (None, memory, marks)


def marked(array: Any) -> tuple[_core.Memory, list[_core.StreamMark]]:
    """An array's memory, and what is queued now on the stream that the array is produced on."""
    if _torch_tensor(array) and array.element_size() == 1:  # not every torch hands out its types of 8 bits
        array = array.view(sys.modules["torch"].uint8)
    memory, mark = _core.marked_memory(array)
    return memory, [] if mark is None else [mark]


def _like_of(array: Any, dtype: str, counts: Counts) -> Like:
    if _torch_tensor(array):
        return _Torch(array.device, counts)
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
        if rows.memory.device != "cpu":
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
        if rows.memory.device != "cpu" or self._device.type == "cpu":
            return found
        self._counts.add("bytes_staged", rows.memory.nbytes)
        return found.to(self._device)

    def empty(self, rows: int, dtype: str, columns: int) -> Fresh:
        torch = sys.modules["torch"]
        made = torch.empty((rows, columns), dtype=_dtypes.torch_type(dtype), device=self._device)
        if made.is_cpu:
            return Fresh(made, _core.Memory.from_array(made.reshape(-1).view(torch.uint8).numpy()), [])
        return Fresh(made, *marked(made))


class _Tensors:
    """hmc.tensors.Tensor on a device or the CPU."""

    def __init__(self, device: str, counts: Counts) -> None:
        self._device = device
        self._counts = counts

    def view(self, rows: Area, dtype: str, columns: int) -> Any:
        if self._device == "cpu" or rows.memory.device != "cpu":
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


def _numpy_of(array: Any) -> NDArray[Any]:
    """In CPU memory. bfloat16, which NumPy does not have, becomes float32."""
    if _torch_tensor(array):
        check_storage(array)
        bare = array.detach().cpu()
        found: NDArray[Any] = (bare.float() if _dtypes.name_of(bare.dtype) == "bfloat16" else bare).numpy()
        return found
    if not isinstance(array, tensors.Tensor):
        return np.asarray(array)
    wide = array.dtype == "bfloat16"
    host = np.empty(array.shape, np.uint16 if wide else _dtypes.numpy_type(array.dtype))
    if host.size:
        array.memory().copy_to(host)
    return (host.astype(np.uint32) << 16).view(np.float32) if wide else host


def fetched(arrays: dict[str, Any], deadline: Deadline) -> list[Any]:
    """Tensors of torch on a card as copies in pinned memory, of NumPy where it has the type, which all come by one wait.

    Other arrays as they are.

    ``arrays``: by the names that HmcTimeoutError says.
    """
    found, copied = [], {}
    for what, array in arrays.items():
        if not (_torch_tensor(array) and array.device.type == "cuda"):
            found.append(array)
            continue
        bare = copied[what] = _plain(array)
        pinned = sys.modules["torch"].empty(bare.shape, dtype=bare.dtype, device="cpu", pin_memory=True)
        pinned.copy_(bare, non_blocking=True)
        try:
            found.append(pinned.numpy())
        except TypeError:  # of a type that NumPy has not
            found.append(pinned)
    _wait(" and ".join(copied), queued(copied.values()), deadline, "nothing was sent; call dispatch() again")
    return found


def host_array(what: str, array: Any, dtype: Any) -> NDArray[Any]:
    """A copy of a small array as one of NumPy, in CPU memory and C order: the caller may change the array afterwards.

    ``dtype`` None: as it is, in native byte order. Else numbers of other types are converted, bfloat16 among them.
    """
    try:
        found = _numpy_of(array)
    except (TypeError, ValueError, BufferError) as error:
        raise InvalidArgumentError(f"{what}: a {type(array).__name__} is no array: {error}") from error
    if dtype is None:
        return np.array(found, found.dtype.newbyteorder("="), order="C")
    if found.dtype == dtype:
        return np.array(found, order="C")
    if found.dtype.kind not in "fiu" and found.dtype.name != "bfloat16":  # of ml_dtypes
        raise InvalidArgumentError(f"{what}: elements of {found.dtype}; pass {np.dtype(dtype).name}")
    with np.errstate(over="ignore"):  # beyond float32: infinite
        return np.array(found, dtype, order="C")
