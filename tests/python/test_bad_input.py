"""Bad input in every position: refused at once by name, and the pair it was given to goes on as before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import Pair, read_only
from patterns import pattern

import hmc

# Made by buffers only, which mypy takes for a class that has no attributes.
Descriptor: Any = hmc.Descriptor
REFUSED = (hmc.InvalidArgumentError, TypeError)


@pytest.fixture
def comm() -> Iterator[hmc.Communicator]:
    with hmc.init(rank=0, size=1) as alone:
        yield alone


@pytest.mark.parametrize("size", [-1, 1 << 62, 1 << 64, 1 << 200, 1.5, "10", None, True])
def test_sizes(pair: Pair, size: Any) -> None:
    refused = (*REFUSED, hmc.OutOfMemoryError)
    with pytest.raises(refused):
        pair.a.buffer(size)
    with pytest.raises(refused):
        hmc.Memory(size)


@pytest.mark.parametrize("tag", [-2, (1 << 62) + 1, 1 << 64, -(1 << 70), 1.5, "3", None, True])
def test_tags(pair: Pair, tag: Any) -> None:
    array = np.zeros(8, np.uint8)
    calls: list[Callable[[], object]] = [
        lambda: pair.ab.isend(array, tag=tag),
        lambda: pair.ab.irecv(array, tag=tag),
        lambda: pair.ab.send(array, tag=tag, timeout=1),
        lambda: pair.ab.recv(array, tag=tag, timeout=1),
    ]
    for call in calls:
        with pytest.raises(REFUSED):
            call()


@pytest.mark.parametrize("number", [1 << 31, 1 << 70, -(1 << 70), 1 << 5000, 1.5, "3"])
def test_errors_name_the_argument(comm: hmc.Communicator, number: Any) -> None:
    array, memory = np.zeros(8, np.uint8), hmc.Memory(8)
    if isinstance(number, int) and abs(number) > 1 << 63:
        with pytest.raises(hmc.InvalidArgumentError, match=r"^tag must be from -"):
            comm.isend(array, 0, tag=number)
        with pytest.raises(hmc.InvalidArgumentError, match=r"^dst must be from -"):
            comm.isend(array, number)
    for bounds in (slice(number, None), slice(0, number), slice(0, 8, number)):
        with pytest.raises(REFUSED, match="slice"):
            memory[bounds]
    for refused, name in (((number, 0), "color"), ((0, number), "key"), (([number], 0), "color"), ((0, [number]), "key")):
        with pytest.raises(REFUSED, match=f"^{name} must be "):
            comm.split(*refused, timeout=5)


@pytest.mark.parametrize("rank", [-2, 1, 1 << 31, 1 << 40, -(1 << 63), 1 << 80, 0.5, "0", None])
def test_ranks(comm: hmc.Communicator, rank: Any) -> None:
    array = np.zeros(8, np.uint8)
    calls: list[Callable[[], object]] = [
        lambda: comm.isend(array, rank),
        lambda: comm.irecv(array, rank),
        lambda: comm.send(array, rank, timeout=1),
        lambda: comm.recv(array, rank, timeout=1),
        lambda: comm.wait_notify(rank, 1, timeout=1),
        lambda: comm.notify(rank, 1),
        lambda: comm.fence(rank),
        lambda: comm.path(rank),
        lambda: comm.peer(rank),
        lambda: comm.device(rank),
    ]
    for call in calls:
        with pytest.raises(REFUSED):
            call()


@pytest.mark.parametrize("timeout", [-1, float("nan"), -float("inf"), "soon", True, -(10**400), [1]], ids=lambda one: str(one)[:9])
def test_timeouts(pair: Pair, timeout: Any) -> None:
    array = np.zeros(8, np.uint8)
    work = pair.ab.irecv(array, tag=77)
    calls: list[Callable[[], object]] = [
        lambda: work.wait(timeout),
        lambda: pair.ab.recv(array, timeout=timeout),
        lambda: pair.ab.wait_notify(1, timeout=timeout),
        lambda: pair.a.accept(timeout=timeout),
        lambda: pair.ab.lookup("x", timeout=timeout),
        lambda: hmc.wait_all([work], timeout=timeout),
        lambda: pair.local.close(timeout=timeout),
    ]
    for call in calls:
        with pytest.raises(REFUSED, match="timeout"):
            call()
    work.cancel()


def test_a_timeout_beyond_every_clock_is_none(pair: Pair) -> None:
    for timeout in (10**400, 1e300, float("inf"), np.float32(1e30)):
        got = np.zeros(100, np.uint8)
        receiving = pair.ba.irecv(got, tag=9)
        pair.ab.send(pattern(100, 3), tag=9, timeout=timeout)
        receiving.wait(timeout)
        assert np.array_equal(got, pattern(100, 3))
    with pytest.raises(hmc.InvalidArgumentError, match=r"nbytes .* bits"):
        hmc.Memory(10**5000)


def test_notifications(pair: Pair) -> None:
    for notify in (-1, 1 << 63, 1 << 64, 1.5, "text", b"x" * 1025, [1]):
        with pytest.raises(REFUSED):
            pair.ab.notify(notify)
        with pytest.raises(REFUSED):
            pair.ab.put(pair.local, pair.remote, notify=notify)  # type: ignore[arg-type]
    for bad in (-1, 1 << 63, 1 << 64, 2.5, None):
        with pytest.raises(REFUSED):
            pair.ba.wait_notify(bad, timeout=0)  # type: ignore[arg-type]
        with pytest.raises(REFUSED):
            pair.ba.wait_notify(1, count=bad, timeout=0)  # type: ignore[arg-type]
    pair.ab.notify(b"x" * 1024)
    assert pair.ba.notifications(timeout=20) == [(-1, b"x" * 1024)]


def test_closed_and_stale_buffers(pair: Pair) -> None:
    doomed = pair.b.buffer(1000)
    descriptor = doomed.descriptor()
    remote = pair.ab.import_buffer(descriptor, timeout=20)
    doomed.close(timeout=20)
    doomed.close(timeout=20)
    for call in (lambda: pair.ab.put(pair.local[:1000], remote).wait(20), lambda: pair.ab.get(pair.local[:1000], remote).wait(20)):
        with pytest.raises(hmc.HmcError):
            call()
    assert not remote.alive
    with pytest.raises(hmc.StaleBufferError):
        pair.ab.import_buffer(descriptor, timeout=20)
    with pytest.raises(hmc.ClosedError):
        doomed.descriptor()
    with pytest.raises(hmc.ClosedError):
        pair.b.publish("doomed", doomed)
    mine = pair.a.buffer(20_000)
    mine.close(timeout=20)
    with pytest.raises(hmc.ClosedError):
        pair.ab.put(mine, pair.remote)
    with pytest.raises(hmc.ClosedError):
        pair.ab.get(mine, pair.remote)


def test_forged_descriptors(pair: Pair) -> None:
    good = bytes(pair.target.descriptor())
    for cut in range(len(good)):
        with pytest.raises(hmc.HmcError):
            Descriptor.parse(good[:cut])
    with pytest.raises(hmc.HmcError):
        Descriptor.parse(good + b"\0")
    for junk in ("text", 5, None):
        with pytest.raises(REFUSED):
            Descriptor.parse(junk)
    # A descriptor with a changed byte is refused, or names no more than it did.
    for at in range(len(good)):
        changed = bytearray(good)
        changed[at] ^= 0x15
        try:
            remote = pair.ab.import_buffer(Descriptor.parse(bytes(changed)), timeout=20)
        except hmc.HmcError:
            continue
        assert len(remote) <= len(pair.target)
    # Of another Context, and of this one.
    with pytest.raises(hmc.InvalidArgumentError, match="Context"):
        pair.ba.import_buffer(pair.target.descriptor(), timeout=20)


def test_slices_and_roles(pair: Pair) -> None:
    remote, local = pair.remote, pair.local
    for bad in (slice(0, 20_001), slice(5, 3), slice(0, 10, 2), "x", 3, (1, 2), slice(1 << 80, None)):
        for buffer in (remote, local):
            with pytest.raises(REFUSED):
                buffer[bad]
    calls: list[Callable[[], object]] = [
        lambda: pair.ab.put(remote, local),  # type: ignore[arg-type]
        lambda: pair.ab.put(np.zeros(20_000, np.uint8), remote),  # type: ignore[arg-type]
        lambda: pair.ab.put(local[:10], remote),
        lambda: pair.ab.get(local, remote[:10]),
        lambda: pair.ab.put(local, remote, complete="sometime"),
        lambda: pair.ba.put(pair.target, remote),
        lambda: pair.ab.put(pair.target, remote),
        lambda: pair.a.publish("x", pair.target),
        lambda: pair.a.publish("", local),
        lambda: pair.a.publish("n" * 256, local),
        lambda: pair.a.unpublish("nobody knows it"),
        lambda: pair.ab.path("warp:9", "cpu"),
    ]
    for call in calls:
        with pytest.raises((*REFUSED, hmc.UnsupportedError)):
            call()


def test_blocks(pair: Pair) -> None:
    good = np.array([0, 4096], np.uint64)
    bad: list[Any] = [
        np.array([-1, 0]),
        np.array([0, 20_000 - 4095]),
        np.array([0, (1 << 64) - 1], np.uint64),
        np.array([0.0, 1.0]),
        np.array([0]),
        np.array(["a", "b"]),
        [[0, 1], [2, 3]],
        None,
    ]
    for offsets in bad:
        with pytest.raises(REFUSED):
            pair.ab.prepare_blocks([(pair.local, offsets, pair.remote, good)], block=4096)
        with pytest.raises(REFUSED):
            pair.ab.prepare_blocks([(pair.local, good, pair.remote, offsets)], block=4096)
    for block in (-1, 1 << 63, 1 << 70, 20_001, 1.5, None):
        with pytest.raises(REFUSED):
            pair.ab.prepare_blocks([(pair.local, good, pair.remote, good)], block=block)  # type: ignore[arg-type]
    for pairs in ([(pair.local, good, pair.remote)], [(pair.remote, good, pair.local, good)], [None], 5):
        with pytest.raises(REFUSED):
            pair.ab.prepare_blocks(pairs, block=16)  # type: ignore[arg-type]
    # Integers of any type and layout are offsets.
    spread = np.array([7, 99, 4096, 99])[::2]
    for offsets in (
        [7, 4096],
        (7, 4096),
        spread,
        spread.astype(np.int16),
        spread.astype(np.uint32),
        spread.astype(">i8"),
        spread[:0],
    ):
        pair.target.numpy()[:], pair.local.numpy()[:] = 0, pattern(20_000, 9)
        there = good[: len(offsets)]
        pair.ab.put_blocks(pair.ab.prepare_blocks([(pair.local, offsets, pair.remote, there)], block=333)).wait(20)
        expected = np.zeros(20_000, np.uint8)
        for source, target in zip(offsets, there, strict=True):
            expected[int(target) : int(target) + 333] = pattern(20_000, 9)[int(source) : int(source) + 333]
        assert np.array_equal(pair.target.numpy(), expected)
    # Overlapping sources are fine; of overlapping targets each byte is one writer's.
    pair.local.numpy()[:] = pattern(20_000, 3)
    sources, targets = np.array([0, 1, 2, 10_000]), np.array([0, 5000, 5100, 12_000])[::-1]
    pair.ab.put_blocks(pair.ab.prepare_blocks([(pair.local, sources, pair.remote, targets)], block=200)).wait(20)
    whole, put = pattern(20_000, 3), pair.target.numpy()
    assert np.array_equal(put[12_000:12_200], whole[0:200])
    assert np.array_equal(put[:200], whole[10_000:10_200])
    assert np.array_equal(put[5200:5300], whole[101:201])
    assert np.array_equal(put[5000:5100], whole[2:102])
    assert all(byte in (first, second) for byte, first, second in zip(put[5100:5200], whole[102:202], whole[1:101], strict=True))


def test_overlap_within_one_buffer(comm: hmc.Communicator) -> None:
    buf = comm.buffer(300_000)
    remote = comm.exchange(buf)[0]
    buf.numpy()[:] = pattern(300_000, 6)
    comm.put(buf[5:250_005], remote[5:250_005]).wait(20)  # onto itself
    for source, target in ((0, 1000), (1000, 0)):
        with pytest.raises(hmc.InvalidArgumentError, match="overlap"):
            comm.put(buf[source : source + 250_000], remote[target : target + 250_000]).wait(20)
    assert np.array_equal(buf.numpy(), pattern(300_000, 6))
    comm.put(buf[:150_000], remote[150_000:]).wait(20)
    assert np.array_equal(buf.numpy()[150_000:], pattern(300_000, 6)[:150_000])


def test_all_to_all(comm: hmc.Communicator) -> None:
    eight, nine = np.zeros(8, np.uint8), np.zeros(9, np.uint8)
    calls: list[Callable[[], object]] = [
        lambda: comm.all_to_all(eight, nine, timeout=5),
        lambda: comm.all_to_all(read_only(8), eight, timeout=5),
        lambda: comm.all_to_all(eight, None, timeout=5),
        lambda: comm.all_to_all(np.zeros((8, 8), np.uint8)[:, ::2], np.zeros(32, np.uint8), timeout=5),
        lambda: comm.all_to_all_v(eight, [9], eight, [8], timeout=5),
        lambda: comm.all_to_all_v(eight, [8], eight, [9], timeout=5),
        lambda: comm.all_to_all_v(eight, [-1], eight, [8], timeout=5),
        lambda: comm.all_to_all_v(eight, [4, 4], eight, [8], timeout=5),
        lambda: comm.all_to_all_v(eight, [], eight, [], timeout=5),
        lambda: comm.all_to_all_v(eight, [1 << 70], eight, [8], timeout=5),
    ]
    for call in calls:
        with pytest.raises(REFUSED):
            call()
    comm.all_to_all(eight, np.arange(8, dtype=np.uint8), timeout=20)
    assert np.array_equal(eight, np.arange(8))


def test_closed_contexts_and_peers(pair: Pair) -> None:
    array = np.zeros(8, np.uint8)
    with hmc.Context() as other:
        peer = other.connect(pair.b.addresses[0], timeout=20)
        accepted = pair.b.accept(timeout=20)
        pending = peer.irecv(array)
        peer.close()
        peer.close()
        with pytest.raises(hmc.ClosedError):
            pending.wait(20)
        with pytest.raises(hmc.ClosedError):
            peer.send(array)
        with pytest.raises(hmc.ClosedError):
            accepted.recv(array, timeout=20)
        buffer = other.buffer(10)
    other.close()
    calls: list[Callable[[], object]] = [
        lambda: other.buffer(10),
        lambda: other.register(array),
        lambda: other.connect("unix:/x", timeout=1),
        lambda: other.accept(timeout=1),
        lambda: other.publish("x", buffer),
        lambda: peer.lookup("x", timeout=1),
        lambda: peer.isend(array),
        lambda: peer.irecv(array),
        lambda: peer.notify(1),
        lambda: peer.fence(),
        lambda: peer.path(),
    ]
    for call in calls:
        with pytest.raises(hmc.ClosedError):
            call()


@pytest.mark.parametrize(
    "address",
    ["", "tcp://", "tcp://localhost", "tcp://localhost:99999", "tcp://[::1:5", "udp://x:1", "unix:", "unix:/" + "x" * 300, "a\0b"],
)
def test_addresses(address: str) -> None:
    with hmc.Context() as context, pytest.raises(hmc.InvalidArgumentError):
        context.connect(address, timeout=5)
    if address:
        with pytest.raises(hmc.InvalidArgumentError):
            hmc.Context(listen=address)


@pytest.mark.parametrize(
    "options",
    [
        {"key": "short"},
        {"transports": "nosuch"},
        {"heartbeat": 0},
        {"heartbeat": float("nan")},
        {"progress": "sometimes"},
        {"policy": "best"},
        {"listen": 3},
        {"listen": [None]},
    ],
    ids=str,
)
def test_options(options: dict[str, Any]) -> None:
    with pytest.raises(REFUSED):
        hmc.Context(**options)
