"""Descriptors of both sides as batches of equally long blocks, which HMC posts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from hmc._core import BlockBatch, ConnBuffer, Peer, RemoteBuffer
from hmc.errors import InvalidArgumentError
from hmc.integrations._shared.ranges import Found

__all__ = ["Target", "build", "check_lengths"]

_MOST_LENGTHS = 16  # batches by length; with more lengths, descriptors are cut into powers of two


class Target(Protocol):
    """A process whose memory is read or written."""

    @property
    def peer(self) -> Peer: ...

    def buffers(self, found: Found[Any], used: Any) -> dict[int, RemoteBuffer]:
        """The imported buffers of some registrations, by their numbers in ``found``. Raises HmcError."""


def check_lengths(near: Any, far: Any) -> None:
    """Raises InvalidArgumentError unless the descriptors pair off with equal lengths."""
    if len(near) != len(far):
        raise InvalidArgumentError(f"{len(near)} local descriptors and {len(far)} remote ones; they must be equally many")
    differ = near != far
    if differ.any():
        at = int(np.argmax(differ))
        raise InvalidArgumentError(
            f"pair {at} of the transfer: {near[at]} bytes here and {far[at]} bytes at the target; they must be equal"
        )


def _distinct(values: Any) -> Any:
    """The different values, sorted. Most often there is one."""
    if len(values) and (values == values[0]).all():
        return values[:1]
    return np.unique(values)


def _pieces(nbytes: Any) -> Iterator[tuple[int, Any, Any]]:
    """(bytes of a block, which descriptors, offset in each): together every byte of every descriptor once."""
    lengths = _distinct(nbytes)
    lengths = lengths[lengths > 0]
    if len(lengths) <= _MOST_LENGTHS:
        for length in lengths.tolist():
            chosen = np.flatnonzero(nbytes == length)
            yield length, chosen, np.zeros(len(chosen), np.uint64)
        return
    for bit in range(int(lengths[-1]).bit_length() - 1, -1, -1):
        chosen = np.flatnonzero((nbytes >> np.uint64(bit)) & np.uint64(1))
        if len(chosen):
            above = np.uint64(bit + 1)
            yield 1 << bit, chosen, (nbytes[chosen] >> above) << above


def build(nbytes: Any, here: Found[ConnBuffer], there: Found[Any], target: Target) -> list[BlockBatch]:
    """The batches of a transfer of descriptors that pair off. Imports what is not imported yet. Raises HmcError."""
    remote = target.buffers(there, _distinct(there.which[nbytes > 0]).tolist())
    batches = []
    for block, chosen, inner in _pieces(nbytes):
        pair = here.which[chosen] * len(there.ranges) + there.which[chosen]
        if (pair == pair[0]).all():
            parts = [np.arange(len(chosen))]
        else:
            order = np.argsort(pair, kind="stable")
            parts = np.split(order, np.flatnonzero(np.diff(pair[order])) + 1)
        pairs = []
        for part in parts:
            one = chosen[part]
            pairs.append(
                (
                    here.ranges[here.which[one[0]]].holder,
                    here.offsets[one] + inner[part],
                    remote[int(there.which[one[0]])],
                    there.offsets[one] + inner[part],
                )
            )
        batches.append(target.peer.prepare_blocks(pairs, block))
    return batches
