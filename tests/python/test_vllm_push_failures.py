"""Layered push of the vLLM connector, without vLLM: what fails, is aborted, or does not fit."""

from __future__ import annotations

import random
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm_sides import SOURCE, PushSides, chunk, pass_time, pushing, two_sides, wait_for

import hmc
from hmc.integrations.vllm._asking import Asking
from hmc.integrations.vllm._fetcher import Fetcher
from hmc.integrations.vllm._loading import Fetch
from hmc.integrations.vllm._messages import ASK_TAG, MAX_BYTES, PIECE_TAG, Ask, Piece
from hmc.integrations.vllm._outgoing import Dropped, Early
from hmc.integrations.vllm._ranks import Source

DONE = ({"local t"}, set())


def test_a_step_that_ends_without_its_layers_fails_its_readers() -> None:
    with pushing() as sides:
        sides.offer([5, 6, 7, 8], 100)
        sides.step(chunk(100, 100), layers=2)
        assert sides.received() == ({"local t"}, {5, 6, 7, 8})
        sides.sender.keep("request t", "t")
        assert sides.sender_ended() == {"request t"}


@pytest.mark.parametrize("when", ["before the offer", "after the offer", "between chunks", "in a step"])
def test_an_aborted_prompt_fails_its_reader_at_once_and_is_free(when: str) -> None:
    with pushing(timeout=1000) as sides:
        held = when in ("between chunks", "in a step")
        if when != "before the offer":
            sides.offer([5, 6, 7, 8], 100)
        if when == "between chunks":
            sides.step(chunk(50, 100))
        if when == "in a step":
            sides.sender.begin([chunk(100, 100)])
            sides.compute(0, chunk(100, 100))
        if when == "after the offer":
            time.sleep(0.3)
        sides.sender.drop(Dropped("request t", "t", held))
        if when == "before the offer":
            sides.offer([5, 6, 7, 8], 100)
        assert sides.received() == ({"local t"}, {5, 6, 7, 8})
        if held:
            assert sides.sender_ended() == {"request t"}
        assert sides.sender.finished() == set()
        assert sides.sender.held == 0


@pytest.mark.parametrize("when", ["before the prompt", "in a step", "after the first chunk"])
def test_a_cancelled_load_ends_and_frees_the_prompt(when: str) -> None:
    with pushing() as sides:
        sides.offer([5, 6, 7, 8], 100)
        if when == "before the prompt":
            time.sleep(0.3)
            sides.receiver.cancel("local t")
            assert sides.received() == ({"local t"}, {5, 6, 7, 8})
        sides.step(chunk(50, 100))
        if when == "after the first chunk":
            sides.receiver.cancel("local t")
        sides.sender.begin([chunk(100, 100)])
        sides.compute(0, chunk(100, 100))
        if when == "in a step":
            sides.receiver.cancel("local t")
        sides.compute(1, chunk(100, 100))
        sides.compute(2, chunk(100, 100))
        sides.sender.end()
        sides.sender.keep("request t", "t")
        assert sides.sender_ended() == {"request t"}
        if when != "before the prompt":
            assert sides.received() == ({"local t"}, {5, 6, 7, 8})


def test_a_prompt_that_nobody_takes_is_free_in_time_and_not_before() -> None:
    with pushing(seconds=30.0) as sides:
        sides.step(chunk(40, 40), chunk(4, 4, [8], "u"))
        sides.sender.keep("request t", "t")
        sides.sender.keep("request u", "u")
        kept = sides.sender._outgoing["t"]
        gone: set[str] = set()
        for _ in range(4):
            before = pass_time(sides.sender._outgoing, kept)
            sides.receiver.renew([sides.remote])
            wait_for(lambda before=before: kept.expires > before)  # type: ignore[misc]
            gone |= sides.sender.finished()
        assert gone == {"request u"}
        pass_time(sides.sender._outgoing, kept, 40.0)
        assert sides.sender_ended() == {"request t"}
        sides.offer([5, 6], 40)
        assert sides.received() == ({"local t"}, {5, 6})
        sent = sides.sent.take()
        assert sent is not None
        assert (sent["requests_lent"], sent["requests_expired"]) == (0, 2)


