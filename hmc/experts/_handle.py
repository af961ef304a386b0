"""What combine needs to know of a dispatch, and what a caller may ask of it."""

from __future__ import annotations

import functools
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmc import _core
from hmc._arguments import whole
from hmc.errors import InvalidArgumentError
from hmc.experts._arrays import Like

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class State(Enum):
    OPEN = "open"
    COMBINED = "combined"


class Handle:
    """One dispatch, for the combine of it. Made by :meth:`Buffer.dispatch`. Any thread may read it.

    :attr:`experts`, :attr:`weights` and, with ``once``, :meth:`rows` are the same arrays at every call: do not change them.
    """

    def __init__(
        self,
        owner: object,
        number: int,
        routes: _core.ExpertRoutes,
        received: _core.ExpertReceived,
        like: Like,
        local: int,
        once: bool,
    ) -> None:
        self._owner = owner
        self._number = number
        self._routes = routes
        self._received = received
        self._like = like
        self._local = local
        self._once = once
        self._state = State.OPEN
        self._partners: list[int] = []
        self._missing: set[int] = set()

    @property
    def counts(self) -> Ints:
        """Rows of x2 of each local expert."""
        return self._received.counts() if not self._once else np.diff(self._grouped[1])

    def rows(self, expert: int) -> Any:
        """The rows of x2 of a local expert (0: the first of this rank), to index x2 with: a slice, with ``once`` an array.

        InvalidArgumentError where this rank has no such expert.
        """
        expert = whole("expert", expert)
        if expert >= self._local:
            raise InvalidArgumentError(f"expert is {expert}; this rank has {self._local} experts, numbered from 0 on")
        if self._once:
            rows, ends = self._grouped
            return rows[ends[expert] : ends[expert + 1]]
        counts = self.counts
        end = int(counts[: expert + 1].sum())
        return slice(end - int(counts[expert]), end)

    @functools.cached_property
    def experts(self) -> Ints:
        """By row of x2: its local experts, -1 for none; (rows, top k) with ``once``, else (rows, 1)."""
        if self._once:
            return self._facts[0]
        of_rows: Ints = np.repeat(np.arange(self._local), self.counts)
        return of_rows[:, None]

    @property
    def weights(self) -> Floats:
        """With ``once``: the weights of :attr:`experts`, 0 for none. Else there are none, (rows, 0): combine() has them."""
        return self._facts[1]

    @functools.cached_property
    def _facts(self) -> tuple[Ints, Floats]:
        return self._received.facts()

    @functools.cached_property
    def _grouped(self) -> tuple[Ints, Ints]:
        """With ``once``: the rows of expert 0, of expert 1, ..., and where those of each begin and the last end."""
        experts = self.experts.ravel()
        order = np.argsort(experts, kind="stable")
        rows: Ints = order // max(self.experts.shape[1], 1)
        return rows, np.searchsorted(experts[order], np.arange(self._local + 1))

    @property
    def sources(self) -> Ints:
        """By row of x2: (rank, token) that it came from."""
        return self._received.sources()

    @property
    def lost(self) -> NDArray[np.bool_]:
        """By token of this rank and choice: True where the expert's rank died or was masked, so that its result is missing.

        After dispatch: the ranks that took no part in it. After combine: all whose result is not in the sum.
        """
        return self._routes.lost(list(self._missing))

    def __repr__(self) -> str:
        return f"<hmc.experts.Handle of dispatch {self._number}, {self._received.rows} rows, {self._state.value}>"
