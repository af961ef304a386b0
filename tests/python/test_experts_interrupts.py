"""hmc.experts and Ctrl-C: an interrupt at any moment of a call loses no notification, no result and no lock."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from survivors import run_survivors

PRELUDE = """
import random
import hmc.experts
from experts_layer import *
hits = 0
wanted = False
usual = 3e-3  # seconds of the last call that nothing interrupted: hosts differ tenfold
def interrupt(*_):
    global wanted
    if wanted:
        wanted = False
        raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
def interrupted(call, again):
    "The result of a call that is interrupted within about its duration, and then continued."
    global hits, usual, wanted
    wanted = False
    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, usual))
    try:
        wanted = True
        started = time.perf_counter()
        found = call()
        wanted = False
        usual = time.perf_counter() - started
        return found
    except KeyboardInterrupt:
        hits += 1
        try:
            return again()
        except hmc.InvalidArgumentError as error:
            assert "no call has timed out" in str(error)
            return call()
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_calls_interrupted_at_any_moment_are_resumed(transport: str, tmp_path: Path) -> None:
    source = """
    comm = hmc.init(timeout=30)
    ep = buffer_of(comm)
    for number in range(60):
        x = rows((number, comm.rank), 17, 33)
        ids, weights = routing((number, comm.rank), 17, 5, 13)
        resume = lambda: ep.resume(timeout=20)
        run = interrupted if comm.rank == 0 else lambda call, again: call()
        x2, handle = run(lambda: ep.dispatch(x, ids, weights, timeout=20), resume)
        results = apply(ep, x2, handle)
        y = run(lambda: ep.combine(results, handle, timeout=20), resume)
        check_sum(ep, y, x, ids, weights, handle)
        assert not handle.lost.any()
    assert hits >= 5 or comm.rank
    comm.barrier(timeout=20)
    run(lambda: ep.close(timeout=20), lambda: ep.close(timeout=20))
    refused(hmc.ClosedError, ep.mask, 1 - comm.rank)
    end()
    """
    prelude = f"os.environ['HMC_TRANSPORTS'] = '{transport},local'\n" + PRELUDE
    run_survivors(prelude + textwrap.dedent(source), 2, [0, 1], tmp_path)


def test_a_refused_call_does_not_lose_the_result_of_an_interrupted_one(tmp_path: Path) -> None:
    source = """
    class Interrupted:  # as by Ctrl-C once the call is over
        def __init__(self, lock):
            self.lock = lock
        def acquire(self, *arguments):
            return self.lock.acquire(*arguments)
        def release(self):
            self.lock.release()
            ep._lock = self.lock
            raise KeyboardInterrupt
    comm = hmc.init(timeout=30)
    ep = buffer_of(comm)
    x, (ids, weights) = rows((1,), 17, 33), routing((1,), 17, 5, 13)
    ep._lock = Interrupted(ep._lock)
    refused(KeyboardInterrupt, ep.dispatch, x, ids, weights, timeout=20)
    refused(hmc.InvalidArgumentError, ep.release, None)
    x2, handle = ep.resume(timeout=20)
    check_sum(ep, ep.combine(apply(ep, x2, handle), handle, timeout=20), x, ids, weights, handle)
    assert "no call has timed out" in refused(hmc.InvalidArgumentError, ep.resume)
    ep.close()
    end()
    """
    run_survivors(PRELUDE + textwrap.dedent(source), 1, [0], tmp_path)


@pytest.mark.parametrize("step", ["announce", "write"])
def test_close_does_not_wait_for_ranks_without_a_header(step: str, tmp_path: Path) -> None:
    source = f"""
    from hmc.experts._calls import Combine
    comm = hmc.init(timeout=30)
    ep = buffer_of(comm)
    x, (ids, weights) = rows((comm.rank,), 17, 33), routing((comm.rank,), 17, 5, 13)
    check_round(ep, 0, 33, 17, 5, 13)
    x2, handle = ep.dispatch(x, ids, weights, timeout=20)
    results = apply(ep, x2, handle)
    comm.barrier(timeout=20)
    if comm.rank == 0:
        def interrupted(call, ranks, announce=Combine.announce):
            if "{step}" == "write":
                announce(call, ranks)
            else:  # as by Ctrl-C between two ranks
                announce(call, ranks[:2])
            raise KeyboardInterrupt
        Combine.announce = interrupted
        refused(KeyboardInterrupt, ep.combine, results, handle, timeout=20)
        ep.close(timeout=20)
    else:
        y = ep.combine(results, handle, timeout=20)
        check_sum(ep, y, x, ids, weights, handle)
        assert ep.alive[0] is False and handle.lost.any()
    comm.barrier(timeout=20)
    ep.close(timeout=20)
    end()
    """
    run_survivors(PRELUDE + textwrap.dedent(source), 3, [0, 1, 2], tmp_path)


