"""One side of transfers: descriptors that were checked once, and where they lie in registered memory."""

from __future__ import annotations

import threading
from typing import Any, Protocol

import numpy as np

from hmc._core import ConnBuffer, Peer, RemoteBuffer
from hmc.integrations._shared.batches import Target
from hmc.integrations._shared.ranges import Found, Ranges
from hmc.integrations.nixl._errors import nixlInvalidParamError, nixlNotFoundError, translated
from hmc.integrations.nixl._types import nixl_mem_t

__all__ = ["Far", "Own", "Side", "strided"]


class Far(Target, Protocol):
    """The target of transfers: a remote agent, or this one."""

    name: str
    removed: bool
    ranges: Ranges[Any]

    def forget_ended(self) -> None:
        """Removes registrations from ``ranges`` that are known to have ended."""


class Own:
    """This agent as the target of its own transfers. Any thread."""

    removed = False

    def __init__(self, name: str, peer: Peer, ranges: Ranges[ConnBuffer | None]) -> None:
        self.name = name
        self.peer = peer
        self.ranges = ranges
        self._lock = threading.Lock()
        self._imported: dict[int, tuple[ConnBuffer, RemoteBuffer]] = {}

    def forget_ended(self) -> None:
        """Nothing: a registration leaves ``ranges`` before it ends."""

    def buffers(self, found: Found[ConnBuffer | None], used: Any) -> dict[int, RemoteBuffer]:
        """As batches.Target wants them."""
        with self._lock:
            self._imported = {key: pair for key, pair in self._imported.items() if not pair[0].closed}
            got = {}
            for number in used:
                local = found.ranges[number].holder
                assert local is not None  # a registration of 0 bytes holds no byte of a descriptor
                if id(local) not in self._imported:
                    self._imported[id(local)] = (local, self.peer.import_buffer(local.descriptor(), timeout=10))
                got[number] = self._imported[id(local)][1]
            return got


def strided(runs: Any) -> Any:
    """(address, bytes, device, stride, count) runs as an (n, 3) array of descriptors. Raises ValueError."""
    if runs.dtype.kind not in "iu" or (runs.size and int(runs.min()) < 0):
        raise ValueError(f"strided descriptors are integers from 0 on, not an array of {runs.dtype} with negative or other numbers")
    runs = runs.astype(np.uint64)
    counts = runs[:, 4].astype(np.int64)
    rows = np.repeat(runs[:, :3], counts, axis=0)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows[:, 0] += np.repeat(runs[:, 3], counts) * within.astype(np.uint64)
    return rows


class Side:
    """A prepared descriptor list. ``far`` is None on the initiator's side. Any thread."""

    def __init__(self, kind: nixl_mem_t, rows: Any, ranges: Ranges[Any], far: Far | None) -> None:
        """Raises nixlNotFoundError unless a registration holds each descriptor whole."""
        self.kind = kind
        self.rows = rows
        self.far = far
        self._ranges = ranges
        with translated():
            self._found = ranges.find(kind, rows)

    @property
    def generation(self) -> int:
        """Changes with the registrations that the descriptors may lie in."""
        return self._ranges.generation

    def find(self, chosen: Any) -> Found[Any]:
        """Where some of the descriptors lie now. Raises nixlNotFoundError where their memory has been deregistered."""
        if self.far is not None and self.far.removed:
            raise nixlNotFoundError(f"agent {self.far.name} was removed since the descriptors were prepared")
        found = self._found
        if found.generation != self._ranges.generation:
            with translated():
                return self._ranges.find(self.kind, self.rows[chosen])
        return Found(found.ranges, found.which[chosen], found.offsets[chosen], found.generation)

    def chosen(self, indices: Any) -> Any:
        """Indices as an array of int64. Raises nixlInvalidParamError."""
        array = np.asarray(indices)
        if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
            raise nixlInvalidParamError(
                f"indices are a non-empty list or one-dimensional array of integers, not {array.shape} {array.dtype}"
            )
        array = array.astype(np.int64)
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= len(self.rows):
            raise nixlInvalidParamError(f"indices from {low} to {high} into a list of {len(self.rows)} descriptors")
        return array
