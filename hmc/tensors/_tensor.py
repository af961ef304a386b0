"""A typed, shaped view of bytes, and its parts as blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hmc import _core
from hmc._arguments import whole, wholes
from hmc.errors import InvalidArgumentError, UnsupportedError
from hmc.tensors import _dlpack, _dtypes
from hmc.tensors._axes import Axis, c_strides, index_axes, runs

Buffer = _core.Memory | _core.ConnBuffer | _core.RemoteBuffer


class Blocks(NamedTuple):
    """Contiguous runs of equal length. ``offsets`` (int64) are bytes from the start of the tensor's ``buffer``, in C order."""

    nbytes: int
    offsets: NDArray[np.int64]


class Tensor:
    """A typed, shaped view of a Memory, a ConnBuffer or a RemoteBuffer, or a part of one. Made by register() and view().

    Indexing gives a Tensor and copies nothing: integers, slices with positive steps, ``...``, and lists of integers. Several lists
    choose every combination, as ``numpy.ix_`` does. A part chosen by a list has no strides: it is for blocks() and pairs().
    A Tensor without a list is a DLPack producer with this shape and type. Immutable; any thread.
    """

    def __init__(self, buffer: Buffer, dtype: str, axes: Sequence[Axis], offset: int) -> None:
        self._buffer = buffer
        self._dtype = dtype
        self._axes = tuple(axes)
        self._offset = offset

    @property
    def buffer(self) -> Buffer:
        """The flat bytes: a Memory, a ConnBuffer or a RemoteBuffer. close() ends a registration there."""
        return self._buffer

    @property
    def dtype(self) -> str:
        """Name of the element type, such as "bfloat16"."""
        return self._dtype

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return _dtypes.size_of(self._dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, from the outermost axis."""
        return tuple(axis.extent for axis in self._axes)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._axes)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * self.itemsize

    @property
    def offset(self) -> int:
        """Bytes from the start of ``buffer`` to the first element; with a list, to where the lists' places count from."""
        return self._offset

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbours on each axis. UnsupportedError for a part chosen by a list."""
        if any(axis.places is not None for axis in self._axes):
            raise UnsupportedError(
                "a part chosen by a list of indices has no strides: use blocks() or pairs(), or index with a slice"
            )
        return tuple(axis.stride for axis in self._axes)

    @property
    def device(self) -> str:
        """Device name of the buffer, such as "cuda:0"."""
        return self._buffer.device

    def __len__(self) -> int:
        if not self._axes:
            raise TypeError("len() of a Tensor without axes")
        return self._axes[0].extent

    def __iter__(self) -> Iterator[Tensor]:
        """The parts along the first axis."""
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: Any) -> Tensor:
        offset, axes = index_axes(self._axes, index)
        return Tensor(self._buffer, self._dtype, axes, self._offset + offset)

    def __repr__(self) -> str:
        return f"<hmc.tensors.Tensor {self._dtype}{list(self.shape)} in {self._buffer!r}>"

    def blocks(self, nbytes: int | None = None) -> Blocks:
        """The elements in C order as blocks of one length: of ``nbytes`` bytes, default as long as they are contiguous.

        A tensor without elements has none, of any length. InvalidArgumentError where ``nbytes`` does not divide the contiguous
        length.
        """
        length, offsets = runs(self._axes, self.itemsize)
        nbytes = length if nbytes is None else whole("nbytes", nbytes, 1)
        if not len(offsets):
            return Blocks(nbytes, offsets)
        if length % nbytes:
            raise InvalidArgumentError(f"blocks of {nbytes} bytes: contiguous parts have {length} bytes; pass a divisor of that")
        inside = np.arange(0, length, nbytes, dtype=np.int64)
        return Blocks(nbytes, (offsets[:, None] + inside + self._offset).reshape(-1))

    def numpy(self) -> NDArray[Any]:
        """The elements as a NumPy array, without a copy. CPU memory only (BufferError otherwise).

        UnsupportedError for a part chosen by a list, and for a type that requires ml_dtypes where that is not installed.
        """
        memory, dtype = self.memory(), _dtypes.numpy_type(self._dtype)
        if memory.device != "cpu":
            raise BufferError(f"memory on {memory.device} is not addressable by the CPU: use torch() or DLPack, or copy it")
        return np.ndarray(self.shape, dtype, memory.numpy(), strides=self.strides)

    def torch(self) -> Any:
        """The elements as a torch tensor on this device, without a copy. UnsupportedError for a part chosen by a list."""
        import torch

        kind, size = _dtypes.torch_type(self._dtype), self.itemsize
        strides = self._element_strides()
        memory = self.memory()
        if self.nbytes == 0:
            return torch.empty(self.shape, dtype=kind, device=self.device if self.device != "cpu" else None)
        # torch imports bytes, then views them as the type: its DLPack import does not know every type.
        return torch.from_dlpack(memory).view(kind if size > 1 else torch.uint8).view(kind).as_strided(self.shape, strides)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None) -> Any:
        """The elements as a DLPack tensor of this type, shape and strides that shares ownership of the memory.

        UnsupportedError for a part chosen by a list, and for memory of vendors without ``__cuda_array_interface__`` (Cambricon).
        """
        if copy:
            raise BufferError("HMC exports memory without copying it")
        if dl_device is not None and dl_device != self.__dlpack_device__():
            raise BufferError(f"memory on {self.device} is not exported to DLPack device {dl_device}; copy it there first")
        return _dlpack.export(self.memory(), self._dtype, self.shape, self._element_strides(), max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack device type and number."""
        return self.memory().__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the protocol.

        AttributeError where it is not customary (CPU memory), for a type without a code, for a part chosen by a list, and for
        bytes at a peer.
        """
        if self._dtype.startswith(("bfloat", "float8")):
            raise AttributeError(f"__cuda_array_interface__ has no code for {self._dtype}: use DLPack")
        try:
            described = self.memory().__cuda_array_interface__
        except UnsupportedError as error:  # hasattr() passes on what is no AttributeError
            raise AttributeError(str(error)) from None
        return {**described, "shape": self.shape, "typestr": np.dtype(self._dtype).str, "strides": self.strides}

    def _element_strides(self) -> tuple[int, ...]:
        size = self.itemsize
        if any(stride % size for stride in self.strides):
            raise UnsupportedError(f"strides of {self.strides} bytes are no multiples of the element's {size} bytes")
        return tuple(stride // size for stride in self.strides)

    def memory(self) -> _core.Memory:
        """The bytes from the first element to the last. UnsupportedError for a part chosen by a list, and at a peer."""
        if isinstance(self._buffer, _core.RemoteBuffer):
            raise UnsupportedError("the bytes of a RemoteBuffer are at the peer: get() them into a ConnBuffer first")
        memory = self._buffer if isinstance(self._buffer, _core.Memory) else self._buffer.memory
        if self.nbytes == 0:
            return memory[:0]
        span = sum((axis.extent - 1) * stride for axis, stride in zip(self._axes, self.strides, strict=True))
        return memory[self._offset : self._offset + span + self.itemsize]


def view(buffer: Buffer, dtype: Any, shape: Sequence[int] | int, strides: Sequence[int] | None = None, offset: int = 0) -> Tensor:
    """A Memory, ConnBuffer or RemoteBuffer as a Tensor, without a copy.

    ``dtype``: of NumPy, ml_dtypes or torch, or a name. ``strides``: bytes, default C order; not negative. ``offset``: bytes from
    the start of the buffer, default 0. InvalidArgumentError where elements would lie outside the buffer.
    """
    if not isinstance(buffer, Buffer):
        raise InvalidArgumentError(f"a {type(buffer).__name__} is no buffer: pass a Memory, ConnBuffer or RemoteBuffer")
    name = _dtypes.name_of(dtype)
    extents = tuple(wholes("shape", shape)) if isinstance(shape, Iterable) else (whole("shape", shape),)
    size, offset = _dtypes.size_of(name), whole("offset", offset)
    steps = c_strides(extents, size) if strides is None else tuple(wholes("strides", strides))
    if len(steps) != len(extents) or min((*extents, *steps, offset), default=0) < 0:
        raise InvalidArgumentError(f"shape {extents}, strides {steps}, offset {offset}: one stride per extent, none negative")
    needed = 0 if 0 in extents else offset + sum((e - 1) * s for e, s in zip(extents, steps, strict=True)) + size
    if needed > buffer.nbytes:
        raise InvalidArgumentError(f"{name} of shape {extents} takes {needed} bytes, and the buffer has {buffer.nbytes}")
    return Tensor(buffer, name, [Axis(e, s) for e, s in zip(extents, steps, strict=True)], offset)


def pairs(local: Tensor, remote: Tensor) -> tuple[list[tuple[Any, Any, Any, Any]], int]:
    """What prepare_blocks() takes to move between equal shapes: ``prepare_blocks(*pairs(local[0, pages], remote[0, other]))``.

    ``local`` is over a ConnBuffer and ``remote`` over a RemoteBuffer, of one element size. The blocks are as long as both sides are
    contiguous. InvalidArgumentError where shapes or element sizes differ.
    """
    for name, one in (("local", local), ("remote", remote)):
        if not isinstance(one, Tensor):
            raise TypeError(f"{name} must be a Tensor, not a {type(one).__name__}")
    if local.shape != remote.shape or local.itemsize != remote.itemsize:
        raise InvalidArgumentError(
            f"{local.dtype}{list(local.shape)} here and {remote.dtype}{list(remote.shape)} at the peer: pass parts of one shape"
        )
    block = math.gcd(local.blocks().nbytes, remote.blocks().nbytes)
    return [(local.buffer, local.blocks(block).offsets, remote.buffer, remote.blocks(block).offsets)], block
