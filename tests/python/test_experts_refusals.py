"""hmc.experts: wrong arguments and calls out of turn are refused by name, and change nothing."""

from __future__ import annotations

import gc
import textwrap
import weakref
from collections.abc import Callable

import pytest

import hmc
import hmc.experts
from hmc.experts._fabric import Fabric
from hmc.experts._shape import Shape

PRELUDE = """
import copy
import hmc.experts
from experts_layer import *
"""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"experts": 0}, "experts is 0"),
        ({"hidden": 0}, "hidden is 0"),
        ({"tokens": -1}, "tokens is -1"),
        ({"topk": 0}, "topk is 0"),
        ({"topk": 9}, "topk is 9 of 8 experts"),
        ({"dtype": "int32"}, "dtype is int32"),
        ({"dtype": "nonsense"}, "nonsense"),
        ({"combine_dtype": "float8_e4m3fn"}, "combine_dtype is float8_e4m3fn"),
        ({"dtype": "float8_e4m3fn", "hidden": 130}, "hidden is 130"),
    ],
)
def test_sizes_and_types_are_checked(changes: dict[str, object], said: str) -> None:
    arguments = {"experts": 8, "hidden": 64, "tokens": 4, "topk": 2, "dtype": "float32", "combine_dtype": None, **changes}
    with pytest.raises(hmc.InvalidArgumentError, match=said):
        Shape.of(2, **arguments)


def test_arguments_of_calls_are_checked(run_job: Callable[..., str]) -> None:
    source = """
    with hmc.init() as comm, buffer_of(comm) as ep, buffer_of(comm) as other:
        x = rows((1, comm.rank), 17, 33)
        ids, weights = routing((1, comm.rank), 17, 5, 13)
        def wrong(said, *arguments):
            message = refused(hmc.InvalidArgumentError, ep.dispatch, *arguments, timeout=1)
            assert said in message, message
        twice, beyond, below = ids.copy(), ids.copy(), ids.copy()
        twice[3, [1, 4]], beyond[2, 0], below[16, 4] = 6, 13, -2
        wrong("topk_ids[3] has expert 6 twice", x, twice, weights)
        wrong("topk_ids[2, 0] is 13", x, beyond, weights)
        wrong("topk_ids[16, 4] is -2", x, below, weights)
        wrong("pass integers", x, ids.astype(np.float32), weights)
        wrong("pass integers", x, ids[0], weights)
        wrong("at most 17 tokens and top 5", x, np.zeros((18, 1), int), weights)
        wrong("at most 17 tokens and top 5", x, np.full((17, 6), -1), weights)
        wrong("topk_weights: shape", x, ids, weights[:, :4])
        wrong("topk_weights: elements", x, ids, weights.astype(complex))
        wrong("x: 16 rows; topk_ids has 17", x[:16], ids, weights)
        wrong("x: shape (17, 32)", x[:, :32], ids, weights)
        wrong("x: elements of float64", x.astype(float), ids, weights)
        wrong("x: elements of float16", x.astype(np.float16), ids, weights)
        wrong("x: pass one array", (x, x), ids, weights)
        refused(hmc.InvalidArgumentError, ep.dispatch, object(), ids, weights)
        refused(hmc.InvalidArgumentError, ep.dispatch, x, ids, weights, timeout=-1)

        x2, handle = ep.dispatch(x, ids, weights, timeout=20)
        copied = copy.copy(handle)
        results = apply(ep, x2, handle)
        _, foreign = other.dispatch(x, ids, weights, timeout=20)
        for call in (ep.combine, lambda r, h: ep.release(h), lambda r, h: ep.results(h)):
            assert "no handle of this Buffer" in refused(hmc.InvalidArgumentError, call, results, foreign)
            assert "no handle of this Buffer" in refused(hmc.InvalidArgumentError, call, results, "handle")
        assert "rows; x2 has" in refused(hmc.InvalidArgumentError, ep.combine, results[1:], handle)
        assert "elements of float64" in refused(hmc.InvalidArgumentError, ep.combine, results.astype(float), handle)
        assert "shape" in refused(hmc.InvalidArgumentError, ep.combine, results[:, 1:], handle)
        second = ep.dispatch(x, ids, weights, timeout=20)
        assert "2 dispatches are without" in refused(hmc.InvalidArgumentError, ep.dispatch, x, ids, weights)
        assert "is older" in refused(hmc.InvalidArgumentError, ep.combine, apply(ep, *second), second[1])
        # Nothing of this has changed anything.
        for x2, handle in ((x2, handle), second):
            check_sum(ep, ep.combine(apply(ep, x2, handle), handle, timeout=20), x, ids, weights, handle)
        for used in (handle, copied):
            assert "has had its combine" in refused(hmc.InvalidArgumentError, ep.combine, results, used)
        for rank in (-1, 2, comm.rank):
            refused(hmc.InvalidArgumentError, ep.mask, rank)
        other.release(foreign, timeout=20)
        comm.barrier(timeout=20)
    assert "closed" in refused(hmc.ClosedError, ep.dispatch, x, ids, weights)
    print("done")
    """
    assert run_job(PRELUDE + textwrap.dedent(source), 2).count("done") == 2


