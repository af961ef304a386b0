"""Registered memory: which registration holds an address. Registrations may overlap."""

from __future__ import annotations

import bisect
import enum
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from hmc.integrations._shared.errors import NotRegisteredError

__all__ = ["Found", "Range", "Ranges"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class Range(Generic[_T]):
    """One registration, and what HMC has for it."""

    kind: enum.IntEnum
    address: int
    nbytes: int
    device: int
    holder: _T

    @property
    def key(self) -> tuple[int, int, int, int]:
        return int(self.kind), self.address, self.nbytes, self.device


@dataclass(frozen=True)
class Found(Generic[_T]):
    """Where descriptors lie: for each the number of its registration in ``ranges`` and its offset there, in bytes."""

    ranges: list[Range[_T]]
    which: Any  # int64
    offsets: Any  # uint64
    generation: int


class _Group(Generic[_T]):
    """Registrations of one kind on one device, by address.

    For an address, the registration among those that begin at it or before it which reaches farthest holds whatever any of them
    holds. So it is enough to know, for each start, the farthest end up to there.
    """

    def __init__(self, ranges: list[Range[_T]], numbers: list[int]) -> None:
        order = sorted(range(len(ranges)), key=lambda at: (ranges[at].address, ranges[at].nbytes))
        self.starts = np.array([ranges[at].address for at in order], np.uint64)
        self.listed = [ranges[at].address for at in order]  # the same, for bisect
        ends = np.array([ranges[at].address + ranges[at].nbytes for at in order], np.uint64)
        self.farthest = np.maximum.accumulate(ends)
        reached = np.where(ends == self.farthest, np.arange(len(order)), 0)
        best = np.maximum.accumulate(reached)
        self.number = np.array([numbers[at] for at in order], np.int64)[best]
        self.base = self.starts[best]


class Ranges(Generic[_T]):
    """The registrations of one process. Any thread."""

    def __init__(self, owner: Callable[[], str]) -> None:
        """``owner``: what the errors call the process."""
        self._owner = owner
        self._lock = threading.RLock()
        self._ranges: list[Range[_T]] = []
        self._groups: dict[tuple[int, int], _Group[_T]] | None = None
        self._generation = 0

    @property
    def generation(self) -> int:
        """Changes with the registrations."""
        return self._generation

    def all(self) -> list[Range[_T]]:
        """The registrations, oldest first."""
        with self._lock:
            return list(self._ranges)

    def replace(self, added: list[Range[_T]], removed: list[Range[_T]] | None = None) -> None:
        """Adds and removes registrations."""
        gone = {id(one) for one in removed or ()}
        with self._lock:
            self._ranges = [one for one in self._ranges if id(one) not in gone] + added
            self._groups = None
            self._generation += 1

    def exact(self, kind: enum.IntEnum, rows: Any) -> list[Range[_T]]:
        """A registration for each row, with just its address, bytes and device. Raises NotRegisteredError if one is missing."""
        left: dict[tuple[int, int, int, int], list[Range[_T]]] = {}
        for one in self.all():
            left.setdefault(one.key, []).append(one)
        found = []
        for address, nbytes, device in rows.tolist():
            same = left.get((int(kind), address, nbytes, device))
            if not same:
                raise NotRegisteredError(
                    f"{nbytes} bytes at {address:#x} of {kind.name} on device {device} are not a registration of {self._owner()}"
                )
            found.append(same.pop())
        return found

    def take(self, kind: enum.IntEnum, rows: Any, taken: list[Range[_T]]) -> None:
        """Adds what exact() finds to ``taken``, and then removes it. Raises NotRegisteredError, and then leaves all."""
        with self._lock:
            found = self.exact(kind, rows)
            taken += found  # before they are removed: an interrupt loses none
            self.replace([], found)

    def find(self, kind: enum.IntEnum, rows: Any) -> Found[_T]:
        """The registrations that hold each row whole. Raises NotRegisteredError naming the first row that none holds."""
        with self._lock:
            if self._groups is None:
                self._groups = self._grouped()
            groups, ranges, generation = self._groups, self._ranges, self._generation
        which = np.zeros(len(rows), np.int64)
        offsets = np.zeros(len(rows), np.uint64)
        if len(rows) == 0:
            return Found(ranges, which, offsets, generation)
        devices = rows[:, 2]
        for device in np.unique(devices).tolist():
            chosen = np.flatnonzero(devices == device)
            addresses, nbytes = rows[chosen, 0], rows[chosen, 1]
            group = groups.get((int(kind), device))
            if group is None:
                raise self._missing(kind, rows[chosen[0]])
            at = np.searchsorted(group.starts, addresses, side="right").astype(np.int64) - 1
            inside = at >= 0
            at[~inside] = 0
            # Compared as what is left, which cannot wrap around.
            inside &= (group.farthest[at] >= addresses) & (group.farthest[at] - addresses >= nbytes)
            if not inside.all():
                raise self._missing(kind, rows[chosen[int(np.argmin(inside))]])
            which[chosen] = group.number[at]
            offsets[chosen] = addresses - group.base[at]
        return Found(ranges, which, offsets, generation)

    def locate(self, kind: enum.IntEnum, address: int, nbytes: int, device: int = 0) -> tuple[Range[_T], int]:
        """As find(), of one row: its registration and its offset there. Takes a tenth of the time."""
        with self._lock:
            if self._groups is None:
                self._groups = self._grouped()
            group, ranges = self._groups.get((int(kind), device)), self._ranges
        if group is not None:
            at = bisect.bisect_right(group.listed, address) - 1
            if at >= 0:
                found = ranges[int(group.number[at])]
                if found.address <= address and address + nbytes <= found.address + found.nbytes:
                    return found, address - found.address
        raise self._missing(kind, np.array([address, nbytes, device], np.uint64))

    def _grouped(self) -> dict[tuple[int, int], _Group[_T]]:
        sorted_out: dict[tuple[int, int], tuple[list[Range[_T]], list[int]]] = {}
        for number, one in enumerate(self._ranges):
            ranges, numbers = sorted_out.setdefault((int(one.kind), one.device), ([], []))
            ranges.append(one)
            numbers.append(number)
        return {key: _Group(*value) for key, value in sorted_out.items()}

    def _missing(self, kind: enum.IntEnum, row: Any) -> NotRegisteredError:
        address, nbytes, device = row.tolist()
        return NotRegisteredError(
            f"{nbytes} bytes at {address:#x} of {kind.name} on device {device}: no registration of {self._owner()} holds them whole"
        )
