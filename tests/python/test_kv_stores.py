"""Pushes of hmc.kv into pages that are memory of HMC on this host: they are written where they lie."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from device_arrays import DEVICES
from kv_sides import DTYPE, PAIRS, expected, same

import hmc
from hmc import layout
from hmc.kv import _cache, _store
from hmc.kv._moves import common

pytestmark = pytest.mark.skipif(bool(DEVICES), reason="of pages in CPU memory")


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What is called before each chunk is stored; empty at first. A chunk is about a block."""
    calls: list[Callable[[], None]] = [lambda: None]
    real = _cache.Cache.store

    def store(*given: Any) -> int:
        calls[0]()
        return real(*given)

    monkeypatch.setattr(_cache.Cache, "store", store)
    monkeypatch.setattr(_store, "LOADED", 1 << 12)
    return calls


@pytest.fixture
def sides(kv_pair: Any) -> Any:
    """Makes two sides of which the second one has its pages in memory of HMC."""

    def make(*layouts: str) -> Any:
        found = kv_pair(*layouts, devices=("cpu", "cpu"), transports="shm")
        found[1].use_memory_of_hmc("rw")
        return found

    return make


def paused(stores: list[Callable[[], None]]) -> tuple[list[None], threading.Event, threading.Event]:
    """Stops the second chunk. Returns the chunks so far, an event that is set once it is reached, and one that lets it go on."""
    seen: list[None] = []
    reached, go = threading.Event(), threading.Event()

    def wait() -> None:
        seen.append(None)
        if len(seen) == 2:
            reached.set()
            assert go.wait(20)

    stores[0] = wait
    return seen, reached, go


def pushed(a: Any, b: Any, to_a: Any, to_b: Any, mine: list[int], blocks: list[int], tokens: int, **more: Any) -> tuple[Any, Any]:
    """A push of all common layers, which is not closed yet, and its receive."""
    inbox = b.pool.receive(to_a, blocks, tokens=tokens, session="t", **more)
    push = a.pool.push(to_b, inbox.ticket, mine, session="t")
    first, count = common(a.layout.layers, b.layout.layers)
    for layer in range(first, first + count):
        push.ready(layer, timeout=20)
    return push, inbox


@pytest.mark.parametrize("layouts", PAIRS)
@pytest.mark.parametrize("verify", [True, False])
def test_every_pair_of_layouts_arrives_whole(
    sides: Any, stores: list[Callable[[], None]], layouts: tuple[str, str], verify: bool
) -> None:
    a, b, to_a, to_b = sides(*layouts)
    seen: list[None] = []
    stores[0] = lambda: seen.append(None)
    mine, blocks = [7, 2, 9, 4, 0, 3][: 96 // a.layout.block], [3, 0, 5, 7, 1, 8][: -(-96 // b.layout.block)]
    wanted = expected(a, mine, b, blocks, 96)
    push, inbox = pushed(a, b, to_a, to_b, mine, blocks, 96, verify=verify)
    push.close(20)
    inbox.wait(20)
    same(b, wanted)
    layers, heads = common(a.layout.layers, b.layout.layers)[1], common(a.layout.heads, b.layout.heads)[1]
    row = b.layout.kv * b.layout.dims * DTYPE[b.layout.dtype]
    counters = a.pool.counters("t")
    assert counters["bytes_written"] == 96 * layers * heads * row
    is_converted = "bytes_converted" in counters
    assert counters["bytes_stored"] == counters["bytes_written"]
    assert len(seen) > 1
    assert is_converted or a.layout.dtype == b.layout.dtype
    assert not (is_converted and layouts[0] == layouts[1])


def test_a_push_begins_within_a_block(sides: Any, stores: list[Callable[[], None]]) -> None:
    a, b, to_a, to_b = sides(*PAIRS[2])
    wanted = expected(a, [5, 1, 2], b, [6, 3], 30, source_first=0, target_first=7)
    push, inbox = pushed(a, b, to_a, to_b, [5, 1, 2], [6, 3], 30, first=7)
    push.close(20)
    inbox.wait(20)
    same(b, wanted)


def test_pages_that_the_receiver_cannot_grant_are_written_by_the_transport(kv_pair: Any) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[2], devices=("cpu", "cpu"), transports="shm")
    wanted = expected(a, [5, 1], b, [6], 32)
    push, inbox = pushed(a, b, to_a, to_b, [5, 1], [6], 32)
    push.close(20)
    inbox.wait(20)
    same(b, wanted)
    assert "bytes_stored" not in a.pool.counters("t")


def test_pages_that_change_behind_a_store_are_found(sides: Any, stores: list[Callable[[], None]]) -> None:
    a, b, to_a, to_b = sides(*PAIRS[2])
    seen: list[None] = []

    def change() -> None:
        seen.append(None)
        if len(seen) == 2:  # of what the first chunk has written
            for array in b.arrays:
                array[:] ^= 0x40

    stores[0] = change
    push, inbox = pushed(a, b, to_a, to_b, [5, 1, 2, 3], [6, 3], 64)
    with pytest.raises(hmc.CorruptError):
        inbox.wait(20)
    with pytest.raises(hmc.HmcCancelledError):
        push.close(20)


