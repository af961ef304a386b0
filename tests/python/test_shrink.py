"""Communicator.shrink(): ranks killed and stopped at every moment; all that are left get the same new Communicator, or an error."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from survivors import check_collectives, messages_go_on, refusal, run_survivors

import hmc

CASES = [(ranks, (dead,)) for ranks in (2, 3, 4) for dead in range(ranks)]
CASES += [(4, (0, 1)), (4, (0, 3)), (4, (1, 2)), (4, (0, 1, 2)), (5, (0, 2, 4))]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(("ranks", "dead"), CASES, ids=str)
def test_ranks_killed_amid_collectives(ranks: int, dead: tuple[int, ...], transport: str, tmp_path: Path) -> None:
    living = [rank for rank in range(ranks) if rank not in dead]
    source = f"""
    comm = hmc.init(timeout=30, transports={transport!r})
    comm.barrier(timeout=30)
    meet("past the barrier", comm.rank, comm.size)
    if comm.rank in {dead}:
        threading.Timer(0.02 + 0.005 * comm.rank, os.kill, [os.getpid(), signal.SIGKILL]).start()
    def until_it_fails():
        for number in range(10**9):
            comm.all_reduce(np.ones(1 << number % 18), timeout=30)
    refusal(hmc.HmcError, until_it_fails)
    # One may have died after the call that failed.
    new = comm.shrink(timeout=30)
    while len(new.old_ranks) > {len(living)}:
        refusal(hmc.HmcError, lambda: [new.barrier(timeout=30) for _ in range(10**9)])
        new = new.shrink(timeout=30)
    assert (new.size, new.rank) == ({len(living)}, {living}.index(comm.rank))
    assert [comm.device(rank) for rank in range(new.size)] == ["cpu"] * new.size
    check_collectives(new)
    assert new.lost == []
    assert set(comm.lost) == set({dead})
    messages_go_on(comm, {living}, seed=1)  # the old one's point-to-point
    refusal(hmc.HmcError, comm.barrier, timeout=30)
    messages_go_on(new, range(new.size), seed=2)
    end()
    """
    run_survivors(source, ranks, living, tmp_path)


def test_one_rank_after_the_other(tmp_path: Path) -> None:
    source = """
    comm = first = hmc.init(timeout=30)
    for size in (5, 4, 3, 2, 1):
        assert comm.size == size
        check_collectives(comm, seed=size)
        if size == 1:
            break
        meet(f"size {size}", comm.rank, size)
        if comm.rank == (0 if size % 2 else size - 1):
            os.kill(os.getpid(), signal.SIGKILL)
        refusal(hmc.PeerLostError, comm.barrier, timeout=30)
        older, comm = comm, comm.shrink(timeout=30)
        lost = 0 if size % 2 else size - 1
        assert comm.old_ranks == [rank for rank in range(size) if rank != lost]
        if older is not first:
            older.close()
    assert first.lost == [0, 1, 3, 4]
    end()
    """
    run_survivors(source, 5, [2], tmp_path, timeout=90)


@pytest.mark.parametrize("second", [0, 1, 3])
@pytest.mark.parametrize("delay_ms", [0.0, 0.2, 0.5, 1, 3])
def test_a_rank_that_dies_during_the_shrink(second: int, delay_ms: float, tmp_path: Path) -> None:
    """It is left out, or counts as lost in the new Communicator, which then shrinks again. All see the same."""
    living = [rank for rank in range(4) if rank not in (2, second)]
    source = f"""
    comm = hmc.init(timeout=30)
    comm.barrier(timeout=30)
    meet("past the barrier", comm.rank, comm.size)
    if comm.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    refusal(hmc.PeerLostError, comm.barrier, timeout=30)
    if comm.rank == {second}:
        def die():
            end = time.perf_counter() + {delay_ms / 1000}
            while time.perf_counter() < end:
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        if {delay_ms} == 0:
            die()
        threading.Thread(target=die).start()
        try:
            comm.shrink(timeout=30)
        finally:
            time.sleep(60)
    new = comm.shrink(timeout=30)
    print(new.old_ranks, flush=True)
    if new.size == 3:
        refusal(hmc.HmcError, lambda: [new.barrier(timeout=30) for _ in range(10**9)])
        assert new.lost == [[0, 1, 3].index({second})]
        new = new.shrink(timeout=30)
    check_collectives(new)
    messages_go_on(comm, {living}, seed=9)
    end()
    """
    printed = run_survivors(source, 4, living, tmp_path)
    assert printed[living[0]] == printed[living[1]]
    assert printed[living[0]][0] in (str(living), "[0, 1, 3]")


@pytest.mark.parametrize("stopped", [0, 1, 2])
def test_a_stopped_rank_is_the_others_deadline(stopped: int, tmp_path: Path) -> None:
    living = [rank for rank in range(3) if rank != stopped]
    source = f"""
    comm = hmc.init(timeout=30)
    pids = all_pids(comm)
    messages_go_on(comm, range(3))
    if comm.rank == {stopped}:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.2)
    begin = time.monotonic()
    # The deadline is the first one's, which names every rank that is missing. The other one may know of the first one alone.
    said = refusal(hmc.HmcTimeoutError, comm.shrink, timeout=5 if comm.rank == {living[0]} else 60)
    assert time.monotonic() - begin < 30
    assert "rank {stopped} (" in said and "deadline" in said, said
    messages_go_on(comm, {living}, seed=1)
    os.kill(pids[{stopped}], signal.SIGKILL) if comm.rank == {living[0]} else None
    new = comm.shrink(timeout=30)
    assert new.old_ranks == {living}
    check_collectives(new)
    end()
    """
    run_survivors(source, 3, living, tmp_path)


def test_the_first_deadline_ends_it_everywhere() -> None:
    def work() -> list[int]:
        with hmc.init(timeout=30) as comm:
            messages_go_on(comm, range(3))
            if comm.rank == 2:  # it comes late
                comm.recv(np.zeros(1), src=0, timeout=60)
            begin = time.monotonic()
            said = refusal(hmc.HmcTimeoutError, comm.shrink, timeout=4 if comm.rank == 0 else 60)
            assert time.monotonic() - begin < 30
            if comm.rank == 0:
                comm.send(np.zeros(1), dst=2, timeout=60)
            assert "the deadline of rank 0 (" in said, said
            assert "rank 2 (" in said.partition("waiting for ")[2], said  # perhaps after rank 1, if that one was late
            new = comm.shrink(timeout=30)
            check_collectives(new)
            return new.old_ranks

    assert hmc.spawn(work, 3, timeout=90) == [[0, 1, 2]] * 3


def test_ctrl_c_ends_it_everywhere() -> None:
    def work() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with hmc.init(timeout=30) as comm:
            messages_go_on(comm, range(3))
            if comm.rank == 1:
                try:
                    threading.Timer(1.5, os.kill, [os.getpid(), signal.SIGINT]).start()
                    comm.shrink(timeout=60)
                except KeyboardInterrupt:
                    pass
                else:
                    raise AssertionError("not interrupted")
            elif comm.rank == 0:
                said = refusal(hmc.HmcCancelledError, comm.shrink, timeout=60)
                assert "rank 1 (" in said
                assert "interrupted" in said
            else:  # it comes late
                comm.recv(np.zeros(1), src=0, timeout=60)
                assert "interrupted" in refusal(hmc.HmcCancelledError, comm.shrink, timeout=60)
            if comm.rank == 0:
                comm.send(np.zeros(1), dst=2, timeout=60)
            check_collectives(comm.shrink(timeout=30))

    hmc.spawn(work, 3, timeout=90)


def test_after_an_abort_all_ranks_go_on() -> None:
    def work() -> None:
        with hmc.init(timeout=30) as comm:
            assert comm.old_ranks == [0, 1, 2]
            if comm.rank == 1:
                comm.abort("start anew")
            refusal(hmc.HmcCancelledError, comm.barrier, timeout=30)
            with comm.shrink(timeout=30) as new:
                assert (new.old_ranks, new.rank, new.size) == ([0, 1, 2], comm.rank, 3)
                check_collectives(new)
                refusal(hmc.HmcCancelledError, comm.barrier, timeout=30)
                new.barrier(timeout=30)

    hmc.spawn(work, 3, timeout=60)


def test_without_a_loss_and_alone() -> None:
    def work() -> None:
        with hmc.init(timeout=30) as comm:
            new = comm.shrink(timeout=30)
            newer = new.shrink(timeout=30)
            for one in (comm, new, newer):
                check_collectives(one)

    hmc.spawn(work, 1, timeout=60)
    hmc.spawn(work, 2, timeout=60)


def test_messages_keep_to_their_communicator() -> None:
    def work() -> None:
        with hmc.init(timeout=30) as comm:
            other = 1 - comm.rank
            sent = comm.isend(np.array([1.0]), other, tag=4)
            comm.notify(other, 8, timeout=30)
            with comm.shrink(timeout=30) as new:
                new.isend(np.array([2.0]), other, tag=4)
                got = np.zeros(1)
                new.recv(got, other, tag=4, timeout=30)
                assert got[0] == 2
                refusal(hmc.HmcTimeoutError, new.wait_notify, other, 8, timeout=0.2)
                comm.recv(got, other, tag=4, timeout=30)
                assert got[0] == 1
                comm.wait_notify(other, 8, timeout=30)
                sent.wait(30)
                new.barrier(timeout=30)

    hmc.spawn(work, 2, timeout=60)


@pytest.mark.parametrize("old_first", [True, False])
def test_closed_in_any_order(old_first: bool) -> None:
    def work() -> None:
        comm = hmc.init(timeout=30)
        context = comm.context
        new = comm.shrink(timeout=30)
        newer = new.shrink(timeout=30)
        closing = [comm, new, newer] if old_first else [newer, new, comm]
        while closing:
            for one in closing:
                check_collectives(one)
            closing[0].close()
            closing[0].close()
            refusal(hmc.ClosedError, closing.pop(0).barrier, timeout=30)
        refusal(hmc.ClosedError, context.buffer, 10)

    hmc.spawn(work, 2, timeout=90)


def test_several_members_of_a_process(tmp_path: Path) -> None:
    source = """
    comm = hmc.init(devices=["cpu"] * (2 if os.environ["HMC_RANK"] == "2" else 1), timeout=30)  # ranks 0, 1, (2, 3)
    comm.barrier(timeout=30)
    meet("past the barrier", int(os.environ["HMC_RANK"]), 3)
    if os.environ["HMC_RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    refusal(hmc.HmcError, lambda: [comm.barrier(timeout=30) for _ in range(10**9)])
    new = comm.shrink(timeout=30)
    assert new.old_ranks == [0, 2, 3]
    assert [member.rank for member in new.local] == ([0] if os.environ["HMC_RANK"] == "0" else [1, 2])
    arrays = {member: (np.zeros(1000), np.full(1000, 10.0 ** member.rank)) for member in new.local}
    new.all_reduce(arrays, timeout=30)
    assert all((out == 111).all() for out, _ in arrays.values())
    new.barrier(timeout=30)
    end()
    """
    run_survivors(source, 3, [0, 2], tmp_path)


def test_the_group_of_a_split_shrinks(tmp_path: Path) -> None:
    source = """
    comm = hmc.init(timeout=30)
    part = comm.split(0 if comm.rank < 3 else 1, -comm.rank, timeout=30)  # ranks 2, 1, 0 and 3
    assert part.old_ranks == ([2, 1, 0] if comm.rank < 3 else [3])
    part.barrier(timeout=30)
    messages_go_on(comm, range(4))
    meet("past the messages", comm.rank, comm.size)
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if comm.rank != 3:
        refusal(hmc.HmcError, lambda: [part.barrier(timeout=30) for _ in range(10**9)])
        new = part.shrink(timeout=30)
        assert new.old_ranks == [0, 2]
        check_collectives(new)
    messages_go_on(comm, [0, 2, 3], seed=1)
    check_collectives(comm.shrink(timeout=30), seed=1)
    end()
    """
    run_survivors(source, 4, [0, 2, 3], tmp_path)


def test_a_rank_that_closed_its_communicator_is_left_out() -> None:
    def work() -> list[int]:
        with hmc.init(timeout=30) as comm, comm.split(0, timeout=30) as part:
            assert part is not None
            part.barrier(timeout=30)
            messages_go_on(comm, range(4))
            if comm.rank in (0, 2):
                part.close()
                messages_go_on(comm, range(4), seed=1)
                return []
            time.sleep(0.2)
            new = part.shrink(timeout=30)
            check_collectives(new)
            messages_go_on(comm, range(4), seed=1)
            return new.old_ranks

    assert hmc.spawn(work, 4, timeout=60) == [[], [1, 3], [], [1, 3]]


def test_a_rank_that_ended_is_left_out() -> None:
    def work() -> list[int]:
        with hmc.init(timeout=30) as comm:
            comm.barrier(timeout=30)
            if comm.rank == 0:
                return []
            time.sleep(0.1)
            new = comm.shrink(timeout=30)
            check_collectives(new)
            return new.old_ranks

    assert hmc.spawn(work, 3, timeout=60) == [[], [1, 2], [1, 2]]


def test_a_closed_communicator_refuses() -> None:
    with hmc.init(rank=0, size=1) as comm:
        new = comm.shrink(timeout=10)
        new.close()
        with pytest.raises(hmc.ClosedError):
            new.shrink(timeout=10)
    with pytest.raises(hmc.ClosedError):
        comm.shrink(timeout=10)
