"""Arrays of the caller in and out: NumPy, torch, hmc.tensors.Tensor, on the CPU or on a device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmc import _core, tensors
from hmc._deadline import Deadline
from hmc._streams import queued, wait_for
from hmc.errors import HmcTimeoutError, InvalidArgumentError
from hmc.experts._memory import Area
from hmc.tensors import _dtypes

Bytes = NDArray[np.uint8]
#: Makes an array like one of the caller's of rows: (rows, element type, columns) to array. Rows of a device are not copied.
Like = Callable[[Area, str, int], Any]

# Types that NumPy does not have: an array of integers of their size stands for them.
_BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8"}


class Rows:
    """Rows of the caller's array. ``copy_to`` takes their bytes to the CPU."""

    def __init__(self, what: str, array: Any, dtype: str, columns: int, most: int | None) -> None:
        found = tensors.describe(array)
        bits = isinstance(array, np.ndarray) and found.dtype == _BITS.get(dtype)
        if found.dtype != dtype and not bits:
            raise InvalidArgumentError(f"{what}: elements of {found.dtype}; this Buffer was made for {dtype}")
        if len(found.shape) != 2 or found.shape[1] != columns:
            raise InvalidArgumentError(f"{what}: shape {found.shape}; pass (rows, {columns})")
        if most is not None and found.shape[0] > most:
            raise InvalidArgumentError(f"{what}: {found.shape[0]} rows; this Buffer was made for at most {most}")
        self.what = what
        self.count = found.shape[0]
        self.row_bytes = columns * _dtypes.size_of(dtype)
        self.like = _like_of(array, found.dtype)
        self._host, self._memory = _bytes_of(array, self.row_bytes)
        self._queued = [] if self._memory is None else queued([array.detach() if _torch_tensor(array) else array])

    def copy_to(self, area: Area, deadline: Deadline, after: str) -> None:
        """``area``: of as many rows. Comes behind what is queued on the array's stream. Does nothing where it is that memory.

        HmcTimeoutError says ``after``: what to do then.
        """
        if self.count == 0:
            return

        def check() -> None:
            if deadline.left() == 0:
                raise HmcTimeoutError(f"{self.what}: its stream has not come so far within {deadline.timeout} s: {after}")

        wait_for(self._queued, check)
        source = _core.Memory.from_array(self._host) if self._memory is None else self._memory
        if source.address != area.memory.address or source.device != area.memory.device:
            area.memory.copy_blocks_from(source, [0], [0], area.memory.nbytes)


def _torch_tensor(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _bytes_of(array: Any, row_bytes: int) -> tuple[Bytes | None, Any]:
    """(bytes in CPU memory, None) or (None, the Memory of a device)."""
    if _torch_tensor(array):
        torch = sys.modules["torch"]
        bare = array.detach().contiguous().reshape(-1).view(torch.uint8)
        if bare.is_cpu:
            return bare.numpy().reshape(-1, row_bytes), None
        return None, _core.Memory.from_array(bare)
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array).view(np.uint8).reshape(-1, row_bytes), None
    memory = array.memory() if isinstance(array, tensors.Tensor) else _core.Memory.from_array(array)
    if isinstance(array, tensors.Tensor) and array.nbytes != memory.nbytes:
        raise InvalidArgumentError("a Tensor with gaps between its rows; pass one in C order")
    return (memory.numpy().reshape(-1, row_bytes), None) if memory.device == "cpu" else (None, memory)


def _like_of(array: Any, dtype: str) -> Like:
    if _torch_tensor(array):
        return _torch_on(array.device)
    if isinstance(array, np.ndarray):
        return _numpy_bits if dtype in _BITS.values() else _numpy
    device = array.device if isinstance(array, tensors.Tensor) else _core.Memory.from_array(array).device
    return _tensor_on(str(device))


def _numpy(rows: Area, dtype: str, columns: int) -> Any:
    if rows.memory.device != "cpu":
        return _tensor(rows, dtype, columns)
    return rows.bytes().view(_dtypes.numpy_type(dtype)).reshape(-1, columns)


def _numpy_bits(rows: Area, dtype: str, columns: int) -> Any:
    if rows.memory.device != "cpu":
        return _tensor(rows, dtype, columns)
    return rows.bytes().view(np.dtype(_BITS.get(dtype, dtype))).reshape(-1, columns)


def _torch_on(device: Any) -> Like:
    def make(rows: Area, dtype: str, columns: int) -> Any:
        torch = sys.modules["torch"]
        if rows.memory.device != "cpu":
            return _tensor(rows, dtype, columns).torch()
        host = torch.from_numpy(rows.bytes().reshape(-1)).view(_dtypes.torch_type(dtype)).view(rows.count, columns)
        return host if device.type == "cpu" else host.to(device)

    return make


def _tensor_on(device: str) -> Like:
    def make(rows: Area, dtype: str, columns: int) -> Any:
        if device == "cpu" or rows.memory.device != "cpu":
            return _tensor(rows, dtype, columns)
        copy = Area(_core.Memory(rows.memory.nbytes, device), rows.count, rows.row_bytes)
        if rows.count:
            copy.memory.copy_blocks_from(rows.memory, [0], [0], rows.memory.nbytes)
        return _tensor(copy, dtype, columns)

    return make


def _tensor(rows: Area, dtype: str, columns: int) -> tensors.Tensor:
    return tensors.view(rows.memory, dtype, (rows.count, columns))


def _numpy_of(array: Any) -> NDArray[Any]:
    """In CPU memory. bfloat16, which NumPy does not have, becomes float32."""
    if _torch_tensor(array):
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


def host_array(what: str, array: Any, dtype: Any) -> NDArray[Any]:
    """A copy of a small array as one of NumPy, in CPU memory and C order: the caller may change the array afterwards.

    ``dtype`` None: as it is. Else numbers of other types are converted, bfloat16 among them.
    """
    try:
        found = _numpy_of(array)
    except (TypeError, ValueError, BufferError) as error:
        raise InvalidArgumentError(f"{what}: a {type(array).__name__} is no array: {error}") from error
    if dtype is None:
        return np.array(found, order="C")
    if found.dtype.kind not in "fiu" and found.dtype.name != "bfloat16":  # of ml_dtypes
        raise InvalidArgumentError(f"{what}: elements of {found.dtype}; pass {np.dtype(dtype).name}")
    with np.errstate(over="ignore"):  # beyond float32: infinite
        return np.array(found, dtype, order="C")
