"""What the tests of weights between processes share: sources that end with the test, and calls in mid-pull."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from weights_sides import MODEL, Source

import hmc
from hmc import weights
from hmc.weights import _pull

NAMES = list(MODEL)


class Lab:
    """A Context, and sources that end with the test."""

    def __init__(self, ctx: hmc.Context, transports: str, end: contextlib.ExitStack, mapped: bool = False) -> None:
        """``mapped``: sources have their weights in memory of HMC, from which a pull loads."""
        self.ctx = ctx
        self.transports = transports
        self.mapped = mapped
        self._end = end

    def source(self, *given: Any, **more: Any) -> Source:
        made = Source(*given, transports=self.transports, **{"mapped": self.mapped, **more})
        self._end.callback(made.close)
        return made

    def sources(self, size: int, **more: Any) -> list[weights.Source]:
        return [self.source(rank, size, **more).look_up(self.ctx) for rank in range(size)]

    def plan(self, sources: Any, target: Any) -> weights.Plan:
        return self._end.enter_context(weights.plan(sources, target))


def after(monkeypatch: pytest.MonkeyPatch, tasks: int, call: Callable[[_pull.Worker], None]) -> None:
    """Calls something once within a pull, when some tasks have arrived. No worker reads its next one meanwhile."""
    real, count, gate = _pull.Worker._land, [0], threading.Lock()

    def land(self: _pull.Worker, *given: Any) -> None:
        real(self, *given)
        with gate:
            count[0] += 1
            if count[0] == tasks:
                call(self)

    monkeypatch.setattr(_pull.Worker, "_land", land)
