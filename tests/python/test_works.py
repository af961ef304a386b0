"""Work objects: what they keep, what they refuse, and how long borrowed arrays live."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator

import numpy as np
import pytest
from patterns import pattern

import hmc

LARGE = 4 << 20


@pytest.fixture
def pair() -> Iterator[tuple[hmc.Peer, hmc.Peer]]:
    with hmc.Context() as a, hmc.Context() as b:
        ab = a.connect(b.addresses[0], timeout=20)
        yield ab, b.accept(timeout=20)


def references(array: object) -> int:
    return sys.getrefcount(array)


def eventually(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + 20
    while not condition() and time.monotonic() < until:
        time.sleep(0.001)
    return condition()


def test_a_work_refuses_construction_copies_and_other_types(pair: tuple[hmc.Peer, hmc.Peer]) -> None:
    ab, _ = pair
    work = ab.isend(np.zeros(8, np.uint8))
    for make in (hmc.Work, lambda: hmc.Work.__new__(hmc.Work), lambda: copy.copy(work), lambda: object.__new__(hmc.Work)):
        with pytest.raises(TypeError):
            make()
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError):
            pickle.dumps(work, protocol)
    for wrong in (None, 1, "work", object(), hmc.Work):
        with pytest.raises(TypeError):
            hmc.wait_all([work, wrong])  # type: ignore[list-item]
        with pytest.raises(TypeError):
            hmc.Work.wait(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            hmc.Work.cancel(wrong)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        work.done = True  # type: ignore[misc]
    with pytest.raises(AttributeError):
        work.extra = 1  # type: ignore[attr-defined]


def test_works_are_awaitable_hashable_and_weakly_referenced(pair: tuple[hmc.Peer, hmc.Peer]) -> None:
    ab, ba = pair
    received = np.zeros(8, np.uint8)
    work = ba.irecv(received)
    called: list[object] = []
    gone = weakref.ref(work, called.append)
    assert gone() is work
    assert isinstance(work, Awaitable)
    assert work in {work}
    ab.send(pattern(8, 1))

    async def wait(work: hmc.Work) -> hmc.MessageInfo:
        return await work

    assert asyncio.run(wait(work)).bytes == 8
    assert (received == pattern(8, 1)).all()
    del work
    gc.collect()
    assert gone() is None
    assert called == [gone]


@pytest.mark.parametrize("drop", [True, False])
def test_a_pending_receive_keeps_its_array(pair: tuple[hmc.Peer, hmc.Peer], drop: bool) -> None:
    ab, ba = pair
    array = np.zeros(64, np.uint8)
    before = references(array)
    work = ba.irecv(array) if not drop else None
    if drop:
        ba.irecv(array)
    assert references(array) == before + 1
    ab.send(pattern(64, 2))
    if work is not None:
        work.wait(20)
    assert eventually(lambda: references(array) == before)
    assert (array == pattern(64, 2)).all()


def test_a_pending_send_keeps_its_array_alone(pair: tuple[hmc.Peer, hmc.Peer]) -> None:
    ab, ba = pair
    array = pattern(LARGE, 3)
    gone = weakref.ref(array)
    ab.isend(array)
    del array
    gc.collect()
    assert gone() is not None
    received = np.zeros(LARGE, np.uint8)
    ba.recv(received, timeout=20)
    assert (received == pattern(LARGE, 3)).all()
    assert eventually(lambda: gone() is None)


def test_a_cancelled_receive_returns_its_array(pair: tuple[hmc.Peer, hmc.Peer]) -> None:
    ab, ba = pair
    array = np.zeros(64, np.uint8)
    before = references(array)
    work = ba.irecv(array)
    work.cancel()
    assert eventually(lambda: references(array) == before)
    with pytest.raises(hmc.HmcCancelledError):
        work.wait()
    later = np.zeros(64, np.uint8)
    ab.send(pattern(64, 4))
    ba.recv(later, timeout=20)
    assert (later == pattern(64, 4)).all()
    assert not array.any()


@pytest.mark.parametrize(
    "fail",
    [
        lambda ab, array: ab.isend(array, tag=-1),
        lambda ab, array: ab.isend(array, tag="x"),
        lambda ab, array: ab.isend(array, stream="no stream"),
        lambda ab, array: ab.isend(array, stream=7),
        lambda ab, array: ab.irecv(array, tag=-7),
        lambda ab, array: ab.irecv(array, stream=object()),
        lambda ab, array: ab.send(array, timeout=-1),
    ],
)
def test_a_call_that_raises_keeps_no_array(pair: tuple[hmc.Peer, hmc.Peer], fail: Callable[[hmc.Peer, object], object]) -> None:
    array = np.zeros(64, np.uint8)
    before = references(array)
    for _ in range(20):
        with pytest.raises((hmc.HmcError, TypeError, ValueError)):
            fail(pair[0], array)
    assert eventually(lambda: references(array) == before)


def test_wait_all_reports_the_first_error_by_index(pair: tuple[hmc.Peer, hmc.Peer]) -> None:
    ab, ba = pair
    short, cancelled = ba.irecv(np.zeros(1, np.uint8), tag=1), ba.irecv(np.zeros(1, np.uint8), tag=2)
    good = ba.irecv(np.zeros(8, np.uint8), tag=3)
    hmc.wait_all([])
    with pytest.raises(hmc.HmcTimeoutError):
        hmc.wait_all([good], timeout=0.01)
    cancelled.cancel()
    for tag in (1, 3):
        ab.send(np.zeros(8, np.uint8), tag=tag)
    with pytest.raises(hmc.HmcCancelledError):
        hmc.wait_all((work for work in (good, cancelled, short)), timeout=20)
    with pytest.raises(hmc.InvalidArgumentError, match="does not fit"):
        hmc.wait_all([good, short, cancelled], timeout=20)
    hmc.wait_all([good, good])
    with pytest.raises(hmc.InvalidArgumentError):
        hmc.wait_all([good], timeout=-1)
    with pytest.raises(hmc.InvalidArgumentError, match="does not fit"):
        short.wait()
    assert isinstance(short.error(), hmc.InvalidArgumentError)


def test_a_work_of_the_parent_in_a_forked_child(pair: tuple[hmc.Peer, hmc.Peer]) -> None:
    _, ba = pair
    array = np.zeros(8, np.uint8)
    pending = ba.irecv(array)
    child = os.fork()
    if child == 0:
        outcome = 1
        try:
            hmc.wait_all([pending], timeout=5)
        except hmc.ClosedError:
            del pending, array
            gc.collect()
            outcome = 0
        finally:
            os._exit(outcome)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pending.cancel()


def test_await_of_a_work_of_the_parent_in_a_forked_child_fails(pair: tuple[hmc.Peer, hmc.Peer]) -> None:
    _, ba = pair
    pending = ba.irecv(np.zeros(8, np.uint8))

    async def result() -> None:
        await pending

    child = os.fork()
    if child == 0:
        outcome = 1
        try:
            asyncio.run(asyncio.wait_for(result(), 20))
        except hmc.ClosedError as error:
            outcome = 0 if "fork()" in str(error) else 2
        except TimeoutError:
            outcome = 3
        finally:
            os._exit(outcome)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pending.cancel()


def test_threads_post_and_drop_works_at_once(pair: tuple[hmc.Peer, hmc.Peer]) -> None:
    ab, ba = pair
    failed: list[BaseException] = []
    arrays = [pattern(256, seed) for seed in range(4)]
    before = list(map(references, arrays))

    def stream(tag: int) -> None:
        try:
            for _ in range(200):
                received = np.zeros(256, np.uint8)
                works = [ba.irecv(received, tag=tag), ab.isend(arrays[tag], tag=tag)]
                del works[1]
                hmc.wait_all(works, timeout=20)
                assert (received == arrays[tag]).all()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=stream, args=(tag,)) for tag in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert eventually(lambda: list(map(references, arrays)) == before)
