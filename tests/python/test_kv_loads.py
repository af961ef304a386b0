"""Pulls of hmc.kv whose pages are memory of HMC on this host: they are read where they lie."""

from __future__ import annotations

import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from device_arrays import DEVICES, here
from kv_process import OTHER, TEXT, this_process
from kv_sides import DTYPE, PAIRS, expected, same

import hmc
from hmc import layout
from hmc.kv import _cache, _pull
from hmc.kv._moves import common
from hmc.layout import Layout

of_the_cpu = pytest.mark.skipif(bool(DEVICES), reason="of pages in CPU memory")
SOON = 20  # seconds; the promise is one, on a machine that is not overloaded


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What is called before each load; empty at first. Pulls load about a block at a time."""
    calls: list[Callable[[], None]] = [lambda: None]
    real = _cache.Cache.load

    def load(*given: Any) -> int:
        calls[0]()
        return real(*given)

    monkeypatch.setattr(_cache.Cache, "load", load)
    monkeypatch.setattr(_pull, "LOADED", 1 << 12)
    return calls


def counted(calls: list[Callable[[], None]]) -> list[None]:
    """One item for each load."""
    found: list[None] = []
    calls[0] = lambda: found.append(None)
    return found


@pytest.fixture
def sides(kv_pair: Any) -> Any:
    """Makes two sides whose first one has its pages in memory of HMC."""

    def make(*layouts: str) -> Any:
        found = kv_pair(*layouts, devices=("cpu", "cpu"), transports="shm")
        found[0].use_memory_of_hmc()
        return found

    return make


@pytest.mark.parametrize("layouts", PAIRS)
@pytest.mark.parametrize("verify", [True, False])
def test_every_pair_of_layouts_arrives_whole(
    sides: Any, loads: list[Callable[[], None]], layouts: tuple[str, str], verify: bool
) -> None:
    a, b, to_a, _ = sides(*layouts)
    seen = counted(loads)
    mine, blocks = [7, 2, 9, 4, 0, 3][: 96 // a.layout.block], [3, 0, 5, 7, 1, 8][: -(-96 // b.layout.block)]
    wanted = expected(a, mine, b, blocks, 96)
    lease = a.pool.lease("s", mine)
    b.pool.pull(to_a, lease.ticket, blocks, tokens=96, verify=verify, session="t").wait(60)
    same(b, wanted)
    assert lease.wait(20) == "read"
    layers, heads = common(a.layout.layers, b.layout.layers)[1], common(a.layout.heads, b.layout.heads)[1]
    row = a.layout.kv * a.layout.dims * DTYPE[a.layout.dtype]
    assert b.pool.counters("t")["bytes_read"] == 96 * layers * heads * row
    if verify:
        assert len(seen) > 1
    counters = b.pool.counters("t")
    assert counters.get("bytes_loaded", 0) == (counters["bytes_read"] if verify else counters.get("bytes_converted", 0))


def test_a_pull_begins_and_ends_within_blocks(sides: Any, loads: list[Callable[[], None]]) -> None:
    a, b, to_a, _ = sides(*PAIRS[2])
    seen = counted(loads)
    wanted = expected(a, [5, 1, 2], b, [6, 3], 32, source_first=16, target_first=16)
    lease = a.pool.lease("s", [5, 1, 2], tokens=48)
    b.pool.pull(to_a, lease.ticket, [6, 3], first=16, skip=16, tokens=32).wait(20)
    same(b, wanted)
    assert len(seen) > 1


def test_pages_that_change_while_they_are_read_are_found(sides: Any, loads: list[Callable[[], None]]) -> None:
    a, b, to_a, _ = sides(*PAIRS[0])
    lease = a.pool.lease("s", [1, 2, 3])
    changes = iter(range(1000))

    def change() -> None:
        if next(changes) == 2:
            for array in a.arrays:
                array[:] ^= 0x40

    loads[0] = change
    with pytest.raises(hmc.CorruptError):
        b.pool.pull(to_a, lease.ticket, [4, 5, 6]).wait(20)
    assert lease.wait(20) == "read"


def test_a_cancelled_pull_ends_at_the_next_chunk(sides: Any, loads: list[Callable[[], None]]) -> None:
    a, b, to_a, _ = sides(*PAIRS[4])
    seen = counted(loads)
    reached, go = threading.Event(), threading.Event()
    count = loads[0]

    def wait() -> None:
        count()
        if len(seen) == 2:
            reached.set()
            assert go.wait(20)

    loads[0] = wait
    lease = a.pool.lease("s", [1, 2, 3, 4])
    pull = b.pool.pull(to_a, lease.ticket, [4, 5, 6, 7], tokens=64)
    assert reached.wait(20)
    pull.cancel()
    go.set()
    with pytest.raises(hmc.HmcCancelledError):
        pull.wait(20)
    assert len(seen) == 2
    assert lease.wait(20) == "read"


@pytest.mark.parametrize("what", ["pool", "buffers", "context", "reader's pool"])
def test_what_is_closed_amid_a_pull(sides: Any, loads: list[Callable[[], None]], what: str) -> None:
    a, b, to_a, _ = sides(*PAIRS[2])
    seen = counted(loads)
    count = loads[0]
    lease = a.pool.lease("s", [1, 2, 3, 4])
    closed = threading.Event()
    closer: list[threading.Thread] = []

    def close() -> None:
        if what == "pool":
            a.pool.close()
        elif what == "buffers":
            for buffer in list(a.pool.cache.buffers):
                buffer.close(20)
        elif what == "context":
            a.ctx.close()
        else:
            b.pool.close()
        closed.set()

    def close_once() -> None:
        count()
        if len(seen) == 2:
            closer.append(threading.Thread(target=close))
            closer[0].start()
            if what == "reader's pool":
                until = time.monotonic() + SOON
                while not all(one._cancel.asked for one in b.pool.transfers.running):
                    assert time.monotonic() < until
                    time.sleep(0.001)
            else:
                assert closed.wait(SOON)

    loads[0] = close_once
    pull = b.pool.pull(to_a, lease.ticket, [4, 5])
    with pytest.raises((hmc.LeaseExpiredError, hmc.PeerLostError, hmc.ClosedError, hmc.HmcCancelledError)):
        pull.wait(SOON)
    closer[0].join(SOON)
    assert closed.is_set()


OWNER = """
    own = ctx.buffer(layout.buffer_bytes, access="r")
    own.numpy()[:] = array
    pool.close()
    pool = kv.Pool(ctx, [own], layout)
    lease = pool.lease("s", list(range(layout.blocks)), seconds=1.5)
    say(ticket=lease.ticket.hex())
    say(ended=lease.wait())
    time.sleep(600)
