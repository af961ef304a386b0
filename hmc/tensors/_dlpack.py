"""DLPack tensors with an element type and a shape, made of the core's export of plain bytes.

The core exports one dimension of uint8, in a structure that its deleter frees together with the Memory. Here the owner of that
Memory is a Python object which also owns the shape and strides that the structure refers to. No deleter in Python is needed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from hmc import _core
from hmc.errors import UnsupportedError
from hmc.tensors import _dtypes

_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


def _tensor_in(capsule: Any) -> Any:
    """The DLTensor of a capsule that no library has imported yet."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    valid = ctypes.pythonapi.PyCapsule_IsValid
    valid.restype, valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
    if valid(capsule, _VERSIONED):
        return ctypes.cast(get(capsule, _VERSIONED), ctypes.POINTER(_Versioned)).contents.tensor
    return ctypes.cast(get(capsule, _PLAIN), ctypes.POINTER(_Tensor)).contents


class _HostOwner(np.ndarray[Any, Any]):
    """Bytes in CPU memory, with what the exported structure refers to."""

    owned: Any


class _DeviceOwner:
    """The same for device memory."""

    def __init__(self, described: dict[str, Any], owned: Any) -> None:
        self.__cuda_array_interface__ = described
        self.owned = owned


def _owned_by(memory: _core.Memory, owned: Any) -> _core.Memory:
    if memory.device == "cpu":
        host = memory.numpy().view(_HostOwner)
        host.owned = owned
        return _core.Memory.from_array(host)
    described = getattr(memory, "__cuda_array_interface__", None)
    if described is None:
        raise UnsupportedError(
            f"DLPack with a type and a shape of memory on {memory.device}: unsupported on this vendor; export the buffer's bytes"
        )
    return _core.Memory.from_array(_DeviceOwner(described, owned))


def export(memory: _core.Memory, dtype: str, shape: Sequence[int], strides: Sequence[int], max_version: Any) -> Any:
    """A DLPack capsule over memory, which it keeps alive. strides: in elements."""
    numbers = ctypes.c_int64 * max(1, len(shape))
    held_shape, held_strides = numbers(*shape), numbers(*strides)
    if memory.nbytes == 0:  # an empty export names no device
        memory = _core.Memory(_dtypes.size_of(dtype), memory.device)
    capsule = _owned_by(memory, (memory, held_shape, held_strides)).__dlpack__(max_version=max_version)
    tensor = _tensor_in(capsule)
    tensor.ndim = len(shape)
    tensor.dtype = _Type(_dtypes.dlpack_code(dtype), 8 * _dtypes.size_of(dtype), 1)
    tensor.shape = ctypes.cast(held_shape, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(held_strides, ctypes.POINTER(ctypes.c_int64))
    return capsule
