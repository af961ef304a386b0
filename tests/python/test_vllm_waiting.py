"""The decode side of the vLLM connector, without vLLM, while one prefill engine does not answer: the others are served."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from vllm_sides import Sides, pass_time, pushing, two_sides, wait_for

import hmc
from hmc.integrations.vllm._asking import Asking
from hmc.integrations.vllm._fetcher import Fetcher
from hmc.integrations.vllm._loading import Fetch
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
        sides.receiver._asking.tell = lambda *what: told.append(what[:2])  # type: ignore[method-assign,assignment]
        for _ in range(4):
            sides.receiver._asking.do(lambda: go.wait(60))
        sides.offer([5, 6], 40)
        sides.receiver._renew_every = 0.0
        sides.receiver.finished()
        assert told == [("renew", [sides.remote])]
        go.set()
