"""Checks of arguments: a value of another type raises TypeError, one out of range InvalidArgumentError; both name the argument."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

from hmc.errors import InvalidArgumentError

__all__ = ["flag", "number", "seconds", "shown", "text", "texts", "whole", "wholes"]

# Names of types: Python's and NumPy's, which is not imported for them. Every rank, launcher and command waits for its imports.
_BOOLS = {"bool", "bool_"}
_MOST = (1 << 63) - 1
_LONG = 128  # bits; Python refuses to write integers of many digits


def shown(value: Any) -> str:
    """A value in a message."""
    if isinstance(value, int) and value.bit_length() > _LONG:
        return f"an int of {value.bit_length()} bits"
    return str(value)


def _refused(name: str, wanted: str, value: Any) -> TypeError:
    return TypeError(f"{name} must be {wanted}, not a {type(value).__name__}")


def whole(name: str, value: Any, least: int = 0, most: int = _MOST) -> int:
    """An integer from ``least`` to ``most``, of Python, NumPy or a framework."""
    try:
        if type(value).__name__ in _BOOLS:
            raise TypeError
        found = operator.index(value)
    except TypeError:
        raise _refused(name, "an int", value) from None
    if not least <= found <= most:
        span = f"{least} or more" if found < least else f"of at most {most}"
        raise InvalidArgumentError(f"{name} is {shown(found)}; pass an int {span}")
    return found


def wholes(name: str, values: Any) -> list[int]:
    """Integers of at most 63 bits: a sequence, or an array of one dimension."""
    if isinstance(values, str | bytes | bytearray) or not isinstance(values, Iterable):
        raise _refused(name, "a sequence of ints", values)
    try:
        listed = list(values)
    except TypeError:  # an array without dimensions
        raise _refused(name, "a sequence of ints", values) from None
    try:
        found = list(map(operator.index, listed))
    except TypeError:
        found = None
    fits = (
        found is not None
        and _BOOLS.isdisjoint(kind.__name__ for kind in set(map(type, listed)))
        and max(map(abs, found), default=0) <= _MOST
    )
    if found is None or not fits:  # says which one is wrong
        return [whole(f"{name}[{at}]", value, -_MOST) for at, value in enumerate(listed)]
    return found


def flag(name: str, value: Any) -> bool:
    """A bool of Python or NumPy: others are refused, since "no" would count as true."""
    if type(value).__name__ not in _BOOLS:
        raise _refused(name, "a bool", value)
    return bool(value)


def number(name: str, value: Any) -> float:
    """A number that is not NaN."""
    try:
        if type(value).__name__ in _BOOLS:
            raise TypeError
        found = math.fsum((value,))
    except TypeError:
        raise _refused(name, "a number", value) from None
    except OverflowError:
        found = math.inf if value > 0 else -math.inf
    if math.isnan(found):
        raise InvalidArgumentError(f"{name} is nan; pass a number")
    return found


def seconds(name: str, value: Any) -> float:
    """A number of seconds from 0 on."""
    found = number(name, value)
    if found < 0:
        raise InvalidArgumentError(f"{name} is {found}; pass a number of seconds from 0 on")
    return found


def text(name: str, value: Any) -> str:
    """A str."""
    if not isinstance(value, str):
        raise _refused(name, "a str", value)
    return value


def texts(name: str, values: Any) -> list[str | None] | None:
    """The elements of a sequence as str() writes them. None, and an element that is None, stays."""
    if values is None:
        return None
    try:
        found = None if isinstance(values, str | bytes | bytearray) else list(values)
    except TypeError:
        found = None
    if found is None:
        raise _refused(name, "a sequence of names or None", values)
    return [value if value is None else str(value) for value in found]
