"""Arguments of the calls, checked as Mooncake's binding does: TypeError for what it does not take."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

__all__ = ["number", "numbers", "rows", "text"]

_END = 1 << 64


def number(name: str, value: Any) -> int:
    """An address or a number of bytes: 0 to 2**64 - 1."""
    found = index(value)
    if not 0 <= found < _END:
        raise TypeError(f"{name} is an integer from 0 to 2**64 - 1, not {found}")
    return found


def numbers(name: str, values: Any) -> Any:
    """A list of such numbers as an array of uint64."""
    if len(values) == 1:
        return np.array([number(name, values[0])], np.uint64)
    found = np.asarray(values)
    if found.ndim == 1 and (found.dtype == np.uint64 or (found.dtype.kind in "iu" and (found.size == 0 or int(found.min()) >= 0))):
        return found.astype(np.uint64, copy=False)
    # Of mixed signs, or beyond 2**63: NumPy may have made floats of them.
    return np.array([number(name, one) for one in values], np.uint64)


def rows(addresses: Any, lengths: Any) -> Any:
    """Descriptors as Ranges.find() takes them."""
    made = np.zeros((len(addresses), 3), np.uint64)
    made[:, 0], made[:, 1] = addresses, lengths
    return made


def text(name: str, value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a str, not {type(value).__name__}")
    return value
