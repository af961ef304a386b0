"""Pulls of hmc.kv that fail while reads are in flight, and their heartbeats."""

from __future__ import annotations

import time
from typing import Any

import pytest
from kv_sides import PAIRS, Side

import hmc
from hmc.kv import _moves, _pull


class Watch:
    """What pulls have in flight, and the scratch buffers that they hold."""

    def __init__(self, side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
        self.items: list[Any] = []
        self.held: list[Any] = []
        scratch, take, give = side.pool.scratch, side.pool.scratch.take, side.pool.scratch.give

        def took(*arguments: Any) -> Any:
            self.held.append(take(*arguments))
            return self.held[-1]

        def gave(buffer: Any) -> None:
            self.held.remove(buffer)
            give(buffer)

        watch = self

        class Watched(_moves.InFlight):
            def add(self, item: Any) -> None:
                watch.items.append(item)
                super().add(item)

        monkeypatch.setattr(scratch, "take", took)
        monkeypatch.setattr(scratch, "give", gave)
        monkeypatch.setattr(_pull, "InFlight", Watched)


@pytest.mark.parametrize(("layouts", "count"), [(PAIRS[0], 3), (PAIRS[4], 2)], ids=["direct", "converted"])
def test_a_pull_that_fails_ends_all_its_reads_first(
    kv_pair: Any, monkeypatch: pytest.MonkeyPatch, layouts: tuple[str, str], count: int
) -> None:
    a, b, to_a, _ = kv_pair(*layouts, transports="tcp", devices=("cpu", "cpu"))
    watch = Watch(b, monkeypatch)
    drained: list[Any] = []

    def fails(*_: Any, **__: Any) -> None:
        raise hmc.TransportError("as a read that fails")

    def noted(work: Any) -> None:
        drain(work)
        drained.append(work)

    drain = _pull.drained
    monkeypatch.setattr(_pull, "groups", lambda *_: iter([(0, 1), (1, 1), (2, 1)]))
    monkeypatch.setattr(_moves, "CHUNK", 1 << 14)
    monkeypatch.setattr(_pull, "finish", fails)
    monkeypatch.setattr(_pull, "drained", noted)
    lease = a.pool.lease("s", [3, 1])
    with pytest.raises(hmc.TransportError, match="as a read that fails"):
        b.pool.pull(to_a, lease.ticket, [2, 0], tokens=32).wait(20)
    works = [work for item in watch.items for work in item[0]]
    assert len(watch.items) == count
    assert all(work.done for work in works)
    assert {id(work) for work in works} <= {id(work) for work in drained}
    assert lease.wait(20) == "read"
    until = time.monotonic() + 20  # the write that ends the lease gives its buffer back a moment later
    while watch.held:
        assert time.monotonic() < until, watch.held
        time.sleep(0.001)
