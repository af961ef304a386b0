"""Tickets of hmc.kv that are replayed, of another peer or pool, and records that no push sends."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from kv_sides import PAIRS, Side, connected, expected, same

import hmc
from hmc import kv
from hmc.kv import _push, _receive
from hmc.kv._wire import ABORT, END, INBOX, LAYER, LEASE, START, STOP, Record, Ticket

TOKENS = 64


def test_a_lease_is_read_once(kv_pair: Any) -> None:
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    ticket = a.pool.lease("s", [1, 2, 3, 4]).ticket
    b.pool.pull(to_a, ticket, [0, 1, 2, 3]).wait(20)
    deadline = time.monotonic() + 20
    while a.pool.counters()["leases_held"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(hmc.LeaseExpiredError):
        b.pool.pull(to_a, ticket, [0, 1, 2, 3]).wait(20)


@pytest.mark.parametrize("length", range(4))
def test_numbers_of_a_ticket_are_aligned(length: int) -> None:
    numbers = np.array([7, 3, 11], np.uint32)
    sent = Ticket(LEASE, b"p" * length, 1, 2, 0, 33, 4, 0, False, numbers, numbers[::-1], 5)
    found = Ticket.decode(sent.encode(), LEASE)
    assert (found.blocks.tolist(), found.rows.tolist()) == ([7, 3, 11], [11, 3, 7])
    assert found.blocks.flags.aligned
    assert found.rows.flags.aligned


def test_an_old_reader_does_not_end_a_new_lease(kv_pair: Any) -> None:
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    old = a.pool.lease("s", [1, 2], seconds=60)
    old.release()
    a.pool.leases._free_slots.rotate(1)  # the new lease has the slot of the old one
    new = a.pool.lease("t", [1, 2], seconds=60)
    assert new._ticket.slot == old._ticket.slot
    with pytest.raises(hmc.LeaseExpiredError):
        b.pool.pull(to_a, old.ticket, [0, 1]).wait(20)
    with pytest.raises(hmc.HmcTimeoutError):
        new.wait(0.3)
    b.pool.pull(to_a, new.ticket, [0, 1]).wait(20)
    assert new.wait(20) == "read"


def test_a_receive_takes_one_push(kv_pair: Any) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    inbox = b.pool.receive(to_a, [0, 1, 2, 3])
    wanted = expected(a, [5, 6, 7, 8], b, [0, 1, 2, 3], TOKENS)
    with (
        kv.Pool(a.ctx, [array.copy() for array in a.arrays], a.layout) as other,
        a.pool.push(to_b, inbox.ticket, [5, 6, 7, 8]) as push,
    ):
        push.ready(0)
        inbox.wait_layer(0, 20)
        with pytest.raises(hmc.InvalidArgumentError, match="in use"):
            a.pool.push(to_b, inbox.ticket, [1, 2, 3, 4])
        with pytest.raises(hmc.LeaseExpiredError, match="used before"):
            other.push(to_b, inbox.ticket, [1, 2, 3, 4]).wait(20)
        for layer in (1, 2):
            push.ready(layer)
    inbox.wait(20)
    same(b, wanted)
    with pytest.raises(hmc.LeaseExpiredError, match="used before"):
        a.pool.push(to_b, inbox.ticket, [1, 2, 3, 4]).wait(20)
    same(b, wanted)


@pytest.mark.parametrize("how", ["cancelled", "timed out"])
def test_a_receive_that_has_ended_takes_no_push(kv_pair: Any, how: str) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    inbox = b.pool.receive(to_a, [0, 1], timeout=0.0 if how == "timed out" else None)
    if how == "cancelled":
        inbox.cancel()
    with pytest.raises(hmc.HmcError):
        inbox.wait(20)
    before = [array.copy() for array in b.arrays]
    push = a.pool.push(to_b, inbox.ticket, [0, 1])
    with pytest.raises(hmc.LeaseExpiredError):
        push.ready(0)
        push.close(20)
    same(b, before)


def test_a_ticket_of_another_peer(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_push, "_ANSWER", 0.5)
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    third = Side(PAIRS[0][0], 9)
    try:
        third_to_b = third.ctx.connect(b.ctx.addresses[0], timeout=20)
        b_to_third = b.ctx.accept(timeout=20)
        inbox = b.pool.receive(to_a, [0, 1])
        before = [array.copy() for array in b.arrays]
        push = third.pool.push(third_to_b, inbox.ticket, [0, 1])
        with pytest.raises(hmc.HmcTimeoutError, match="from another peer"):
            push.ready(0)
            push.wait(20)
        monkeypatch.setattr(_push, "_ANSWER", 20.0)
        b.pool.receive(b_to_third, [2, 3])  # now b receives from the third, also what it sent before
        push = third.pool.push(third_to_b, inbox.ticket, [0, 1])
        with pytest.raises(hmc.LeaseExpiredError):
            push.wait(20)
        same(b, before)
        # Of a pool that the peer does not have.
        with pytest.raises(hmc.LeaseExpiredError, match="another peer"):
            third.pool.pull(third_to_b, a.pool.lease("s", [0, 1]).ticket, [0, 1]).wait(20)
        inbox.cancel()
    finally:
        third.close()


def test_a_forged_descriptor_is_refused(kv_pair: Any) -> None:
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    ticket = bytearray(a.pool.lease("s", [0, 1]).ticket)
    at = bytes(ticket).index(a.pool.id)
    for byte in range(at, at + len(a.pool.id)):
        forged = ticket.copy()
        forged[byte] ^= 0x5A
        with pytest.raises((hmc.AuthenticationError, hmc.InvalidArgumentError, hmc.LeaseExpiredError, hmc.ProtocolError)):
            b.pool.pull(to_a, bytes(forged), [0, 1]).wait(20)


def test_records_that_no_push_sends(kv_pair: Any) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    rng = np.random.default_rng(4)
    inbox = b.pool.receive(to_a, [0, 1, 2, 3])
    ticket = Ticket.decode(inbox.ticket, INBOX)
    wanted = expected(a, [5, 6, 7, 8], b, [0, 1, 2, 3], TOKENS)

    def noise() -> None:
        for size in (0, 1, 55, 57, 4096):
            to_b.isend(rng.integers(0, 256, size, dtype=np.uint8), tag=ticket.tag)
        for _ in range(200):
            words = rng.integers(0, 1 << 63, 7, dtype=np.uint64)
            words[0] = rng.integers(0, 12)
            if rng.random() < 0.5:
                words[1] = ticket.generation
            if words[1] == ticket.generation and words[0] in (START, STOP):
                continue
            to_b.isend(words, tag=ticket.tag)

    noise()
    with a.pool.push(to_b, inbox.ticket, [5, 6, 7, 8]) as push:
        for layer in range(3):
            push.ready(layer, timeout=20)
            noise()
    inbox.wait(20)
    same(b, wanted)


@pytest.mark.parametrize(
    "record",
    [
        {"kind": LAYER, "layers": (7, 1), "heads": (0, 4)},
        {"kind": LAYER, "layers": (1 << 63, 1), "heads": (0, 4)},
        {"kind": LAYER, "layers": (0, 0), "heads": (0, 4)},
        {"kind": LAYER, "layers": (1, 3), "heads": (0, 4)},
        {"kind": LAYER, "layers": (0, (1 << 64) - 1), "heads": (0, 4)},
        {"kind": LAYER, "layers": (0, 1), "heads": (1, 2)},
        {"kind": LAYER, "layers": (0, 1), "heads": (0, 4), "digest": 5},
        {"kind": START, "layers": (0, 3), "heads": (0, 4)},
        {"kind": END},
        {"kind": 77},
    ],
)
def test_wrong_records_of_the_sender_end_the_receive(kv_pair: Any, record: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    inbox = b.pool.receive(to_a, [0, 1, 2, 3])
    ticket = Ticket.decode(inbox.ticket, INBOX)
    push = a.pool.push(to_b, inbox.ticket, [5, 6, 7, 8])
    push.ready(2)
    inbox.wait_layer(2, 20)
    forged = Record(generation=ticket.generation, answer=a.pool.listener.tag, **record)
    to_b.send(forged.encode(), tag=ticket.tag, timeout=20)
    with pytest.raises((hmc.ProtocolError, hmc.CorruptError)):
        inbox.wait(20)
    with pytest.raises(hmc.HmcCancelledError, match="receiver stopped"):
        push.wait(20)


def test_a_push_that_lacks_layers_fails_on_both_sides(kv_pair: Any) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    inbox = b.pool.receive(to_a, [0, 1, 2, 3])
    push = a.pool.push(to_b, inbox.ticket, [5, 6, 7, 8])
    push.ready(1)
    with pytest.raises(hmc.InvalidArgumentError, match=r"layers \[0, 2\] were not sent"):
        push.close(20)
    with pytest.raises(hmc.HmcCancelledError):
        inbox.wait(20)
    assert inbox.layers in ([], [1])


def test_a_receiver_that_closes_its_pool(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    inbox = b.pool.receive(to_a, [0, 1])
    push = a.pool.push(to_b, inbox.ticket, [0, 1])
    push.ready(0)
    inbox.wait_layer(0, 20)
    late = b.pool.receive(to_a, [2, 3]).ticket
    b.pool.close()
    with pytest.raises(hmc.HmcCancelledError):
        push.wait(20)
    with pytest.raises(hmc.LeaseExpiredError):
        a.pool.push(to_b, late, [0, 1]).wait(20)


def test_a_pool_that_closes_between_the_first_record_and_its_answer(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    gate = threading.Event()
    real = _push.Push._send

    def late(self: Any, kind: int, *more: Any) -> None:
        if kind == START:
            assert gate.wait(20)
        if kind != ABORT:
            real(self, kind, *more)

    monkeypatch.setattr(_push.Push, "_send", late)
    inbox = b.pool.receive(to_a, [0, 1])
    push = a.pool.push(to_b, inbox.ticket, [0, 1])
    push.ready(0)
    time.sleep(0.1)
    b.pool.close()
    gate.set()
    with pytest.raises((hmc.LeaseExpiredError, hmc.StaleBufferError)):
        push.wait(20)
    with pytest.raises(hmc.HmcCancelledError):
        inbox.wait(20)


def test_an_owner_that_closes_its_pool_in_mid_read(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from hmc.kv import _pull

    a, b, to_a, _ = kv_pair(*PAIRS[2])
    real = _pull.Pull._beat

    def close(self: Any, remote: Any) -> None:
        a.pool.close()
        real(self, remote)

    monkeypatch.setattr(_pull.Pull, "_beat", close)
    with pytest.raises(hmc.LeaseExpiredError):
        b.pool.pull(to_a, a.pool.lease("s", list(range(8))).ticket, [0, 1, 2, 3]).wait(20)


def test_a_slow_receiver_holds_the_writer_back(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "L=24 B=8 H=2 N=16 (kv D=16) bf16"
    a, b, to_a, to_b = kv_pair(text, text)
    most: list[int] = []
    sent: list[int] = []
    real = _receive.Inbox._check_layers

    def slow(self: Any, record: Any) -> Any:
        most.append(len(sent) - len(self.layers))
        time.sleep(0.005)
        return real(self, record)

    monkeypatch.setattr(_receive.Inbox, "_check_layers", slow)
    inbox = b.pool.receive(to_a, [3, 1])
    wanted = expected(a, [0, 7], b, [3, 1], 32)
    with a.pool.push(to_b, inbox.ticket, [0, 7], credits=3) as push:
        for layer in reversed(range(24)):
            push.ready(layer, timeout=20)
            sent.append(layer)
    inbox.wait(20)
    assert max(most) <= 3
    same(b, wanted)


def test_nothing_is_left_of_refused_pushes() -> None:
    with connected(*PAIRS[0]) as (a, b, to_a, to_b):
        for _ in range(50):
            inbox = b.pool.receive(to_a, [0, 1])
            inbox.cancel()
            push = a.pool.push(to_b, inbox.ticket, [0, 1])
            with pytest.raises((hmc.LeaseExpiredError, hmc.HmcCancelledError)):
                push.wait(20)
        until = time.monotonic() + 20
        for side in (a, b):
            while side.pool.counters()["pushes_open"] or side.ctx.counters()["messages.unread"]:
                assert time.monotonic() < until, (side.pool.counters(), side.ctx.counters())
                time.sleep(0.001)
