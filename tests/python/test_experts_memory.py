"""hmc.experts: what was closed or refused keeps no memory, and needs no garbage collection for that."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hmc
import hmc.experts

X, IDS, WEIGHTS = np.ones((3, 4), np.float32), np.zeros((3, 1), np.int64), np.ones((3, 1), np.float32)


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
