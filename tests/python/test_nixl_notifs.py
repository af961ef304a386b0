"""Notifications of the NIXL drop-in: any length, in order, after the data."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from nixl_process import SIZE, Mine, contents, this_process

from hmc.integrations.nixl import _bindings as nixl

LENGTHS = [0, 1, 1022, 1023, 1024, 1025, 2 * 1011, 2 * 1011 + 1, 100_003]


@pytest.fixture(params=["shm", "tcp"])
def mine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mine]:
    monkeypatch.setenv("HMC_TRANSPORTS", request.param)
    with this_process() as one:
        yield one


def text(length: int) -> bytes:
    return contents(length, length).tobytes()


def test_every_length_arrives_in_order(mine: Mine) -> None:
    other = mine.start()
    for length in LENGTHS:
        mine.agent.send_notif("other", text(length))
    mine.agent.send_notif(b"other", "as text: é")  # type: ignore[arg-type]
    assert other.notifs(len(LENGTHS) + 1) == [("mine", text(length)) for length in LENGTHS] + [("mine", "as text: é".encode())]


@pytest.mark.parametrize("way", ["WRITE", "READ"])
@pytest.mark.parametrize("length", LENGTHS[1:])
def test_a_transfer_notifies_with_every_length(mine: Mine, way: str, length: int) -> None:
    other = mine.start()
    handle = mine.transfer(way, [(mine.address, 70_001, 0)], [(other.address, 70_001, 0)], message=text(length))
    mine.agent.transfer(handle)
    assert other.notifs(1) == [("mine", text(length))]  # nobody asks for the state of the transfer
    assert mine.finish(handle) == "DONE"


@pytest.mark.parametrize("descs", [1, 40], ids=["one batch", "many batches"])
def test_a_notification_arrives_after_the_last_byte(mine: Mine, descs: int) -> None:
    other = mine.start()
    size = SIZE // 2 // descs - descs
    rows = [(at * size, size - at, 0) for at in range(descs)]  # of as many lengths
    near, far = ([(base + at, n, d) for at, n, d in rows] for base in (mine.address, other.address))
    handle = mine.transfer("WRITE", near, far)
    expected = [at for at, _, _ in rows] + [at + n - 1 for at, n, _ in rows]
    look = f"(until(agent.get_new_notifs), memory[{expected}].tolist())[1]"
    for round in range(30):
        mine.memory[:] = (np.arange(SIZE) * 7 + round).astype(np.uint8)
        other.start(look)
        assert mine.run(handle, b"round %d" % round) == "DONE"
        assert other.answer() == mine.memory[expected].tolist()


def test_notifications_of_threads_do_not_mix(mine: Mine) -> None:
    other = mine.start()

    def send(thread: int) -> None:
        for number in range(20):
            mine.agent.send_notif("other", b"%d %d " % (thread, number) + text(5000 + number))

    threads = [threading.Thread(target=send, args=(one,)) for one in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    got = [message for _, message in other.notifs(80)]
    for thread in range(4):
        assert [one for one in got if one.startswith(b"%d " % thread)] == [
            b"%d %d " % (thread, number) + text(5000 + number) for number in range(20)
        ]


def test_a_program_that_takes_none_holds_nobody_up(mine: Mine) -> None:
    other = mine.start()
    handle = mine.transfer("WRITE", [(mine.address, 8, 0)], [(other.address, 8, 0)])
    for number in range(10_000):
        mine.agent.send_notif("other", b"%d" % number)
    assert mine.run(handle, b"after all") == "DONE"
    got = other.notifs(10_001)
    assert [message for _, message in got if message != b"after all"] == [b"%d" % number for number in range(10_000)]
    assert ("mine", b"after all") in got


def test_tags_find_notifications(mine: Mine) -> None:
    agent = mine.agent
    for message in (b"", b"a:1", b"b:2", b"a:3"):
        agent.send_notif("mine", message)
    until = time.monotonic() + 20
    while sum(map(len, agent.update_notifs().values())) < 4:
        assert time.monotonic() < until
        time.sleep(0.001)
    assert agent.check_remote_xfer_done("mine", b"b:")
    assert not agent.check_remote_xfer_done("mine", b"b:")
    assert agent.check_remote_xfer_done("mine", b"3", tag_is_prefix=False)
    assert not agent.check_remote_xfer_done("nobody", b"")
    assert agent.notifs == {"mine": [b"", b"a:1"]}


def test_only_added_agents_are_notified(mine: Mine) -> None:
    other = mine.start()
    with pytest.raises(nixl.nixlNotFoundError, match="nobody"):
        mine.agent.send_notif("nobody", b"x")
    other.ask("agent.backends")
    with pytest.raises(AssertionError, match="nixlNotFoundError: agent mine is unknown"):
        other.ask("agent.send_notif('mine', b'x')")
    with pytest.raises(nixl.nixlInvalidParamError, match="at most"):
        mine.agent.send_notif("other", bytes((64 << 20) + 1))


def test_notifications_of_an_agent_that_ended_are_kept(mine: Mine) -> None:
    other = mine.start()
    other.ask(f"agent.add_remote_agent(bytes.fromhex('{mine.agent.get_agent_metadata().hex()}')).decode()")
    other.ask("[agent.send_notif('mine', str(n).encode()) for n in range(50)]")
    other.ask("agent._finalizer()")
    got: list[Any] = []
    until = time.monotonic() + 20
    while len(got) < 50 and time.monotonic() < until:
        got += mine.agent.get_new_notifs().get("other", [])
        time.sleep(0.001)
    assert got == [b"%d" % n for n in range(50)]
