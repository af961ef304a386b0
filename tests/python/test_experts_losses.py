"""hmc.experts beside ranks that die, stop, leave and come late: the others go on, and no sum has a wrong number in it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from survivors import run_survivors

PRELUDE = """
import hmc.experts
from experts_layer import *
from hmc.experts import _calls, _fabric
"""
TRANSPORTS = pytest.mark.parametrize("transport", ["shm", "tcp"])

# Where rank 1 dies in its sixth call: what it has sent until then differs.
POINTS = {
    "before dispatch": "before(Dispatch, '_send')",
    "after one header of dispatch": "after_headers(Kind.DISPATCH, 1)",
    "after its headers of dispatch": "before(Dispatch, '_collect')",
    "while it reads rows": "before(Dispatch, '_await')",
    "while the experts compute": "before(Dispatch, 'finish')",
    "after one header of combine": "after_headers(Kind.COMBINE, 1)",
    "after its headers of combine": "before(Combine, '_collect')",
    "while it reads results": "before(Combine, '_await')",
    "before it acknowledges": "before(Combine, 'finish')",
}
KILLS = """
from hmc.experts._calls import Call, Combine, Dispatch
from hmc.experts._fabric import Kind
def before(cls, name):
    original = getattr(cls, name)
    def step(self, *arguments):
        if self.number == 5:
            die()
        return original(self, *arguments)
    setattr(cls, name, step)
def after_headers(kind, count):
    original = Call._put_headers
    def put_headers(self, ranks):
        if self.kind is kind and self.number == 5:
            original(self, ranks[:count])
            die()
        return original(self, ranks)
    Call._put_headers = put_headers
