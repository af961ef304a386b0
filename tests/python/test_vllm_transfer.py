"""Lending and fetching of the vLLM connector, without vLLM."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import numpy as np
import pytest
from vllm_sides import pass_time, two_sides, wait_for

import hmc
from hmc import kv
from hmc.integrations.vllm import _fetcher, _lender
from hmc.integrations.vllm._fetcher import Fetcher
from hmc.integrations.vllm._lender import Lender
from hmc.integrations.vllm._loading import Fetch
from hmc.integrations.vllm._messages import ASK_TAG, MAX_BYTES, Answer, Ask
from hmc.integrations.vllm._params import Remote, digest_of
from hmc.integrations.vllm._ranks import Source


@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize(("skip", "tokens"), [(0, 1), (0, 100), (0, 128), (32, 68), (33, 67), (127, 1)])
def test_every_byte_of_a_request_arrives(block: int, skip: int, tokens: int) -> None:
    with two_sides(block) as sides:
        source = [9, 3, 30, 4]
        sides.lender.keep("r", source, skip + tokens)
        first = skip % block
        target = [1, 7, 2, 5, 4, 3, 6, 0][: -(-(first + tokens) // block)]
        before = [[array.copy() for array in arrays] for arrays in sides.decode.arrays]
        assert sides.fetch(sides.remote, target, tokens, skip, first) == ({"local r"}, set())
        expected = sides.prefill.tokens(source, skip, tokens)
        for found, wanted in zip(sides.decode.tokens(target, first, tokens), expected, strict=True):
            assert np.array_equal(found, wanted)
        assert sides.lender_ended() == {"r"}
        assert sides.lender.held == 0
        others = np.setdiff1d(np.arange(1024 // block), target)
        for arrays, olds in zip(sides.decode.arrays, before, strict=True):
            for array, old in zip(arrays, olds, strict=True):
                assert np.array_equal(array.reshape(1024 // block, -1)[others], old.reshape(1024 // block, -1)[others])


def test_a_question_that_comes_before_the_request_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lender, "_GRACE", 20.0)
    with two_sides() as sides:
        threading.Timer(0.4, lambda: sides.lender.keep("r", [1, 2], 40)).start()
        assert sides.fetch(sides.remote, [5, 6], 40) == ({"local r"}, set())
        assert sides.lender_ended() == {"r"}


def test_a_request_of_another_engine_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lender, "_GRACE", 60.0)
    with two_sides() as sides:
        sides.lender.keep("r", [1, 2], 40)
        begun = time.monotonic()
        assert sides.fetch(sides.of("r", "before the restart"), [5, 6], 40) == ({"local r"}, {5, 6})
        assert time.monotonic() - begun < 15
        assert sides.lender.held == 1


def test_an_expired_request_is_returned_once_and_fetching_it_fails() -> None:
    with two_sides(seconds=0.3) as sides:
        sides.lender.keep("r", [1, 2], 40)
        assert sides.lender_ended() == {"r"}
        assert sides.fetch(sides.remote, [5, 6], 40) == ({"local r"}, {5, 6})
        assert sides.lender.finished() == set()


def test_renewed_requests_do_not_expire() -> None:
    with two_sides(seconds=30.0) as sides:
        sides.lender.keep("r", [1, 2], 40)
        sides.lender.keep("other", [3], 4)
        kept = sides.lender._kept["r"]
        gone: set[str] = set()
        for _ in range(4):
            before = pass_time(sides.lender._kept, kept)
            sides.fetcher.renew([sides.remote])
            wait_for(lambda before=before: kept.expires > before)  # type: ignore[misc]
            gone |= sides.lender.finished()
        assert gone == {"other"}
        assert sides.fetch(sides.remote, [5, 6], 40) == ({"local r"}, set())


def test_a_released_request_is_free() -> None:
    with two_sides() as sides:
        sides.lender.keep("r", [1, 2], 40)
        sides.lender.keep("s", [3], 4)
        sides.fetcher.release(sides.remote)
        assert sides.lender_ended() == {"r"}
        assert sides.lender.held == 1


def test_a_request_is_free_when_all_readers_have_ended() -> None:
    with two_sides() as sides:
        sides.sources = lambda remote: [Source(remote.address(0, 0), 3)]
        sides.lender.keep("r", [1, 2], 40)
        for left in (True, True, False):
            assert sides.lender.held == 1
            assert sides.fetch(sides.remote, [5, 6], 40) == ({"local r"}, set())
            if left:
                time.sleep(0.2)
                assert sides.lender.finished() == set()
        assert sides.lender_ended() == {"r"}


def test_a_question_for_another_engine_does_not_change_the_number_of_readers() -> None:
    with two_sides() as sides:
        peer = sides.decode.ctx.connect(sides.remote.address(0, 0), timeout=20)
        sides.lender.keep("r", [1, 2], 40)
        array = np.empty(MAX_BYTES, np.uint8)
        for engine in ("engine", "engine before"):  # the first of two readers; one of an engine that was here before
            tokens = 41 if engine == "engine" else 40  # refused: that reader has ended
            ask = Ask("lease", engine, ["r"], answer=79, tokens=tokens, readers=2 if engine == "engine" else 1)
            peer.send(ask.encode(), tag=ASK_TAG, timeout=20)
            peer.recv(array, tag=79, timeout=20)
        assert sides.lender.finished() == set()
        assert sides.lender.held == 1


def test_more_tokens_than_the_request_has_are_refused_and_free_it() -> None:
    with two_sides() as sides:
        sides.lender.keep("r", [1, 2], 40)
        assert sides.fetch(sides.remote, [5, 6], 41) == ({"local r"}, {5, 6})
        assert sides.lender_ended() == {"r"}


def test_a_request_with_another_prompt_is_refused_and_stays() -> None:
    """A client has used a request's name twice. The request's own reader gets it all the same."""
    with two_sides() as sides:
        own, other = digest_of([1, 2, 3]), digest_of([1, 2, 4])
        sides.lender.keep("r", [1, 2], 40, own)
        assert sides.fetch(sides.remote, [5, 6], 40, prompt=other) == ({"local r"}, {5, 6})
        assert sides.lender.finished() == set()
        assert sides.fetch(sides.remote, [5, 6], 40, prompt=own) == ({"local r"}, set())
        assert sides.lender_ended() == {"r"}


def test_another_model_is_refused() -> None:
    with two_sides() as sides:
        sides.fetcher.close()
        sides.fetcher = sides.fetcher_of("another")
        sides.lender.keep("r", [1, 2], 40)
        assert sides.fetch(sides.remote, [5, 6], 40) == ({"local r"}, {5, 6})
        assert sides.lender_ended() == {"r"}


def test_another_number_of_pools_is_refused() -> None:
    with two_sides(pools=1) as sides:
        sides.lender.keep("r", [1, 2], 40)
        assert sides.fetch(sides.remote, [5, 6], 40) == ({"local r"}, {5, 6})


def test_blocks_that_change_during_the_lease_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit of one layer's V, after the digest was taken."""
    with two_sides() as sides:
        pool = sides.prefill.pools[1]
        lend = pool.lease

        def lend_and_change(*given: Any, **more: Any) -> kv.Lease:
            lease = lend(*given, **more)
            layer = sides.prefill.arrays[1][2].view(np.uint8)
            layer[2 * layer.size // 32 + 77] ^= 1  # block 2 of 32
            return lease

        monkeypatch.setattr(pool, "lease", lend_and_change)
        sides.lender.keep("r", [1, 2], 64)
        assert sides.fetch(sides.remote, [5, 6], 64) == ({"local r"}, {5, 6})


@pytest.mark.parametrize("seed", range(10))
def test_cancelled_fetches_finish_and_free_their_requests(seed: int) -> None:
    source = random.Random(seed)
    with two_sides(64) as sides:
        names = [f"r{i}" for i in range(12)]
        for i, name in enumerate(names):
            sides.lender.keep(name, [2 * i, 2 * i + 1], 64)
        for i, name in enumerate(names):
            sides.fetcher.fetch(Fetch(name, sides.of(name), [i], 0, 64))
        time.sleep(source.random() * 0.02)
        cancelled = [i for i in range(12) if source.random() < 0.5]
        for i in cancelled:
            sides.fetcher.cancel(names[i])
        done: set[str] = set()
        failed: set[int] = set()

        def all_done() -> bool:
            found = sides.fetcher.finished()
            done.update(found[0])
            failed.update(found[1])
            return len(done) == len(names)

        wait_for(all_done)
        assert failed <= set(cancelled)
        for i in set(range(12)) - failed:
            for found, wanted in zip(sides.decode.tokens([i], 0, 64), sides.prefill.tokens([2 * i, 2 * i + 1], 0, 64), strict=True):
                assert np.array_equal(found, wanted)
        gone: set[str] = set()
        wait_for(lambda: gone.update(sides.lender.finished()) or gone == set(names))


@pytest.mark.parametrize("how", ["refused", "cancelled"])
def test_a_fetch_that_fails_at_one_worker_releases_the_request_at_the_others(how: str) -> None:
    entered, go = threading.Event(), threading.Event()
    with two_sides(seconds=1000) as sides, two_sides(seconds=1000) as others:
        both = [Source(sides.remote.address(0, 0)), Source(others.remote.address(0, 0))]

        def sources(remote: Remote) -> list[Source]:
            entered.set()
            assert go.wait(60)
            return both

        sides.sources = sources
        for lender in (sides.lender, others.lender):
            lender.keep("r", [1, 2], 40, prompt="here" if lender is sides.lender else "")
        sides.fetcher.fetch(Fetch("local r", sides.remote, [5, 6], 0, 40, prompt="another" if how == "refused" else ""))
        assert entered.wait(60)
        if how == "cancelled":
            sides.fetcher.cancel("local r")
        go.set()
        assert wait_for(lambda: any(found := sides.fetcher.finished()) and found) == ({"local r"}, {5, 6})
        assert others.lender_ended() == {"r"}
        assert how == "refused" or sides.lender_ended() == {"r"}


@pytest.mark.parametrize("how", ["refused", "cancelled while it waits"])
def test_a_fetch_of_another_prompt_releases_nothing(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[str] = []
    real = Lender._handle

    def keep(self: Lender, peer: hmc.Peer, ask: Ask, until: float) -> bool:
        done = real(self, peer, ask, until)
        released.extend(ask.requests if ask.what == "release" else [])
        return done

    monkeypatch.setattr(Lender, "_handle", keep)
    with two_sides(seconds=1000) as sides, two_sides(seconds=1000) as others:
        sides.sources = lambda _: [Source(sides.remote.address(0, 0)), Source(others.remote.address(0, 0))]
        for lender in (sides.lender, others.lender):
            lender.keep("r", [1, 2], 40, prompt="here")
        fetch = Fetch("local r", sides.remote, [5, 6], 0, 40, prompt="another")
        if how == "refused":
            sides.fetcher.fetch(fetch)
        else:
            monkeypatch.setattr(sides.fetcher._asking, "do", lambda _: None)
            sides.fetcher.fetch(fetch)
            sides.fetcher.cancel("local r")
        assert wait_for(lambda: any(found := sides.fetcher.finished()) and found) == ({"local r"}, {5, 6})
        wait_for(lambda: len(released) == (1 if how == "refused" else 2))
        assert sides.lender.held == others.lender.held == 1


def test_a_lost_prefill_engine_fails_the_fetch_and_a_new_one_at_its_address_serves() -> None:
    with two_sides() as sides:
        sides.lender.keep("r", [1, 2], 40)
        assert sides.fetch(sides.remote, [5, 6], 40) == ({"local r"}, set())
        sides.lender.close()
        sides.prefill.close()
        assert sides.fetch(sides.remote, [5, 6], 40) == ({"local r"}, {5, 6})
        with two_sides() as other:
            other.lender.keep("r", [1, 2], 40)
            sides.remote = other.remote
            assert sides.fetch(other.remote, [5, 6], 40) == ({"local r"}, set())
        sides.lender, sides.prefill = other.lender, other.prefill


def test_an_engine_that_does_not_answer_fails_the_fetch_in_time() -> None:
    with two_sides() as sides, hmc.Context(listen="tcp://127.0.0.1:0") as silent:
        [address] = [one for one in silent.addresses if one.startswith("tcp")]
        sides.fetcher.close()
        sides.fetcher = Fetcher(sides.decode.ctx, sides.decode.pools, lambda _: [Source(address)], "model", timeout=1)
        begun = time.monotonic()
        assert sides.fetch(sides.remote, [5, 6], 40) == ({"local r"}, {5, 6})
        assert time.monotonic() - begun < 15


def test_addresses_without_an_engine_fail_and_leave_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with two_sides() as sides:
        for host, port in [("127.0.0.1", 1), ("127.0.0.1", 2), ("no such host", 80), ("\ud800", 80), ("a\0b", 80)]:
            remote = Remote("engine", f"at {port}", host, port)
            assert sides.fetch(remote, [5, 6], 40) == ({f"local at {port}"}, {5, 6})
        assert sides.fetcher._asking._connecting == {}
        assert "tcp://\\ud800:80" in caplog.text
        assert caplog.text.encode()  # as a file would
        sides.lender.keep("r", [1, 2], 40)
        assert sides.fetch(sides.remote, [5, 6], 40) == ({"local r"}, set())


def test_loads_and_loans_are_counted() -> None:
    with two_sides() as sides:
        assert (sides.loaded.take(), sides.lent.take()) == (None, None)
        sides.lender.keep("r", [1, 2], 40)
        sides.fetch(sides.remote, [5, 6], 40)
        sides.fetch(sides.of("s", "another"), [7], 32)
        assert sides.lender_ended() == {"r"}
        loaded, lent = sides.loaded.take(), sides.lent.take()
        assert loaded is not None
        assert lent is not None
        assert loaded["load_tokens"] == [40]
        # K and V of 40 tokens, 3 layers, 4 heads, 32 dimensions, 4 bytes: at least these, and whole blocks at most.
        assert 2 * 40 * 3 * 4 * 32 * 4 <= loaded["load_bytes"][0] <= 2 * 64 * 3 * 4 * 32 * 4
        assert 0 < loaded["load_seconds"][0] < 20
        assert (loaded["loads_failed"], lent["requests_lent"], lent["requests_expired"]) == (1, 1, 0)
        assert (sides.loaded.take(), sides.lent.take()) == (None, None)


def test_damaged_and_oversized_questions_are_survived() -> None:
    with two_sides() as sides:
        peer = sides.decode.ctx.connect(sides.remote.address(0, 0), timeout=20)
        for size in (0, 1, MAX_BYTES, MAX_BYTES + 1):
            peer.send(np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8), tag=ASK_TAG, timeout=20)
        peer.send(np.full(100_000, ord("["), np.uint8), tag=ASK_TAG, timeout=20)
        sides.lender.keep("r", [1, 2], 40)
        assert sides.fetch(sides.remote, [5, 6], 40) == ({"local r"}, set())
        ask = Ask("lease", "engine", ["another"], answer=77, tokens=40)
        sides.lender.keep("another", [1, 2], 40)
        peer.send(ask.encode(), tag=ASK_TAG, timeout=20)
        array = np.empty(MAX_BYTES, np.uint8)
        info = peer.recv(array, tag=77, timeout=20)
        assert len(Answer.decode(array[: info.bytes].tobytes()).tickets) == 2


def test_an_answer_that_comes_late_does_not_stay_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fetcher, "_ANSWER", 1.0)
    with two_sides() as sides, hmc.Context(listen="tcp://127.0.0.1:0") as late:
        [address] = [one for one in late.addresses if one.startswith("tcp")]
        fetcher = Fetcher(sides.decode.ctx, sides.decode.pools, lambda _: [Source(address)], "model", timeout=20)
        fetcher.fetch(Fetch("r", sides.remote, [5, 6], 0, 40))
        peer = late.accept(timeout=20)
        array = np.empty(MAX_BYTES, np.uint8)
        info = peer.recv(array, tag=ASK_TAG, timeout=20)
        ask = Ask.decode(array[: info.bytes].tobytes())
        assert wait_for(lambda: any(found := fetcher.finished()) and found) == ({"r"}, {5, 6})
        peer.send(Answer(error="late").encode(), tag=ask.answer, timeout=20)
        peer.send(np.zeros(1, np.uint8), tag=7, timeout=20)
        [there] = fetcher._asking._peers.values()
        there.recv(np.zeros(1, np.uint8), tag=7, timeout=20)
        assert sides.decode.ctx.counters()["messages.unread"] == 0
        fetcher.close()