def test_ranks_that_ask_for_different_buffers(run_job: Callable[..., str]) -> None:
    source = """
    with hmc.init() as comm:
        message = refused(hmc.InvalidArgumentError, buffer_of, comm, hidden=33 + comm.rank)
        assert "pass the same everywhere" in message and "hidden=34" in message and "hidden=33" in message
        with buffer_of(comm) as ep:
            check_round(ep, 0, 33, 17, 5, 13)
    print("done")
    """
    assert run_job(PRELUDE + textwrap.dedent(source), 2).count("done") == 2


@pytest.mark.parametrize(
    ("device", "error"),
    [
        ("nonsense", "InvalidArgumentError"),
        ("cuda:x", "InvalidArgumentError"),
        ("", "InvalidArgumentError"),
        (None, "InvalidArgumentError"),
        ("mlu:9999", "UnsupportedError"),
    ],
)
def test_every_rank_gets_the_error_of_its_own_device(run_job: Callable[..., str], device: object, error: str) -> None:
    """However late the others find theirs."""
    source = f"""
    import time
    make = hmc.Communicator.buffer
    with hmc.init() as comm:
        for late in range(comm.size):
            def buffer(self, *arguments, **more):
                time.sleep(0.3 if comm.rank == late else 0)
                return make(self, *arguments, **more)
            hmc.Communicator.buffer = buffer
            message = refused(hmc.{error}, buffer_of, comm, device={device!r})
            assert {str(device)!r} in message, message
            hmc.Communicator.buffer = make
        if comm.rank == 1:
            message = refused(hmc.{error}, buffer_of, comm, device={device!r})
        else:
            message = refused(hmc.HmcCancelledError, buffer_of, comm)
            assert "rank 1" in message, message
        assert {str(device)!r} in message, message
        with buffer_of(comm) as ep:
            check_round(ep, 0, 33, 17, 5, 13)
    print("done")
    """
    assert run_job(PRELUDE + textwrap.dedent(source), 3).count("done") == 3


@pytest.mark.parametrize("failing", [1, 2, 4])
def test_a_rank_that_cannot_make_its_buffer_is_named_by_the_others(run_job: Callable[..., str], failing: int) -> None:
    source = f"""
    with hmc.init() as comm:
        make, calls = hmc.Communicator.buffer, []
        def fails(self, *arguments, **more):
            calls.append(arguments)
            if len(calls) == {failing}:
                raise hmc.OutOfMemoryError("no memory for call {failing}")
            return make(self, *arguments, **more)
        if comm.rank == 1:
            hmc.Communicator.buffer = fails
            assert "no memory" in refused(hmc.OutOfMemoryError, buffer_of, comm)
            hmc.Communicator.buffer = make
        else:
            message = refused(hmc.HmcCancelledError, buffer_of, comm)
            assert "rank 1" in message, message
            assert "no memory for call {failing}" in message, message
        comm.barrier(timeout=40)
        with buffer_of(comm) as ep:
            check_round(ep, 0, 33, 17, 5, 13)
    print("done")
    """
    assert run_job(PRELUDE + textwrap.dedent(source), 3, timeout=100).count("done") == 3


def test_strided_and_read_only_input(run_job: Callable[..., str]) -> None:
    source = """
    with hmc.init() as comm, buffer_of(comm) as ep:
        wide = rows((1, comm.rank), 34, 66)
        x = wide[::2, ::2]
        ids, weights = routing((1, comm.rank), 17, 5, 13)
        for array in (x, ids, weights):
            array.flags.writeable = False
        x2, handle = ep.dispatch(x, ids.tolist(), weights.astype(np.float64), timeout=20)
        results = np.asfortranarray(apply(ep, x2, handle))
        check_sum(ep, ep.combine(results, handle, timeout=20), x, ids, weights, handle)
    print("done")
    """
    assert run_job(PRELUDE + textwrap.dedent(source), 2).count("done") == 2


def test_a_buffer_that_cannot_be_made_frees_its_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at the next garbage collection, which may be far: a smaller Buffer is to fit into the device."""
    made: list[weakref.ref[Fabric]] = []
    allocate = Fabric._allocate

    def watched(fabric: Fabric, device: str) -> None:
        made.append(weakref.ref(fabric))
        allocate(fabric, device)

    monkeypatch.setattr(Fabric, "_allocate", watched)
    said = ""
    with hmc.init(rank=0, size=1) as comm:
        gc.disable()
        try:
            hmc.experts.Buffer(comm, experts=1, hidden=1, tokens=1, topk=1, device="nonsense:0")
        except hmc.HmcError as error:
            said = str(error)
        finally:
            gc.enable()
        assert "nonsense" in said
        assert made[0]() is None
