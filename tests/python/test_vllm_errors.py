"""Sides of the vLLM connector, without vLLM: errors of threads, of memory, and of the other engine."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from vllm_sides import chunk, pushing, two_sides, wait_for

import hmc
from hmc.integrations.vllm import _listening
from hmc.integrations.vllm._listening import Listening
from hmc.integrations.vllm._messages import ASK_TAG, Ask, Piece
from hmc.integrations.vllm._outgoing import Dropped


def test_a_push_that_the_prefill_engine_stops_counts_as_failed() -> None:
    with pushing(timeout=1000) as sides:
        told = threading.Event()
        take = sides.receiver._listening._take

        def late(peer: hmc.Peer, piece: Piece) -> None:
            assert not piece.error or told.wait(60)
            take(peer, piece)

        sides.receiver._listening._take = late
        sides.offer([5, 6, 7, 8], 100)
        sides.sender.begin([chunk(100, 100)])
        sides.compute(0, chunk(100, 100))
        one = sides.receiver._receiving["local t"]
        wait_for(lambda: len(list(one.inboxes)) == 2 and all(0 in inbox.layers for inbox in one.inboxes))
        sides.sender.drop(Dropped("request t", "t", True))
        wait_for(lambda: all(inbox.done for inbox in one.inboxes))
        assert sides.received() == ({"local t"}, {5, 6, 7, 8})
        told.set()
        loaded = sides.loaded.take()
        assert loaded is not None
        assert loaded["loads_failed"] == 1


def test_a_peer_is_listened_to_after_its_thread_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    listening = Listening(ASK_TAG, Ask.decode, lambda _, ask: taken.append(ask.requests))
    with hmc.Context() as a, hmc.Context() as b:
        to_b = a.connect(b.addresses[0], timeout=60)
        to_a = b.accept(timeout=60)

        def refused(*_: object) -> None:
            raise hmc.OutOfMemoryError("thread was refused")

        with monkeypatch.context() as few:
            few.setattr(_listening, "start_thread", refused)
            with pytest.raises(hmc.OutOfMemoryError):
                listening.add(to_a)
        listening.add(to_a)
        to_b.send(np.frombuffer(Ask("renew", "engine", ["r"]).encode(), np.uint8), tag=ASK_TAG, timeout=60)
        wait_for(lambda: taken == [["r"]])
        listening.close()


def test_an_error_of_a_lease_frees_the_request_and_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with two_sides(seconds=1000) as sides:

        def fails(*_: object, **__: object) -> None:
            raise MemoryError("no array of this size")

        monkeypatch.setattr(sides.prefill.pools[1], "lease", fails)
        sides.lender.keep("r", [1, 2], 40)
        assert sides.fetch(sides.remote, [5, 6], 40) == ({"local r"}, {5, 6})
        assert sides.lender_ended() == {"r"}
        assert sides.prefill.pools[0].counters()["leases_held"] == 0
