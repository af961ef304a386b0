"""Sessions of hmc.kv: several cards and stages, caches on disk, pages that run out or are reused."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_arrays import here
from kv_sides import PLAIN, TOKEN, TURNED, Side, connected, expected, same

import hmc
from hmc import kv, layout
from hmc.kv import _pull, _receive
from hmc.layout import Layout


@pytest.mark.parametrize("way", ["pull", "push"])
@pytest.mark.parametrize(
    ("sources", "targets"),
    [
        (["L=4 B=8 H=2 N=16 (kv D=16) bf16", "L=4 B=8 H=2@2 N=16 (kv D=16) bf16"], ["L=4 B=8 H=4 N=32 kv D=16 f16"]),  # TP 2 to 1
        (["L=4 B=8 H=4 N=16 (kv D=16) bf16"], ["L=4 B=8 H=2 N=32 kv D=16 f16", "L=4 B=8 H=2@2 N=16 (kv D=16) bf16"]),  # TP 1 to 2
        (
            ["L=2 B=8 H=4 N=16 (kv D=16) bf16", "L=2@2 B=8 H=4 N=16 (kv D=16) bf16"],
            ["L=3 B=8 H=4 N=32 (kv D=16) bf16", "L=1@3 B=8 H=4 N=16 (kv D=16) bf16"],
        ),
        (
            ["L=4 B=8 H=2 N=16 (kv D=16) bf16", "L=4 B=8 H=2@2 N=64 (kv D=16) bf16"],
            [
                "L=2 B=8 H=3 N=16 kv D=16 f32",
                "L=2@2 B=8 H=3 N=16 kv D=16 bf16",
                "L=4 B=8 H=1@3 N=48 (kv D=16) f8_e4m3fn scale=0.05",
            ],
        ),
    ],
    ids=["tp2-tp1", "tp1-tp2", "pp2-pp2", "tp2-tp2pp2"],
)
def test_any_split_to_any_split(way: str, sources: list[str], targets: list[str]) -> None:
    """Every pair of a source and a target that have elements in common is a transfer of its own."""
    tokens = 61
    prefill = [Side(text, 10 + i) for i, text in enumerate(sources)]
    decode = [Side(text, 20 + i) for i, text in enumerate(targets)]
    try:
        wanted = []
        for target in decode:
            after = [array.copy() for array in target.arrays]
            blocks = list(range(-(-tokens // target.layout.block)))
            for source in prefill:
                if overlap(source.layout, target.layout):
                    layout.convert(
                        source.layout,
                        here(source.arrays),
                        list(range(-(-tokens // source.layout.block))),
                        target.layout,
                        after,
                        blocks,
                        tokens,
                    )
            wanted.append(after)
        for target in decode:
            blocks = list(range(-(-tokens // target.layout.block)))
            transfers: list[Any] = []
            for source in prefill:
                if not overlap(source.layout, target.layout):
                    continue
                mine = list(range(-(-tokens // source.layout.block)))
                there = target.ctx.connect(source.ctx.addresses[0], timeout=20)
                back = source.ctx.accept(timeout=20)
                if way == "pull":
                    transfers.append(target.pool.pull(there, source.pool.lease("s", mine, tokens).ticket, blocks))
                else:
                    inbox = target.pool.receive(there, blocks, tokens)
                    push = source.pool.push(back, inbox.ticket, mine)
                    for layer in range(source.layout.layers[0], sum(source.layout.layers)):
                        push.ready(layer, timeout=20)  # also those that this target does not have
                    transfers.append(inbox)
                    push.close(20)
            for transfer in transfers:
                transfer.wait(20)
        for target, after in zip(decode, wanted, strict=True):
            same(target, after)
    finally:
        for side in prefill + decode:
            side.close()


def overlap(a: Layout, b: Layout) -> bool:
    return all(max(x[0], y[0]) < min(sum(x), sum(y)) for x, y in ((a.layers, b.layers), (a.heads, b.heads)))


@pytest.mark.parametrize("transports", ["shm", "tcp"])
def test_caches_in_a_file(tmp_path: Path, transports: str) -> None:
    """Pages of a file, on both sides: what is pulled and pushed is in the file afterwards."""
    source, target = Layout(PLAIN), Layout(TURNED)
    rng = np.random.default_rng(6)
    (tmp_path / "a").write_bytes(rng.integers(0, 256, source.buffer_bytes, dtype=np.uint8).tobytes())
    (tmp_path / "b").write_bytes(rng.integers(0, 256, target.buffer_bytes, dtype=np.uint8).tobytes())
    a, b = (np.memmap(tmp_path / name, np.uint8, "r+") for name in "ab")
    wanted = np.array(b)
    layout.convert(source, a, [3, 1, 4, 5], target, wanted, [7, 2], 60)
    layout.convert(source, a, [0, 2, 6], target, wanted, [1, 3], 40)
    with hmc.Context(transports=transports) as first, hmc.Context(transports=transports) as second:
        to_a = second.connect(first.addresses[0], timeout=20)
        to_b = first.accept(timeout=20)
        with kv.Pool(first, a, source, access="r") as lender, kv.Pool(second, b, target) as taker:
            taker.pull(to_a, lender.lease("s", [3, 1, 4, 5], 60).ticket, [7, 2]).wait(20)
            inbox = taker.receive(to_a, [1, 3], 40)
            with lender.push(to_b, inbox.ticket, [0, 2, 6]) as push:
                for layer in range(3):
                    push.ready(layer, timeout=20)
            inbox.wait(20)
    b.flush()
    assert (tmp_path / "b").read_bytes() == wanted.tobytes()


def test_the_receiver_is_out_of_pages(kv_pair: Any) -> None:
    a, b, to_a, _ = kv_pair(PLAIN, PLAIN)
    lease = a.pool.lease("s", a.pool.allocate("s", 64), 64)
    b.pool.allocate("other", 10 * 16)
    with pytest.raises(hmc.OutOfMemoryError, match="2 of 12 are free"):
        b.pool.allocate("s", 64)
    with pytest.raises(hmc.InvalidArgumentError, match="has no blocks"):
        b.pool.pull(to_a, lease.ticket, session="s")
    with pytest.raises(hmc.InvalidArgumentError, match="do not fit"):
        b.pool.pull(to_a, lease.ticket, b.pool.allocate("s", 32))
    b.pool.free("other")
    b.pool.allocate("s", 32)
    blocks = list(b.pool.blocks._sessions["s"].blocks)
    assert len(blocks) == len(set(blocks)) == 4
    wanted = expected(a, list(a.pool.blocks._sessions["s"].blocks), b, blocks, 64)
    b.pool.pull(to_a, lease.ticket, session="s").wait(20)  # the lease is held still
    same(b, wanted)


@pytest.mark.parametrize("prefill", [PLAIN, TURNED])
def test_a_lease_expires_in_mid_read_and_its_pages_are_reused(kv_pair: Any, prefill: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, to_a, _ = kv_pair(prefill, PLAIN)
    monkeypatch.setattr(_pull, "_HEARTBEAT", 1e9)
    real = _pull.Pull._beat
    ended = threading.Event()

    def slow(self: Any, remote: Any) -> None:
        real(self, remote)
        assert ended.wait(20)

    monkeypatch.setattr(_pull.Pull, "_beat", slow)

    def reuse(lease: Any) -> None:
        for array in a.arrays:
            array[:] = np.random.default_rng(11).integers(0, 256, array.size, dtype=np.uint8)
        ended.set()

    blocks = a.pool.allocate("s", 128)
    lease = a.pool.lease("s", tokens=128, seconds=0.2, on_end=reuse)
    pull = b.pool.pull(to_a, lease.ticket, b.pool.allocate("s", 128), session="s")
    with pytest.raises(hmc.LeaseExpiredError):
        pull.wait(20)
    assert lease.reason == "expired"
    a.pool.lease("t", blocks, 128).release()
    assert b.pool.counters("s")["pulls_failed"] == 1


def test_pages_that_were_read_are_free_at_once() -> None:
    with connected(PLAIN, TURNED) as (a, b, to_a, _):
        tokens = a.layout.blocks * a.layout.block
        blocks = b.pool.allocate("all", b.layout.blocks * b.layout.block)
        for number in range(60):
            a.pool.allocate(f"session {number}", tokens)
            lease = a.pool.lease(f"session {number}")
            b.pool.pull(to_a, lease.ticket, blocks, tokens=tokens).wait(20)


def test_counters_of_sessions() -> None:
    with connected(PLAIN, TURNED) as (a, b, to_a, to_b):
        a.pool.allocate("s", 50)
        b.pool.allocate("s", 50)
        b.pool.pull(to_a, a.pool.lease("s", list(a.pool.blocks._sessions["s"].blocks), 50).ticket, session="s").wait(20)
        inbox = b.pool.receive(to_a, tokens=50, session="s")
        with a.pool.push(to_b, inbox.ticket, session="s") as push:
            for layer in range(3):
                push.ready(layer, timeout=20)
        inbox.wait(20)
        cancelled = b.pool.receive(to_a, tokens=50, session="s")
        cancelled.cancel()
        with pytest.raises(hmc.HmcCancelledError):
            cancelled.wait(20)
        one, other = a.pool.counters("s"), b.pool.counters("s")
        assert (one["leases"], one["pushes"]) == (1, 1)
        assert (other["pulls"], other["receives"], other["receives_failed"], other["tokens"]) == (1, 1, 1, 100)
        assert one["bytes_written"] == 3 * 50 * TOKEN
        assert other["bytes_read"] >= 3 * 50 * TOKEN
        assert a.pool.counters("t") == {}


def test_peers_that_come_and_go_leave_nothing() -> None:
    a = Side(PLAIN, 1)
    try:
        for number in range(20):
            b = Side(TURNED, 2)
            to_a = b.ctx.connect(a.ctx.addresses[0], timeout=20)
            to_b = a.ctx.accept(timeout=20)
            if number % 2:
                inbox = b.pool.receive(to_a, [0, 1])
                with a.pool.push(to_b, inbox.ticket, [0, 1, 2, 3]) as push:
                    for layer in range(3):
                        push.ready(layer, timeout=20)
                inbox.wait(20)
            else:
                a.pool.pull(to_b, b.pool.lease("s", [3]).ticket, [0, 1]).wait(20)
            b.close()
        deadline = time.monotonic() + 20
        while a.pool._remotes or a.pool.listener._posted or a.ctx.peers:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        a.close()


def test_a_context_that_closes_before_its_pool(kv_pair: Any) -> None:
    a, b, to_a, to_b = kv_pair(PLAIN, PLAIN)
    inbox = b.pool.receive(to_a, [0, 1])
    push = a.pool.push(to_b, inbox.ticket, [0, 1])
    push.ready(0)
    inbox.wait_layer(0, 20)
    b.ctx.close()
    for transfer in (inbox, push):
        with pytest.raises((hmc.ClosedError, hmc.PeerLostError)):
            transfer.wait(20)
    with pytest.raises((hmc.ClosedError, hmc.PeerLostError)):
        b.pool.receive(to_a, [0, 1])
    b.pool.close()
    assert b.pool.counters()["transfers"] == 0


def test_caches_of_torch(kv_pair: Any) -> None:
    torch = pytest.importorskip("torch")
    a, b, to_a, to_b = kv_pair(PLAIN, PLAIN)
    cache = torch.zeros((3, 12, 4, 16, 2, 32), dtype=torch.bfloat16)
    with kv.Pool(b.ctx, cache, b.layout) as pool:
        inbox = pool.receive(to_a, [2, 9], 30)
        with a.pool.push(to_b, inbox.ticket, [4, 1]) as push:
            for layer in range(3):
                push.ready(layer, timeout=20)
        inbox.wait(20)
        pool.pull(to_a, a.pool.lease("s", [6]).ticket, [0]).wait(20)
    wanted = np.zeros(a.layout.buffer_bytes, np.uint8)
    layout.convert(a.layout, a.arrays, [4, 1], b.layout, wanted, [2, 9], 30)
    layout.convert(a.layout, a.arrays, [6], b.layout, wanted, [0], 16)
    assert np.array_equal(cache.view(torch.uint8).numpy().reshape(-1), wanted)


def test_pools_with_a_job_key() -> None:
    key = hmc.keygen()
    source = Layout(PLAIN)
    arrays = [np.random.default_rng(seed).integers(0, 256, source.buffer_bytes, dtype=np.uint8) for seed in (1, 2)]
    wanted = arrays[1].copy()
    layout.convert(source, arrays[0], [3, 1], source, wanted, [0, 1], 32)
    with hmc.Context(listen="tcp://127.0.0.1:0", key=key) as first, hmc.Context(key=key) as second:
        address = next(one for one in first.addresses if one.startswith("tcp"))
        with kv.Pool(first, arrays[0], source) as lender, kv.Pool(second, arrays[1], source) as taker:
            ticket = lender.lease("s", [3, 1]).ticket
            with hmc.Context(key=hmc.keygen()) as stranger, pytest.raises(hmc.AuthenticationError):
                stranger.connect(address, timeout=20)
            taker.pull(second.connect(address, timeout=20), ticket, [0, 1]).wait(20)
    assert np.array_equal(arrays[1], wanted)


def test_a_name_that_is_used_again_keeps_its_blocks(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, to_a, to_b = kv_pair(PLAIN, PLAIN)
    gate, reached = threading.Event(), threading.Event()
    real = _receive.Inbox._check_layers

    def slow(self: Any, record: Any) -> Any:
        reached.set()
        assert gate.wait(20)
        return real(self, record)

    monkeypatch.setattr(_receive.Inbox, "_check_layers", slow)
    old = b.pool.allocate("s", 64)
    inbox = b.pool.receive(to_a, session="s")
    push = a.pool.push(to_b, inbox.ticket, [0, 1, 2, 3])
    push.ready(0)
    assert reached.wait(20)
    lease = a.pool.lease("s", a.pool.allocate("s", 32))
    b.pool.free("s")
    a.pool.free("s")
    new = b.pool.allocate("s", 64)  # while the old session still drains
    assert not set(old) & set(new)
    mine = a.pool.allocate("s", 32)
    assert b.pool.free_blocks == 4
    gate.set()
    with pytest.raises(hmc.HmcCancelledError):
        inbox.wait(20)
    lease.release()
    assert b.pool.blocks._sessions["s"].blocks == new
    assert a.pool.blocks._sessions["s"].blocks == mine
    assert b.pool.free_blocks == 8
    with pytest.raises(hmc.InvalidArgumentError, match="has no blocks"):
        b.pool.receive(to_a, session="t")
    assert b.pool.blocks.sessions == ["s"]
