"""What combine needs to know of a dispatch, and what a caller may ask of it."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmc._arguments import whole
from hmc.experts._arrays import Like
from hmc.experts._routing import Ints, Received, Sent

Floats = NDArray[np.float32]


class State(Enum):
    OPEN = "open"
    COMBINED = "combined"


class Routes:
    """Where the tokens of one dispatch go. ``ids``, ``weights``, ``owners`` (ranks): as the caller chose, (tokens, top k).

    ``sent_ids``, ``sent_weights``: what rows are sent and summed by; with ``once`` ranks and ones.
    """

    def __init__(self, ids: Ints, weights: Floats, owners: Ints, sent_ids: Ints, sent_weights: Floats, sent: Sent) -> None:
        self.ids, self.weights, self.owners = ids, weights, owners
        self.sent_ids, self.sent_weights, self.sent = sent_ids, sent_weights, sent


class Handle:
    """One dispatch, for the combine of it. Made by :meth:`Buffer.dispatch`. Any thread may read it."""

    def __init__(self, owner: object, number: int, routes: Routes, like: Like, local: int, once: bool) -> None:
        self._owner = owner
        self._number = number
        self._routes = routes
        self._like = like
        self._local = local
        self._once = once
        self._state = State.OPEN
        self._received = Received(np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int64))
        self._tokens: dict[int, Ints] = {}
        self._partners: list[int] = []
        self._missing: set[int] = set()
        self._experts = np.zeros((0, 0), np.int64)
        self._weights = np.zeros((0, 0), np.float32)

    @property
    def counts(self) -> Ints:
        """Rows of x2 of each local expert."""
        if self._once:
            return np.array([len(self.rows(expert)) for expert in range(self._local)], np.int64)
        total: Ints = self._received.counts.sum(axis=0)
        return total

    def rows(self, expert: int) -> Any:
        """The rows of x2 of a local expert (0: the first of this rank), to index x2 with: a slice, with ``once`` an array.

        InvalidArgumentError where this rank has no such expert.
        """
        expert = whole("expert", expert, 0, self._local - 1)
        if self._once:
            return np.nonzero((self._experts == expert).any(axis=1))[0]
        counts = self.counts
        end = int(counts[: expert + 1].sum())
        return slice(end - int(counts[expert]), end)

    @property
    def experts(self) -> Ints:
        """By row of x2: its local experts, -1 for none; (rows, top k) with ``once``, else (rows, 1)."""
        if self._once:
            found: Ints = self._experts.copy()
            return found
        of_rows: Ints = np.repeat(np.arange(self._local), self.counts)
        return of_rows[:, None]

    @property
    def weights(self) -> Floats:
        """With ``once``: the weights of :attr:`experts`, 0 for none. Else there are none, (rows, 0): combine() has them."""
        found: Floats = self._weights.copy()
        return found

    @property
    def sources(self) -> Ints:
        """By row of x2: (rank, token) that it came from."""
        found = np.zeros((self._received.rows, 2), np.int64)
        for rank, tokens in self._tokens.items():
            found[self._received.rows_of(rank)] = np.stack([np.full(len(tokens), rank), tokens], axis=1)
        return found

    @property
    def lost(self) -> NDArray[np.bool_]:
        """By token of this rank and choice: True where the expert's rank died or was masked, so that its result is missing.

        After dispatch: the ranks that took no part in it. After combine: all whose result is not in the sum.
        """
        return np.isin(self._routes.owners, list(self._missing))

    def __repr__(self) -> str:
        return f"<hmc.experts.Handle of dispatch {self._number}, {self._received.rows} rows, {self._state.value}>"
