"""The NIXL drop-in beside wrong arguments, forged metadata and descriptor lists, and threads that make the same call."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from nixl_process import SIZE, Mine, contents, this_process

import hmc
from hmc.integrations._shared import frames as wire
from hmc.integrations._shared.errors import NotRegisteredError
from hmc.integrations._shared.inbox import send
from hmc.integrations._shared.ranges import Range, Ranges
from hmc.integrations.nixl import _bindings as nixl
from hmc.integrations.nixl import nixl_agent
from hmc.integrations.nixl._descs import restore
from hmc.integrations.nixl._metadata import Entry, Metadata
from hmc.integrations.nixl._remote import Remote

DRAM = nixl.DRAM_SEG


@pytest.fixture
def mine() -> Iterator[Mine]:
    with this_process() as one:
        yield one


def at_once(*calls: Callable[[], object]) -> None:
    """Runs the calls in threads that start together."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> None:
        start.wait(20)
        call()

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_messages_that_are_never_whole_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_MOST_HELD", 1 << 20)
    assembler = wire.Assembler()
    messages = [wire.frames(wire.NOTIFY, contents(number, 200_000).tobytes(), number) for number in range(60)]
    for place in range(len(messages[0]) - 1):
        for frames in messages:
            assert assembler.add(frames[place]) is None
    held = sum(len(part) for _, _, parts in assembler._open.values() for part in parts.values())
    assert held == assembler._held <= (1 << 20) + 1024
    whole = contents(99, 300_000).tobytes()
    *first, last = wire.frames(wire.METADATA, whole, 99)
    assert [assembler.add(frame) for frame in first] == [None] * len(first)
    assert assembler.add(last) == (wire.METADATA, whole)


def test_metadata_of_another_agent_is_refused_from_a_peer(mine: Mine, caplog: pytest.LogCaptureFixture) -> None:
    other = mine.start()
    true = Metadata.decode(other.metadata)
    [entry] = true.entries
    forged = Metadata(
        true.name, true.context, true.host, true.addresses, [Entry(DRAM, entry.address, entry.nbytes, entry.device, b"junk")]
    )
    with hmc.Context(name="liar") as liar:
        peer = liar.connect(mine.agent._links.ctx.addresses[0], timeout=20)
        for frame in wire.frames(wire.METADATA, forged.encode(), 1):
            peer.notify(frame, timeout=20)
        until = time.monotonic() + 20
        while "liar sent metadata of agent other" not in caplog.text:
            assert time.monotonic() < until
            mine.agent.get_new_notifs()
            time.sleep(0.001)
    assert mine.run(mine.transfer("READ", [(mine.address, SIZE, 0)], [(other.address, SIZE, 0)])) == "DONE"
    assert np.array_equal(mine.memory, contents(7))


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_metadata_of_another_process_of_the_name_is_refused_from_a_peer(mine: Mine, caplog: Any, known: bool) -> None:
    real, liar = nixl_agent("same"), nixl_agent("same")
    memory = np.zeros(4096, np.uint8)
    real.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
    sent = Metadata.decode(real.get_agent_metadata())
    if known:
        mine.agent.add_remote_agent(real.get_agent_metadata())
        (entry,) = sent.entries  # takes the place of the entry that is known
        sent.entries[:] = [Entry(entry.kind, entry.address, entry.nbytes, entry.device, b"forged")]
    liar.add_remote_agent(mine.agent.get_agent_metadata())
    liar_peer = liar._links.remote("mine").peer
    send(liar_peer, wire.METADATA, sent.encode())
    send(liar_peer, wire.NOTIFY, b"sent later")
    until = time.monotonic() + 20
    while not mine.agent.get_new_notifs():
        assert time.monotonic() < until
    assert "another one of that name" in caplog.text
    assert mine.agent.check_remote_metadata("same") == known
    mine.agent.add_remote_agent(real.get_agent_metadata())
    handle = mine.transfer("WRITE", [(mine.address, 4096, 0)], [(memory.ctypes.data, 4096, 0)], "same")
    assert mine.run(handle) == "DONE"
    assert np.array_equal(memory, mine.memory[:4096])
    for agent in (real, liar):
        agent._finalizer()


