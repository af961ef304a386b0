"""The NIXL drop-in beside agents that die, stop, leave or lie: errors in time, and no handle or descriptor is left behind."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nixl_process import SIZE, Mine, Other, contents, this_process
from ports import free_port

import hmc
from hmc.integrations._shared import frames as wire
from hmc.integrations._shared import memory as shared_memory
from hmc.integrations.nixl import _bindings as nixl
from hmc.integrations.nixl import nixl_agent, nixl_agent_config

SOON = 20  # seconds; the promise is one, on a machine that is not overloaded


@pytest.fixture(params=["shm", "tcp"])
def mine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mine]:
    monkeypatch.setenv("HMC_TRANSPORTS", request.param)
    with this_process() as one:
        yield one


def whole(mine: Mine, other: Other, way: str = "WRITE") -> Any:
    return mine.transfer(way, [(mine.address, SIZE, 0)], [(other.address, SIZE, 0)])


@pytest.mark.parametrize("way", ["WRITE", "READ"])
@pytest.mark.parametrize("delay", [0, 0.003, 0.02])
def test_a_transfer_with_a_killed_agent_is_an_error(mine: Mine, way: str, delay: float) -> None:
    other = mine.start()
    count = 200
    rows = np.stack([np.arange(count) * 20_000, np.full(count, 19_999), np.zeros(count, np.int64)], axis=1)
    near, far = rows.copy(), rows.copy()
    near[:, 0] += mine.address
    far[:, 0] += other.address
    handles = [mine.transfer(way, near, far, message=b"x" * 3000) for _ in range(20)]
    assert mine.run(handles[0]) == "DONE"
    other.stop()  # so that some are in flight
    for handle in handles:
        mine.agent.transfer(handle)
    time.sleep(delay)
    other.kill()
    since = time.monotonic()
    states = [mine.finish(handle, SOON) for handle in handles]
    assert time.monotonic() - since < SOON
    assert mine.agent.check_xfer_state(handles[0]) == states[0]
    if os.environ["HMC_TRANSPORTS"] == "tcp" and way == "READ":
        assert states == ["ERR"] * len(handles)  # a stopped process answers no read; over shm the reader copies by itself
    until = time.monotonic() + SOON
    while mine.agent.check_remote_metadata("other"):
        assert time.monotonic() < until
        time.sleep(0.01)
    for call in (
        lambda: mine.agent.transfer(handles[0]),
        lambda: mine.agent.send_notif("other", b"x"),
        lambda: mine.agent.add_remote_agent(other.metadata),
        lambda: mine.agent.make_connection("other"),
    ):
        with pytest.raises(nixl.nixlRemoteDisconnectError):
            call()
    for handle in handles:
        mine.agent.release_xfer_handle(handle)
    mine.agent.deregister_memory(mine.registered)


def test_an_agent_that_restarts_is_added_again(mine: Mine) -> None:
    first = mine.start()
    assert mine.run(whole(mine, first)) == "DONE"
    first.close()
    second = mine.start()
    handle = whole(mine, second)
    assert mine.run(handle) == "DONE"
    assert np.array_equal(second.memory(), mine.memory)


def test_a_removed_agent_gets_nothing_more(mine: Mine) -> None:
    other = mine.start()
    handle = whole(mine, other)
    mine.agent.remove_remote_agent("other")
    mine.agent.remove_remote_agent("other")
    assert not mine.agent.check_remote_metadata("other")
    with pytest.raises(nixl.nixlNotFoundError, match="removed"):
        mine.agent.transfer(handle)
    with pytest.raises(nixl.nixlNotFoundError):
        mine.agent.send_notif("other", b"x")
    assert np.array_equal(other.memory(), contents(7))
    mine.agent.add_remote_agent(other.metadata)
    assert mine.run(whole(mine, other)) == "DONE"
    assert np.array_equal(other.memory(), mine.memory)


def test_metadata_of_before_a_restart_is_refused_and_changes_nothing(mine: Mine) -> None:
    """The agent comes back at the same address: what it said before names memory that it does not have."""
    config = {"enable_listen_thread": True, "listen_port": free_port()}
    first = mine.start(config=config)
    assert mine.run(whole(mine, first)) == "DONE"
    first.close()
    second = Other(config=config)
    mine.others.append(second)
    for known in (False, True):
        with pytest.raises(nixl.nixlRemoteDisconnectError, match="restarted"):
            mine.agent.add_remote_agent(first.metadata)
        assert mine.agent.check_remote_metadata("other") == known
        if not known:
            mine.agent.add_remote_agent(second.metadata)
    assert mine.run(whole(mine, second)) == "DONE"
    assert np.array_equal(second.memory(), mine.memory)


def test_memory_deregistered_here_while_a_transfer_is_prepared(mine: Mine) -> None:
    other = mine.start()
    handle = whole(mine, other)
    mine.agent.deregister_memory(mine.registered)
    with pytest.raises(nixl.nixlNotFoundError, match="agent mine"):
        mine.agent.transfer(handle)
    assert mine.agent.check_xfer_state(handle) == "ERR"
    assert np.array_equal(other.memory(), contents(7))


@pytest.mark.parametrize("way", ["WRITE", "READ"])
def test_memory_deregistered_there_while_a_transfer_is_prepared(mine: Mine, way: str) -> None:
    other = mine.start()
    handle = whole(mine, other, way)
    assert mine.run(handle) == "DONE"
    other.ask("agent.deregister_memory(registered)")
    other.ask("memory.fill(0)")
    for one in (handle, whole(mine, other, way)):
        with pytest.raises(nixl.nixlNotFoundError):
            mine.agent.transfer(one)
    assert not other.memory().any()
    other.ask("globals().update(registered=agent.register_memory(registered)) or None")
    renewed = bytes.fromhex(other.ask("agent.get_agent_metadata().hex()"))
    assert mine.agent.add_remote_agent(renewed) == b"other"
    assert mine.run(handle) == "DONE"
    assert np.array_equal(other.memory(), mine.memory)


@pytest.mark.parametrize("imported", [True, False])
@pytest.mark.parametrize("renewed", [True, False])
def test_another_registration_of_the_same_memory_is_found(mine: Mine, imported: bool, renewed: bool) -> None:
    """The longer of two registrations ends: the other one, or one that follows, holds the memory too."""
    other = mine.start()
    part = SIZE // 2
    row = f'[({other.address}, {part}, 0, "")], "DRAM"'
    if not renewed:
        other.ask(f"agent.register_memory({row}) and None")
        mine.agent.add_remote_agent(bytes.fromhex(other.ask("agent.get_agent_metadata().hex()")))
    handle = mine.transfer("WRITE", [(mine.address, part, 0)], [(other.address, part, 0)])
    if imported:
        assert mine.run(handle) == "DONE"
    other.ask("agent.deregister_memory(registered)")
    if renewed:
        other.ask(f"agent.register_memory({row}) and None")
        mine.agent.add_remote_agent(bytes.fromhex(other.ask("agent.get_agent_metadata().hex()")))
    mine.memory[:part] = contents(11, part)
    for _ in range(2):
        assert mine.run(handle) == "DONE"
    expected = contents(7)
    expected[:part] = mine.memory[:part]
    assert np.array_equal(other.memory(), expected)
    with pytest.raises(nixl.nixlNotFoundError):
        mine.agent.transfer(whole(mine, other))


def test_registrations_that_ended_there_are_forgotten(mine: Mine) -> None:
    other = mine.start()
    for size in range(1, 30):
        other.ask(f'globals().update(part=agent.register_memory([({other.address} + {size}, {size}, 0, "")], "DRAM")) or None')
        mine.agent.add_remote_agent(bytes.fromhex(other.ask("agent.get_partial_agent_metadata(part, True).hex()")))
        other.ask("agent.deregister_memory(registered)")  # so that the part is imported
        assert mine.run(mine.transfer("WRITE", [(mine.address, size, 0)], [(other.address + size, size, 0)])) == "DONE"
        other.ask("agent.register_memory(registered) and agent.deregister_memory(part)")
    assert len(mine.agent._links.remote("other").ranges.all()) <= 2


def test_memory_deregistered_during_transfers_is_not_written_afterwards(mine: Mine) -> None:
    other = mine.start()
    handles = [whole(mine, other) for _ in range(10)]
    for handle in handles:
        mine.agent.transfer(handle)
    other.ask("agent.deregister_memory(registered)")
    other.ask("memory.fill(0)")
    for handle in handles:
        assert mine.finish(handle, SOON) in ("DONE", "ERR")
    assert not other.memory().any()


def test_deregister_memory_beside_a_stopped_agent_may_be_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HMC_TRANSPORTS", "tcp")  # a stopped process answers no read
    with this_process() as mine:
        other = mine.start()
        handle = whole(mine, other, "READ")
        other.stop()
        assert mine.agent.transfer(handle) == "PROC"
        with monkeypatch.context() as patch:
            patch.setattr(shared_memory, "_CLOSE_SECONDS", 0.05)
            for _ in range(2):
                with pytest.raises(nixl.nixlBackendError, match="again"):
                    mine.agent.deregister_memory(mine.registered)
        other.kill(signal.SIGCONT)
        until = time.monotonic() + SOON
        while True:
            try:
                mine.agent.deregister_memory(mine.registered)
                break
            except nixl.nixlBackendError:
                assert time.monotonic() < until
        with pytest.raises(nixl.nixlNotFoundError):
            mine.agent.deregister_memory(mine.registered)
        mine.memory[:] = 0
        assert mine.finish(handle) in ("DONE", "ERR")
        assert not mine.memory.any()


def test_a_stopped_agent_leaves_the_transfer_in_flight(mine: Mine) -> None:
    other = mine.start()
    handles = [mine.transfer("READ", [(mine.address, 100_000, 0)], [(other.address, 100_000, 0)]) for _ in range(3)]
    other.stop()
    states = [mine.agent.transfer(handle) for handle in handles]
    if os.environ["HMC_TRANSPORTS"] == "tcp":  # a stopped process answers no read; over shm the reader copies by itself
        assert states == ["PROC"] * 3
        for handle in handles:
            with pytest.raises(nixl.nixlRepostActiveError):
                mine.agent.transfer(handle)
    other.kill(signal.SIGCONT)
    assert [mine.finish(handle) for handle in handles] == ["DONE"] * 3
    assert np.array_equal(mine.memory[:100_000], contents(7)[:100_000])


def test_a_released_transfer_stops_or_says_that_it_cannot(mine: Mine) -> None:
    other = mine.start()
    for _ in range(20):
        handle = whole(mine, other)
        mine.agent.transfer(handle, b"released")
        until = time.monotonic() + 20
        while True:
            try:
                mine.agent.release_xfer_handle(handle)
                break
            except nixl.nixlRepostActiveError:
                assert time.monotonic() < until
                time.sleep(0.001)
    assert mine.run(whole(mine, other)) == "DONE"


def test_damaged_metadata_is_refused(mine: Mine) -> None:
    other = Other()
    mine.others.append(other)
    good = other.metadata
    random = np.random.default_rng(2)
    for size in range(len(good)):
        with pytest.raises(nixl.nixlMismatchError):
            mine.agent.add_remote_agent(good[:size])
    for at in random.permutation(len(good))[:100]:
        bad = bytearray(good)
        bad[at] ^= 1 << int(random.integers(8))
        with pytest.raises((nixl.nixlMismatchError, nixl.nixlNotAllowedError)):
            mine.agent.add_remote_agent(bytes(bad))
    for foreign in (b"", b"junk", good + b"x", b"nixlSerDes|" + good, os.urandom(500)):
        with pytest.raises(nixl.nixlMismatchError):
            mine.agent.add_remote_agent(foreign)
    with pytest.raises(nixl.nixlInvalidParamError, match="this agent"):
        mine.agent.add_remote_agent(mine.agent.get_agent_metadata())
    assert not mine.agent.check_remote_metadata("other")
    assert mine.agent.add_remote_agent(good) == b"other"


def test_junk_from_a_peer_changes_nothing(mine: Mine, caplog: pytest.LogCaptureFixture) -> None:
    other = mine.start()
    random = np.random.default_rng(6)
    address = mine.agent._links.ctx.addresses[0]
    with hmc.Context(name="other") as liar:  # the name of an agent, without its Context
        peer = liar.connect(address, timeout=20)
        for number in range(500):
            junk = random.integers(0, 256, int(random.integers(1, 1025)), dtype=np.uint8).tobytes()
            peer.notify(bytes([number % 8 | (number % 2) << 7]) + junk[:1023], timeout=20)
        peer.notify(7, timeout=20)
        for frame in wire.frames(wire.METADATA, other.metadata[:-1] + b"x", 1):
            peer.notify(frame, timeout=20)
        peer.notify(bytes([wire.NOTIFY]) + b"end", timeout=20)
        until = time.monotonic() + 20
        got: list[bytes] = []
        while b"end" not in got:
            assert time.monotonic() < until
            got += mine.agent.get_new_notifs().get("other", [])
            time.sleep(0.001)
    assert mine.agent.check_remote_metadata("other")
    assert mine.run(whole(mine, other)) == "DONE"
    assert np.array_equal(other.memory(), mine.memory)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.timeout(600)
def test_ten_thousand_transfers_leak_nothing(mine: Mine) -> None:
    other = mine.start()
    agent = mine.agent
    rows = np.stack([np.arange(64) * 4096, np.full(64, 100), np.zeros(64, np.int64)], axis=1)
    near, far = rows.copy(), rows.copy()
    near[:, 0] += mine.address
    far[:, 0] += other.address
    local, remote = agent.prep_xfer_dlist("", near, "DRAM"), agent.prep_xfer_dlist("other", far, "DRAM")

    def some(count: int) -> None:
        for number in range(count):
            handle = agent.make_prepped_xfer(
                "WRITE" if number % 2 else "READ", local, [number % 64, 1], remote, [number % 64, 1], b"n"
            )
            assert mine.run(handle) == "DONE"
            if number % 3:
                agent.release_xfer_handle(handle)
            if number % 100 == 0:
                agent.release_dlist_handle(agent.prep_xfer_dlist("other", far, "DRAM"))
                agent.deregister_memory(agent.register_memory([(mine.address + 1, 500, 0, "")], "DRAM"))

    some(1000)
    gc.collect()
    before = open_descriptors(), resident()
    some(9000)
    gc.collect()
    assert open_descriptors() <= before[0]
    assert resident() < before[1] + (4 << 20)
    assert len(other.notifs(10_000)) == 10_000


def test_agents_that_come_and_go_leave_nothing_open() -> None:
    def one() -> None:
        first, second = nixl_agent("first", nixl_agent_config()), nixl_agent("second", nixl_agent_config())
        memory = contents(1, 10_000)
        first.register_memory([(memory.ctypes.data, 10_000, 0, "")], "DRAM")
        second.add_remote_agent(first.get_agent_metadata())
        second.send_notif("first", b"hello")
        until = time.monotonic() + 20
        while not first.get_new_notifs():
            assert time.monotonic() < until
            time.sleep(0.001)

    one()
    gc.collect()
    before = open_descriptors()
    for _ in range(20):
        one()
    gc.collect()
    until = time.monotonic() + 20
    while open_descriptors() > before + 2:  # another thread may hold the last reference
        assert time.monotonic() < until, (before, open_descriptors())
        time.sleep(0.01)
        gc.collect()