@pytest.mark.parametrize("who", ["sender", "receiver"])
def test_a_cancel_ends_both_sides_at_the_next_chunk(sides: Any, stores: list[Callable[[], None]], who: str) -> None:
    a, b, to_a, to_b = sides(*PAIRS[4])
    seen, reached, go = paused(stores)
    push, inbox = pushed(a, b, to_a, to_b, [1, 2, 3, 4], [4, 5, 6, 7, 1, 2, 3, 0], 128)
    assert reached.wait(20)
    (push if who == "sender" else inbox).cancel()
    with pytest.raises(hmc.HmcTimeoutError):
        inbox.wait(0.05)  # a chunk may still be written
    go.set()
    for side in (push, inbox):
        with pytest.raises(hmc.HmcCancelledError):
            side.wait(20)
    if who == "sender":
        assert len(seen) == 2


@pytest.mark.parametrize("what", ["receiver's pool", "buffers", "context", "sender's context"])
def test_nothing_is_written_once_a_side_is_closed(sides: Any, stores: list[Callable[[], None]], what: str) -> None:
    a, b, to_a, to_b = sides(*PAIRS[2])
    _, reached, go = paused(stores)
    push, inbox = pushed(a, b, to_a, to_b, [1, 2, 3, 4], [4, 5], 64)
    assert reached.wait(20)
    buffers, arrays = list(b.pool.cache.buffers), [np.array(array, copy=False) for array in b.arrays]

    def close() -> None:
        if what == "receiver's pool":
            b.pool.close()
        elif what == "buffers":
            for buffer in buffers:
                buffer.close(20)
        elif what == "context":
            b.ctx.close()
        else:
            a.ctx.close()

    closer = threading.Thread(target=close)
    closer.start()
    timer = threading.Timer(0.1, go.set)
    timer.start()
    closer.join(30)
    assert not closer.is_alive()
    if what != "sender's context":
        before = [array.copy() for array in arrays]
    for side in (push, inbox):
        with pytest.raises(hmc.HmcError):
            side.wait(20)
    if what != "sender's context":
        assert all(np.array_equal(x, y) for x, y in zip(before, arrays, strict=True))
    timer.join()


@pytest.mark.parametrize("pool_too", [False, True])
def test_a_receive_outlasts_what_its_sender_writes(sides: Any, monkeypatch: pytest.MonkeyPatch, pool_too: bool) -> None:
    a, b, to_a, to_b = sides(*PAIRS[2])
    begun, goes_on = threading.Event(), threading.Event()
    real = layout.convert

    def slow(*given: Any, **more: Any) -> Any:
        begun.set()
        assert goes_on.wait(20)
        return real(*given, **more)

    monkeypatch.setattr(layout, "convert", slow)
    push, inbox = pushed(a, b, to_a, to_b, [1, 2, 3, 4], [4, 5], 64)
    assert begun.wait(20)
    to_a.close()
    with pytest.raises(hmc.HmcTimeoutError):
        inbox.wait(0.2)
    if pool_too:
        with pytest.raises(hmc.HmcTimeoutError):
            b.pool.close(0.1)
    assert not to_a.gone
    goes_on.set()
    with pytest.raises(hmc.HmcError):
        inbox.wait(20)
    before = [array.copy() for array in b.arrays]
    assert to_a.gone
    with pytest.raises(hmc.HmcError):
        push.wait(20)
    assert all(np.array_equal(x, y) for x, y in zip(before, b.arrays, strict=True))


def test_a_stopped_receive_ends_the_push_at_the_next_chunk(sides: Any, stores: list[Callable[[], None]]) -> None:
    a, b, to_a, to_b = sides(*PAIRS[4])
    seen, reached, go = paused(stores)
    push, inbox = pushed(a, b, to_a, to_b, [1, 2, 3, 4], [4, 5, 6, 7, 1, 2, 3, 0], 128)
    assert reached.wait(20)
    inbox.cancel()
    until = time.monotonic() + 20
    while push._stopped_by is None:
        assert time.monotonic() < until
        time.sleep(0.001)
    go.set()
    for side in (push, inbox):
        with pytest.raises(hmc.HmcCancelledError):
            side.wait(20)
    assert len(seen) == 2


def test_a_wrong_move_writes_nothing(sides: Any, stores: list[Callable[[], None]]) -> None:
    a, b, to_a, to_b = sides(*PAIRS[2])
    before = [array.copy() for array in b.arrays]
    push, inbox = pushed(a, b, to_a, to_b, [1, 2, 3, 4], [4, 4], 64)  # a block that is listed twice
    with pytest.raises(hmc.InvalidArgumentError, match="twice"):
        push.close(20)
    with pytest.raises(hmc.HmcCancelledError):
        inbox.wait(20)
    same(b, before)
