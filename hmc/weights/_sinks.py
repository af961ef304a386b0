"""What becomes of a pulled part: copied to its array, or quantised in blocks first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmc import _core
from hmc._arguments import wholes
from hmc.errors import InvalidArgumentError, UnsupportedError
from hmc.weights._casts import cast_rows
from hmc.weights._parts import Part, Words, memory_of, part, plain

__all__ = ["Quantised", "Sink", "quantised", "sink_of"]

_LARGEST = 448.0  # of float8_e4m3fn


@dataclass(frozen=True)
class Quantised(Part):
    """A part of a target that is quantised in blocks. Its tensor is pulled as float32. Made by quantised()."""

    weight: Part
    scales: Part
    block: tuple[int, int]


def quantised(
    array: Any,
    scales: Any,
    shape: Sequence[int] | None = None,
    at: Sequence[int] | None = None,
    block: tuple[int, int] = (128, 128),
    dtype: Any = None,
) -> Quantised:
    """A part of a target in float8_e4m3fn with a scale for each block of its last two axes, for plan() alone.

    The source has the tensor in a floating-point type. A block's scale is its largest absolute value / 448, or 1 where all are 0;
    an element is its value / scale, rounded to nearest even. ``array``: float8_e4m3fn, or bytes with ``dtype="float8_e4m3fn"``.
    ``scales``: float32, the array's extents / ``block``, rounded up, on the last two axes. ``shape``, ``at``: as in part().

    Raises InvalidArgumentError for other types, other extents of ``scales``, and a part that does not begin and end at blocks.
    """
    weight, factors = part(array, shape, at, dtype), part(scales)
    if weight.dtype != "float8_e4m3fn" or factors.dtype != "float32":
        raise InvalidArgumentError(f"quantised {weight.dtype} with scales of {factors.dtype}: pass float8_e4m3fn and float32")
    sizes = wholes("block", block)
    if len(weight.extents) < 2 or len(sizes) != 2 or min(sizes) < 1:
        raise InvalidArgumentError(
            f"blocks of {block} in an array of shape {weight.extents}: pass two axes or more, two ints from 1 on"
        )
    wanted = (*weight.extents[:-2], *(-(-e // b) for e, b in zip(weight.extents[-2:], sizes, strict=True)))
    if factors.extents != wanted:
        raise InvalidArgumentError(f"scales of shape {factors.extents} for {weight.extents} in blocks of {block}: pass {wanted}")
    for first, extent, whole, size in zip(weight.at[-2:], weight.extents[-2:], weight.shape[-2:], sizes, strict=True):
        if first % size or (extent % size and first + extent != whole):
            raise InvalidArgumentError(f"a part of {weight.extents} at {weight.at} begins or ends within a block of {block}")
    return Quantised(array, "float32", weight.extents, weight.shape, weight.at, weight, factors, (sizes[0], sizes[1]))


class Sink:
    """Copies a part from the shadow to its array."""

    def __init__(self, ctx: _core.Context, name: str, one: Part) -> None:
        self._words = Words(ctx, name, one)
        self._places = [(name, one.array, memory_of(one.array))]

    def check(self) -> None:
        """InvalidArgumentError where an array has other memory than at plan(): a view of it would write freed memory."""
        for name, array, memory in self._places:
            if memory_of(array) != memory:
                raise InvalidArgumentError(f"tensor {name}: its array was resized or moved since plan(); plan again")

    def arrays(self) -> list[Any]:
        """What commit() writes."""
        return [plain(array) for _, array, _ in self._places]

    def prepare(self, elements: Any, check: Callable[[], None]) -> None:
        """At the end of a pull; the array does not change yet. ``check`` raises what ends the pull early."""

    def commit(self, elements: Any) -> None:
        """Replaces the array's elements by those of the shadow (Place.elements). Work that uses them is over."""
        self._words.write(elements)


class _QuantisedSink(Sink):
    def __init__(self, ctx: _core.Context, name: str, one: Quantised) -> None:
        super().__init__(ctx, name, one.weight)
        self._name = name
        self._one = one
        self._scales = Words(ctx, name, one.scales)
        self._places = [(name, own.array, memory_of(own.array)) for own in (one.weight, one.scales)]
        self._made = np.zeros(one.extents, np.uint8), np.zeros(one.scales.extents, np.float32)

    def prepare(self, elements: NDArray[Any], check: Callable[[], None]) -> None:
        values = elements.view(np.float32)
        for outer in np.ndindex(*values.shape[:-2]):
            for number, row in enumerate(range(0, values.shape[-2], self._one.block[0])):
                check()
                rows = slice(row, row + self._one.block[0])
                self._block_row(values[(*outer, rows)], self._made[0][(*outer, rows)], self._made[1][(*outer, number)])

    def _block_row(self, values: Any, made: Any, scales: Any) -> None:
        columns, width = values.shape[-1], min(self._one.block[1], values.shape[-1])
        largest = np.maximum.reduceat(np.abs(values).max(axis=0), np.arange(0, columns, width))
        if not np.isfinite(largest).all():
            raise UnsupportedError(
                f"tensor {self._name} has a NaN or an infinity, so that its blocks have no scale; the target is unchanged"
            )
        scales[:] = np.where(largest == 0, np.float32(1), largest / np.float32(_LARGEST))
        scales[scales == 0] = np.float32(1)  # the largest value / 448 is below the smallest number
        divided = np.ascontiguousarray(values / np.repeat(scales, width)[:columns])
        kinds = "float32", "float8_e4m3fn"
        cast_rows(kinds, divided.reshape(-1).view(np.uint8), columns, made.reshape(-1), columns, len(values), columns)

    def commit(self, elements: NDArray[Any]) -> None:
        self._words.write(self._made[0])
        self._scales.write(self._made[1].view(self._scales.word))


def sink_of(ctx: _core.Context, name: str, one: Part) -> Sink:
    return _QuantisedSink(ctx, name, one) if isinstance(one, Quantised) else Sink(ctx, name, one)
