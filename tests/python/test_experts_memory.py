"""hmc.experts: what was closed or refused keeps no memory, and needs no garbage collection for that."""

from __future__ import annotations

import contextlib
import gc
import textwrap
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from survivors import run_survivors

import hmc
import hmc.experts
from hmc import _core
from hmc._deadline import Deadline
from hmc.experts._intake import Intake

X, IDS, WEIGHTS = np.ones((3, 4), np.float32), np.zeros((3, 1), np.int64), np.ones((3, 1), np.float32)

PRELUDE = """
import gc, weakref
import hmc.experts
from experts_layer import *
from hmc.experts import _calls
comm = hmc.init(timeout=30)
ep = buffer_of(comm)
x, ids, weights = rows((1, comm.rank), 17, 33), np.full((17, 1), 12 * (1 - comm.rank)), np.ones((17, 1), np.float32)
made = []
run = _calls.Call.run
def watched(call, deadline):
    made.append(weakref.ref(call))
    return run(call, deadline)
_calls.Call.run = watched
def freed():
    assert made and all(call() is None for call in made), gc.get_referrers(made[-1]())
"""


@pytest.fixture
def comm() -> Iterator[hmc.Communicator]:
    with hmc.init(rank=0, size=1) as made:
        gc.collect()
        gc.disable()
        yield made
        gc.enable()


def buffer_of(comm: hmc.Communicator) -> hmc.experts.Buffer:
    return hmc.experts.Buffer(comm, experts=1, hidden=4, tokens=3, topk=1, dtype="float32")


def memory_of(ep: hmc.experts.Buffer) -> list[weakref.ref[Any]]:
    fabric = ep._fabric
    return [weakref.ref(each) for each in (*fabric.rows, *fabric.scales, *fabric.results, fabric.gathered)]


@pytest.mark.parametrize("kept", ["buffer", "handle"])
def test_a_closed_buffer_that_the_program_keeps_has_no_memory(comm: hmc.Communicator, kept: str) -> None:
    """A new Buffer after Communicator.shrink() is to fit into the device beside it."""
    ep = buffer_of(comm)
    x2, handle = ep.dispatch(X, IDS, WEIGHTS)
    assert np.array_equal(ep.combine(x2, handle), X)
    memory = memory_of(ep)
    ep.close()
    assert all(each() is None for each in memory)
    assert np.array_equal(x2, X)
    if kept == "handle":
        del ep
        assert handle.sources.tolist() == [[0, 0], [0, 1], [0, 2]]
    else:
        ep.close()
        assert ep.alive == (True,)
        assert ep.counters()["sums_on_cpu"] == 1
        assert "closed" in repr(ep)


def test_close_discards_the_result_of_an_interrupted_call(comm: hmc.Communicator) -> None:
    ep = buffer_of(comm)

    class Interrupted:  # as by Ctrl-C once the call is over
        def __init__(self, owner: hmc.experts.Buffer) -> None:
            self.owner, self.lock = weakref.ref(owner), owner._lock

        def acquire(self, *arguments: Any) -> bool:
            return bool(self.lock.acquire(*arguments))

        def release(self) -> None:
            self.lock.release()
            self.owner()._lock = self.lock
            raise KeyboardInterrupt

    ep._lock = Interrupted(ep)
    with contextlib.suppress(KeyboardInterrupt):
        ep.dispatch(X, IDS, WEIGHTS)
    ep.close()
    gone = weakref.ref(ep)
    del ep
    assert gone() is None


def test_copies_that_a_device_refuses_keep_no_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ids:
        def __init__(self) -> None:
            self.__cuda_array_interface__ = {"shape": (3, 1), "typestr": "<i4", "version": 3, "data": (4096, False)}

    monkeypatch.setattr(_core, "queue_copies", lambda copies: ([False], [], hmc.DeviceError("no copies")))
    intake, ids = Intake(), Ids()
    gc.disable()
    try:
        with contextlib.suppress(hmc.DeviceError):
            intake.take(ids, WEIGHTS, [], Deadline(1))
        gone = weakref.ref(ids)
        del ids
        assert gone() is None
    finally:
        gc.enable()


def run(source: str, tmp_path: Path) -> None:
    run_survivors(PRELUDE + textwrap.dedent(source) + "\nend()\n", 2, [0, 1], tmp_path)


def test_a_masked_rank_keeps_no_rows_of_the_call_that_was_refused(tmp_path: Path) -> None:
    source = """
    if comm.rank == 0:
        ep.mask(1)
        comm.barrier(timeout=20)
    else:
        comm.barrier(timeout=20)
        gc.disable()
        for _ in range(2):
            assert "has masked this rank" in refused(hmc.PeerLostError, ep.dispatch, x, ids, weights, timeout=20)
        ep.close(timeout=20)
        freed()
    comm.barrier(timeout=20)
    ep.close(timeout=20)
    """
    run(source, tmp_path)


def test_a_refused_header_keeps_no_rows(tmp_path: Path) -> None:
    source = """
    announce = _calls.Combine.announce
    def offer_wrong(call, ranks):
        damaged = bytearray(call.fabric.results[call.number % 2].descriptor)
        damaged[1] ^= 0xFF
        call._steps.offer(bytes(damaged))
        announce(call, ranks)
    gc.disable()
    x2, handle = ep.dispatch(x, ids, weights, timeout=20)
    if comm.rank == 1:
        _calls.Combine.announce = offer_wrong
        ep.combine(apply(ep, x2, handle), handle, timeout=20)
    else:
        assert "names no results" in refused(hmc.ProtocolError, ep.combine, apply(ep, x2, handle), handle, timeout=20)
        assert "names no results" in refused(hmc.ProtocolError, ep.resume, timeout=20)
    comm.barrier(timeout=20)
    ep.close(timeout=20)
    freed()
    """
    run(source, tmp_path)


def test_a_rank_that_left_keeps_no_rows(tmp_path: Path) -> None:
    source = """
    x2, handle = ep.dispatch(x, ids, weights, timeout=20)
    ep.combine(apply(ep, x2, handle), handle, timeout=20)
    comm.barrier(timeout=20)
    if comm.rank == 0:
        ep.close(timeout=20)
        comm.barrier(timeout=20)
    else:
        comm.barrier(timeout=20)
        gc.disable()
        x2, handle = ep.dispatch(x, ids, weights, timeout=20)
        ep.combine(apply(ep, x2, handle), handle, timeout=20)
        freed()
        ep.close(timeout=20)
    """
    run(source, tmp_path)
