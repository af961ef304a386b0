"""hmc.kv between two Contexts: every kind of move, leases that end, pages that change, cancels, counters, nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
from device_arrays import here
from kv_sides import PAIRS, PLAIN, Side, expected, same
from patterns import pattern

import hmc
from hmc import kv, layout
from hmc._deadline import Deadline


@pytest.mark.parametrize("transports", ["shm", "tcp"])
@pytest.mark.parametrize(("prefill", "decode"), PAIRS)
def test_pull(kv_pair: Any, prefill: str, decode: str, transports: str) -> None:
    a, b, to_a, _ = kv_pair(prefill, decode, transports=transports)
    tokens = 6 * a.layout.block - 5
    mine, theirs = a.pool.allocate("s", tokens), b.pool.allocate("s", tokens)
    random.Random(3).shuffle(mine)
    wanted = expected(a, mine, b, theirs, tokens)
    lease = a.pool.lease("s", mine, tokens)
    b.pool.pull(to_a, lease.ticket, session="s").wait(30)
    same(b, wanted)
    assert lease.wait(20) == "read"
    assert b.pool.counters("s")["pulls"] == 1
    assert b.pool.counters("s")["tokens"] == tokens


@pytest.mark.parametrize(("prefill", "decode"), PAIRS)
def test_push(kv_pair: Any, prefill: str, decode: str) -> None:
    a, b, to_a, to_b = kv_pair(prefill, decode)
    tokens = 6 * a.layout.block - 5
    mine, theirs = a.pool.allocate("s", tokens), b.pool.allocate("s", tokens)
    wanted = expected(a, mine, b, theirs, tokens)
    inbox = b.pool.receive(to_a, theirs, tokens, session="s")
    first = max(a.layout.layers[0], b.layout.layers[0])
    layers = range(first, min(sum(a.layout.layers), sum(b.layout.layers)))
    with a.pool.push(to_b, inbox.ticket, mine, session="s", credits=2) as out:
        for layer in layers:
            out.ready(layer, timeout=20)
            inbox.wait_layer(layer, timeout=20)
    inbox.wait(20)
    assert inbox.layers == list(layers)
    same(b, wanted)


def test_slices_of_two_cards_make_a_whole(kv_pair: Any) -> None:
    whole = "L=2 B=8 H=4 N=16 (kv D=16) bf16"
    a, b, _, to_b = kv_pair("L=2 B=8 H=2 N=16 (kv D=16) bf16", whole)
    c = Side("L=2 B=8 H=2@2 N=32 kv D=16 bf16", 7)
    try:
        b_to_a = next(iter(b.ctx.peers))
        b_to_c = b.ctx.connect(c.ctx.addresses[0], timeout=20)
        blocks = b.pool.allocate("s", 64)
        wanted = expected(a, [5, 1, 2, 0], b, blocks, 64)
        layout.convert(c.layout, here(c.arrays), [7, 3], b.layout, wanted, blocks, 64)
        pulls = [
            b.pool.pull(b_to_a, a.pool.lease("s", [5, 1, 2, 0]).ticket, session="s"),
            b.pool.pull(b_to_c, c.pool.lease("s", [7, 3]).ticket, session="s"),
        ]
        for pull in pulls:
            pull.wait(20)
        same(b, wanted)
    finally:
        c.close()
    assert to_b.alive


def test_a_prefix_that_is_there_does_not_travel(kv_pair: Any) -> None:
    a, b, to_a, _ = kv_pair("L=2 B=12 H=2 N=16 (kv D=16) bf16", "L=2 B=12 H=2 N=16 kv D=16 f16")
    lease = a.pool.lease("s", [3, 1, 4, 5, 9, 2], 90)
    wanted = expected(a, [4, 5, 9, 2], b, [7, 8, 0, 1], 58)
    b.pool.pull(to_a, lease.ticket, [7, 8, 0, 1], skip=32).wait(20)
    same(b, wanted)
    again = a.pool.lease("s", [3, 1, 4], 48)
    pull = b.pool.pull(to_a, again.ticket, [7, 8, 0], skip=8)
    with pytest.raises(hmc.InvalidArgumentError, match="whole blocks"):
        pull.wait(20)
    wanted = expected(a, [3, 1, 4], b, [7, 8, 0], 30, source_first=10, target_first=3)
    last = a.pool.lease("s", [3, 1, 4], 48)
    b.pool.pull(to_a, last.ticket, [7, 8, 0], skip=10, tokens=30, first=3, verify=False).wait(20)
    same(b, wanted)


def test_pages_that_change_during_the_lease_are_an_error(kv_pair: Any) -> None:
    for prefill, decode in PAIRS[:5] + PAIRS[7:8]:
        a, b, to_a, _ = kv_pair(prefill, decode)
        lease = a.pool.lease("s", [3, 1], 2 * a.layout.block)
        rng = np.random.default_rng(1)
        # One byte of the leased pages: of those that a digest of the same pages sees.
        before = layout.digest(a.layout, here(a.arrays), [3, 1], 2 * a.layout.block)
        while layout.digest(a.layout, here(a.arrays), [3, 1], 2 * a.layout.block) == before:
            array = a.arrays[rng.integers(len(a.arrays))]
            array[rng.integers(array.size)] ^= 0x11
        target = b.pool.allocate("s", 2 * a.layout.block)
        pull = b.pool.pull(to_a, lease.ticket, target)
        with pytest.raises(hmc.CorruptError, match="digest"):
            pull.wait(20)
        assert isinstance(pull.error(), hmc.CorruptError)
        # A lease without digests says nothing of it.
        b.pool.pull(to_a, a.pool.lease("t", [3, 1], digest=False).ticket, target).wait(20)


@pytest.mark.parametrize("how", ["released", "freed", "expired"])
def test_an_ended_lease_is_an_error(kv_pair: Any, how: str) -> None:
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    lease = a.pool.lease("s", a.pool.allocate("s", 64), seconds=0.2 if how == "expired" else 30)
    if how == "released":
        lease.release()
    elif how == "freed":
        a.pool.free("s")
    assert lease.wait(20) == ("expired" if how == "expired" else "released")
    a.pool.lease("t", [8, 9, 10, 11])  # its rows may be those of the old one
    pull = b.pool.pull(to_a, lease.ticket, [0, 1, 2, 3])
    with pytest.raises(hmc.LeaseExpiredError):
        pull.wait(20)


def test_a_lease_that_ends_in_mid_read_is_an_error(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from hmc.kv import _pull

    a, b, to_a, _ = kv_pair(*PAIRS[4])
    lease = a.pool.lease("s", [0, 1, 2, 3])
    real = _pull.Pull._check_generations

    def late(self: Any, *args: Any) -> None:
        lease.release()  # the pages were read, the generation not yet
        real(self, *args)

    monkeypatch.setattr(_pull.Pull, "_check_generations", late)
    with pytest.raises(hmc.LeaseExpiredError):
        b.pool.pull(to_a, lease.ticket, b.pool.allocate("s", 128)).wait(20)


def test_heartbeats_keep_a_lease(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from hmc.kv import _pull

    monkeypatch.setattr(_pull, "_HEARTBEAT", 0.0)
    a, b, to_a, _ = kv_pair(*PAIRS[3])
    ended: list[str] = []
    lease = a.pool.lease("s", [0, 1, 2, 3], seconds=600, on_end=lambda one: ended.append(one.reason))
    real = _pull.Pull._beat

    def slow(self: Any, remote: Any) -> None:
        before = lease.expires
        real(self, remote)
        until = time.monotonic() + 20
        while lease.expires == before and time.monotonic() < until:
            time.sleep(0.01)
        lease.expires -= 400  # as if so long had passed: with three layers longer than the lease

    monkeypatch.setattr(_pull.Pull, "_beat", slow)
    b.pool.pull(to_a, lease.ticket, b.pool.allocate("s", 128)).wait(20)
    assert lease.wait(20) == "read"
    assert ended == ["read"]


def test_changes_during_a_push_are_an_error(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from hmc.kv import _push

    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    blocks, theirs = a.pool.allocate("s", 64), b.pool.allocate("s", 64)
    inbox = b.pool.receive(to_a, theirs, session="s")
    digest, posted = _push.Push._digest, _push.Push._post
    before: list[int] = []

    def late(self: Any, *args: Any) -> Any:
        before.append(digest(self, (0, 1), (0, 4)))
        a.arrays[0][blocks[0] * 4 * 16 * 2 * 32 * 2] ^= 1  # of layer 0
        return posted(self, *args)

    monkeypatch.setattr(_push.Push, "_post", late)
    monkeypatch.setattr(_push.Push, "_digest", lambda self, layers, heads: before[0])
    push = a.pool.push(to_b, inbox.ticket, blocks)
    push.ready(0)
    with pytest.raises(hmc.CorruptError, match="layer 0"):
        inbox.wait_layer(0, timeout=20)
    with pytest.raises(hmc.HmcCancelledError, match="receiver stopped"):
        push.close(timeout=20)
    with pytest.raises(hmc.CorruptError):
        inbox.wait(20)


def test_credits_bound_what_is_unchecked(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from hmc.kv import _receive

    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    gate = threading.Event()
    real = _receive.Inbox._check_layers

    def slow(self: Any, *args: Any) -> Any:
        assert gate.wait(30)
        return real(self, *args)

    monkeypatch.setattr(_receive.Inbox, "_check_layers", slow)
    inbox = b.pool.receive(to_a, session="s", blocks=[0, 1])
    push = a.pool.push(to_b, inbox.ticket, [0, 1], credits=2)
    push.ready(0, timeout=20)
    push.ready(1, timeout=20)
    with pytest.raises(hmc.HmcTimeoutError, match="no credit"):
        push.ready(2, timeout=0.2)
    gate.set()
    push.ready(2, timeout=20)
    push.close(timeout=20)
    inbox.wait(20)


@pytest.mark.parametrize("who", ["sender", "receiver", "free_sender", "free_receiver", "exception"])
def test_a_cancelled_push_ends_on_both_sides(kv_pair: Any, who: str) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[4])
    before = a.pool.free_blocks, b.pool.free_blocks
    mine, theirs = a.pool.allocate("s", 128), b.pool.allocate("s", 128)
    inbox = b.pool.receive(to_a, theirs, session="s")
    push = a.pool.push(to_b, inbox.ticket, mine, session="s")
    push.ready(0)
    inbox.wait_layer(0, timeout=20)
    if who == "exception":
        with pytest.raises(ZeroDivisionError), push:
            raise ZeroDivisionError
    else:
        {
            "sender": push.cancel,
            "receiver": inbox.cancel,
            "free_sender": lambda: a.pool.free("s"),
            "free_receiver": lambda: b.pool.free("s"),
        }[who]()
    for transfer in (push, inbox):
        with pytest.raises(hmc.HmcCancelledError):
            transfer.wait(20)
    with pytest.raises(hmc.HmcCancelledError):
        push.ready(1, timeout=20)
    a.pool.free("s")
    b.pool.free("s")
    assert (a.pool.free_blocks, b.pool.free_blocks) == before


def test_receive_has_a_timeout(kv_pair: Any) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    inbox = b.pool.receive(to_a, [0, 1], timeout=60)
    push = a.pool.push(to_b, inbox.ticket, [0, 1])
    push.ready(0)
    inbox.wait_layer(0, 20)
    with pytest.raises(hmc.HmcTimeoutError, match="has not ended within"):
        inbox.wait(0.05)
    inbox._deadline = Deadline(0.3)  # as if the rest had passed
    with contextlib.suppress(hmc.HmcCancelledError):  # where that was late
        push.ready(1)
    with pytest.raises(hmc.HmcTimeoutError, match="in time"):
        inbox.wait(20)
    with pytest.raises(hmc.HmcCancelledError):
        push.wait(20)


def test_awaited(kv_pair: Any) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[7])

    async def main() -> None:
        wanted = expected(a, [1, 2, 3], b, [4, 5, 6], 48)
        await b.pool.pull(to_a, a.pool.lease("s", [1, 2, 3]).ticket, [4, 5, 6])
        same(b, wanted)
        inbox = b.pool.receive(to_a, [0, 1], session="t")
        task = asyncio.ensure_future(asyncio.wait_for(inbox, 0.3))
        push = a.pool.push(to_b, inbox.ticket, [0, 1])
        push.ready(0)
        inbox.wait_layer(0, 20)
        with pytest.raises(TimeoutError):
            await task
        assert inbox.done  # a cancelled await has drained
        with pytest.raises(hmc.HmcCancelledError):
            await push

    asyncio.run(main())


def test_blocks_are_not_given_away_while_they_are_written(kv_pair: Any) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    theirs = b.pool.allocate("s", 12 * 16)
    inbox = b.pool.receive(to_a, theirs, session="s")
    push = a.pool.push(to_b, inbox.ticket, list(range(12)))
    push.ready(0)
    inbox.wait_layer(0, timeout=20)
    assert b.pool.free_blocks == 0
    b.pool.free("s")
    with pytest.raises(hmc.HmcCancelledError):
        inbox.wait(20)
    assert b.pool.free_blocks == 12


def test_layers_with_other_scales_are_converted_among_those_that_are_not(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from hmc.kv import _moves

    for name in ("CHUNK", "DEVICE_CHUNK"):
        monkeypatch.setattr(_moves, name, 1)  # layer by layer, block by block
    plain = "L=4 B=12 kv H=2 N=16 D=32 bf16"
    a, b, to_a, to_b = kv_pair(plain, plain + " scale=1,1,2,1,4,4,1,1")
    wanted = expected(a, [3, 1, 2], b, [4, 9, 7], 40)
    b.pool.pull(to_a, a.pool.lease("s", [3, 1, 2], 40).ticket, [4, 9, 7]).wait(20)
    same(b, wanted)
    assert b.pool.counters("")["bytes_converted"] == 2 * 3 * 2 * 2 * 16 * 32 * 2
    inbox = b.pool.receive(to_a, [0, 1, 2], 40)
    wanted = expected(a, [3, 1, 2], b, [0, 1, 2], 40)
    with a.pool.push(to_b, inbox.ticket, [3, 1, 2]) as push:
        for layer in range(4):
            push.ready(layer, timeout=20)
    inbox.wait(20)
    same(b, wanted)


def test_a_closed_pool_keeps_no_cache() -> None:
    """Without the garbage collector, and while somebody still has the pool."""
    with hmc.Context() as ctx:
        array = pattern(layout.Layout(PLAIN).buffer_bytes, 3)
        owner = weakref.ref(array)
        pool = kv.Pool(ctx, array, PLAIN)
        gc.disable()
        try:
            del array
            assert owner() is not None
            pool.close()
            until = time.monotonic() + 20
            while owner() is not None and time.monotonic() < until:  # the Context's thread lets go of it
                time.sleep(0.001)
            assert owner() is None
        finally:
            gc.enable()
        pool.close()
