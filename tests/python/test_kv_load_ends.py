"""Pulls of hmc.kv that load pages where they lie: what is closed, cancelled or refused amid, and what they count."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import hmc
from hmc import kv, layout
from hmc.kv import _pull
from hmc.kv._cache import Cache
from hmc.layout import Layout

BLOCKS, N = 8, 16
PLAIN = f"L=4 B={BLOCKS} kv H=2 N={N} D=32 bf16"
OTHER = f"L=4 B={BLOCKS} H=2 N={N} (kv D=32) bf16"
SCALED = PLAIN + " scale=1,1,2,1,1,1,4,4"
CHUNK = 2 * N * 2 * 2 * 32 * 2  # bytes of two blocks of a layer
LAYER = BLOCKS // 2 * CHUNK


class Loads:
    """A pool whose pages another Context of this process loads. ``amid`` is called between two chunks of a pull."""

    def __init__(self, near: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.owner, self.reader = hmc.Context(), hmc.Context()
        self.there, self.here = Layout(PLAIN), Layout(near)
        self.theirs = self.owner.buffer(self.there.buffer_bytes)
        self.pages: NDArray[np.uint8] = self.theirs.numpy()
        self.pages[:] = np.random.default_rng(5).integers(0, 256, self.pages.size, dtype=np.uint8)
        self.array = np.random.default_rng(6).integers(0, 256, self.here.buffer_bytes, dtype=np.uint8)
        self.mine = self.reader.register(self.array)
        self.lender, self.pool = kv.Pool(self.owner, self.theirs, self.there), kv.Pool(self.reader, self.mine, self.here)
        self.peer = self.reader.connect(self.owner.addresses[0], timeout=20)
        self.loads = 0
        self.amid: Callable[[], Any] = lambda: None
        load = Cache.load

        def counted(*arguments: Any) -> int | None:
            if self.loads == 3:
                self.amid()
            self.loads += 1
            return load(*arguments)

        monkeypatch.setattr(Cache, "load", counted)
        monkeypatch.setattr(_pull, "LOADED", CHUNK)

    def pull(self, blocks: list[int] | None = None, *, verify: bool) -> kv.Transfer:
        ticket = self.lender.lease("s", list(range(BLOCKS))).ticket
        return self.pool.pull(self.peer, ticket, blocks or list(range(BLOCKS)), session="s", verify=verify)

    def expected(self) -> Any:
        after = self.array.copy()
        blocks = list(range(BLOCKS))
        layout.convert(self.there, self.pages, blocks, self.here, after, blocks, BLOCKS * N)
        return after

    def close(self) -> None:
        for part in (self.pool, self.lender, self.reader, self.owner):
            part.close()


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Loads]]:
    made: list[Loads] = []

    def make(near: str) -> Loads:
        made.append(Loads(near, monkeypatch))
        return made[-1]

    yield make
    for one in made:
        one.close()


ALL = [(PLAIN, True), (OTHER, True), (OTHER, False)]  # layout here, verify


@pytest.mark.parametrize(
    ("near", "verify", "converted"),
    [(PLAIN, True, 0), (OTHER, True, 4), (OTHER, False, 4), (SCALED, True, 2)],
    ids=["equal", "turned", "turned-unverified", "scaled"],
)
def test_pages_and_counters(loads: Callable[[str], Loads], near: str, verify: bool, converted: int) -> None:
    one = loads(near)
    wanted = one.expected()
    one.pull(verify=verify).wait(20)
    assert one.loads > 0
    assert np.array_equal(one.array, wanted)
    found = one.pool.counters("s")
    assert found.pop("bytes_converted", 0) == converted * LAYER
    assert found == {"pulls": 1, "tokens": BLOCKS * N, "bytes_read": 4 * LAYER, "bytes_loaded": 4 * LAYER}


@pytest.mark.parametrize("verify", [False, True])
def test_a_block_that_is_read_in_part_is_converted_whole(loads: Callable[[str], Loads], verify: bool) -> None:
    one = loads(OTHER)
    ticket = one.lender.lease("s", list(range(BLOCKS)), 2 * N - 7).ticket
    one.pool.pull(one.peer, ticket, [1, 0], session="s", verify=verify).wait(20)
    found = one.pool.counters("s")
    assert found["bytes_converted"] == 4 * CHUNK
    assert found["bytes_read"] == found["bytes_loaded"] == 4 * CHUNK // (2 * N) * (2 * N - 7)


@pytest.mark.parametrize(("near", "verify"), ALL)
def test_pages_whose_owner_closes_them_are_not_the_leases(loads: Callable[[str], Loads], near: str, verify: bool) -> None:
    one = loads(near)

    def reuse() -> None:
        one.theirs.close(20)
        one.pages[:] = 17

    one.amid = reuse
    with pytest.raises(hmc.LeaseExpiredError):
        one.pull(verify=verify).wait(20)
    assert one.loads == 4


@pytest.mark.parametrize("what", ["owner", "reader", "mine"])
@pytest.mark.parametrize(("near", "verify"), ALL)
def test_a_close_ends_a_pull_at_the_next_chunk(loads: Callable[[str], Loads], near: str, verify: bool, what: str) -> None:
    one = loads(near)

    def close() -> None:
        getattr(one, what).close()
        until = time.monotonic() + 20
        while what == "owner" and one.peer.alive:  # the reader is notified a moment later
            assert time.monotonic() < until
            time.sleep(0.001)

    one.amid = close
    with pytest.raises((hmc.ClosedError, hmc.PeerLostError)):
        one.pull(verify=verify).wait(20)
    assert one.loads == 4


@pytest.mark.parametrize("what", ["owner", "reader", "mine", "theirs"])
def test_a_close_waits_for_the_chunk_that_is_under_way(
    loads: Callable[[str], Loads], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    one, real = loads(OTHER), layout.convert
    begun, goes_on, over = threading.Event(), threading.Event(), threading.Event()

    def slow(*given: Any, **more: Any) -> Any:
        begun.set()
        assert goes_on.wait(20)
        found = real(*given, **more)
        over.set()
        return found

    monkeypatch.setattr(layout, "convert", slow)
    pull = one.pull(verify=True)
    assert begun.wait(20)
    if what in ("mine", "theirs"):
        with pytest.raises(hmc.HmcTimeoutError, match="may still be written"):
            getattr(one, what).close(timeout=0.05)
    timer = threading.Timer(0.2, goes_on.set)
    timer.start()
    getattr(one, what).close()
    assert over.is_set()
    before = one.array.copy()
    with pytest.raises((hmc.ClosedError, hmc.PeerLostError, hmc.LeaseExpiredError)):
        pull.wait(20)
    assert np.array_equal(one.array, before)


def test_a_hold_is_of_one_context_and_of_open_buffers(loads: Callable[[str], Loads]) -> None:
    one = loads(PLAIN)
    one.pull(verify=False).wait(20)
    remote = one.pool.remote(one.peer, one.lender.id, lambda: None).buffers
    with pytest.raises(hmc.InvalidArgumentError, match="one Context"), hmc._core.BufferHold([one.theirs], remote):
        pass
    with pytest.raises(hmc.InvalidArgumentError), hmc._core.BufferHold([], []):
        pass
    one.theirs.close(20)
    until = time.monotonic() + 20
    while remote[0].alive:
        assert time.monotonic() < until
        time.sleep(0.001)
    with pytest.raises(hmc.StaleBufferError), hmc._core.BufferHold([one.mine], remote):
        pass
    one.mine.close(20)  # the hold that was refused holds nothing
    with pytest.raises(hmc.ClosedError), hmc._core.BufferHold([one.mine], []):
        pass


@pytest.mark.parametrize("near", [PLAIN, OTHER])
def test_a_push_reads_no_array_that_was_closed(loads: Callable[[str], Loads], near: str) -> None:
    one = loads(near)
    inbox = one.pool.receive(one.peer, list(range(BLOCKS)))
    push = one.lender.push(one.owner.accept(timeout=20), inbox.ticket, list(range(BLOCKS)), credits=1)
    push.ready(0, timeout=20)
    push.ready(1, timeout=20)  # behind the credit of layer 0
    one.theirs.close(20)
    one.pages[:] = 17
    with pytest.raises(hmc.HmcError):
        for layer in (2, 3):
            push.ready(layer, timeout=20)
        push.wait(20)
    with pytest.raises(hmc.HmcError):
        inbox.wait(20)
    assert not (one.array.reshape(4, -1)[2:] == 17).all(axis=1).any()


@pytest.mark.parametrize(("near", "verify"), ALL)
def test_a_cancelled_pull_counts_what_it_has_read(loads: Callable[[str], Loads], near: str, verify: bool) -> None:
    one = loads(near)
    one.amid = lambda: [transfer.cancel() for transfer in one.pool.transfers.running]
    with pytest.raises(hmc.HmcCancelledError):
        one.pull(verify=verify).wait(20)
    assert one.loads == 4
    assert one.pool.counters("s")["bytes_read"] == 4 * CHUNK


@pytest.mark.parametrize(("near", "verify"), ALL)
def test_a_block_that_is_listed_twice_is_refused(loads: Callable[[str], Loads], near: str, verify: bool) -> None:
    one = loads(near)
    before = one.array.copy()
    with pytest.raises(hmc.InvalidArgumentError, match="block 1 is listed twice"):
        one.pull([0, 1, 2, 3, 4, 5, 6, 1], verify=verify).wait(20)
    assert np.array_equal(one.array, before)
