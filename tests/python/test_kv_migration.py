"""Sessions of hmc.kv that have a prefix already, or move to another pool."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest
from device_arrays import here
from kv_sides import PAIRS, PLAIN, TOKEN, TURNED, expected, same

import hmc
from hmc import layout
from hmc.kv import _receive


@pytest.mark.parametrize("decode", [PLAIN, TURNED])
@pytest.mark.parametrize("way", ["pull", "push"])
@pytest.mark.parametrize("skip", [32, 64])
def test_only_missing_blocks_travel(kv_pair: Any, way: str, decode: str, skip: int) -> None:
    a, b, to_a, to_b = kv_pair(PLAIN, decode)
    tokens = 90
    mine, theirs = a.pool.allocate("s", 96), b.pool.allocate("s", 96)
    before = [array.copy() for array in b.arrays]
    wanted = [array.copy() for array in b.arrays]
    where = {"source_first": skip % 16, "target_first": skip % b.layout.block}
    b_blocks = theirs[skip // b.layout.block :]
    layout.convert(a.layout, here(a.arrays), mine[skip // 16 :], b.layout, wanted, b_blocks, tokens - skip, **where)
    assert any(not np.array_equal(x, y) for x, y in zip(before, wanted, strict=True))
    if way == "pull":
        b.pool.pull(to_a, a.pool.lease("s", tokens=tokens).ticket, session="s", skip=skip).wait(20)
        moved = b.pool.counters("s")["bytes_read"]
    else:
        inbox = b.pool.receive(to_a, tokens=tokens - skip, session="s", skip=skip)
        with a.pool.push(to_b, inbox.ticket, session="s") as push:
            for layer in range(3):
                push.ready(layer, timeout=20)
        inbox.wait(20)
        moved = a.pool.counters("s")["bytes_written"]
    same(b, wanted)
    blocks = -(-(tokens - skip) // 16) * 16
    assert 3 * TOKEN * (tokens - skip) <= moved <= 3 * TOKEN * blocks


def test_a_prefix_that_is_not_at_a_block(kv_pair: Any) -> None:
    a, b, to_a, to_b = kv_pair(PLAIN, TURNED)
    mine = a.pool.allocate("s", 96)
    wanted = expected(a, mine, b, [4, 2], 40, source_first=21, target_first=5)
    inbox = b.pool.receive(to_a, [4, 2], 40, first=5, skip=21)
    with a.pool.push(to_b, inbox.ticket, session="s") as push:
        for layer in range(3):
            push.ready(layer, timeout=20)
    inbox.wait(20)
    same(b, wanted)
    with pytest.raises(hmc.InvalidArgumentError, match="do not fit"):
        a.pool.push(to_b, b.pool.receive(to_a, [0, 1], 60, skip=37).ticket, session="s")
    with pytest.raises(hmc.InvalidArgumentError, match="skip"):
        b.pool.receive(to_a, [0], 1, skip=-1)


@pytest.mark.parametrize(("prefill", "decode"), [(PLAIN, PLAIN), (PLAIN, TURNED), PAIRS[8]])
def test_a_session_migrates(kv_pair: Any, prefill: str, decode: str) -> None:
    a, b, to_a, to_b = kv_pair(prefill, decode)
    tokens = 77
    mine, theirs = a.pool.allocate("s", tokens), b.pool.allocate("s", tokens)
    wanted = expected(a, mine, b, theirs, tokens)
    inbox = b.pool.receive(to_a, tokens=tokens, session="s")

    async def main() -> None:
        await a.pool.migrate(to_b, inbox.ticket, session="s")

    asyncio.run(main())
    assert a.pool.free_blocks == a.layout.blocks
    inbox.wait(20)
    same(b, wanted)
    assert b.pool.blocks._sessions["s"].blocks == theirs


def test_a_session_goes_on_while_it_migrates(kv_pair: Any) -> None:
    """The engine writes further tokens while those that are complete move; then the rest follows."""
    a, b, to_a, to_b = kv_pair(PLAIN, TURNED)
    mine, theirs = a.pool.allocate("s", 160), b.pool.allocate("s", 160)
    cache = here(a.arrays)[0].view(np.uint16).reshape(3, 12, 4, 16, 2, 32)
    stop = threading.Event()
    written = 70

    def engine() -> None:
        nonlocal written
        rng = np.random.default_rng(8)
        while written < 150 and not stop.is_set():
            cache[:, mine[written // 16], :, written % 16] = rng.integers(0, 1 << 14, (3, 4, 2, 32))
            a.arrays[0][:] = cache.reshape(-1).view(np.uint8)
            written += 1
            time.sleep(0.001)

    thread = threading.Thread(target=engine)
    thread.start()
    first = b.pool.receive(to_a, tokens=70, session="s")
    with a.pool.push(to_b, first.ticket, session="s") as push:
        for layer in range(3):
            push.ready(layer, timeout=20)
    first.wait(20)
    until = time.monotonic() + 20
    while written == 70 and time.monotonic() < until:  # the engine's thread may not have run so far
        time.sleep(0.001)
    stop.set()
    thread.join(20)
    assert written > 70
    wanted = expected(a, mine, b, theirs, written)
    rest = b.pool.receive(to_a, tokens=written - 70, session="s", skip=70)
    a.pool.migrate(to_b, rest.ticket, session="s").wait(20)
    rest.wait(20)
    same(b, wanted)
    assert a.pool.free_blocks == 12


@pytest.mark.parametrize("why", ["corrupt", "cancelled", "fewer layers", "fewer heads"])
def test_a_migration_that_fails_keeps_the_session(kv_pair: Any, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = {"fewer layers": "L=2 B=12 H=4 N=16 (kv D=32) bf16", "fewer heads": "L=3 B=12 H=2 N=16 (kv D=32) bf16"}
    a, b, to_a, to_b = kv_pair(PLAIN, target.get(why, PLAIN))
    mine = a.pool.allocate("s", 64)
    before = [array.copy() for array in a.arrays]
    if why in ("corrupt", "cancelled"):
        real = _receive.Inbox._check_layers

        def spoil(self: Any, record: Any) -> Any:
            if why == "cancelled":
                self.cancel()
            elif record.layers[0] <= 2 < sum(record.layers):
                b.arrays[0][2 * 12 * 16 * TOKEN + 1] ^= 1  # block 0
            return real(self, record)

        monkeypatch.setattr(_receive.Inbox, "_check_layers", spoil)
    inbox = b.pool.receive(to_a, [0, 1, 2, 3], 64)
    move = a.pool.migrate(to_b, inbox.ticket, session="s")
    with pytest.raises((hmc.HmcCancelledError, hmc.InvalidArgumentError)):
        move.wait(20)
    assert a.pool.blocks._sessions["s"].blocks == mine
    same(a, before)
    inbox.cancel()
    with pytest.raises(hmc.CorruptError if why == "corrupt" else hmc.HmcCancelledError):
        inbox.wait(20)