def test_a_combine_interrupted_while_its_memory_grows_is_resumed(tmp_path: Path) -> None:
    source = """
    from hmc.experts._memory import Growing
    comm = hmc.init(timeout=30)
    ep = buffer_of(comm)
    x, (ids, weights) = rows((comm.rank,), 17, 33), routing((comm.rank,), 17, 5, 13)
    x2, handle = ep.dispatch(x, ids, weights, timeout=20)
    results = apply(ep, x2, handle)
    if comm.rank == 0:
        usual, gathered, grown = Growing.buffer, ep._fabric.gathered, Growing.rows
        def rows_of(growing, *arguments):
            found = grown(growing, *arguments)
            if growing is gathered:
                Growing.rows, Growing.buffer = grown, property(interrupted)
            return found
        def interrupted(growing):
            Growing.buffer = usual
            raise KeyboardInterrupt
        Growing.rows = rows_of
        refused(KeyboardInterrupt, ep.combine, results, handle, timeout=20)
        y = ep.resume(timeout=20)
    else:
        y = ep.combine(results, handle, timeout=20)
    check_sum(ep, y, x, ids, weights, handle)
    comm.barrier(timeout=20)
    ep.close()
    end()
    """
    run_survivors("os.environ['HMC_TRANSPORTS'] = 'tcp,local'\n" + PRELUDE + textwrap.dedent(source), 2, [0, 1], tmp_path)


def test_mask_after_an_interrupted_mask_ends_the_transfers_from_the_rank(tmp_path: Path) -> None:
    """Else a rank that continues may write into rows of a later call."""
    source = """
    from hmc.experts._peers import Peers
    comm = hmc.init(timeout=30)
    ep = buffer_of(comm)
    if comm.rank == 0:
        x, (ids, weights) = rows((1,), 17, 33), routing((1,), 17, 5, 13)
        refused(hmc.HmcTimeoutError, ep.dispatch, x, ids, weights, timeout=0.2)
        forgotten, forget, lose = [], ep._pending.forget, Peers.lose
        ep._pending.forget = lambda rank: (forgotten.append(rank), forget(rank))
        def interrupted(peers, rank):
            Peers.lose = lose
            lose(peers, rank)
            raise KeyboardInterrupt
        Peers.lose = interrupted
        refused(KeyboardInterrupt, ep.mask, 1)
        assert not ep.alive[1] and not forgotten
        ep.mask(1)
        assert forgotten == [1]
        x2, handle = ep.resume(timeout=20)
        check_sum(ep, ep.combine(apply(ep, x2, handle), handle, timeout=20), x, ids, weights, handle)
    comm.barrier(timeout=20)
    ep.close()
    end()
    """
    run_survivors(PRELUDE + textwrap.dedent(source), 2, [0, 1], tmp_path)


def test_a_signal_handler_does_not_wait_for_the_call_that_it_interrupts(tmp_path: Path) -> None:
    source = """
    comm = hmc.init(timeout=30)
    ep = buffer_of(comm)
    x, (ids, weights) = rows((comm.rank,), 17, 33), routing((comm.rank,), 17, 5, 13)
    if comm.rank == 0:
        said = []
        def handler(*_):
            for call in (lambda: ep.mask(1), lambda: ep.close(None), lambda: ep.results(None), ep.resume):
                said.append(refused(hmc.InvalidArgumentError, call))
            comm.send(b"1", 1, timeout=20)
        signal.signal(signal.SIGUSR1, handler)
        def interrupt():
            soon(lambda: ep._pending)
            os.kill(os.getpid(), signal.SIGUSR1)
        threading.Thread(target=interrupt).start()
    else:
        comm.recv(bytearray(1), 0, timeout=20)
    x2, handle = ep.dispatch(x, ids, weights, timeout=20)
    check_sum(ep, ep.combine(apply(ep, x2, handle), handle, timeout=20), x, ids, weights, handle)
    assert comm.rank or len(said) == 4 and all("signal handler" in text for text in said), said
    comm.barrier(timeout=20)
    ep.close(timeout=20)
    end()
    """
    run_survivors(PRELUDE + textwrap.dedent(source), 2, [0, 1], tmp_path)


def test_an_interrupted_dispatch_is_resumed(tmp_path: Path) -> None:
    source = """
    comm = hmc.init(timeout=30)
    ep = buffer_of(comm)
    x = rows((1, comm.rank), 17, 33)
    ids, weights = routing((1, comm.rank), 17, 5, 13)
    if comm.rank == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        def interrupt():
            soon(lambda: ep._pending)
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        refused(KeyboardInterrupt, ep.dispatch, x, ids, weights, timeout=20)
        comm.send(b"1", 1, timeout=20)
        x2, handle = ep.resume(timeout=20)
    else:
        comm.recv(bytearray(1), 0, timeout=20)
        x2, handle = ep.dispatch(x, ids, weights, timeout=20)
    check_sum(ep, ep.combine(apply(ep, x2, handle), handle, timeout=20), x, ids, weights, handle)
    assert not handle.lost.any()
    ep.close()
    end()
    """
    run_survivors(PRELUDE + textwrap.dedent(source), 2, [0, 1], tmp_path)
