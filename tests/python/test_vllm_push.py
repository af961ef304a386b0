"""Layered push of the vLLM connector, without vLLM."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from vllm_sides import SOURCE, chunk, pushing, wait_for

import hmc
from hmc import kv
from hmc.integrations.vllm._outgoing import Dropped
from hmc.integrations.vllm._params import digest_of
from hmc.kv import _push

DONE = ({"local t"}, set())


@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize(("skip", "tokens"), [(0, 1), (0, 100), (0, 128), (32, 68), (33, 67), (127, 1)])
@pytest.mark.parametrize("early", [True, False], ids=["offered before", "offered after"])
def test_every_byte_of_a_prompt_arrives(block: int, skip: int, tokens: int, early: bool) -> None:
    with pushing(block) as sides:
        first = skip % block
        target = [1, 7, 2, 5, 4, 3, 6, 0][: -(-(first + tokens) // block)]
        before = [[array.copy() for array in arrays] for arrays in sides.decode.arrays]
        if early:
            sides.offer(target, tokens, skip, first)
        sides.step(chunk(skip + tokens, skip + tokens))
        sides.sender.keep("request t", "t")
        if not early:
            sides.offer(target, tokens, skip, first)
        assert sides.received() == DONE
        assert sides.equal(target, first, tokens, SOURCE, skip)
        assert sides.sender_ended() == {"request t"}
        assert sides.sender.held == 0
        others = np.setdiff1d(np.arange(1024 // block), target)
        for arrays, olds in zip(sides.decode.arrays, before, strict=True):
            for array, old in zip(arrays, olds, strict=True):
                assert np.array_equal(array.reshape(1024 // block, -1)[others], old.reshape(1024 // block, -1)[others])


@pytest.mark.parametrize("credits", [1, 4])
def test_a_layer_arrives_while_the_next_one_is_computed(credits: int) -> None:
    with pushing(64, credits=credits) as sides:
        sides.offer([5, 6], 100)
        one = chunk(100, 100)
        sides.sender.begin([one])
        for layer in range(3):
            assert not sides.equal([5, 6], 0, 100, SOURCE, layers=layer + 1)
            sides.compute(layer, one)
            wait_for(lambda layer=layer: sides.equal([5, 6], 0, 100, SOURCE, layers=layer + 1))  # type: ignore[misc]
            assert sides.receiver.finished() == (set(), set()) or layer == 2
        sides.sender.end()
        sides.sender.keep("request t", "t")
        assert sides.sender_ended() == {"request t"}


@pytest.mark.parametrize("ends", [[40, 100], [1, 2, 3, 100], [32, 64, 96, 128], [127, 128]])
@pytest.mark.parametrize("offered", [0, 1, 2], ids=["before", "in the first step", "after the first step"])
def test_a_prompt_in_chunks_arrives(ends: list[int], offered: int) -> None:
    with pushing(64) as sides:
        for number, end in enumerate(ends):
            if number == 0 and offered == 0:
                sides.offer([5, 6], ends[-1])
            sides.sender.begin([chunk(end, ends[-1])])
            sides.compute(0, chunk(end, ends[-1]))
            if number == 0 and offered == 1:
                sides.offer([5, 6], ends[-1])
            for layer in (1, 2):
                sides.compute(layer, chunk(end, ends[-1]))
            sides.sender.end()
            if number == 0 and offered == 2:
                sides.offer([5, 6], ends[-1])
        sides.sender.keep("request t", "t")
        assert sides.received() == DONE
        assert sides.equal([5, 6], 0, ends[-1], SOURCE)
        assert sides.sender_ended() == {"request t"}


def test_several_prompts_of_a_step_go_to_their_own_readers() -> None:
    with pushing() as sides:
        prompts = {name: [4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3] for i, name in enumerate("abcde")}
        for name, source in prompts.items():
            sides.offer([block ^ 1 for block in source], 100, remote=sides.of(name))
        sides.step(*(chunk(50, 100, source, name) for name, source in prompts.items()))
        sides.step(*(chunk(100, 100, source, name) for name, source in prompts.items()))
        done: set[str] = set()
        while len(done) < 5:
            found, failed = sides.received()
            assert not failed
            done |= found
        for name, source in prompts.items():
            assert sides.equal([block ^ 1 for block in source], 0, 100, source)
            sides.sender.keep("request " + name, name)
        gone: set[str] = set()
        wait_for(lambda: gone.update(sides.sender.finished()) or len(gone) == 5)


@pytest.mark.parametrize("offered", [True, False])
def test_a_preempted_prompt_is_computed_once_more_elsewhere(offered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks are overwritten as soon as the step begins; only tokens that were not pushed before travel again."""
    monkeypatch.setattr("hmc.integrations.vllm._sender._PREEMPTION", 20.0)
    with pushing(64) as sides:
        if offered:
            sides.offer([5, 6], 128)
        sides.step(chunk(70, 128))
        sides.sender.begin([], ["request t"])
        sides.spoil(SOURCE)
        sides.sender.end()
        if not offered:
            sides.offer([5, 6], 128)
        later = [11, 12, 13, 14]
        for kind in (0, 1):
            for layer in range(3):  # the same tokens have the same K and V in every block
                computed = sides._computed[kind][layer].reshape(32, -1)
                computed[later] = computed[SOURCE]
        sides.step(chunk(40, 128, later))
        sides.step(chunk(128, 128, later))
        assert sides.received() == DONE
        assert sides.equal([5, 6], 0, 128, SOURCE)
        sides.sender.keep("request t", "t")
        assert sides.sender_ended() == {"request t"}


