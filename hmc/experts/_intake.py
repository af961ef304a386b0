"""What a dispatch is called with: its rows go to registered memory, the experts of its tokens to the CPU."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmc import _core, tensors
from hmc._deadline import Deadline
from hmc._interrupts import record
from hmc.errors import DeviceError, InvalidArgumentError
from hmc.experts._arrays import Rows, bare, described, in_order, is_torch, plain, wait
from hmc.experts._memory import Area
from hmc.tensors import _dtypes
from hmc.tensors._storage import check_storage

_PAGE = 4096
_AFTER = "nothing was sent; call dispatch() again"

# Types of tables that are copied as they lie, and as what NumPy reads them.
_READ_AS = {
    **{f"{kind}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "bfloat16": "uint16",
}

#: (element type, shape)
_Kind = tuple[str, tuple[int, ...]]
#: (memory, the same as an array, whether integers stand for bfloat16 in it)
_Place = tuple[_core.Memory, NDArray[Any], bool]


class Intake:
    """Queues copies of what lies on a device behind its streams, all on one device by one event. One thread at a time."""

    def __init__(self) -> None:
        self._host = _core.Memory(_PAGE)  # of the tables
        self._places: tuple[dict[str, _Kind], dict[str, _Place]] = {}, {}
        # (whether each copy was queued, marks behind them, the error of the first that failed). One that was not waited for may
        # still write.
        self._queued: list[tuple[list[bool], list[_core.StreamMark], Exception | None]] = []
        self._what = ""

    def take(
        self, topk_ids: Any, topk_weights: Any, rows: list[tuple[Rows, Area]], deadline: Deadline
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Copies the rows, and returns (ids, weights) in CPU memory, which the next call overwrites.

        HmcTimeoutError names the arrays whose stream is behind. InvalidArgumentError names an array that is refused.
        """
        self.drain(deadline, _AFTER)
        tables = {"topk_ids": topk_ids, "topk_weights": topk_weights}
        places = self._places_of({what: kind for what, array in tables.items() if (kind := _kind_of(array)) is not None})
        copies = [(what, _in_order(tables[what]), place[0]) for what, place in places.items()]
        copies += [(part.what, part.array, area.memory) for part, area in rows if _on_stream(part, area)]
        done = self._copy(copies, deadline)
        ids, weights = (
            _values(*places[what][1:]) if what in done else _table(what, tables[what], dtype)
            for what, dtype in (("topk_ids", None), ("topk_weights", np.float32))
        )
        for part, area in rows:
            if part.what not in done:
                part.copy_to(area, deadline, _AFTER)
        if weights.dtype == np.float32:
            return ids, weights
        with np.errstate(over="ignore"):  # beyond float32: infinite
            return ids, weights.astype(np.float32)

    def _places_of(self, kinds: dict[str, _Kind]) -> dict[str, _Place]:
        """Where tables are copied to. Calls one after the other have tables of the same types and shapes, as a rule."""
        if self._places[0] != kinds:
            ends = list(itertools.accumulate((-(-_nbytes(*kind) // 8) * 8 for kind in kinds.values()), initial=0))
            if self._host.nbytes < ends[-1]:
                self._host = _core.Memory(-(-ends[-1] // _PAGE) * _PAGE)
            made = {}
            for (what, (dtype, shape)), begin in zip(kinds.items(), ends, strict=False):
                memory = self._host[begin : begin + _nbytes(dtype, shape)]
                made[what] = memory, memory.numpy().view(_READ_AS[dtype]).reshape(shape), dtype == "bfloat16"
            self._places = kinds, made
        return self._places[1]

    def _copy(self, copies: list[tuple[str, Any, _core.Memory]], deadline: Deadline) -> list[str]:
        """Copies arrays behind their streams and waits. Returns the names of those copied: an array without a stream is not."""
        if not copies:
            return []
        self._what = " and ".join(what for what, *_ in copies)
        record(self._queued, _core.queue_copies, [(array, memory) for _, array, memory in copies])
        done, marks, error = self._queued[-1]
        self._queued[-1] = done, marks, None
        try:
            if error is not None:
                raise error
        finally:
            error = None  # its traceback references this frame, and the frame the arrays
        self.drain(deadline, _AFTER)
        return [what for (what, *_), queued in zip(copies, done, strict=True) if queued]

    def drain(self, deadline: Deadline, after: str) -> None:
        """Waits until no queued copy writes any more. HmcTimeoutError says what to do ``after`` it."""
        while self._queued:
            try:
                wait(self._what, self._queued[0][1], deadline, after)
            except DeviceError:  # the stream failed or is captured: nothing of it runs any more
                self._queued.pop(0)
                raise
            self._queued.pop(0)


def _table(what: str, array: Any, dtype: Any) -> NDArray[Any]:
    """A table that was not copied behind a stream: on the CPU; on a device and ready, because it names no stream; or empty."""
    if not _on_device(array) or is_torch(array) or (found := described(array))[0] not in _READ_AS:
        return host_array(what, array, dtype)
    copy = _core.Memory(_nbytes(*found))
    if copy.nbytes:
        copy.copy_from(_core.Memory.from_array(array))
    return _values(copy.numpy().view(_READ_AS[found[0]]).reshape(found[1]), found[0] == "bfloat16")


def _values(table: NDArray[Any], bfloat16: bool) -> NDArray[Any]:
    """``bfloat16``: integers stand for it."""
    return (table.astype(np.uint32) << 16).view(np.float32) if bfloat16 else table


def _in_order(array: Any) -> Any:
    return bare(plain(array)) if is_torch(array) else array


def _on_stream(rows: Rows, area: Area) -> bool:
    return rows.count > 0 and not area.on_cpu and _on_device(rows.array)


def _on_device(array: Any) -> bool:
    if is_torch(array):
        return not array.is_cpu
    plainly_not = isinstance(array, np.ndarray | tensors.Tensor | list | tuple)
    return not plainly_not and hasattr(array, "__cuda_array_interface__")


def _kind_of(array: Any) -> _Kind | None:
    """None: the array is not on a device, has no elements, or has elements of a type that is not copied as it lies."""
    if not _on_device(array):
        return None
    try:
        dtype, shape = described(array)
    except InvalidArgumentError:
        return None
    return (dtype, shape) if dtype in _READ_AS and 0 not in shape else None


def _nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * _dtypes.size_of(dtype)


def _numpy_of(array: Any) -> NDArray[Any]:
    """In CPU memory. bfloat16, which NumPy does not have, becomes float32."""
    if is_torch(array):
        check_storage(array)
        bare = array.detach().cpu()
        if _dtypes.name_of(bare.dtype) == "bfloat16":
            bare = bare.float()
        elif array.is_cpu:  # NumPy's array of the caller's own would forbid for good that its storage is resized
            bare = bare.clone()
        found: NDArray[Any] = bare.numpy()
        return found
    if not isinstance(array, tensors.Tensor):
        return np.asarray(array)
    wide = array.dtype == "bfloat16"
    host = np.empty(array.shape, np.uint16 if wide else _dtypes.numpy_type(array.dtype))
    if host.size:
        in_order(array).copy_to(host)
    return (host.astype(np.uint32) << 16).view(np.float32) if wide else host


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
