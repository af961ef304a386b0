"""Where the elements of an indexed tensor lie: pure arithmetic on bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmc.errors import InvalidArgumentError


@dataclass(frozen=True)
class Axis:
    """``extent`` indices, ``stride`` bytes apart; or, with ``places``, at these bytes."""

    extent: int
    stride: int
    places: NDArray[np.int64] | None = None

    def offsets(self) -> NDArray[np.int64]:
        return self.places if self.places is not None else np.arange(self.extent, dtype=np.int64) * self.stride

    def offsets_at(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of some indices from 0 on, without an array of all."""
        return self.places[indices] if self.places is not None else indices * self.stride


def c_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Bytes between elements in C order."""
    strides, step = [], itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= max(1, extent)
    return tuple(reversed(strides))


def _expand(index: Any, ndim: int) -> list[Any]:
    parts = list(index) if isinstance(index, tuple) else [index]
    dots = [at for at, part in enumerate(parts) if part is Ellipsis]
    if len(dots) > 1:
        raise InvalidArgumentError("an index with two '...': write one")
    missing = ndim - (len(parts) - len(dots))
    if missing < 0:
        raise InvalidArgumentError(f"{len(parts) - len(dots)} indices for a tensor of {ndim} dimensions")
    at = dots[0] if dots else len(parts)
    return [*parts[:at], *[slice(None)] * missing, *parts[at + len(dots) :]]


def _list(part: Any, axis: Axis, number: int) -> Axis:
    chosen = np.asarray(part)
    if chosen.size == 0:
        chosen = chosen.astype(np.int64)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"index {part!r} of axis {number}: pass an integer, a slice or a one-dimensional list of integers"
        )
    signed = chosen.astype(np.int64)
    wrapped = np.where(signed < 0, signed + axis.extent, signed)
    wrong = (wrapped < 0) | (wrapped >= axis.extent)
    if chosen.dtype.kind == "u":
        wrong |= signed < 0  # 2**63 and more
    if wrong.any():
        raise InvalidArgumentError(f"index {chosen[wrong][0]} of axis {number} lies outside its {axis.extent} entries")
    return Axis(len(wrapped), 0, axis.offsets_at(wrapped))


def _slice(part: slice, axis: Axis, number: int) -> tuple[int, Axis]:
    start, stop, step = part.indices(axis.extent)
    if step < 0:
        raise InvalidArgumentError(f"index {part} of axis {number}: steps are positive; pass a list of indices to change the order")
    extent = len(range(start, stop, step))
    if axis.places is not None:
        return 0, Axis(extent, 0, axis.places[start:stop:step])
    return (start * axis.stride if extent else 0), Axis(extent, axis.stride * step)


def index_axes(axes: Sequence[Axis], index: Any) -> tuple[int, tuple[Axis, ...]]:
    """Bytes to the first element, and the axes that are left."""
    offset, left = 0, []
    for number, (part, axis) in enumerate(zip(_expand(index, len(axes)), axes, strict=True)):
        if isinstance(part, slice):
            start, kept = _slice(part, axis, number)
            offset += start
            left.append(kept)
        elif not isinstance(part, bool) and hasattr(part, "__index__") and getattr(part, "ndim", 0) == 0:
            one = _list([int(part)], axis, number)
            assert one.places is not None
            offset += int(one.places[0])
        else:
            left.append(_list(part, axis, number))
    return offset, tuple(left)


def runs(axes: Sequence[Axis], itemsize: int) -> tuple[int, NDArray[np.int64]]:
    """(bytes of a contiguous run, offsets of the runs in C order): the longest runs that are of one length."""
    if any(axis.extent == 0 for axis in axes):  # before the offsets of other axes, which may have many entries
        return itemsize, np.zeros(0, np.int64)
    length, inner = itemsize, len(axes)
    while inner > 0:
        axis = axes[inner - 1]
        if axis.extent != 1 and (axis.places is not None or axis.stride != length):
            break
        if axis.extent == 1 and axis.places is not None and axis.places[0] != 0:
            break
        length *= axis.extent
        inner -= 1
    offsets = np.zeros(1, np.int64)
    for axis in axes[:inner]:
        offsets = (offsets[:, None] + axis.offsets()[None, :]).reshape(-1)
    return length, offsets
