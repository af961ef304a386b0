"""Element types by name: sizes, DLPack codes, and what NumPy and torch call them."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

import numpy as np

from hmc.errors import InvalidArgumentError, UnsupportedError

# name: (bytes, DLPack type code). The codes are those of dlpack.h.
_TYPES: dict[str, tuple[int, int]] = {
    **{f"int{bits}": (bits // 8, 0) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (bits // 8, 1) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (bits // 8, 2) for bits in (16, 32, 64)},
    "bfloat16": (2, 4),
    "complex64": (8, 5),
    "complex128": (16, 5),
    "bool": (1, 6),
    "float8_e4m3fn": (1, 10),
    "float8_e4m3fnuz": (1, 11),
    "float8_e5m2": (1, 12),
    "float8_e5m2fnuz": (1, 13),
}
NAMES = frozenset(_TYPES)
_SHORT = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "half": "float16", "e4m3fn": "float8_e4m3fn"}
# What name_of() has found. NumPy takes 5 us to write a type's name.
_FOUND: dict[Any, str] = {}


def name_of(dtype: Any) -> str:
    """The name of an element type: of NumPy, ml_dtypes, torch, or as text.

    InvalidArgumentError for one without a name here; TypeError for None.
    """
    if dtype is None:  # float64 for NumPy
        raise TypeError("dtype must be an element type, not None")
    try:
        return _FOUND[dtype]
    except (KeyError, TypeError):  # TypeError: not hashable
        name = _find_name(dtype)
    with contextlib.suppress(TypeError):
        _FOUND[dtype] = name
    return name


def _find_name(dtype: Any) -> str:
    text: str = str(dtype).removeprefix("torch.")
    if text in _TYPES or text in _SHORT:
        return _SHORT.get(text, text)
    try:
        found = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):  # NumPy evaluates texts
        found = None
    if found is None or found.name not in _TYPES or not found.isnative:
        raise InvalidArgumentError(f"element type {dtype!r}: pass one of {', '.join(_TYPES)}, in the byte order of this machine")
    return str(found.name)


def size_of(name: str) -> int:
    """Bytes of an element."""
    return _TYPES[name][0]


def dlpack_code(name: str) -> int:
    return _TYPES[name][1]


def numpy_type(name: str) -> np.dtype[Any]:
    """NumPy's type. UnsupportedError where NumPy has none and ml_dtypes is not installed."""
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        found: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
        return found
    except ImportError:
        raise UnsupportedError(
            f"NumPy has no {name}, and ml_dtypes is not installed: install it, use torch(), or view the buffer as integers"
        ) from None


def torch_type(name: str) -> Any:
    import torch

    return getattr(torch, name)