"""


def job(source: str, transport: str) -> str:
    return f"os.environ['HMC_TRANSPORTS'] = '{transport},local'\n" + PRELUDE + KILLS + textwrap.dedent(source)


@TRANSPORTS
@pytest.mark.parametrize("point", POINTS)
def test_a_rank_that_dies_is_masked_and_the_others_go_on(point: str, transport: str, tmp_path: Path) -> None:
    once = (list(POINTS).index(point) % 2 == 0) == (transport == "shm")
    source = f"""
    comm = hmc.init(timeout=30)
    ep = buffer_of(comm, once={once})
    if comm.rank == 1:
        {POINTS[point]}
    for number in range(12):
        handle = check_round(ep, number, 33, 17, 5, 13)
        if number < 4:  # rank 1 may die before the others have read its results of call 4
            assert not handle.lost.any()
        if number > 5:
            assert ep.alive == (True, False, True) and handle.lost.any()
            ids, _ = routing((number, comm.rank), 17, 5, 13)
            assert np.array_equal(handle.lost, np.isin(ids, ep.experts_of(1)))
            assert 1 not in handle.sources[:, 0]
    start = time.monotonic()
    ep.close()
    assert time.monotonic() - start < 20
    end()
    """
    run_survivors(job(source, transport), 3, [0, 2], tmp_path)


@TRANSPORTS
@pytest.mark.parametrize("delay_ms", [3, 17, 40, 95])
def test_ranks_killed_at_any_moment(delay_ms: int, transport: str, tmp_path: Path) -> None:
    source = f"""
    comm = hmc.init(timeout=30)
    ep = buffer_of(comm, hidden=3001)
    comm.barrier(timeout=30)
    give(f"past {{comm.rank}}")
    if comm.rank in (0, 2):
        for rank in range(4):  # a death would end a barrier that they have not returned from
            take(f"past {{rank}}")
        threading.Timer({delay_ms} / 1000 * (1 + comm.rank), die).start()
    number = 0
    rounds_alone = 0
    while rounds_alone < 5:
        check_round(ep, number, 3001, 17, 5, 13)
        number += 1
        rounds_alone += not (ep.alive[0] or ep.alive[2])
    ep.close()
    end()
    """
    run_survivors(job(source, transport), 4, [1, 3], tmp_path)


@TRANSPORTS
@pytest.mark.parametrize("call", ["dispatch", "combine"])
def test_a_stopped_rank_is_a_timeout_then_resumed_or_masked(call: str, transport: str, tmp_path: Path) -> None:
    """Rank 0 resumes, and the call ends well. Then rank 2 stops for longer and is masked; its next call says so."""
    source = f"""
    call = {call!r}
    comm = hmc.init(timeout=30)
    pids = all_pids(comm)
    ep = buffer_of(comm)
    own = [rows((number, comm.rank), 17, 33) for number in range(20)]
    chosen = [routing((number, comm.rank), 17, 5, 13) for number in range(20)]
    def half(number, timeout):
        return ep.dispatch(own[number], *chosen[number], timeout=timeout)
    def barrier_then_stop(number):
        comm.barrier(timeout=20)
        if comm.rank != 2:
            give(f"past {{number}} {{comm.rank}}")
            return
        for rank in (0, 1):  # they have what they read of this rank, and its messages
            take(f"past {{number}} {{rank}}")
        os.kill(os.getpid(), signal.SIGSTOP)
    for number in range(4):
        check_round(ep, number, 33, 17, 5, 13)

    # Rank 2 sleeps for a second.
    if call == "combine":
        x2, handle = half(4, 20)
    barrier_then_stop(1)
    if comm.rank == 0:
        while "stopped" not in open(f"/proc/{{pids[2]}}/status").read():
            time.sleep(0.01)
        if call == "combine":
            message = refused(hmc.HmcTimeoutError, ep.combine, apply(ep, x2, handle), handle, timeout=0.4)
        else:
            message = refused(hmc.HmcTimeoutError, half, 4, 0.4)
        assert "rank 2 did not answer within 0.4 s" in message or "ranks 1, 2" in message, message
        assert "resume() it first" in refused(hmc.InvalidArgumentError, half, 5, 1)
        os.kill(pids[2], signal.SIGCONT)
        if call == "combine":
            y = ep.resume(timeout=20)
        else:
            x2, handle = ep.resume(timeout=20)
    elif call == "dispatch":
        x2, handle = half(4, 20)
    if call == "dispatch" or comm.rank:
        y = ep.combine(apply(ep, x2, handle), handle, timeout=20)
    check_sum(ep, y, own[4], *chosen[4], handle)
    assert not handle.lost.any() and all(ep.alive)
    refused(hmc.InvalidArgumentError, ep.resume)

    # Rank 2 stops for longer than the others wait.
    barrier_then_stop(2)
    if comm.rank == 2:
        for number in range(5, 12):
            try:
                check_round(ep, number, 33, 17, 5, 13)
            except hmc.PeerLostError as error:
                assert "has masked this rank" in str(error)
                break
        else:
            raise AssertionError("a masked rank went on")
        assert "has masked this rank" in refused(hmc.PeerLostError, half, 12, 1)
        ep.close()
        end()
    while "stopped" not in open(f"/proc/{{pids[2]}}/status").read():
        time.sleep(0.01)
    for number in range(5, 12):
        x, (ids, weights) = own[number], chosen[number]
        if number == 5:
            message = refused(hmc.HmcTimeoutError, half, 5, 0.5)
            assert "rank 2" in message or ", 2 " in message, message
            ep.mask(2)
            x2, handle = ep.resume(timeout=20)
        else:
            x2, handle = half(number, 20)
        y = ep.combine(apply(ep, x2, handle), handle, timeout=20)
        assert ep.alive == (True, True, False)
        check_sum(ep, y, x, ids, weights, handle)
        if number == 8 and comm.rank == 0:
            os.kill(pids[2], signal.SIGCONT)  # what it still does harms nobody
    ep.close()
    end()
    """
    run_survivors(job(source, transport), 3, [0, 1, 2], tmp_path)


@TRANSPORTS
def test_a_masked_rank_knows_it_after_the_others_have_ended(transport: str, tmp_path: Path) -> None:
    """It finds no rank that lives, and would otherwise go on alone with sums that lack nearly everything."""
    source = """
    comm = hmc.init(timeout=30)
    pids = all_pids(comm)
    ep = buffer_of(comm)
    check_round(ep, 0, 33, 17, 5, 13)
    comm.barrier(timeout=20)
    if comm.rank == 2:
        for rank in (0, 1):  # they have what they read of this rank, and its messages
            take(f"past {rank}")
        os.kill(os.getpid(), signal.SIGSTOP)
        soon(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids[:2]))
        assert "has masked this rank" in refused(hmc.PeerLostError, check_round, ep, 1, 33, 17, 5, 13)
        assert "has masked this rank" in refused(hmc.PeerLostError, check_round, ep, 2, 33, 17, 5, 13)
    else:
        give(f"past {comm.rank}")
        soon(lambda: "stopped" in open(f"/proc/{pids[2]}/status").read())
        ep.mask(2)
        check_round(ep, 1, 33, 17, 5, 13)
        if comm.rank == 0:
            os.kill(pids[2], signal.SIGCONT)
    ep.close()
    end()
    """
    run_survivors(job(source, transport), 3, [0, 1, 2], tmp_path)


@TRANSPORTS
def test_a_rank_that_closes_its_buffer_is_masked(transport: str, tmp_path: Path) -> None:
    """It leaves with its last results read, also by a slow rank, and with a dispatch that it has not combined."""
    source = """
    comm = hmc.init(timeout=30)
    ep = buffer_of(comm)
    for number in range(3):
        x = rows((number, comm.rank), 17, 33)
        ids, weights = routing((number, comm.rank), 17, 5, 13)
        x2, handle = ep.dispatch(x, ids, weights, timeout=20)
        results = apply(ep, x2, handle)
        if comm.rank == 2:
            time.sleep(0.3)
        y = ep.combine(results, handle, timeout=20)
        check_sum(ep, y, x, ids, weights, handle)
        assert not handle.lost.any()
    if comm.rank == 0:
        ep.dispatch(x, ids, weights, timeout=20)
        ep.close(timeout=20)
        refused(hmc.ClosedError, ep.dispatch, x, ids, weights)
        end()
    for number in range(3, 6):
        handle = check_round(ep, number, 33, 17, 5, 13)
        assert handle.lost.any() and ep.alive == (False, True, True)
    ep.close()
    end()
    """
    run_survivors(job(source, transport), 3, [0, 1, 2], tmp_path)


@TRANSPORTS
def test_released_dispatches_have_no_results(transport: str, tmp_path: Path) -> None:
    source = """
    comm = hmc.init(timeout=30)
    ep = buffer_of(comm)
    for number in range(6):
        x = rows((number, comm.rank), 17, 33)
        ids, weights = routing((number, comm.rank), 17, 5, 13)
        x2, handle = ep.dispatch(x, ids, weights, timeout=20)
        if comm.rank == number % 3:
            assert ep.release(handle, timeout=20) is None
            refused(hmc.InvalidArgumentError, ep.release, handle)
        else:
            y = ep.combine(apply(ep, x2, handle), handle, timeout=20)
            assert np.array_equal(y, dense(x, ids, weights, handle.lost))
            assert np.array_equal(handle.lost, np.isin(ids, ep.experts_of(number % 3)))
        assert all(ep.alive)
    ep.close()
    end()
    """
    run_survivors(job(source, transport), 3, [0, 1, 2], tmp_path)


def test_a_buffer_that_is_closed_at_once_lets_the_others_make_theirs(run_job: Callable[..., str]) -> None:
    source = """
    import time
    with hmc.init() as comm:
        for number in range(30):
            ep = buffer_of(comm)
            if comm.rank == number % 3:
                ep.close(timeout=20)
            comm.barrier(timeout=20)
            ep.close(timeout=20)
    print("done")
    """
    assert run_job(PRELUDE + textwrap.dedent(source), 3).count("done") == 3


def test_buffers_and_communicators_close_in_any_order(tmp_path: Path) -> None:
    source = """
    comm = hmc.init(timeout=30)
    one, two = buffer_of(comm), buffer_of(comm)
    check_round(one, 0, 33, 17, 5, 13)
    check_round(two, 1, 33, 17, 5, 13)
    comm.barrier(timeout=20)
    if comm.rank == 0:
        one.close()
        comm.close(timeout=20)
        two.close()
    else:
        two.close()
        comm.close(timeout=20)
        one.close()
    end()
    """
    run_survivors(job(source, "shm"), 2, [0, 1], tmp_path)


def test_the_others_go_on_after_shrink(tmp_path: Path) -> None:
    """A new Buffer over the Communicator that is left has every expert again."""
    source = """
    comm = hmc.init(timeout=30)
    ep = buffer_of(comm)
    check_round(ep, 0, 33, 17, 5, 13)
    if comm.rank == 0:
        die()
    while all(ep.alive):
        check_round(ep, 1, 33, 17, 5, 13)
    ep.close()
    smaller = comm.shrink(timeout=30)
    with buffer_of(smaller) as ep:
        for number in range(3):
            assert not check_round(ep, number, 33, 17, 5, 13).lost.any()
    end()
    """
    run_survivors(job(source, "shm"), 3, [1, 2], tmp_path)


def test_calls_of_several_threads_wait_for_each_other(tmp_path: Path) -> None:
    """The rank that is late keeps a dispatch waiting; another thread's call ends at its own deadline."""
    source = """
    comm = hmc.init(timeout=30)
    ep = buffer_of(comm)
    x = rows((1, comm.rank), 17, 33)
    ids, weights = routing((1, comm.rank), 17, 5, 13)
    found = []
    thread = threading.Thread(target=lambda: found.append(ep.dispatch(x, ids, weights, timeout=20)))
    if comm.rank == 0:
        thread.start()
        soon(ep._lock.locked)
        assert "another thread" in refused(hmc.HmcTimeoutError, ep.dispatch, x, ids, weights, timeout=0.1)
        assert "another thread" in refused(hmc.HmcTimeoutError, ep.close, timeout=0.1)
        comm.send(b"1", 1, timeout=20)
    else:
        comm.recv(bytearray(1), 0, timeout=20)
        thread.start()
    thread.join(20)
    [(x2, handle)] = found
    check_sum(ep, ep.combine(apply(ep, x2, handle), handle, timeout=20), x, ids, weights, handle)
    ep.close()
    end()
    """
    run_survivors(job(source, "shm"), 2, [0, 1], tmp_path)


def test_a_stopped_rank_keeps_memory_registered(tmp_path: Path) -> None:
    """It may still access the memory: close() says so at its deadline, and goes on when the rank has continued."""
    source = """
    comm = hmc.init(timeout=30)
    pids = all_pids(comm)
    ep = buffer_of(comm)
    check_round(ep, 0, 33, 17, 5, 13)
    comm.barrier(timeout=20)
    if comm.rank == 1:
        take("past")
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(1)
        ep.close()
        end()
    give("past")  # this rank has what it reads of rank 1
    while "stopped" not in open(f"/proc/{pids[1]}/status").read():
        time.sleep(0.01)
    ep.mask(1)
    check_round(ep, 1, 33, 17, 5, 13)
    refused(hmc.HmcTimeoutError, ep.close, timeout=0.5)
    refused(hmc.ClosedError, ep.dispatch, *[np.zeros((0, 33), np.float32), np.zeros((0, 1), int), np.zeros((0, 1))])
    os.kill(pids[1], signal.SIGCONT)
    ep.close(timeout=20)
    end()
    """
    run_survivors(job(source, "shm"), 2, [0, 1], tmp_path)
