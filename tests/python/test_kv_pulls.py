"""Pulls of hmc.kv that fail while reads are in flight, and their heartbeats."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from kv_sides import PAIRS, Side, expected, same

import hmc
from hmc.kv import _moves, _pull, _remote
from hmc.kv._wire import LEASE, Ticket


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
    lease = a.pool.lease("s", [3, 1], digest=False)
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


class Slow:
    """An operation that is in flight until ``travel``, called at every wait, returns False."""

    def __init__(self, work: Any, travel: Callable[[], bool]) -> None:
        self._work = work
        self._travel = travel
        self._arrived = False

    @property
    def done(self) -> bool:
        return self._arrived and bool(self._work.done)

    def wait(self, timeout: float | None = None) -> None:
        assert timeout is not None
        if not self._arrived and self._travel():
            time.sleep(timeout)
            raise hmc.HmcTimeoutError("as an operation that is in flight")
        self._arrived = True
        self._work.wait(20)

    def _withdraw(self) -> bool:
        return bool(self._work._withdraw())


def slow_reads(monkeypatch: pytest.MonkeyPatch, what: str, travel: Callable[[], bool]) -> None:
    """Reads of pages, or of the generations behind them, that travel for long."""
    real = _remote.RemotePool.read

    class Late(_moves.InFlight):
        def add(self, item: Any) -> None:
            item[0][:] = [Slow(work, travel) for work in item[0]]
            super().add(item)

    def read(self: Any, batch: Any, end: Any) -> None:
        real(self, batch, lambda work: end(Slow(work, travel)))

    if what == "rows":
        monkeypatch.setattr(_remote.RemotePool, "read", read)
    else:
        monkeypatch.setattr(_pull, "InFlight", Late)


class Ageing:
    """Lets a lease of 600 seconds age by 400, three times, each after a heartbeat was seen."""

    def __init__(self) -> None:
        self.lease: Any = None
        self.left = 3
        self._before = 0.0

    def __call__(self) -> bool:
        if self.lease.expires != self._before and self.left and not self.lease.done:
            self.left -= 1
            self.lease.expires -= 400
            self._before = self.lease.expires
        return self.left > 0 and not self.lease.done


@pytest.mark.parametrize(
    ("layouts", "what"), [(PAIRS[0], "pages"), (PAIRS[4], "pages"), (PAIRS[0], "rows")], ids=["direct", "converted", "rows"]
)
def test_a_pull_keeps_its_lease_while_data_travels(
    kv_pair: Any, monkeypatch: pytest.MonkeyPatch, layouts: tuple[str, str], what: str
) -> None:
    a, b, to_a, _ = kv_pair(*layouts)
    ageing = Ageing()
    monkeypatch.setattr(_pull, "_HEARTBEAT", 0.05)
    slow_reads(monkeypatch, what, ageing)
    ageing.lease = lease = a.pool.lease("s", [3, 1], seconds=600)
    b.pool.pull(to_a, lease.ticket, [2, 0], tokens=32).wait(40)
    assert ageing.left == 0
    assert lease.wait(20) == "read"


@pytest.mark.parametrize("layouts", [PAIRS[0], PAIRS[4]], ids=["direct", "converted"])
def test_a_pull_keeps_its_lease_beside_a_digest(kv_pair: Any, monkeypatch: pytest.MonkeyPatch, layouts: tuple[str, str]) -> None:
    a, b, to_a, _ = kv_pair(*layouts)
    monkeypatch.setattr(_pull, "_HEARTBEAT", 0.0)
    monkeypatch.setattr(_moves, "CHUNK", 1 << 14)
    monkeypatch.setattr(_pull, "groups", lambda *_: iter([(0, 1), (1, 1), (2, 1)]))
    lease = a.pool.lease("s", [3, 1], seconds=600)
    beats: list[float] = []
    write, digests = _pull.Pull._write_beat, []

    def noted(self: Any, remote: Any) -> None:
        write(self, remote)
        beats.append(time.monotonic())

    def slow(real: Callable[..., int]) -> Callable[..., int]:
        def run(*given: Any, **more: Any) -> int:
            began = time.monotonic()
            found = real(*given, **more)
            digests.append((began, time.monotonic()))
            time.sleep(0.02)
            return found

        return run

    for name in ("digest", "write"):
        monkeypatch.setattr(b.pool.cache, name, slow(getattr(b.pool.cache, name)))
    monkeypatch.setattr(_pull.Pull, "_write_beat", noted)
    b.pool.pull(to_a, lease.ticket, [2, 0], tokens=32).wait(20)
    assert len(digests) >= 3
    last = [0.0, *(end for _, end in digests[:-1])]
    for previous, (begin, end), following in zip(last, digests, [*(at for at, _ in digests[1:]), time.monotonic()], strict=True):
        assert any(previous <= beat <= begin for beat in beats)
        assert any(end <= beat <= following for beat in beats)


def test_a_pull_keeps_a_short_lease(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    until = time.monotonic() + 2.5
    slow_reads(monkeypatch, "pages", lambda: time.monotonic() < until)
    lease = a.pool.lease("s", [3, 1], seconds=1)
    b.pool.pull(to_a, lease.ticket, [2, 0]).wait(20)
    assert lease.wait(20) == "read"


@pytest.mark.parametrize(("seconds", "pause"), [(1e9, 1), (30, 1), (2, 0.5), (0.1, 0.025), (0.01, 0.01), (1e-9, 0.01)])
def test_heartbeats_suit_the_lease(kv_pair: Any, seconds: float, pause: float) -> None:
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    ticket = Ticket.decode(a.pool.lease("s", [1], seconds=seconds).ticket, LEASE)
    assert _pull.Pull(b.pool, to_a, ticket, *[None] * 4, True, []).pause == pytest.approx(pause)  # type: ignore[arg-type]


def test_heartbeats_to_a_stopped_owner_are_bounded(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    posted: list[Any] = []

    class Stuck:
        done = False

    monkeypatch.setattr(_pull, "_HEARTBEAT", 0.0)
    monkeypatch.setattr(_remote.RemotePool, "write_words", lambda *_: posted.append(0) or Stuck())
    until = time.monotonic() + 1
    slow_reads(monkeypatch, "pages", lambda: time.monotonic() < until)
    b.pool.pull(to_a, a.pool.lease("s", [3, 1]).ticket, [2, 0]).wait(20)
    assert len(posted) <= _pull._MOST_BEATS + 1  # with the end of the lease


@pytest.mark.parametrize("digest", [True, False])
def test_what_a_pull_reads_of_the_rows(kv_pair: Any, monkeypatch: pytest.MonkeyPatch, digest: bool) -> None:
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    real, words = _remote.RemotePool.prepared_rows, []

    def prepared_rows(self: Any, rows: Any, first: int, count: int, *rest: Any) -> Any:
        words.append((first, count))
        return real(self, rows, first, count, *rest)

    monkeypatch.setattr(_remote.RemotePool, "prepared_rows", prepared_rows)
    lease = a.pool.lease("s", [4, 2], digest=digest)
    b.pool.pull(to_a, lease.ticket, [1, 5]).wait(20)
    digests = a.layout.layers[1] * a.layout.heads[1]
    assert words == ([(0, 1), (1, digests)] if digest else [(0, 1)])


@pytest.mark.parametrize("layouts", [PAIRS[0], PAIRS[5]], ids=["all layers", "layers 1 and 2"])
def test_a_pull_reads_digests_in_parts(kv_pair: Any, monkeypatch: pytest.MonkeyPatch, layouts: tuple[str, str]) -> None:
    """A peer's layout may have rows of any length: what is read of them at a time is bounded."""
    a, b, to_a, _ = kv_pair(*layouts)
    monkeypatch.setattr(_remote, "_READ_BYTES", 100)
    taken, take = [], b.pool.scratch.take
    monkeypatch.setattr(b.pool.scratch, "take", lambda nbytes, *on: taken.append(nbytes) or take(nbytes, *on))
    wanted = expected(a, [4, 2, 7], b, [1, 5, 3], 48)
    b.pool.pull(to_a, a.pool.lease("s", [4, 2, 7]).ticket, [1, 5, 3]).wait(20)
    same(b, wanted)
    row = 8 * b.layout.layers[1] * a.layout.heads[1]
    assert taken.count(row) >= 3
    a.arrays[0][...] = 0
    lease = a.pool.lease("t", [4, 2, 7])
    a.arrays[0][...] = 1
    with pytest.raises(hmc.CorruptError):
        b.pool.pull(to_a, lease.ticket, [1, 5, 3]).wait(20)