def test_a_preemption_waits_for_no_reader_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader gives no credits: its push ends, and so does its load, before the blocks are overwritten."""
    with pushing(credits=1) as sides:
        monkeypatch.setattr(kv.Inbox, "_check_layers", lambda *_: time.sleep(3) or None)
        sides.offer([5, 6, 7, 8], 100)
        sides.step(chunk(70, 100))
        wait_for(lambda: any(one.busy for one in sides.sender._outgoing.values()))
        sides.sender.begin([], ["request t"])
        assert not any(one.busy for one in sides.sender._outgoing.values())
        sides.spoil(SOURCE)
        assert sides.received() == ({"local t"}, {5, 6, 7, 8})


def test_a_preemption_waits_for_no_reader_that_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its operation can be neither withdrawn nor ended. What it reads afterwards is never accepted: the blocks may change."""
    goes_on, real = threading.Event(), _push.finish

    def stopped(work: Any, transfer: Any = None) -> None:
        goes_on.wait()
        real(work)

    monkeypatch.setattr(_push, "finish", stopped)
    with pushing() as sides:
        try:
            sides.offer([5, 6, 7, 8], 100)
            sides.step(chunk(70, 100))
            wait_for(lambda: any(one.busy for one in sides.sender._outgoing.values()))
            begins = threading.Thread(target=lambda: sides.sender.begin([], ["request t"]), daemon=True)
            begins.start()
            begins.join(20)
            assert not begins.is_alive()
            sides.spoil(SOURCE)
            sides.sender.drop(Dropped("request t", "t", True))
            assert sides.sender_ended() == {"request t"}
        finally:
            goes_on.set()
        assert sides.received() == ({"local t"}, {5, 6, 7, 8})


def test_a_push_to_a_request_with_another_prompt_is_refused() -> None:
    """A proxy has used a transfer_id twice. The request's own reader gets it all the same."""
    with pushing() as sides:
        own, other = digest_of([1, 2, 3]), digest_of([1, 2, 4])
        sides.offer([5, 6], 40, prompt=other)  # before the prompt is computed
        sides.step(chunk(40, 40, prompt=own))
        assert sides.received() == ({"local t"}, {5, 6})
        sides.offer([5, 6], 40, prompt=other)
        assert sides.received() == ({"local t"}, {5, 6})
        assert sides.sender.finished() == set()
        sides.offer([5, 6], 40, prompt=own)
        assert sides.received() == DONE
        assert sides.equal([5, 6], 0, 40, SOURCE)
        sides.sender.keep("request t", "t")
        assert sides.sender_ended() == {"request t"}


def test_without_an_engine_id_whichever_engine_is_there_serves() -> None:
    with pushing() as sides:
        sides.offer([5, 6], 40, remote=sides.of("t", ""))
        sides.step(chunk(40, 40))
        assert sides.received() == DONE


def test_a_push_that_fails_between_two_looks_is_not_loaded() -> None:
    class Failing:
        """Fails once its error was looked at."""

        done = False

        def error(self) -> Exception | None:
            if self.done:
                return hmc.CorruptError("the digest is another one")
            self.done = True  # before finished() looks whether all has arrived
            return None

        def cancel(self) -> None:
            pass

    with pushing() as sides:
        sides.receiver._asking.say = lambda *_: None  # type: ignore[method-assign]
        sides.offer([5, 6], 40)
        one = wait_for(lambda: next((one for one in sides.receiver._receiving.values() if not one.offering), None))
        part = one.parts[0]
        part.inboxes, part.next = [Failing()], one.end
        part.layers, part.heads = sides.decode.pools[0].layout.layers, sides.decode.pools[0].layout.heads
        assert sides.received() == ({"local t"}, {5, 6})
        assert (sides.loaded.take() or {})["loads_failed"] == 1
