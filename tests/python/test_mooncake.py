"""The Mooncake drop-in between two processes: every byte of both memories compared."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mooncake_process import SIZE, Mine, Other, contents, this_process
from ports import free_port

from hmc.integrations.mooncake._session import Session
from hmc.integrations.mooncake._transfer import Transfer
from hmc.integrations.mooncake.engine import Read, TransferEngine, TransferNotify, TransferOpcode, Write


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Mine, Other]]:
    with this_process() as mine:
        yield mine, mine.start()


def reset(mine: Mine, other: Other) -> None:
    mine.memory[:] = contents(3)
    other.ask("memory.__setitem__(slice(None), np.random.default_rng(7).integers(0, 256, memory.size, dtype=np.uint8))")


@pytest.mark.parametrize("way", ["write", "read"])
@pytest.mark.parametrize("nbytes", [0, 1, 7, 4095, 65537, SIZE - 8])
def test_one_piece(both: tuple[Mine, Other], way: str, nbytes: int) -> None:
    mine, other = both
    reset(mine, other)
    ours, theirs = contents(3), contents(7)
    call = getattr(mine.engine, f"transfer_sync_{way}")
    assert call(other.session, mine.address + 3, other.address + 5, nbytes) == 0
    if way == "write":
        theirs[5 : 5 + nbytes] = ours[3 : 3 + nbytes]
    else:
        ours[3 : 3 + nbytes] = theirs[5 : 5 + nbytes]
    assert np.array_equal(mine.memory, ours)
    assert np.array_equal(other.memory(), theirs)


def pieces(seed: int, count: int) -> tuple[Any, Any, Any]:
    """Offsets here, offsets there and lengths of pieces that do not overlap; some are empty."""
    random = np.random.default_rng(seed)
    room = SIZE // count
    lengths = random.choice([0, 1, 13, 512, room - 1, room] if seed % 2 else np.arange(room), count)
    return random.permutation(count) * room, random.permutation(count) * room, lengths


@pytest.mark.parametrize("way", ["write", "read"])
@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_many_pieces(both: tuple[Mine, Other], way: str, started: bool, seed: int) -> None:
    mine, other = both
    reset(mine, other)
    ours, theirs = contents(3), contents(7)
    here, there, lengths = pieces(seed, (1, 2, 100, 1000)[seed])
    rows = [(here + mine.address).tolist(), (there + other.address).tolist(), lengths.tolist()]
    if started:
        number = getattr(mine.engine, f"batch_transfer_async_{way}")(other.session, *rows)
        assert 0 < number < 1 << 63
        assert mine.engine.get_batch_transfer_status([number]) == 0
    else:
        assert getattr(mine.engine, f"batch_transfer_sync_{way}")(other.session, *rows) == 0
    for a, b, n in zip(here, there, lengths, strict=True):
        if way == "write":
            theirs[b : b + n] = ours[a : a + n]
        else:
            ours[a : a + n] = theirs[b : b + n]
    assert np.array_equal(mine.memory, ours)
    assert np.array_equal(other.memory(), theirs)


def test_calls_with_an_opcode_do_the_same(both: tuple[Mine, Other]) -> None:
    mine, other = both
    reset(mine, other)
    engine, at, to = mine.engine, mine.address, other.address
    assert engine.transfer_sync(other.session, at, to, 100, TransferOpcode.Write) == 0
    assert engine.batch_transfer_sync(other.session, [at + 200], [to + 300], [50], Read) == 0
    array: Any = np.array([at + 400])
    number = engine.batch_transfer_async(other.session, array, (to + 500,), [60], Write)
    assert engine.get_batch_transfer_status([number]) == 0
    ours, theirs = contents(3), contents(7)
    ours[200:250] = theirs[300:350]
    theirs[:100], theirs[500:560] = ours[:100], ours[400:460]
    assert np.array_equal(mine.memory, ours)
    assert np.array_equal(other.memory(), theirs)


def test_a_started_write_is_asked_about_until_it_is_done(both: tuple[Mine, Other]) -> None:
    mine, other = both
    reset(mine, other)
    number = mine.engine.transfer_submit_write(other.session, mine.address, other.address, SIZE)
    while (state := mine.engine.transfer_check_status(number)) == 0:
        pass
    assert state == 1
    assert np.array_equal(other.memory(), contents(3))
    assert mine.engine.transfer_check_status(number) == -1  # the number is void
    assert mine.engine.get_batch_transfer_status([number]) == -1
    assert mine.engine.get_batch_transfer_status([]) == 0
    again = mine.engine.transfer_submit_write(other.session, mine.address, other.address, SIZE)
    assert mine.engine.get_batch_transfer_status([number, again]) == -1
    assert mine.engine.transfer_check_status(again) == -1  # waited for, and void too


def test_a_notification_comes_after_the_bytes(both: tuple[Mine, Other]) -> None:
    mine, other = both
    reset(mine, other)
    for count, text in enumerate(["", "ü" * 3000, "last"]):
        mine.memory[:] = contents(100 + count)
        notify = TransferNotify(f"name {count}", text)
        assert mine.engine.transfer_sync(other.session, mine.address, other.address, SIZE, Write, notify) == 0
        found = other.ask("[(one.name, one.msg) for one in until(engine.get_notifies)]")
        assert found == [[f"name {count}", text]]
        assert np.array_equal(other.memory(), contents(100 + count))
    assert other.ask("engine.get_notifies()") == []
    assert other.ask(f"engine.transfer_sync('127.0.0.1:{mine.engine.get_rpc_port()}', address, {mine.address}, 5, Read,"
                     " TransferNotify('a', 'b'))") == 0  # fmt: skip
    while not (got := mine.engine.get_notifies()):
        pass
    assert [(one.name, one.msg) for one in got] == [("a", "b")]


@pytest.mark.parametrize("message", ["\ud800", "x" * (64 << 20), 5], ids=["surrogate", "too long", "number"])
def test_a_notification_that_cannot_be_sent_is_refused_before_anything_moves(both: tuple[Mine, Other], message: Any) -> None:
    mine, other = both
    before = other.memory()
    notify = TransferNotify("n", "m")
    notify.msg = message
    session = other.session
    if message == 5:
        with pytest.raises(TypeError):
            mine.engine.transfer_sync(session, mine.address, other.address, SIZE, Write, notify)
    else:
        assert mine.engine.transfer_sync(session, mine.address, other.address, SIZE, Write, notify) == -1
    assert np.array_equal(other.memory(), before)


def test_threads_initialize_an_engine_once() -> None:
    engine, start, codes = TransferEngine(), threading.Barrier(4), []

    def initialize() -> None:
        start.wait(20)
        codes.append(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""))

    threads = [threading.Thread(target=initialize) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(codes) == [-1, -1, -1, 0]


def test_the_successor_of_an_engine_gets_no_notification_of_its_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    port, wait = free_port(), Transfer.wait
    with this_process() as mine:
        monkeypatch.setenv("MC_MIN_RPC_PORT", str(port))  # of the others
        monkeypatch.setenv("MC_MAX_RPC_PORT", str(port))
        other = mine.start()

        def restarted(self: Transfer) -> int:
            ended = wait(self)
            other.kill()
            mine.start()
            return ended

        with monkeypatch.context() as patch:
            patch.setattr(Transfer, "wait", restarted)
            notify = TransferNotify("name", "of the first")
            assert mine.engine.transfer_sync(other.session, mine.address, other.address, 9, Write, notify) == -1
        second, notify = mine.others[-1], TransferNotify("second")
        assert mine.engine.transfer_sync(other.session, mine.address, second.address, 9, Write, notify) == 0
        assert second.ask("until(lambda: [one.name for one in engine.get_notifies()])") == ["second"]


def test_an_engine_reaches_itself(both: tuple[Mine, Other]) -> None:
    mine, other = both
    reset(mine, other)
    own = f"127.0.0.1:{mine.engine.get_rpc_port()}"
    assert mine.engine.transfer_sync(own, mine.address, mine.address + 1000, 999, Write, TransferNotify("me", "too")) == 0
    expected = contents(3)
    expected[1000:1999] = expected[:999]
    assert np.array_equal(mine.memory, expected)
    assert mine.engine.send_probe(own) == 0
    while not (got := mine.engine.get_notifies()):
        pass
    assert [(one.name, one.msg) for one in got] == [("me", "too")]


def test_an_engine_may_be_called_by_several_names(both: tuple[Mine, Other]) -> None:
    mine, other = both
    reset(mine, other)
    ours, theirs, text = contents(3), contents(7), "long " * 2000
    for number, host in enumerate(["127.0.0.1", "localhost", "127.0.0.2"]):
        for port, there in ((other.port, other.address), (mine.engine.get_rpc_port(), mine.address + 1_000_000)):
            notify, at = TransferNotify(host, text), 100 * number
            session = f"{host}:{port}"
            assert mine.engine.transfer_sync(session, mine.address + at, there + at, 100, Write, notify) == 0
        ours[1_000_000 + at : 1_000_100 + at] = theirs[at : at + 100] = ours[at : at + 100]
        assert other.ask("[(one.name, one.msg) for one in until(engine.get_notifies)]") == [[host, text]]
        while not (got := mine.engine.get_notifies()):
            pass
        assert [(one.name, one.msg) for one in got] == [(host, text)]
    assert np.array_equal(mine.memory, ours)
    assert np.array_equal(other.memory(), theirs)


def test_managed_buffers(both: tuple[Mine, Other]) -> None:
    mine, other = both
    reset(mine, other)
    engine = mine.engine
    address = engine.allocate_managed_buffer(5000)
    assert engine.read_bytes_from_buffer(address, 5000) == bytes(5000)
    assert engine.write_bytes_to_buffer(address + 1, "some text", 4) == 0
    assert engine.write_bytes_to_buffer(address + 10, b"\x00\xff", 2) == 0
    assert engine.read_bytes_from_buffer(address, 12) == b"\0some\0\0\0\0\0\x00\xff"
    assert engine.transfer_sync_write(other.session, address, other.address, 12) == 0
    assert other.memory()[:12].tobytes() == b"\0some\0\0\0\0\0\x00\xff"
    assert engine.transfer_sync_read(other.session, address + 100, other.address + 50, 70) == 0
    assert engine.read_bytes_from_buffer(address + 100, 70) == contents(7)[50:120].tobytes()
    assert engine.write_bytes_to_buffer(address, "short", 6) == -1
    assert engine.unregister_memory(address) == -1
    assert engine.free_managed_buffer(address + 1, 5000) == -3
    assert engine.free_managed_buffer(address, 5000) == 0
    assert engine.free_managed_buffer(address, 5000) == -3
    assert engine.transfer_sync_write(other.session, address, other.address, 12) == -1
    with pytest.raises(ValueError, match="no registration"):
        engine.read_bytes_from_buffer(address, 1)
    assert engine.read_bytes_from_buffer(mine.address + 9, 90) == contents(3)[9:99].tobytes()
    assert engine.allocate_managed_buffer(1 << 60) == 0


def test_what_is_asked_of_an_engine_before_a_transfer(both: tuple[Mine, Other]) -> None:
    mine, other = both
    assert mine.engine.get_first_buffer_address(other.session) == other.address
    assert mine.engine.send_probe(other.session) == 0
    assert mine.engine.warmup_efa_segment(other.session) == 0
    assert "cpu:0" in mine.engine.get_local_topology()
    empty = TransferEngine()
    assert empty.initialize_ext("localhost:1234", "P2PHANDSHAKE", "rdma", "mlx5_0", "") == 0
    assert mine.engine.get_first_buffer_address(f"localhost:{empty.get_rpc_port()}") == 0


def test_an_older_list_of_registrations_does_not_replace_a_newer_one(
    both: tuple[Mine, Other], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = both
    session = mine.engine._ready().session(other.session)
    learn, answered, learnt = Session._learn, threading.Event(), threading.Event()

    def late(self: Session, *answer: Any) -> None:
        if threading.current_thread() is older:
            answered.set()
            assert learnt.wait(60)
        learn(self, *answer)

    monkeypatch.setattr(Session, "_learn", late)
    older = threading.Thread(target=session.refresh)
    older.start()
    assert answered.wait(60)
    more = other.ask("globals().update(more=np.zeros(100, np.uint8)) or more.ctypes.data")
    assert other.ask(f"engine.register_memory({more}, 100)") == 0
    session.refresh()
    learnt.set()
    older.join(60)
    assert session.locate(more, 100)[1] == 0
    assert other.ask(f"engine.unregister_memory({more})") == 0


def test_threads_move_bytes_at_once(both: tuple[Mine, Other]) -> None:
    mine, other = both
    reset(mine, other)
    part, failures = SIZE // 8, []

    def run(number: int) -> None:
        start = number * part
        random = np.random.default_rng(number)
        for _ in range(30):
            lengths = random.integers(0, part // 50, 50)
            at = start + np.arange(50) * (part // 50)
            rows: list[Any] = [at + mine.address, at + other.address, lengths]
            if mine.engine.batch_transfer_sync_write(other.session, *rows) != 0:
                failures.append(number)
        if mine.engine.transfer_sync_write(other.session, mine.address + start, other.address + start, part) != 0:
            failures.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(120)
        assert not one.is_alive()
    assert failures == []
    assert np.array_equal(other.memory(), contents(3))
