"""What the Mooncake drop-in refuses, and engines that end, restart or fork."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from mooncake_process import SIZE, Mine, contents, this_process
from ports import free_port

import hmc
from hmc.errors import ProtocolError
from hmc.integrations.mooncake import _catalogue
from hmc.integrations.mooncake.engine import TransferEngine, TransferNotify, Write


@pytest.fixture
def mine() -> Iterator[Mine]:
    with this_process() as one:
        yield one


def test_registrations_are_refused_as_mooncake_refuses_them(mine: Mine) -> None:
    engine, free = mine.engine, np.zeros(1000, np.uint8)
    address = free.ctypes.data
    for start, nbytes in ((mine.address, SIZE), (mine.address + 9, 5), (mine.address - 1, 2), (mine.address + SIZE - 1, 1)):
        assert engine.register_memory(start, nbytes) == -7
    assert engine.register_memory(address, 0) == -1
    assert engine.register_memory(0x1000, 10) == -1  # not mapped
    assert engine.register_memory((1 << 64) - 5, 10) == -1
    assert engine.batch_register_memory([address], [10, 20]) == -1
    assert engine.batch_register_memory([], []) == 0
    assert engine.batch_register_memory([address, address + 500, address + 499], [10, 10, 10]) == -7
    assert engine.batch_register_memory([address, 0x1000], [10, 10]) == -1
    assert engine.unregister_memory(address) == -3  # all or none
    assert engine.batch_register_memory([address + 500, address], [10, 500], "cpu:0") == 0
    assert engine.unregister_memory(address + 1) == -3
    assert engine.batch_unregister_memory([address, address]) == -1
    assert engine.batch_unregister_memory([address, 5]) == -3
    assert engine.batch_unregister_memory([address, address + 500]) == 0
    assert engine.batch_unregister_memory([address]) == -3


def test_memory_that_is_not_registered_is_refused(mine: Mine) -> None:
    other, engine, free = mine.start(), mine.engine, contents(9, 1000)
    session, at, to = other.session, mine.address, other.address
    assert engine.transfer_sync_write(session, free.ctypes.data, to, 1000) == -1
    assert engine.transfer_sync_read(session, free.ctypes.data, to, 1000) == -1
    top = (1 << 64) - 1
    for there, nbytes in ((to - 1, 2), (to + SIZE - 1, 2), (0x1000, 1), (to, SIZE + 1), (top, 1), (to + 1, top)):
        assert engine.transfer_sync_write(session, at, there, nbytes) == -1
        assert engine.batch_transfer_sync_read(session, [at, at], [to, there], [1, nbytes]) == -1
        number = engine.batch_transfer_async_write(session, [at, at], [there, to], [nbytes, 1])
        assert engine.get_batch_transfer_status([number]) == -1
        assert engine.transfer_check_status(engine.transfer_submit_write(session, at, there, nbytes)) == -1
    with pytest.raises(ValueError, match="registration"):
        engine.read_bytes_from_buffer(at, 1 << 60)
    assert engine.batch_transfer_sync_write(session, [at], [to, to], [1, 1]) == -1
    assert engine.batch_transfer_async_write(session, [at], [to, to], [1, 1]) == 0
    assert np.array_equal(other.memory(), contents(7))
    assert np.array_equal(mine.memory, contents(3))
    assert np.array_equal(free, contents(9, 1000))


def test_memory_is_known_as_soon_as_it_is_registered_and_until_it_is_unregistered(mine: Mine) -> None:
    other, engine = mine.start(), mine.engine
    assert engine.transfer_sync_write(other.session, mine.address, other.address, 5) == 0
    more = other.ask("globals().update(more=np.full(5000, 1, np.uint8)) or more.ctypes.data")
    for round in range(5):
        assert engine.transfer_sync_write(other.session, mine.address, more, 5000) == -1
        assert other.ask(f"engine.register_memory({more}, 5000)") == 0
        mine.memory[:5000] = contents(round, 5000)
        assert engine.transfer_sync_write(other.session, mine.address, more, 5000) == 0
        assert engine.batch_transfer_sync_write(other.session, [mine.address + 5, mine.address], [more + 5, more], [90, 5]) == 0
        assert bytes.fromhex(other.ask("more.tobytes().hex()")) == contents(round, 5000).tobytes()
        assert other.ask(f"engine.unregister_memory({more})") == 0
    # Registered anew at once: what was imported before is stale.
    assert other.ask(f"engine.unregister_memory({other.address}) or engine.register_memory({other.address}, 100)") == 0
    assert engine.transfer_sync_write(other.session, mine.address, other.address, 100) == 0
    assert engine.transfer_sync_write(other.session, mine.address, other.address, 101) == -1
    expected = contents(7)
    expected[:100] = mine.memory[:100]
    assert np.array_equal(other.memory(), expected)


def test_arguments_of_wrong_types_raise(mine: Mine) -> None:
    engine, at = mine.engine, mine.address
    own: Any = f"127.0.0.1:{engine.get_rpc_port()}"
    bad: Any
    for bad in (-1, 1.5, "1", None, 1 << 64):
        with pytest.raises(TypeError):
            engine.transfer_sync_write(own, bad, at, 1)
        with pytest.raises(TypeError):
            engine.batch_transfer_sync_read(own, [at, bad], [at, at], [1, 1])
        with pytest.raises(TypeError):
            engine.register_memory(at, bad)
        with pytest.raises(TypeError):
            engine.unregister_memory(bad)
    bad = 1
    with pytest.raises(TypeError):
        engine.transfer_sync(own, at, at, 1, bad)
    with pytest.raises(TypeError):
        engine.transfer_sync(own, at, at, 1, Write, bad)
    with pytest.raises(TypeError):
        engine.transfer_sync_write(bad, at, at, 1)
    with pytest.raises(TypeError):
        TransferNotify(bad, "")


def test_what_hmc_does_not_have_is_refused_by_name(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TransferEngine()
    for server in ("http://127.0.0.1:8080/metadata", "etcd://127.0.0.1:2379", "127.0.0.1:2379", "redis://127.0.0.1", ""):
        assert engine.initialize("127.0.0.1", server, "tcp", "") == -1
        assert repr(server) in caplog.text
        assert "P2PHANDSHAKE" in caplog.text
    for call in (engine.get_engine, engine.get_engine_ptr):
        with pytest.raises(NotImplementedError, match="Mooncake"):
            call()
    for use in (engine.get_rpc_port, engine.get_notifies, lambda: engine.register_memory(1, 1), lambda: engine.send_probe("a:1")):
        with pytest.raises(RuntimeError, match="initialize"):
            use()
    for name, value in (
        ("MC_MIN_RPC_PORT", "x"),
        ("MC_MIN_RPC_PORT", "70000"),
        ("MC_TRANSFER_TIMEOUT", "soon"),
        ("MC_TRANSFER_TIMEOUT", "nan"),
        ("HMC_JOB_KEY", "short"),
    ):
        with monkeypatch.context() as patch:
            caplog.clear()
            patch.setenv(name, value)
            assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1
            assert {"HMC_JOB_KEY": "job key"}.get(name, name) in caplog.text
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1


def test_ports_are_of_the_range_and_of_one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    low = free_port(3)
    monkeypatch.setenv("MC_MIN_RPC_PORT", str(low))
    monkeypatch.setenv("MC_MAX_RPC_PORT", str(low + 2))
    engines = [TransferEngine() for _ in range(4)]
    found = [one.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") for one in engines]
    assert found[-1] == -1
    assert {one.get_rpc_port() for one, code in zip(engines, found, strict=True) if code == 0} <= {low, low + 1, low + 2}
    assert found.count(0) == len({one.get_rpc_port() for one, code in zip(engines, found, strict=True) if code == 0})


@pytest.mark.parametrize(
    "session",
    [
        *("127.0.0.1:1", "nonsense", "", ":5", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:x"),
        *("a..b:15000", "\ud800:15000", "x" * 70 + ":15000"),  # no names of hosts
    ],
)
def test_an_engine_that_is_not_there_is_an_error(mine: Mine, session: str) -> None:
    engine, at = mine.engine, mine.address
    assert engine.transfer_sync_write(session, at, at, 1) == -1
    assert engine.transfer_submit_write(session, at, at, 1) == 0
    assert engine.batch_transfer_async_read(session, [at], [at], [1]) == 0
    assert engine.get_first_buffer_address(session) == 0
    assert engine.send_probe(session) == -102


def test_another_host_requires_a_key(mine: Mine, caplog: pytest.LogCaptureFixture) -> None:
    assert mine.engine.transfer_sync_write("192.0.2.1:15000", mine.address, mine.address, 1) != 0
    assert "HMC_JOB_KEY" in caplog.text


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mine]:
    """Has no timeout that a test would live to see: a transfer ends with its peer."""
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "100000")
    with this_process() as one:
        yield one


def test_a_killed_engine_is_an_error_and_its_successor_is_used(patient: Mine, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = patient
    port = free_port()
    monkeypatch.setenv("MC_MIN_RPC_PORT", str(port))
    monkeypatch.setenv("MC_MAX_RPC_PORT", str(port))
    engine = mine.engine
    for round in range(3):
        other = mine.start()
        assert other.port == port  # the same name as before
        mine.memory[:] = contents(round)
        assert engine.transfer_sync_write(other.session, mine.address + 1, other.address + 1, SIZE - 1) == 0
        expected = contents(7)
        expected[1:] = mine.memory[1:]
        assert np.array_equal(other.memory(), expected)
        other.kill()
        assert engine.transfer_sync_write(other.session, mine.address, other.address, 9) != 0
        number = engine.batch_transfer_async_write(other.session, [mine.address], [other.address], [9])
        assert number == 0 or engine.get_batch_transfer_status([number]) == -1
        assert engine.send_probe(other.session) != 0


def test_an_engine_killed_in_mid_transfer_is_an_error(patient: Mine) -> None:
    mine = patient
    for _ in range(3):
        other = mine.start(HMC_TRANSPORTS="tcp")
        numbers = [mine.engine.transfer_submit_write(other.session, mine.address, other.address, SIZE) for _ in range(20)]
        other.kill()
        states = [mine.engine.get_batch_transfer_status([number]) for number in numbers if number]
        assert set(states) <= {0, -1}
        assert mine.engine.transfer_sync_write(other.session, mine.address, other.address, 1) == -1
    assert np.array_equal(mine.memory, contents(3))


def test_an_engine_is_dead_in_a_forked_child(mine: Mine) -> None:
    other = mine.start()
    assert mine.engine.transfer_sync_write(other.session, mine.address, other.address, 5) == 0
    child = os.fork()
    if child == 0:
        codes = [
            mine.engine.transfer_sync_write(other.session, mine.address, other.address, 9),
            mine.engine.register_memory(mine.address, 5),
        ]
        codes += [
            mine.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""),
            mine.engine.send_probe(other.session),
            mine.engine.warmup_efa_segment(other.session),
            mine.engine.unregister_memory(mine.address),
            mine.engine.free_managed_buffer(mine.address, 5),
            mine.engine.write_bytes_to_buffer(mine.address, b"12345", 5),
            mine.engine.transfer_check_status(1),
            mine.engine.get_batch_transfer_status([1]),
        ]
        codes = [0 if code == -1 else 1 for code in codes]
        codes += [mine.engine.allocate_managed_buffer(5), mine.engine.get_first_buffer_address(other.session)]
        codes.append(mine.engine.transfer_submit_write(other.session, mine.address, other.address, 9))
        for call in (
            mine.engine.get_rpc_port,
            mine.engine.get_notifies,
            lambda: mine.engine.read_bytes_from_buffer(mine.address, 5),
        ):
            try:
                codes.append(2 if call() else 3)
            except hmc.ClosedError:
                codes.append(0)
        fresh = TransferEngine()
        codes.append(fresh.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""))
        codes.append(fresh.register_memory(mine.address, SIZE))
        codes.append(fresh.transfer_sync_write(other.session, mine.address + 5, other.address + 5, 20))
        os._exit(next((at + 1 for at, code in enumerate(codes) if code), 0))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert mine.engine.transfer_sync_write(other.session, mine.address + 25, other.address + 25, 5) == 0
    expected = contents(7)
    expected[:30] = mine.memory[:30]
    assert np.array_equal(other.memory(), expected)


def test_engines_that_are_collected_leave_nothing_behind() -> None:
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    port, folder = engine.get_rpc_port(), engine._ready()._folder()
    assert list(folder.glob(f"{os.getpid()}-*-{port}.sock"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del engine
    assert not [one for one in told if str(port) in str(one.message)]  # of a socket that is left open
    assert not list(folder.glob(f"{os.getpid()}-*-{port}.sock"))


def test_what_a_killed_engine_leaves_is_removed_by_the_next(mine: Mine) -> None:
    other, folder = mine.start(), mine.engine._ready()._folder()
    assert list(folder.glob(f"{other.process.pid}-mc*-{other.port}.sock"))
    other.kill()
    mine.start()
    assert not list(folder.glob(f"{other.process.pid}-*"))


def test_engines_with_a_key_meet_by_tcp_and_refuse_others(monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = TransferEngine()
    assert stranger.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    monkeypatch.setenv("HMC_JOB_KEY", "1" * 64)
    with this_process() as mine:
        other = mine.start()
        ours, there = f"127.0.0.1:{mine.engine.get_rpc_port()}", mine.address
        assert mine.engine.transfer_sync_write(other.session, mine.address + 1, other.address, SIZE - 1) == 0
        expected = contents(7)
        expected[: SIZE - 1] = mine.memory[1:]
        assert np.array_equal(other.memory(), expected)
        monkeypatch.setenv("HMC_JOB_KEY", "2" * 64)
        wrong = TransferEngine()
        assert wrong.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        for engine in (stranger, wrong):
            address = engine.allocate_managed_buffer(10)
            assert engine.transfer_sync_write(ours, address, there, 10) == -1
            assert engine.transfer_sync_read(ours, address, there, 10) == -1
        assert np.array_equal(mine.memory, contents(3))


@pytest.mark.parametrize("seed", range(20))
def test_damaged_registrations_raise_and_take_nothing(seed: int) -> None:
    random = np.random.default_rng(seed)
    data = random.integers(0, 256, int(random.integers(1, 400)), dtype=np.uint8).tobytes()
    try:
        found = _catalogue.decode(data)
    except ProtocolError:
        return
    assert sum(18 + len(one.holder.descriptor) for one in found) == len(data)


def test_foreign_messages_are_ignored(mine: Mine) -> None:
    other = mine.start()
    assert mine.engine.send_probe(other.session) == 0
    peer = mine.engine._ready().session(other.session).peer
    random = np.random.default_rng(5)
    for length in range(1, 60):
        peer.notify(random.integers(0, 256, length, dtype=np.uint8).tobytes(), timeout=20)
    other.ask("engine.get_notifies() and 0")
    assert mine.engine.send_probe(other.session) == 0
    assert mine.engine.transfer_sync_write(other.session, mine.address, other.address, 100) == 0


def test_threads_that_register_the_same_memory_get_it_once(mine: Mine) -> None:
    free = np.zeros(1000, np.uint8)
    address = int(free.ctypes.data)
    codes: list[int] = []
    for _ in range(50):
        codes.clear()
        at_once(*[lambda: codes.append(mine.engine.register_memory(address, 1000))] * 4)
        assert sorted(codes) == [-7, -7, -7, 0]
        codes.clear()
        at_once(*[lambda: codes.append(mine.engine.unregister_memory(address))] * 4)
        assert sorted(codes) == [-3, -3, -3, 0]


def test_memory_may_be_registered_and_unregistered_while_others_are_written(mine: Mine) -> None:
    other, engine, ended = mine.start(), mine.engine, threading.Event()
    part, codes = SIZE // 4, []

    def write(number: int) -> None:
        start = number * part
        while True:  # at least once
            codes.append(engine.batch_transfer_sync_write(other.session, *pieces(mine.address, other.address, start, part)))
            if ended.is_set():
                return

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for one in threads:
        one.start()
    for _ in range(20):
        assert other.ask("(lambda one: engine.register_memory(one.ctypes.data, 100) or engine.unregister_memory(one.ctypes.data))"
                         "(np.zeros(100, np.uint8))") == 0  # fmt: skip
        temporary = np.zeros(100, np.uint8)
        assert engine.register_memory(temporary.ctypes.data, 100) == 0
        assert engine.transfer_sync_read(other.session, temporary.ctypes.data, other.address + 3 * part, 100) == 0
        assert engine.unregister_memory(temporary.ctypes.data) == 0
        assert np.array_equal(temporary, contents(7)[3 * part : 3 * part + 100])
    ended.set()
    for one in threads:
        one.join(60)
        assert not one.is_alive()
    assert set(codes) == {0}
    expected = contents(7)
    for number in range(3):
        for at in range(number * part, number * part + part - 999, 1000):
            expected[at : at + 777] = mine.memory[at : at + 777]
    assert np.array_equal(other.memory(), expected)


def pieces(here: int, there: int, start: int, nbytes: int) -> list[Any]:
    at = np.arange(start, start + nbytes - 999, 1000)
    return [at + here, at + there, np.full(len(at), 777)]


def at_once(*calls: Callable[[], object]) -> None:
    gate = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> None:
        gate.wait(20)
        call()

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
        assert not one.is_alive()