def test_a_released_prompt_is_free() -> None:
    with pushing() as sides:
        sides.receiver.release(sides.remote)
        time.sleep(0.2)
        sides.step(chunk(40, 40), chunk(4, 4, [8], "u"))
        sides.sender.keep("request t", "t")
        sides.sender.keep("request u", "u")
        assert sides.sender_ended() == {"request t"}
        sides.receiver.release(sides.of("u"))
        assert sides.sender_ended() == {"request u"}


def test_a_prompt_is_free_when_all_readers_have_it() -> None:
    with pushing() as sides:
        sides.readers = 3
        sides.step(chunk(40, 40))
        sides.sender.keep("request t", "t")
        for left in (True, True, False):
            sides.offer([5, 6], 40)
            assert sides.received() == DONE
            if left:
                time.sleep(0.2)
                assert sides.sender.finished() == set()
        assert sides.sender_ended() == {"request t"}


@pytest.mark.parametrize("why", ["engine", "model", "tokens", "pools"])
def test_what_does_not_fit_fails_at_once(why: str) -> None:
    with pushing(timeout=1000) as sides:
        if why in ("model", "pools"):
            sides.receiver.close()
            sides.receiver = sides.receiver_of("another" if why == "model" else "model", 1 if why == "pools" else 2)
        sides.step(chunk(40, 40))
        remote = sides.of("t", "before the restart" if why == "engine" else "engine")
        sides.offer([5, 6], 41 if why == "tokens" else 40, remote=remote)
        assert sides.received() == ({"local t"}, {5, 6})
        assert sides.sender.held == 1
        loaded = sides.loaded.take()
        assert loaded is not None
        assert loaded["loads_failed"] == 1


def test_a_prompt_that_never_comes_fails_the_load_in_time() -> None:
    with pushing() as sides:
        sides.offer([5, 6], 40)
        one = sides.receiver._receiving["local t"]
        wait_for(lambda: not one.offering)
        sides.receiver._timeout = 0.5  # as if the rest had passed
        assert sides.received() == ({"local t"}, {5, 6})
        sides.step(chunk(40, 40))
        sides.sender.keep("request t", "t")
        assert sides.sender_ended() == {"request t"}  # the reader released it


def test_engines_of_different_modes_refuse_each_other() -> None:
    with pushing(timeout=1000) as sides, two_sides() as pulling:
        fetcher = Fetcher(sides.decode.ctx, sides.decode.pools, lambda one: [Source(one.address(0, 0))], "model", timeout=1000)
        fetcher.fetch(Fetch("pull", sides.remote, [5, 6], 0, 40))
        assert wait_for(lambda: any(found := fetcher.finished()) and found) == ({"pull"}, {5, 6})
        fetcher.close()
        pulling.lender.keep("t", [1, 2], 40)
        sides.offer([5, 6], 40, remote=pulling.of("t"))
        assert sides.received() == ({"local t"}, {5, 6})


def test_a_lost_prefill_engine_fails_the_load() -> None:
    for step in (0, 1):
        with pushing(timeout=1000) as sides:
            sides.offer([5, 6, 7, 8], 100)
            sides.sender.begin([chunk(100, 100)])
            if step:
                sides.compute(0, chunk(100, 100))
            time.sleep(0.2)
            sides.sender.close()
            sides.prefill.close()
            assert sides.received() == ({"local t"}, {5, 6, 7, 8})


def test_a_lost_decode_engine_frees_the_prompt() -> None:
    with pushing(seconds=1000) as sides:
        sides.offer([5, 6, 7, 8], 100)
        sides.sender.begin([chunk(100, 100)])
        sides.compute(0, chunk(100, 100))
        wait_for(lambda: sides.sender._outgoing["t"].readers)
        sides.decode.close()
        sides.compute(1, chunk(100, 100))
        sides.compute(2, chunk(100, 100))
        sides.sender.end()
        sides.sender.keep("request t", "t")
        assert sides.sender_ended() == {"request t"}


