"""A child of fork() that leaves a with statement of its parent: what its parent shares with others stays as it is."""

from __future__ import annotations

from collections.abc import Callable

FORKED = """
import os, sys

def in_child(work):
    \"""The exit status of a child that ends within ``work``.\"""
    child = os.fork()
    if child == 0:
        status = 9
        try:
            work()
        except BaseException as error:
            status = error.code if isinstance(error, SystemExit) else 3 if "fork" in str(error) else 4
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""

PUBLICATION = """
from hmc import weights

array, target = np.arange(5000, dtype=np.float32), np.zeros(5000, np.float32)
with hmc.Context() as source, hmc.Context() as ctx:
    peer = ctx.connect(source.addresses[0], timeout=60)
    with weights.publish(source, {"x": array}, epoch=4) as published:
        found = weights.lookup(ctx, peer, timeout=60)
        with weights.plan(found, {"x": target}) as plan:
            def updates():
                with published.update(5):
                    array[:] = 1

            for work in (
                published.close,
                lambda: published.__exit__(),
                updates,
                plan.pull,
                plan.pulled,
                plan.commit,
                plan.close,
            ):
                assert in_child(work) == 3, work
            with published.update(6):
                array[:] = np.arange(5000)
                assert in_child(lambda: sys.exit(7)) == 7
            plan.pull(timeout=60).wait()
            assert plan.commit() == 6
            assert np.array_equal(target, array)
"""

EXPERTS = """
import hmc.experts
from experts_layer import *

with hmc.init() as comm, buffer_of(comm) as ep:
    random = np.random.default_rng(comm.rank)
    x, other = (random.normal(size=(17, 33)).astype(np.float32) for _ in range(2))
    ids, weights = routing((1, comm.rank), 17, 5, 13)
    if comm.rank == 0:
        # The child dispatches other rows after its parent has staged its own, and before the other rank reads them.
        begins, begin = os.pipe()
        child = os.fork()
        if child == 0:
            status = 9
            try:
                os.read(begins, 1)
                for call in (lambda: ep.dispatch(other, ids, weights, timeout=1), lambda: ep.mask(1), lambda: ep.close(1)):
                    try:
                        call()
                        os._exit(8)
                    except hmc.ClosedError:
                        pass
                status = 0 if "2 of 2 ranks" in repr(ep) else 7
            finally:
                os._exit(status)
        try:
            ep.dispatch(x, ids, weights, timeout=0.2)
            raise AssertionError("the other rank has not called yet")
        except hmc.HmcTimeoutError:
            pass
        os.write(begin, b"x")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    comm.barrier(timeout=40)
    x2, handle = ep.dispatch(x, ids, weights, timeout=60) if comm.rank else ep.resume(timeout=60)
    sent = comm.exchange_bytes(x.tobytes(), timeout=60)
    known = {row.tobytes() for one in sent for row in np.frombuffer(one, np.float32).reshape(17, 33)}
    assert all(row.tobytes() in known for row in np.asarray(x2))
    assert ep.alive == (True, True)
    ep.release(handle, timeout=60)
    comm.barrier(timeout=60)
"""


def test_a_publication_outlives_children(run_script: Callable[..., str]) -> None:
    run_script(FORKED + PUBLICATION, {})


def test_a_child_dispatches_nothing_of_its_parent(run_job: Callable[..., str]) -> None:
    run_job(FORKED + EXPERTS, 2, timeout=150, environment={"HMC_TRANSPORTS": "shm,local"})
