"""Which part of which tensor an array holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmc import _core
from hmc._arguments import whole, wholes
from hmc.errors import InvalidArgumentError, UnsupportedError
from hmc.tensors import Tensor, _dtypes, describe
from hmc.tensors._register import is_dense

__all__ = ["WORDS", "Part", "Words", "fused", "memory_of", "part", "parts_of", "plain", "shard", "text_bytes"]

_MOST = 1 << 62
WORDS = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8", 16: "V16"}


@dataclass(frozen=True)
class Part:
    """An array that holds a part of a tensor. Made by part(), shard() and fused()."""

    array: Any
    dtype: str
    extents: tuple[int, ...]  # of the array
    shape: tuple[int, ...]  # of the whole tensor
    at: tuple[int, ...]  # index of the array's first element in the tensor

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return _dtypes.size_of(self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the array's elements."""
        return math.prod(self.extents) * self.itemsize


def part(array: Any, shape: Sequence[int] | None = None, at: Sequence[int] | None = None, dtype: Any = None) -> Part:
    """An array as the part of a tensor of ``shape`` that begins at index ``at``.

    ``array``: of NumPy, torch or another library, in CPU or device memory, or a hmc.tensors.Tensor. ``shape``: of the whole tensor,
    default the array's own. ``at``: one index per axis, default all 0. ``dtype``: the element type where the array has another of
    the same size, such as bfloat16 in an array of uint16. InvalidArgumentError where the array does not lie within the tensor.
    """
    found = describe(array)
    name = found.dtype if dtype is None else _dtypes.name_of(dtype)
    if _dtypes.size_of(name) != _dtypes.size_of(found.dtype):
        raise InvalidArgumentError(
            f"an array of {found.dtype} as {name}: pass an element type of {_dtypes.size_of(found.dtype)} bytes"
        )
    extents = found.shape if shape is None else tuple(wholes("shape", shape))
    first = (0,) * len(extents) if at is None else tuple(wholes("at", at))
    fits = len(extents) == len(first) == len(found.shape) and all(
        a >= 0 and a + e <= s for a, e, s in zip(first, found.shape, extents, strict=True)
    )
    if not fits:
        raise InvalidArgumentError(f"an array of shape {found.shape} at {first} does not lie within a tensor of shape {extents}")
    return Part(array, name, found.shape, extents, first)


def shard(array: Any, axis: int, rank: int, size: int, dtype: Any = None) -> Part:
    """An array as shard ``rank`` of ``size`` equal ones of a tensor along ``axis``, as tensor parallel ranks hold it.

    Use part() where shards differ in size. InvalidArgumentError where there is no such axis or rank.
    """
    extents = describe(array).shape
    axis, rank, size = _checked_shard(extents, axis, rank, size)
    shape, first = list(extents), [0] * len(extents)
    shape[axis], first[axis] = extents[axis] * size, extents[axis] * rank
    return part(array, shape, first, dtype)


def _checked_shard(extents: tuple[int, ...], axis: Any, rank: Any, size: Any) -> tuple[int, int, int]:
    """The axis, from 0 on, the rank and the number of shards."""
    axis, rank, size = whole("axis", axis, -_MOST, _MOST), whole("rank", rank, -_MOST, _MOST), whole("size", size, 1, _MOST)
    if not -len(extents) <= axis < len(extents) or not 0 <= rank < size:
        raise InvalidArgumentError(f"shard {rank} of {size} along axis {axis} of an array of shape {extents}: no such rank or axis")
    return axis % len(extents), rank, size


def fused(
    array: Any, extents: Mapping[str, int], axis: int = 0, rank: int = 0, size: int = 1, dtype: Any = None
) -> dict[str, Part]:
    """The tensors that lie behind one another along ``axis`` of an array, such as q, k and v, or gate and up.

    ``extents``: of every whole tensor along ``axis``, by name, in the array's order. Of each, the array holds shard ``rank`` of
    ``size`` equal ones. Returns what publish() and plan() take. InvalidArgumentError where extents are not divisible or do not
    add up to the array's.
    """
    found = describe(array)
    axis, rank, size = _checked_shard(found.shape, axis, rank, size)
    if not isinstance(extents, Mapping):
        raise TypeError(f"extents must be a mapping of names to ints, not a {type(extents).__name__}")
    given = {name: whole(f"extents[{name!r}]", extent, 0, _MOST) for name, extent in extents.items()}
    odd = [name for name, extent in given.items() if extent % size]
    if odd:
        raise InvalidArgumentError(f"extent {given[odd[0]]} of {odd[0]} is not divisible by {size}: pass each tensor's part()")
    if sum(given.values()) != found.shape[axis] * size:
        raise InvalidArgumentError(
            f"extents {given} over {size} ranks add up to {sum(given.values()) // size}, not to {found.shape[axis]}"
        )
    made, start = {}, 0
    for name, extent in given.items():
        own = extent // size
        piece = array[(slice(None),) * axis + (slice(start, start + own),)]
        made[name] = shard(piece, axis, rank, size, dtype)
        start += own
    return made