@pytest.mark.parametrize("seed", range(10))
def test_cancels_aborts_and_preemptions_at_any_moment_lose_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmc.integrations.vllm._sender._PREEMPTION", 20.0)  # a busy machine is no reason to give up a push
    source = random.Random(seed)
    with pushing(64) as sides:
        names = [f"t{i}" for i in range(8)]
        prompts = {name: [4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3] for i, name in enumerate(names)}
        targets = {name: [2 * i, 2 * i + 1] for i, name in enumerate(names)}
        for name in names:
            sides.offer(targets[name], 128, remote=sides.of(name))
        cancelled = {name for name in names if source.random() < 0.3}
        dropped = {name for name in names if source.random() < 0.3}
        timers = [threading.Timer(source.random() * 0.1, sides.receiver.cancel, [f"local {name}"]) for name in cancelled]
        for timer in timers:
            timer.start()
        gone = _compute_all(sides, source, prompts, dropped)
        done: set[str] = set()
        failed: set[int] = set()

        def all_done() -> bool:
            found = sides.receiver.finished()
            done.update(found[0])
            failed.update(found[1])
            return len(done) == len(names)

        wait_for(all_done)
        for name in names:
            if failed.isdisjoint(targets[name]):
                assert sides.equal(targets[name], 0, 128, prompts[name])
            else:
                assert name in cancelled | dropped
        wait_for(lambda: gone.update(sides.sender.finished()) or len(gone) == len(names))
        assert sides.sender.held == 0
        for timer in timers:
            timer.join()


def _compute_all(sides: PushSides, source: random.Random, prompts: dict[str, list[int]], dropped: set[str]) -> set[str]:
    """Computes prompts in chunks, of which some are preempted and some aborted. Returns what the sender has returned meanwhile."""
    ends = dict.fromkeys(prompts, 0)
    gone: set[str] = set()
    lost: tuple[str, ...] = ()
    while any(end < 128 for end in ends.values()):
        chosen = [name for name, end in ends.items() if end < 128 and source.random() < 0.7]
        for name in chosen:
            ends[name] = min(128, ends[name] + source.randrange(1, 100))
        sides.step(*(chunk(ends[name], 128, prompts[name], name) for name in chosen), preempted=lost)
        for name in chosen:
            if name in dropped and source.random() < 0.5:
                sides.sender.drop(Dropped("request " + name, name, True))
                ends[name] = 129
        gone |= sides.sender.finished()
        unfinished = [name for name, end in ends.items() if 0 < end < 128]
        lost = ("request " + unfinished[0],) if unfinished and source.random() < 0.3 else ()
        if lost:
            ends[unfinished[0]] = 0
    for name in prompts:
        if name in dropped and ends[name] == 128:
            sides.sender.drop(Dropped("request " + name, name, True))
        elif ends[name] == 128:
            sides.sender.keep("request " + name, name)
    return gone


def test_damaged_messages_are_survived_on_both_sides() -> None:
    with pushing() as sides:
        rng = np.random.default_rng(3)
        sides.offer([7], 4, remote=sides.of("other"))
        sides.step(chunk(4, 4, [20], "other"))
        assert sides.received() == ({"local other"}, set())
        [peer] = sides.receiver._asking._peers.values()
        for size in (0, 1, 300, MAX_BYTES + 1):
            peer.send(rng.integers(0, 256, size, dtype=np.uint8), tag=ASK_TAG, timeout=20)
        [there] = sides.sender._listening._peers
        for size in (0, 1, 300, MAX_BYTES + 1):
            there.send(rng.integers(0, 256, size, dtype=np.uint8), tag=PIECE_TAG, timeout=20)
        unknown: list[Any] = [Piece(77, 0, 5, 78), Piece(77, error="gone")]
        for piece in unknown:
            there.send(piece.encode(), tag=PIECE_TAG, timeout=20)
        peer.send(Ask("release", "engine", ["unknown"], answer=5).encode(), tag=ASK_TAG, timeout=20)
        sides.offer([5, 6], 40)
        sides.step(chunk(40, 40))
        assert sides.received() == DONE
        assert sides.equal([5, 6], 0, 40, SOURCE)


@pytest.mark.parametrize("begin", [1, 39, 40])
def test_a_piece_that_was_not_expected_fails_the_load(begin: int) -> None:
    with pushing(timeout=1000) as sides, hmc.Context(listen="tcp://127.0.0.1:0") as forger:
        [address] = [one for one in forger.addresses if one.startswith("tcp")]
        sides.receiver.close()
        sides.receiver = sides.receiver_of("model", timeout=1000)
        sides.receiver._asking.sources = lambda _: [Source(address)]
        sides.offer([5, 6], 40)
        peer = forger.accept(timeout=20)
        array = np.empty(MAX_BYTES, np.uint8)
        info = peer.recv(array, tag=ASK_TAG, timeout=20)
        ask = Ask.decode(array[: info.bytes].tobytes())
        peer.send(Piece(ask.answer, begin, 40, 9, (0, 3), (0, 4)).encode(), tag=PIECE_TAG, timeout=20)
        assert sides.received() == ({"local t"}, {5, 6})


