"""What all ranks of a Buffer agree on: sizes, element types, which rank has which experts."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from hmc._arguments import flag, whole
from hmc.errors import InvalidArgumentError
from hmc.tensors import _dtypes

DISPATCHED = ("bfloat16", "float16", "float32", "float8_e4m3fn")
COMBINED = ("bfloat16", "float16", "float32")
SCALED = 128  # columns of a row of fp8 that share a scale
_MOST_EXPERTS, _MOST_TOKENS, _MOST_HIDDEN, _MOST_TOPK = 1 << 16, 1 << 20, 1 << 20, 1 << 10


def _checked(name: str, value: Any, most: int) -> int:
    return whole(f"experts.Buffer: {name}", value, 1, most)


def _type(name: str, dtype: Any, allowed: tuple[str, ...]) -> str:
    found = _dtypes.name_of(dtype)
    if found not in allowed:
        raise InvalidArgumentError(f"experts.Buffer: {name} is {found}; pass one of {', '.join(allowed)}")
    return found


@dataclass(frozen=True)
class Shape:
    """Immutable; any thread. ``dtype`` is that of dispatched rows, ``combine_dtype`` that of the experts' results."""

    ranks: int
    experts: int
    hidden: int
    tokens: int
    topk: int
    dtype: str
    combine_dtype: str
    once: bool = False

    @staticmethod
    def of(
        ranks: int, experts: Any, hidden: Any, tokens: Any, topk: Any, dtype: Any, combine_dtype: Any, once: bool = False
    ) -> Shape:
        """Checks every argument. InvalidArgumentError names the one that is refused."""
        once = flag("experts.Buffer: once", once)
        experts = _checked("experts", experts, _MOST_EXPERTS)
        moved = _type("dtype", dtype, DISPATCHED)
        if combine_dtype is None:
            combine_dtype = "bfloat16" if moved == "float8_e4m3fn" else moved
        shape = Shape(
            ranks,
            experts,
            _checked("hidden", hidden, _MOST_HIDDEN),
            _checked("tokens", tokens, _MOST_TOKENS),
            min(8, experts) if topk is None else _checked("topk", topk, _MOST_TOPK),
            moved,
            _type("combine_dtype", combine_dtype, COMBINED),
            once,
        )
        if shape.topk > shape.experts:
            raise InvalidArgumentError(f"experts.Buffer: topk is {shape.topk} of {shape.experts} experts")
        if shape.scaled and shape.hidden % SCALED:
            raise InvalidArgumentError(f"experts.Buffer: hidden is {shape.hidden}; rows of fp8 have a multiple of {SCALED} columns")
        return shape

    @functools.cached_property
    def scaled(self) -> bool:
        """Whether dispatched rows have scales."""
        return self.dtype == "float8_e4m3fn"

    @functools.cached_property
    def row_bytes(self) -> int:
        """Of a dispatched row, without scales."""
        return self.hidden * _dtypes.size_of(self.dtype)

    @functools.cached_property
    def scale_bytes(self) -> int:
        """Of the scales of a dispatched row; 0: none."""
        return 4 * (self.hidden // SCALED) if self.scaled else 0

    @functools.cached_property
    def result_bytes(self) -> int:
        """Of a row of results."""
        return self.hidden * _dtypes.size_of(self.combine_dtype)

    def experts_of(self, rank: int) -> range:
        """Contiguous; sizes of any two ranks differ by at most one."""
        return range(rank * self.experts // self.ranks, (rank + 1) * self.experts // self.ranks)
