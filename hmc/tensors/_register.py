"""Arrays of every library as Tensors over their registered bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hmc import _core
from hmc.errors import InvalidArgumentError
from hmc.tensors import _dtypes
from hmc.tensors._axes import Axis, c_strides
from hmc.tensors._tensor import Tensor


class Description(NamedTuple):
    """Element type, extents and bytes between neighbours."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def describe(array: Any) -> Description:
    """Type, shape and strides (bytes) of an array: of NumPy, torch, CuPy, JAX, or with ``__cuda_array_interface__``.

    A Memory or ConnBuffer is uint8 of one dimension. InvalidArgumentError for an object that does not say its type and shape.
    """
    if isinstance(array, Tensor):
        return Description(array.dtype, array.shape, array.strides)
    if isinstance(array, _core.Memory | _core.ConnBuffer):
        return Description("uint8", (array.nbytes,), (1,))
    if isinstance(array, bytes | bytearray | memoryview):
        array = np.asarray(memoryview(array))  # of bytes itself NumPy makes a text
    if hasattr(array, "dtype") and hasattr(array, "shape"):
        return _described(array.dtype, array.shape, _strides_of(array))
    interface = getattr(array, "__cuda_array_interface__", None) or getattr(array, "__array_interface__", None)
    if isinstance(interface, dict):
        return _described(np.dtype(interface["typestr"]), interface["shape"], interface.get("strides"))
    raise InvalidArgumentError(
        f"a {type(array).__name__} does not say its element type and shape: pass an array, or register() its Memory and view() that"
    )


def is_dense(array: Any) -> bool:
    """Elements lie in C order without gaps."""
    found = describe(array)
    wanted = c_strides(found.shape, _dtypes.size_of(found.dtype))
    return 0 in found.shape or all(
        stride == dense or extent == 1 for stride, dense, extent in zip(found.strides, wanted, found.shape, strict=True)
    )


def _described(dtype: Any, shape: Sequence[int], strides: Sequence[int] | None) -> Description:
    name, extents = _dtypes.name_of(dtype), tuple(int(extent) for extent in shape)
    if strides is None or 0 in extents:
        return Description(name, extents, c_strides(extents, _dtypes.size_of(name)))
    return Description(name, extents, tuple(int(stride) for stride in strides))


def _strides_of(array: Any) -> tuple[int, ...] | None:
    """Bytes; None where the library has C order only (JAX)."""
    if callable(getattr(array, "stride", None)):  # torch counts elements
        return tuple(step * array.element_size() for step in array.stride())
    return getattr(array, "strides", None)


def _dense(array: Any, found: Description) -> Any:
    """The same memory in C order: axes permuted by their strides. InvalidArgumentError where it has gaps."""
    order = sorted(range(len(found.shape)), key=lambda axis: (-found.strides[axis], found.shape[axis] == 1))
    step = _dtypes.size_of(found.dtype)
    for axis in reversed(order):
        if found.shape[axis] != 1 and found.strides[axis] != step:
            raise InvalidArgumentError(
                f"shape {found.shape} with strides of {found.strides} bytes has gaps: register the whole tensor, then index"
            )
        step *= found.shape[axis]
    permute = getattr(array, "permute", None) or getattr(array, "transpose", None)
    if permute is None:
        raise InvalidArgumentError(f"a {type(array).__name__} with strides of {found.strides} bytes: pass an array in C order")
    return permute(order)


def register(owner: Any, array: Any, access: str = "rw") -> Tensor:
    """Registers an array in place, as ``owner.register`` does, and keeps its element type, shape and strides.

    ``owner``: a Context or Communicator. ``array``: of NumPy, torch (bfloat16 and fp8 too), CuPy, JAX (``access="r"``), any object
    with ``__cuda_array_interface__``, a Memory, or a Tensor over one. Axes of NumPy, torch and CuPy arrays may be permuted; gaps
    are refused. Of a torch tensor that requires gradients the values are registered. The array is kept alive. ``result.buffer`` is
    the ConnBuffer: publish, exchange and close that.

    Raises InvalidArgumentError for an array with gaps or without a type; else what ``owner.register`` raises.
    """
    if not callable(getattr(owner, "register", None)):
        raise TypeError(f"owner must be a Context or Communicator, not a {type(owner).__name__}")
    found = describe(array)
    if getattr(array, "requires_grad", False) is True:
        array = array.detach()
    in_order = found.strides == c_strides(found.shape, _dtypes.size_of(found.dtype))
    if not in_order and math.prod(found.shape) > 0:
        array = _dense(array, found)
    if isinstance(array, Tensor):
        array = array.memory()
    buffer = owner.register(array, access=access)
    return Tensor(buffer, found.dtype, [Axis(e, s) for e, s in zip(found.shape, found.strides, strict=True)], 0)