def test_an_offer_that_is_replayed_is_pushed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Asking.say

    def twice(self: Asking, ask: Ask, address: str, timeout: float = 10.0) -> Any:
        real(self, ask, address, timeout)
        return real(self, ask, address, timeout)

    monkeypatch.setattr(Asking, "say", twice)
    for early in (True, False):
        with pushing() as sides:
            if early:
                sides.offer([5, 6], 40)
            sides.step(chunk(20, 40))
            if not early:
                sides.offer([5, 6], 40)
            time.sleep(0.3)
            sides.step(chunk(40, 40))
            assert sides.received() == DONE
            assert sides.equal([5, 6], 0, 40, SOURCE)


def test_a_flood_of_pieces_fails_the_load() -> None:
    """A prefill worker that does not wait for the end of a piece would get a thread of the decode worker for each."""
    with pushing(timeout=1000) as sides, hmc.Context(listen="tcp://127.0.0.1:0") as forger:
        [address] = [one for one in forger.addresses if one.startswith("tcp")]
        sides.receiver._asking.sources = lambda _: [Source(address)]
        sides.offer([5, 6, 7, 8], 128)
        peer = forger.accept(timeout=20)
        array = np.empty(MAX_BYTES, np.uint8)
        info = peer.recv(array, tag=ASK_TAG, timeout=20)
        ask = Ask.decode(array[: info.bytes].tobytes())
        for token in range(100):
            peer.send(Piece(ask.answer, token, 1, 9, (0, 3), (0, 4)).encode(), tag=PIECE_TAG, timeout=20)
        assert sides.received() == ({"local t"}, {5, 6, 7, 8})
        assert sides.decode.pools[0].counters()["receives_failed"] < 20


def test_a_flood_of_offers_is_refused() -> None:
    early, peer = Early(), object()
    refused = [one for number in range(5000) for one in early.add(peer, Ask("offer", "", ["t"], answer=number + 1))]  # type: ignore[arg-type]
    assert [ask.answer for _, ask in refused] == list(range(1025, 5001))


def test_offers_of_many_requests_are_bounded_in_all() -> None:
    here: Any = SimpleNamespace(alive=True)
    early, refused = Early(), 0
    for request in range(100):
        for number in range(1000):
            refused += len(early.add(here, Ask("offer", "", [str(request)], answer=number + 1, tokens=1)))
    assert refused >= 100 * 1000 - 65536
    assert sum(len(early.take(str(request))) for request in range(100)) == 100 * 1000 - refused
    assert early.add(here, Ask("offer", "", ["r"], answer=5)) == early.add(here, Ask("release", "", ["r"], answer=5)) == []
    assert [ask.what for _, ask in early.take("r")] == ["release"]
    assert early._count == 0


def test_requests_to_an_engine_that_is_not_reached_fail_together() -> None:
    """Each attempt takes 10 s: one serves all that wait for it."""
    asked, called = threading.Semaphore(0), []

    class Unreachable:
        def connect(self, address: str, timeout: float) -> Any:
            called.append(address)
            for _ in range(6 if len(called) == 1 else 0):
                assert asked.acquire(timeout=20)
            time.sleep(0.3)
            raise hmc.PeerLostError("no route to host")

    asking, errors = Asking(Unreachable(), lambda _: [], lambda _: None, 1), []  # type: ignore[arg-type,var-annotated]

    def ask() -> None:
        asked.release()
        try:
            asking.peer("tcp://192.0.2.1:5")
        except hmc.PeerLostError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(errors) == 6
    assert all("no route to host" in error for error in errors)
    assert len(called) <= 3
    assert asking._connecting == {}
    asking.close()


def test_a_load_that_waited_too_long_for_a_thread_asks_nothing() -> None:
    with pushing(timeout=0.5) as sides:
        busy = threading.Event()
        for _ in range(4):
            sides.receiver._asking.do(lambda: bool(busy.wait(60)))
        sides.offer([5, 6], 40)
        assert sides.received() == ({"local t"}, {5, 6})  # while the threads are busy
        asked, over = [], threading.Event()
        sides.receiver._asking.sources = lambda remote: asked.append(remote) or []
        sides.receiver._asking.do(over.set)
        busy.set()
        assert over.wait(60)
        assert not asked