def test_threads_that_add_an_agent_lose_no_registration(mine: Mine) -> None:
    other = mine.start()
    other.ask("globals().update(more=[np.zeros(4096, np.uint8) for _ in range(8)]) or 1")
    listed = "[agent.register_memory([(one.ctypes.data, 4096, 0, '')], 'DRAM') for one in more]"
    parts = [bytes.fromhex(one) for one in other.ask(f"[agent.get_partial_agent_metadata(one, True).hex() for one in {listed}]")]
    for _ in range(10):
        mine.agent.remove_remote_agent("other")
        at_once(*[lambda part=part: mine.agent.add_remote_agent(part) for part in parts])  # type: ignore[misc]
        assert len(mine.agent._links.remote("other").ranges.all()) == 8


def test_an_agent_is_known_with_its_registrations(mine: Mine, monkeypatch: pytest.MonkeyPatch) -> None:
    add = Remote.add
    known = []

    def slow_add(remote: Remote, entries: list[Entry]) -> None:
        known.append(mine.agent.check_remote_metadata("other"))  # another thread asks now
        add(remote, entries)

    monkeypatch.setattr(Remote, "add", slow_add)
    other = mine.start()
    mine.agent.add_remote_agent(other.metadata)
    assert known == [False, True]


def test_threads_that_deregister_end_a_registration_each() -> None:
    ranges: Ranges[int] = Ranges(lambda: "nobody")
    rows = np.array([(1, 2, 0), (1, 2, 0)], np.uint64)
    taken: list[Range[int]] = []
    for _ in range(200):
        ranges.replace([Range(DRAM, 1, 2, 0, holder) for holder in range(4)])
        taken.clear()
        at_once(*[lambda: ranges.take(DRAM, rows, taken)] * 2)
        assert sorted(one.holder for one in taken) == [0, 1, 2, 3]
        assert ranges.all() == []
    with pytest.raises(NotRegisteredError):
        ranges.take(DRAM, rows, taken)


class _SlowBytes(bytes):
    def startswith(self, *tag: Any) -> bool:
        found = bytes.startswith(self, *tag)
        time.sleep(0.01)  # the other thread looks now
        return found


def test_threads_that_look_for_tags_take_their_own(mine: Mine) -> None:
    mine.agent.notifs["other"] = [_SlowBytes(b"a"), _SlowBytes(b"b"), _SlowBytes(b"c")]
    found: list[bytes] = []

    def look(tag: bytes) -> None:
        if mine.agent.check_remote_xfer_done("other", tag):
            found.append(tag)

    at_once(lambda: look(b"a"), lambda: look(b"b"))
    assert sorted(found) == [b"a", b"b"]
    assert mine.agent.notifs["other"] == [b"c"]


def test_a_message_that_is_too_long_is_refused_before_anything_moves(mine: Mine) -> None:
    agent = mine.agent
    row = [(mine.address, 8, 0)]
    long = bytes(wire.MAX_MESSAGE + 1)
    with pytest.raises(nixl.nixlInvalidParamError, match="67108865 bytes"):
        mine.transfer("WRITE", row, row, "mine", long)
    handle = mine.transfer("WRITE", row, row, "mine", b"short")
    with pytest.raises(nixl.nixlInvalidParamError, match="67108865 bytes"):
        agent.transfer(handle, long)
    with pytest.raises(nixl.nixlNotPostedError):
        agent.check_xfer_state(handle)
    assert mine.run(handle) == "DONE"


@pytest.mark.parametrize("message", [None, 5, 1 << 40, [1, 2]])
def test_a_message_is_a_text_or_bytes(mine: Mine, message: Any) -> None:
    with pytest.raises(TypeError):
        mine.agent.send_notif("mine", message)
    with pytest.raises(TypeError):
        nixl.nixlRegDList(DRAM, [(1, 2, 3, message)])