"""


@of_the_cpu
def test_heartbeats_keep_the_lease_of_a_slow_reader(loads: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pull, "LOADED", 1 << 20)
    loads[0] = lambda: time.sleep(0.3)
    with this_process(transports="shm") as mine:
        other = mine.start(OTHER, OWNER, HMC_TRANSPORTS="shm")
        ticket = bytes.fromhex(other.read()["ticket"])
        began = time.monotonic()
        mine.pool.pull(other.peer, ticket, list(range(64))).wait(60)
        assert time.monotonic() - began > 1.5
        assert other.read()["ended"] == "read"
        assert np.array_equal(mine.array, pulled(OTHER, mine.layout, 64))


@of_the_cpu
@pytest.mark.parametrize("layouts", [PAIRS[0], PAIRS[4]])
def test_a_load_that_is_refused_midway_goes_on_by_the_transport(
    sides: Any, loads: list[Callable[[], None]], layouts: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, to_a, _ = sides(*layouts)
    wanted = expected(a, [1, 2, 3, 4], b, [0, 1, 2, 3], 64)
    lease = a.pool.lease("s", [1, 2, 3, 4])
    count, real = iter(range(1000)), layout.convert

    def refuses(*given: Any, **more: Any) -> Any:
        if next(count) == 1:
            raise hmc.UnsupportedError("as a kernel that is gone")
        return real(*given, **more)

    monkeypatch.setattr(layout, "convert", refuses)
    b.pool.pull(to_a, lease.ticket, [0, 1, 2, 3], tokens=64, session="t").wait(20)
    same(b, wanted)
    counters = b.pool.counters("t")
    assert 0 < counters["bytes_loaded"] < counters["bytes_read"]


def pulled(text: str, target: Layout, blocks: int) -> Any:
    """What the array of the other process becomes in so many blocks of this layout."""
    source = np.random.default_rng(7).integers(0, 256, Layout(text).buffer_bytes, dtype=np.uint8)
    wanted, tokens = np.zeros(target.buffer_bytes, np.uint8), blocks * target.block
    layout.convert(
        Layout(text), source, np.arange(tokens // Layout(text).block), target, wanted, np.arange(blocks), blocks * target.block
    )
    return wanted


LENDER = """
    for line in sys.stdin:
        lease = pool.lease("s", list(range(layout.blocks)), seconds=60)
        say(ticket=lease.ticket.hex())
        say(ended=lease.wait())
