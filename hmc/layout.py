"""Layouts of KV caches: descriptions, runs, conversion and digests, without a connection.

A cache is a :class:`Layout` and its arrays: one array, or a sequence of ``layout.buffers`` of them. A sequence's tokens are those
of a list of blocks. Token ``t`` is token ``first + t`` of these blocks. Ranges of layers and heads are ``(first, count)`` in the
whole model, ``(0, 0)`` is all. docs/explanation/layouts.md explains the text of a Layout.

:func:`convert`, :func:`digest` and :func:`digests` take arrays that are all CPU memory, or all memory of one device. The calling
thread computes in CPU memory. A kernel of the device computes in its memory where HMC has one (NVIDIA, AMD); the call comes after
what is queued on the arrays' streams (torch's and CuPy's current ones), and returns when the kernel is over. Elsewhere it
raises UnsupportedError and has written nothing; at the first call also while AMD's kernel is being compiled, and while a collective
or a held stream keeps the device waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from hmc import _core
from hmc._arguments import whole
from hmc._core import Layout
from hmc._streams import queued, wait_for

__all__ = ["Layout", "Runs", "convert", "digest", "digests", "runs"]

_ALL = (0, 0)


def _checked(**numbers: Any) -> list[int]:
    """The numbers, refused by name where they are no integers from 0 on."""
    return [whole(name, number) for name, number in numbers.items()]


class Runs(NamedTuple):
    """Runs of equal length that are contiguous in both caches, between one pair of buffers. Offsets are bytes."""

    nbytes: int
    source_buffer: int
    source_offsets: Any  # uint64 array
    target_buffer: int
    target_offsets: Any  # uint64 array


def arrays_of(layout: Layout, arrays: Any) -> Sequence[Any]:
    """The cache's arrays as a sequence, also where it is one array."""
    return arrays if isinstance(arrays, list | tuple) else [arrays]


def _ready(*arrays: Any) -> None:
    """Returns when what is queued on the arrays' streams is over."""
    wait_for(queued(arrays), lambda: None)


def runs(
    source: Layout,
    source_blocks: Any,
    target: Layout,
    target_blocks: Any,
    tokens: int,
    *,
    source_first: int = 0,
    target_first: int = 0,
    layers: tuple[int, int] = _ALL,
    heads: tuple[int, int] = _ALL,
) -> list[Runs]:
    """The longest common runs of moving ``tokens`` tokens from ``source`` to ``target``.

    They cover the layers and heads that both caches have. Raises UnsupportedError where element type or scales differ, so that the
    elements have to be converted; InvalidArgumentError for blocks, tokens and ranges that the caches do not have.
    """
    tokens, source_first, target_first = _checked(tokens=tokens, source_first=source_first, target_first=target_first)
    found = _core.layout_runs(source, source_blocks, source_first, target, target_blocks, target_first, tokens, layers, heads)
    return [Runs(*one) for one in found]


def convert(
    source: Layout,
    source_arrays: Any,
    source_blocks: Any,
    target: Layout,
    target_arrays: Any,
    target_blocks: Any,
    tokens: int,
    *,
    source_first: int = 0,
    target_first: int = 0,
    position: int = 0,
    layers: tuple[int, int] = _ALL,
    heads: tuple[int, int] = _ALL,
    digest: Literal["source", "target"] | None = None,
) -> int:
    """Copies ``tokens`` tokens between caches that do not overlap: permutes, changes the block size and casts.

    A cast multiplies by the source's scale over the target's and rounds to nearest even. 8-bit types take their largest number
    above it, others an infinity; NaN stays NaN. Returns the digest of the source's elements as they were read, or of the target's
    as they were written, or 0 without ``digest``. ``position`` is that of the first token in the sequence, for the digest.
    Releases the GIL.

    Raises InvalidArgumentError or UnsupportedError, and has then written nothing; DeviceError.
    """
    tokens, position = _checked(tokens=tokens, position=position)
    source_first, target_first = _checked(source_first=source_first, target_first=target_first)
    read, written = arrays_of(source, source_arrays), arrays_of(target, target_arrays)
    _ready(*read, *written)
    return _core.layout_convert(
        source,
        read,
        source_blocks,
        source_first,
        target,
        written,
        target_blocks,
        target_first,
        tokens,
        position,
        layers,
        heads,
        digest,
    )


def digest(
    layout: Layout,
    arrays: Any,
    blocks: Any,
    tokens: int,
    *,
    first: int = 0,
    position: int = 0,
    layers: tuple[int, int] = _ALL,
    heads: tuple[int, int] = _ALL,
) -> int:
    """The digest of ``tokens`` tokens: equal for equal elements in every layout and block size, whatever the order of axes.

    The digests of disjoint layers, heads or tokens add up, modulo 2**64, to the digest of all of them. ``position`` is that of the
    first token in the sequence. It finds accidents, not forgeries. Raises InvalidArgumentError, UnsupportedError,
    DeviceError.
    """
    tokens, first, position = _checked(tokens=tokens, first=first, position=position)
    read = arrays_of(layout, arrays)
    _ready(*read)
    return _core.layout_digest(layout, read, blocks, first, tokens, position, layers, heads)


def digests(
    layout: Layout,
    arrays: Any,
    blocks: Any,
    tokens: int,
    *,
    first: int = 0,
    position: int = 0,
    layers: tuple[int, int] = _ALL,
    heads: tuple[int, int] = _ALL,
) -> Any:
    """The digests of every layer, head and block: a uint64 array of shape (layers, heads, len(blocks))."""
    tokens, first, position = _checked(tokens=tokens, first=first, position=position)
    read = arrays_of(layout, arrays)
    _ready(*read)
    table = _core.layout_digests(layout, read, blocks, first, tokens, position, layers, heads)
    return table.reshape(layers[1] or layout.layers[1], heads[1] or layout.heads[1], -1)