@pytest.mark.parametrize("rows", [[], (), np.zeros((0, 3), np.uint64)])
def test_lists_without_descriptors_are_empty_lists(mine: Mine, rows: Any) -> None:
    agent = mine.agent
    assert agent.register_memory(rows, "DRAM").isEmpty()
    assert agent.get_remote_descs(rows, "DRAM").isEmpty()
    empty = agent.get_xfer_descs(rows, "DRAM")
    assert empty.isEmpty()
    assert agent.get_xfer_descs(rows) is None
    handle = agent.initialize_xfer("WRITE", empty, empty, "mine", b"nothing")
    assert mine.run(handle) == "DONE"


@pytest.mark.parametrize("rows", [None, 5, "text", {"a": 1}, np.array(5), np.zeros(3, np.uint64), [None], [[1, 2, 3]]])
def test_what_is_no_list_is_none_and_an_error_in_the_log(mine: Mine, rows: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert mine.agent.get_xfer_descs(rows, "DRAM") is None
    assert "descriptors are tuples" in caplog.text


@pytest.mark.parametrize("number", [1.5, "8", None, -1, 1 << 64])
@pytest.mark.parametrize("place", range(3))
def test_numbers_that_are_no_addresses_are_refused(number: Any, place: int) -> None:
    row: list[Any] = [4096, 8, 0]
    row[place] = number
    for call in (
        lambda: nixl.nixlXferDList(DRAM, [tuple(row)]),
        lambda: nixl.nixlRegDList(DRAM, [(*row, "")]),
        lambda: nixl.nixlXferDList(DRAM).append(tuple(row)),
    ):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            call()


@pytest.mark.parametrize("runs", [[[4096, 8, 0, 8, -1]], [[4096.0, 8, 0, 8, 1]], [[4096, 8, 0, np.nan, 1]]])
def test_strided_runs_are_integers(mine: Mine, runs: Any) -> None:
    with pytest.raises(ValueError, match="integers"):
        mine.agent.prep_xfer_dlist("", np.array(runs), "DRAM")


@pytest.mark.parametrize(("back", "nbytes"), [(0, 1 << 63), (0, (1 << 64) - 1), (16, 1 << 63)])
def test_memory_beyond_the_address_space_is_refused(mine: Mine, back: int, nbytes: int) -> None:
    with pytest.raises(nixl.nixlBackendError, match="not mapped"):
        mine.agent.register_memory([(mine.address - back, nbytes, 0, "")], "DRAM")


@pytest.mark.parametrize("wrong", [None, 5, [], [(4096, 8, 0)]])
def test_calls_that_take_lists_name_what_they_got(mine: Mine, wrong: Any) -> None:
    agent = mine.agent
    good = mine.registered.trim()
    for call in (
        lambda: agent.deregister_memory(wrong),
        lambda: agent.get_partial_agent_metadata(wrong),
        lambda: agent.initialize_xfer("READ", wrong, good, "mine"),
        lambda: agent.initialize_xfer("READ", good, wrong, "mine"),
    ):
        with pytest.raises(TypeError, match=f"not {type(wrong).__name__}"):
            call()


@pytest.mark.parametrize("name", ["", b"bytes", 5, None, "x" * 256])
def test_names_of_agents_are_texts_of_up_to_255_bytes(name: Any) -> None:
    with pytest.raises(nixl.nixlInvalidParamError):
        nixl_agent(name)


def test_serialised_lists_cannot_change_attributes_or_allocate() -> None:
    good = pickle.dumps(nixl.nixlXferDList(DRAM, [(1, 2, 3)]))
    attributes = pickle.dumps({"_count": 10**9}, 2)[2:-1]
    for bad in (good[:-1] + attributes + b"b.", b"\x80\x04Nr\xff\xff\xff\x00.", good[:-1] + b"\x85R.", b"(" * 100_000):
        with pytest.raises(nixl.nixlMismatchError):
            restore(bad)
    for size in range(len(good)):
        with pytest.raises(nixl.nixlMismatchError):
            restore(good[:size])
    for wrong in (None, 5, [1]):
        with pytest.raises(TypeError):
            restore(wrong)  # type: ignore[arg-type]


_DEEP = 300_000


def _nested(tuples: int) -> bytes:
    """A pickled tuple of a tuple of a tuple and so on."""
    return b"(" * tuples + b"t" * tuples


@pytest.mark.parametrize(
    "arguments",
    [
        _nested(_DEEP) + b"K\0C\0]",
        b"\x8c\x0dnixlXferDList" + _nested(_DEEP) + b"C\0]",
        b"\x8c\x0dnixlXferDListK\0" + _nested(_DEEP) + b"]",
        b"\x8c\x0fnixlRemoteDListK\0C\x18" + bytes(24) + b"](" + _nested(_DEEP) + b"e",
    ],
    ids=["name", "kind", "rows", "agent"],
)
def test_deeply_nested_parts_of_serialised_lists_are_refused(arguments: bytes) -> None:
    good = pickle.dumps(nixl.nixlXferDList(DRAM, [(1, 2, 3)]), 4)
    function = good[good.index(b"\x8c") : good.index(b"\x93") + 1]
    with pytest.raises(nixl.nixlMismatchError):
        restore(b"\x80\x04" + function + b"(" + arguments + b"tR.")


def test_meta_data_that_many_descriptors_share_is_not_copied() -> None:
    shared = bytes(1 << 20)
    listed = nixl.nixlRegDList(DRAM, [(number, 1, 0, shared) for number in range(1000)])
    assert len({id(one) for one in restore(pickle.dumps(listed)).extras}) == 1


def test_damaged_serialised_lists_are_lists_or_refused() -> None:
    random = np.random.default_rng(8)
    good = pickle.dumps(nixl.nixlRegDList(DRAM, [(1, 2, 3, b"a"), (4, 5, 6, "b")]))
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(random.integers(1, 4)):
            bad[random.integers(len(bad))] = random.integers(256)
        try:
            made = restore(bytes(bad))
        except nixl.nixlMismatchError:
            continue
        assert len(list(made)) == made.descCount()


def test_messages_that_end_half_way_do_not_stop_later_ones() -> None:
    assembler = wire.Assembler()
    for number in range(100):
        assert assembler.add(wire.frames(wire.NOTIFY, bytes(5000), number)[0]) is None
    assert len(assembler._open) <= 64
    message = contents(2, 5000).tobytes()
    assert [assembler.add(frame) for frame in wire.frames(wire.NOTIFY, message, 1000)][-1] == (wire.NOTIFY, message)


def test_a_forked_child_gets_errors_of_nixl_and_the_agent_goes_on(mine: Mine) -> None:
    other = mine.start()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        named = []
        for call in (
            mine.agent.get_agent_metadata,
            lambda: mine.agent.add_remote_agent(other.metadata),
            lambda: mine.agent.send_notif("other", b"x"),
            lambda: mine.agent.register_memory([(mine.address, 8, 0, "")], "DRAM"),
        ):
            try:
                call()
                named.append("nothing")
            except Exception as error:
                named.append(type(error).__name__)
        os.write(writing, " ".join(named).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reading, 1000).decode().split() == ["nixlRemoteDisconnectError"] * 4
    os.close(reading)
    os.close(writing)
    assert mine.run(mine.transfer("READ", [(mine.address, SIZE, 0)], [(other.address, SIZE, 0)])) == "DONE"
    assert np.array_equal(mine.memory, contents(7))


def test_locks_that_are_held_at_a_fork_do_not_hold_the_child(mine: Mine) -> None:
    other = mine.start()
    handle = mine.transfer("READ", [(mine.address, 8, 0)], [(other.address, 8, 0)])
    (inlet, *_), request = mine.agent._links.receiver._inlets, handle.request()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with inlet._lock, mine.agent._links.receiver._lock, request._lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(20)
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(20)
            with contextlib.suppress(nixl.nixlRemoteDisconnectError):
                mine.agent.get_new_notifs()
                os._exit(1)
            mine.agent.release_xfer_handle(handle)
            os._exit(0)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    done.set()
    thread.join(20)