"""


@pytest.mark.skipif({device.split(":")[0] for device in DEVICES} != {"cuda"}, reason="needs devices whose kernels need no compiler")
@pytest.mark.parametrize("text", [TEXT, OTHER])
@pytest.mark.parametrize("beside", [False, True])
def test_pages_of_a_device_are_loaded_by_another_one(text: str, beside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if beside:  # by another thread, as from 1 GiB on
        monkeypatch.setattr(_pull, "OWN_THREAD_BYTES", 0)

    def refuse(*_: Any, **__: Any) -> None:
        raise hmc.UnsupportedError("as a kernel that is being compiled")

    with this_process() as mine:
        other = mine.start(text, LENDER)
        mapped = mine.layout.buffer_bytes
        # The first one maps the memory; before the third the device loses its kernel.
        for number, loaded in enumerate([None, mapped, 0, mapped]):
            other.tell(go=number)
            pull_from = bytes.fromhex(other.read()["ticket"])
            blocks = np.roll(np.arange(64), number)
            mine.pool.cache._again = 0.0
            with monkeypatch.context() as patch:
                if loaded == 0:
                    patch.setattr(layout, "convert", refuse if text == TEXT else refuse_once(refuse))
                mine.pool.pull(other.peer, pull_from, blocks, session=f"t{number}").wait(60)
            assert other.read()["ended"] == "read"
            counters = mine.pool.counters(f"t{number}")
            assert counters["bytes_read"] == mapped
            assert loaded is None or counters.get("bytes_loaded", 0) == loaded
            found = here([mine.array])[0].reshape(4, 64, -1)
            assert np.array_equal(np.roll(found, number, axis=1), pulled(text, mine.layout, 64).reshape(4, 64, -1))


def refuse_once(refuse: Callable[..., None]) -> Callable[..., Any]:
    left, real = [refuse], layout.convert
    return lambda *given, **more: (left.pop() if left else real)(*given, **more)


@of_the_cpu
@pytest.mark.parametrize("text", [TEXT, OTHER])
def test_an_owner_that_is_killed(loads: list[Callable[[], None]], text: str) -> None:
    with this_process(transports="shm") as mine:
        other = mine.start(text, textwrap.dedent(OWNER).replace("seconds=1.5", "seconds=60"), HMC_TRANSPORTS="shm")
        ticket = bytes.fromhex(other.read()["ticket"])
        killed: list[float] = []

        def kill() -> None:
            if not killed:
                other.kill()
                killed.append(time.monotonic())
            while other.peer.alive:
                assert time.monotonic() - killed[0] < SOON
                time.sleep(0.001)

        loads[0] = kill
        with pytest.raises(hmc.PeerLostError):
            mine.pool.pull(other.peer, ticket, list(range(64))).wait(60)
        assert time.monotonic() - killed[0] < SOON
        own = mine.pool.lease("own", [0, 1])
        own.release()
