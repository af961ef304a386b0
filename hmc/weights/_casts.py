"""Casts among floating-point types, by hmc.layout."""

from __future__ import annotations

from typing import Any

from hmc import layout
from hmc.errors import UnsupportedError
from hmc.layout import Layout
from hmc.tensors import _dtypes

__all__ = ["cast_rows", "check_cast"]

_KINDS = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "float8_e4m3fn": "f8_e4m3fn",
    "float8_e4m3fnuz": "f8_e4m3fnuz",
    "float8_e5m2": "f8_e5m2",
}
_COLUMNS = 4096  # of a call
_ROWS = 65536


def check_cast(name: str, source: str, target: str) -> None:
    """UnsupportedError where ``source`` cannot be cast to ``target``."""
    if source != target and not (source in _KINDS and target in _KINDS):
        raise UnsupportedError(f"tensor {name}: {source} at its source, {target} here: casts are among {', '.join(_KINDS)}")


def cast_rows(kinds: tuple[str, str], source: Any, stride: int, target: Any, target_stride: int, rows: int, columns: int) -> None:
    """Casts ``columns`` elements of each row. ``source``, ``target``: bytes, as uint8 arrays. Strides: elements between rows."""
    sizes = _dtypes.size_of(kinds[0]), _dtypes.size_of(kinds[1])
    for row in range(0, rows, _ROWS):
        count = min(_ROWS, rows - row)
        for column in range(0, columns, _COLUMNS):
            width = min(_COLUMNS, columns - column)
            read = Layout(f"L=1 B=1 N={count}:{stride} D={width} {_KINDS[kinds[0]]}")
            written = Layout(f"L=1 B=1 N={count}:{target_stride} D={width} {_KINDS[kinds[1]]}")
            begin = (row * stride + column) * sizes[0], (row * target_stride + column) * sizes[1]
            layout.convert(read, source[begin[0] :], [0], written, target[begin[1] :], [0], count)
