"""What combine needs to know of a dispatch, and what a caller may ask of it."""

from __future__ import annotations

from enum import Enum

import numpy as np
from numpy.typing import NDArray

from hmc.experts._arrays import Like
from hmc.experts._routing import Ints, Received, Sent


class State(Enum):
    OPEN = "open"
    COMBINED = "combined"


class Handle:
    """One dispatch, for the combine of it. Made by :meth:`Buffer.dispatch`. Any thread may read it."""

    def __init__(self, owner: object, number: int, sent: Sent, weights: NDArray[np.float32], like: Like) -> None:
        self._owner = owner
        self._number = number
        self._sent = sent
        self._weights = weights
        self._like = like
        self._state = State.OPEN
        self._received = Received(np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int64))
        self._tokens: dict[int, Ints] = {}
        self._partners: list[int] = []
        self._lost = np.zeros(weights.shape, bool)

    @property
    def counts(self) -> Ints:
        """Rows of x2 of each local expert. They lie one expert after the other."""
        return self._received.counts.sum(axis=0)

    def rows(self, expert: int) -> slice:
        """The rows of x2 of a local expert (0: the first of this rank)."""
        counts = self.counts
        end = int(counts[: range(len(counts))[expert] + 1].sum())
        return slice(end - int(counts[expert]), end)

    @property
    def sources(self) -> NDArray[np.int64]:
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
        return self._lost.copy()

    def __repr__(self) -> str:
        return f"<hmc.experts.Handle of dispatch {self._number}, {self._received.rows} rows, {self._state.value}>"