def text_bytes(name: Any) -> int:
    """Bytes of a name in UTF-8; 0 for anything else."""
    try:
        return len(name.encode()) if isinstance(name, str) else 0
    except UnicodeEncodeError:  # lone surrogates
        return 0


def parts_of(tensors: Any) -> list[tuple[str, Part]]:
    """(name, part) of what a user passes: a mapping of names to arrays, Parts, or lists of these."""
    if not isinstance(tensors, Mapping):
        raise InvalidArgumentError(f"a {type(tensors).__name__}: pass a mapping of names to arrays or Parts")
    found = []
    for name, value in tensors.items():
        if not 0 < text_bytes(name) <= 1024:
            raise InvalidArgumentError(f"the name {name!r}: a tensor's name is a text of 1 to 1024 bytes")
        for one in value if isinstance(value, list | tuple) else [value]:
            try:
                made = one if isinstance(one, Part) else part(one)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"tensor {name}: {error}") from None
            found.append((name, made))
    return found


class Words:
    """A target's elements as unsigned words, of which write() replaces all."""

    def __init__(self, ctx: _core.Context, name: str, one: Part) -> None:
        """UnsupportedError where they cannot be written in place, InvalidArgumentError where they must not be."""
        self.word = np.dtype(WORDS[one.itemsize])
        self._extents = one.extents
        self._host: NDArray[Any] | None = None
        self._memory: _core.Memory | None = None
        if isinstance(one.array, np.ndarray):
            self._host = one.array.view(np.ndarray).view(self.word)
            if not self._host.flags.writeable:
                raise InvalidArgumentError(f"tensor {name} is read-only: pass a writable array")
            return
        if not is_dense(one.array):
            raise UnsupportedError(f"tensor {name}: a {type(one.array).__name__} that is not contiguous: pass a contiguous one")
        try:
            with ctx.register(plain(one.array), access="rw") as buffer:  # refuses what is read-only
                if buffer.device == "cpu":
                    self._host = buffer.numpy(self.word, one.extents)
                else:
                    self._memory = buffer.memory
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"tensor {name}: {error}") from None

    def write(self, words: Any) -> None:
        """``words``: of the target's shape; to a device, in C order, or device memory that has them so.

        Returns when all are in place.
        """
        if isinstance(words, _core.Memory):
            if self._memory is not None:
                self._memory.copy_blocks_from(words, [0], [0], words.nbytes)
                return
            if self._host is not None and self._host.flags.c_contiguous:
                _core.Memory.from_array(self._host.reshape(-1).view(np.uint8)).copy_blocks_from(words, [0], [0], words.nbytes)
                return
            copy = _core.Memory(words.nbytes)
            copy.copy_blocks_from(words, [0], [0], words.nbytes)
            words = copy.numpy(self.word, self._extents)
        if self._host is not None:
            np.copyto(self._host.reshape(1) if self._host.ndim == 0 else self._host, words)
        elif self._memory is not None and words.nbytes:
            self._memory.copy_blocks_from(_core.Memory.from_array(words), [0], [0], words.nbytes)


def memory_of(array: Any) -> tuple[int, int] | None:
    """Where the elements of a NumPy array or torch tensor begin, and their bytes; None for others, which cannot be resized."""
    if isinstance(array, np.ndarray):
        return int(array.__array_interface__["data"][0]), array.nbytes
    if callable(getattr(array, "data_ptr", None)):
        return int(array.data_ptr()), math.prod(array.shape) * int(array.element_size())
    return None


def plain(array: Any) -> Any:
    """What registers: a torch tensor's values without its gradient, the memory of a Tensor, others as they are."""
    if isinstance(array, Tensor):
        return array.memory()
    return array.detach() if getattr(array, "requires_grad", False) is True else array
