"""The decode side of the vLLM connector, without vLLM, while one prefill engine does not answer: the others are served."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from vllm_sides import Sides, pass_time, pushing, two_sides, wait_for

import hmc
from hmc.integrations.vllm import _lender
from hmc.integrations.vllm._asking import Asking, answer_of
from hmc.integrations.vllm._fetcher import Fetcher
from hmc.integrations.vllm._lender import Lender
from hmc.integrations.vllm._loading import Fetch
from hmc.integrations.vllm._messages import ASK_TAG, Ask
from hmc.integrations.vllm._params import Remote
from hmc.integrations.vllm._ranks import Source

STUCK = Remote("stuck", "s", "192.0.2.1", 5)


@contextmanager
def behind_a_stuck_engine() -> Iterator[tuple[Sides, threading.Event]]:
    """The only thread for fetches is busy until the event is set; the fetch of "r" waits for it."""
    with two_sides(seconds=1000) as sides:
        entered, go, of = threading.Event(), threading.Event(), sides.sources

        def sources(remote: Remote) -> list[Source]:
            if remote.engine == "stuck":
                if not entered.is_set():
                    entered.set()
                    assert go.wait(60)
                raise hmc.PeerLostError("the engine is lost")
            return of(remote)

        sides.sources = sources
        sides.fetcher.close()
        sides.fetcher = Fetcher(sides.decode.ctx, sides.decode.pools, sources, "model", timeout=1000, threads=1, tally=sides.loaded)
        sides.lender.keep("r", [1, 2], 40)
        try:
            sides.fetcher.fetch(Fetch("local s", STUCK, [9], 0, 30))
            assert entered.wait(60)
            sides.fetcher.fetch(Fetch("local r", sides.remote, [5, 6], 0, 40))
            yield sides, go
        finally:
            go.set()


def test_a_renewal_does_not_wait_for_fetches() -> None:
    with behind_a_stuck_engine() as (sides, _):
        kept = sides.lender._kept["r"]
        before = pass_time(sides.lender._kept, kept)
        sides.fetcher.renew([sides.remote])
        wait_for(lambda: kept.expires > before)


def test_a_request_with_wrong_sizes_does_not_end_the_renewal_of_others() -> None:
    with two_sides(seconds=1000) as sides:
        of = sides.sources

        def sources(remote: Remote) -> list[Source]:
            if remote.tp_size != 1:
                raise hmc.UnsupportedError("the sizes do not fit the model")
            return of(remote)

        sides.sources = sources
        sides.lender.keep("r", [1, 2], 40)
        kept = sides.lender._kept["r"]
        before = pass_time(sides.lender._kept, kept)
        sides.fetcher.renew([dataclasses.replace(sides.remote, request="wrong", tp_size=3), sides.remote])
        wait_for(lambda: kept.expires > before)


def test_a_fetch_that_waits_for_a_thread_is_renewed() -> None:
    with behind_a_stuck_engine() as (sides, go):
        kept = sides.lender._kept["r"]
        before = pass_time(sides.lender._kept, kept)
        sides.fetcher._renew_every = 0.0
        assert sides.fetcher.finished() == (set(), set())
        wait_for(lambda: kept.expires > before)
        go.set()
        ended: set[str] = set()
        wait_for(lambda: ended.update(sides.fetcher.finished()[0]) or ended == {"local s", "local r"})
        assert sides.lender_ended() == {"r"}


def test_a_fetch_that_has_begun_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go, real = threading.Event(), threading.Event(), Fetcher._pull

    def pull(*arguments: Any) -> Any:
        entered.set()
        assert go.wait(60)
        return real(*arguments)

    monkeypatch.setattr(Fetcher, "_pull", pull)
    with two_sides(seconds=1000) as sides:
        sides.lender.keep("r", [1, 2], 40)
        sides.fetcher._renew_every = 0.0
        try:
            sides.fetcher.fetch(Fetch("local r", sides.remote, [5, 6], 0, 40))
            assert entered.wait(60)
            kept = sides.lender._kept["r"]
            before = pass_time(sides.lender._kept, kept)
            assert sides.fetcher.finished() == (set(), set())
            wait_for(lambda: kept.expires > before)
        finally:
            go.set()
        assert wait_for(lambda: any(found := sides.fetcher.finished()) and found) == ({"local r"}, set())


@pytest.mark.parametrize("how", ["late", "cancelled"])
def test_a_fetch_that_waits_for_a_thread_ends(how: str) -> None:
    with behind_a_stuck_engine() as (sides, go):
        assert sides.fetcher.finished() == (set(), set())
        if how == "late":
            sides.fetcher._running["local r"].asked -= 1001
        else:
            sides.fetcher.cancel("local r")
        assert sides.fetcher.finished() == ({"local r"}, {5, 6})
        assert sides.lender_ended() == {"r"}
        loaded = sides.loaded.take()
        assert (loaded is None) == (how == "cancelled")
        assert loaded is None or loaded["loads_failed"] == 1
        go.set()
        assert wait_for(lambda: any(found := sides.fetcher.finished()) and found) == ({"local s"}, {9})
        assert sides.prefill.pools[0].counters().get("leases", 0) == 0


def test_a_flood_of_early_questions_does_not_delay_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    handled: list[str] = []
    real = Lender._handled

    def count(self: Lender, peer: hmc.Peer, ask: Ask, until: float) -> bool:
        handled.append(ask.requests[0])
        return real(self, peer, ask, until)

    monkeypatch.setattr(Lender, "_handled", count)
    monkeypatch.setattr(_lender, "_GRACE", 1000.0)
    monkeypatch.setattr(_lender, "_MOST_WAITING", 1000, raising=False)
    with two_sides(seconds=1000) as sides, hmc.Context() as other:
        peer = other.connect(sides.remote.address(0, 0), timeout=60)
        for number in range(1500):
            ask = Ask("lease", "engine", [f"unknown {number}"], answer=number + 1, tokens=1)
            peer.send(ask.encode(), tag=ASK_TAG, timeout=60)
        for number in (1000, 1499):
            with pytest.raises(hmc.LeaseExpiredError, match="it is unknown"):
                answer_of(peer, number + 1, 60)
        sides.lender.keep("unknown 7", [1, 2], 40)
        assert len(answer_of(peer, 8, 60).tickets) == 2
        sides.lender.keep("r", [1, 2], 40)
        assert sides.fetch(sides.remote, [5, 6], 40) == ({"local r"}, set())
        assert len(handled) < 3000


def test_an_engine_that_is_not_reached_takes_one_attempt_of_the_others_time() -> None:
    called: list[str] = []
    entered, go = threading.Event(), threading.Event()

    class Unreachable:
        def connect(self, address: str, timeout: float) -> Any:
            called.append(address)
            entered.set()
            assert go.wait(60)
            raise hmc.PeerLostError("no route to host")

    asking = Asking(Unreachable(), lambda remote: [Source(remote.address(0, 0))], lambda _: None, 1)  # type: ignore[arg-type]
    for number in range(50):
        asking.tell("release", [Remote("stuck", f"s{number}", "192.0.2.1", 5)])
        asking.tell("renew", [Remote("stuck", f"t{number}", "192.0.2.1", 5)])
    assert entered.wait(60)
    asking.tell("renew", [Remote("other", "r", "192.0.2.2", 5)])
    go.set()
    asking.close(60)
    assert not any(thread.is_alive() for thread in asking._threads)
    assert called[-1] == "tcp://192.0.2.2:5"
    assert 2 <= len(called) <= 3


def test_an_offer_that_waits_for_a_thread_is_renewed() -> None:
    with pushing() as sides:
        told: list[Any] = []
        go = threading.Event()
        sides.receiver._asking.tell = lambda *what, **_: told.append(what[:2])  # type: ignore[method-assign,assignment]
        for _ in range(4):
            sides.receiver._asking.do(lambda: go.wait(60))
        sides.offer([5, 6], 40)
        sides.receiver._renew_every = 0.0
        sides.receiver.finished()
        assert told == [("renew", [sides.remote])]
        go.set()


def test_engines_that_are_connected_do_not_wait_for_those_that_are_not() -> None:
    called: list[str] = []
    entered, go = threading.Event(), threading.Event()

    class Alive:
        alive = True

        def send(self, data: Any, tag: int, timeout: float) -> None:
            called.append("connected")

    class Some:
        def connect(self, address: str, timeout: float) -> Any:
            if address == "tcp://192.0.2.9:5":
                return Alive()
            called.append(address)
            entered.set()
            assert go.wait(60)
            raise hmc.PeerLostError("no route to host")

    asking = Asking(Some(), lambda remote: [Source(remote.address(0, 0))], lambda _: None, 1)  # type: ignore[arg-type]
    asking.peer("tcp://192.0.2.9:5")
    asking.tell("release", [Remote("stuck", "s", "192.0.2.1", 5)])
    assert entered.wait(60)
    asking.tell("release", [Remote("stuck too", "s", "192.0.2.2", 5)])
    asking.tell("renew", [Remote("engine", "r", "192.0.2.9", 5)])
    go.set()
    asking.close(60)
    assert called == ["tcp://192.0.2.1:5", "connected", "tcp://192.0.2.2:5"]


def test_a_renewal_of_more_names_than_a_message_holds_renews_all() -> None:
    renewed: list[str] = []

    class Alive:
        alive = True

        def send(self, data: Any, tag: int, timeout: float) -> None:
            renewed.extend(Ask.decode(data.tobytes()).requests)

    class Some:
        def connect(self, address: str, timeout: float) -> Any:
            return Alive()

    asking = Asking(Some(), lambda remote: [Source(remote.address(0, 0))], lambda _: None, 1)  # type: ignore[arg-type]
    names = [f"{number:04}" + "\N{EURO SIGN}" * 996 for number in range(800)]
    asking.tell("renew", [Remote("engine", name, "192.0.2.9", 5) for name in names])
    asking.close(60)
    assert renewed == names


def test_peers_that_have_left_are_not_kept() -> None:
    class Lost:
        alive = False

    class Some:
        def connect(self, address: str, timeout: float) -> Any:
            if address in called:
                raise hmc.PeerLostError("connection refused")
            called.append(address)
            return Lost()

    called: list[str] = []
    asking = Asking(Some(), lambda remote: [], lambda _: None, 1)  # type: ignore[arg-type]
    for number in range(20):
        asking.peer(f"tcp://192.0.2.1:{number + 1}")
    with pytest.raises(hmc.PeerLostError):
        asking.peer(called[-1])
    asking.peer("tcp://192.0.2.2:1")
    assert len(asking._peers) == len(asking._connecting) == 1
    asking.close(60)
