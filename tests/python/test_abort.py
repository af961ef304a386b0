"""Communicator.abort(): collectives end on every rank, from any thread, beside dead and stopped ranks; point-to-point goes on."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from survivors import messages_go_on, run_survivors

import hmc

CALLS: dict[str, Callable[[hmc.Communicator], Any]] = {
    "barrier": lambda comm: comm.barrier(timeout=60),
    "all_reduce": lambda comm: comm.all_reduce(np.ones(3_000_000), timeout=60),
    "small all_reduce": lambda comm: comm.all_reduce(np.ones(3), timeout=60),
    "broadcast": lambda comm: comm.broadcast(np.ones(1_000_000), root=comm.size - 1, timeout=60),
    "all_to_all": lambda comm: comm.all_to_all(np.ones((comm.size, 70_000)), np.ones((comm.size, 70_000)), timeout=60),
    "exchange_bytes": lambda comm: comm.exchange_bytes(b"x", timeout=60),
    "split": lambda comm: comm.split(0, timeout=60),
    "iall_gather": lambda comm: comm.iall_gather(np.ones((comm.size, 9)), np.ones(9)).wait(60),
}


def refusal(call: Callable[[], Any]) -> str:
    """The message of the abort that ends the call."""
    with pytest.raises(hmc.HmcCancelledError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_collective_that_waits_ends_on_every_rank(name: str) -> None:
    def work() -> float:
        with hmc.init(timeout=30) as comm:
            comm.barrier(timeout=30)
            messages_go_on(comm, list(range(comm.size)))  # an abort would end a barrier that a rank has not returned from
            begin = time.monotonic()
            if comm.rank == 1:  # the others wait for it
                time.sleep(0.2)
                comm.abort("the loss is NaN")
            said = refusal(lambda: CALLS[name](comm))
            assert "rank 1 (" in said
            assert said.endswith(") aborted the Communicator: the loss is NaN")
            took = time.monotonic() - begin
            for again in CALLS.values():
                assert refusal(lambda again=again: again(comm)).startswith("rank 1 (")  # type: ignore[misc]
            messages_go_on(comm, list(range(comm.size)))
            return took

    assert max(hmc.spawn(work, 3, timeout=90)) < 30


def test_another_thread_aborts_while_this_one_waits() -> None:
    def work() -> None:
        with hmc.init(timeout=30) as comm:
            comm.barrier(timeout=30)
            messages_go_on(comm, [0, 1, 2])  # all have returned from the barrier
            if comm.rank == 2:
                timer = threading.Timer(0.2, comm.local[0].abort, ["by a timer"])
                timer.start()
                comm.recv(np.zeros(1), src=0, timeout=30)  # its place in the collective stays empty
                timer.join()
            else:
                assert "rank 2 (" in refusal(lambda: comm.barrier())
            if comm.rank == 0:
                time.sleep(0.5)
                comm.send(np.zeros(1), dst=2, timeout=30)
            messages_go_on(comm, [0, 1, 2])

    hmc.spawn(work, 3, timeout=60)


def test_the_waiting_rank_is_aborted_by_its_own_thread() -> None:
    def work() -> None:
        with hmc.init(timeout=30) as comm:
            comm.barrier(timeout=30)
            if comm.rank == 0:
                threading.Timer(0.2, comm.abort).start()
                assert refusal(lambda: comm.barrier()).endswith("aborted the Communicator")
            else:
                comm.recv(np.zeros(1), src=0, timeout=30)
            if comm.rank == 0:
                comm.send(np.zeros(1), dst=1, timeout=30)
            messages_go_on(comm, [0, 1])

    hmc.spawn(work, 2, timeout=60)


def test_awaited_collectives_end() -> None:
    def work() -> None:
        async def main(comm: hmc.Communicator) -> None:
            await comm.barrier_async(timeout=30)
            messages_go_on(comm, [0, 1])  # both have returned from the barrier
            if comm.rank == 1:
                await asyncio.sleep(0.2)
                comm.abort("awaited")
                return
            array = np.ones(100_000)
            tasks = [asyncio.ensure_future(comm.barrier_async()), asyncio.ensure_future(reduce(comm, array))]
            for error in await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30):
                assert isinstance(error, hmc.HmcCancelledError)
                assert str(error).endswith("aborted the Communicator: awaited")

        async def reduce(comm: hmc.Communicator, array: Any) -> None:
            await comm.iall_reduce(array)  # raises at once where the abort was first

        with hmc.init(timeout=30) as comm:
            asyncio.run(main(comm))
            messages_go_on(comm, [0, 1])

    hmc.spawn(work, 2, timeout=60)


def test_the_first_abort_counts_and_all_may_abort() -> None:
    def work() -> str:
        with hmc.init(timeout=30) as comm:
            comm.abort(f"by {comm.rank}")  # before the first collective
            comm.abort("again")
            first = refusal(lambda: comm.barrier(timeout=30))
            comm.abort("and again")
            assert refusal(lambda: comm.barrier(timeout=30)) == first
            messages_go_on(comm, [0, 1, 2])
            return first

    for rank, said in enumerate(hmc.spawn(work, 3, timeout=60)):
        assert "by " in said, rank


@pytest.mark.parametrize("dead", [0, 2])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda n: n.name)
def test_beside_a_dead_or_stopped_rank(dead: int, number: signal.Signals, tmp_path: Path) -> None:
    """The ranks are connected to process 0 alone: the aborting one connects to the others."""
    living = [rank for rank in range(4) if rank != dead]
    source = f"""
    comm = hmc.init(timeout=30)
    if comm.rank == {dead}:
        give("pid", str(os.getpid()))
        os.kill(os.getpid(), {int(number)})
    dead = int(take("pid"))
    time.sleep(0.3)
    if comm.rank == 1:
        comm.abort("without it")
    said = ""
    give_up = time.monotonic() + 30
    while not said:
        try:
            comm.barrier(timeout=30)
        except hmc.HmcCancelledError as error:
            said = str(error)
        except (hmc.PeerLostError, hmc.ClosedError):  # its death came first
            assert time.monotonic() < give_up
    assert "rank 1 (" in said and said.endswith("without it"), said
    messages_go_on(comm, {living})
    end(dead)
    """
    run_survivors(source, 4, living, tmp_path)


def test_a_split_off_communicator_is_not_aborted() -> None:
    def work() -> None:
        with hmc.init(timeout=30) as comm, comm.split(0, timeout=30) as half:
            assert half is not None
            comm.barrier(timeout=30)
            messages_go_on(comm, [0, 1])  # both have returned from the barrier
            if comm.rank == 0:
                comm.abort("only this one")
            refusal(lambda: comm.barrier(timeout=30))
            total = np.array([half.rank + 1])
            half.all_reduce(total, timeout=30)
            assert total[0] == 3
            half.barrier(timeout=30)

    hmc.spawn(work, 2, timeout=60)


def test_several_members_of_a_process() -> None:
    def work() -> None:
        with hmc.init(devices=["cpu", "cpu"], timeout=30) as comm:
            comm.barrier(timeout=30)
            first = comm.local[0]
            passed = first.irecv(np.zeros(1), 2 - first.rank)  # the other process has returned from the barrier
            first.send(np.zeros(1), 2 - first.rank, timeout=30)
            passed.wait(30)
            if first.rank == 2:
                time.sleep(0.1)
                comm.local[1].abort("member")
            arrays = {member: (np.ones(1000), np.ones(1000)) for member in comm.local}
            assert "rank 3 (" in refusal(lambda: comm.all_reduce(arrays, timeout=30))
            assert "rank 3 (" in refusal(lambda: comm.barrier(timeout=30))

    hmc.spawn(work, 2, timeout=60)


def test_a_long_reason_is_cut_and_a_closed_communicator_refuses() -> None:
    def work() -> None:
        comm = hmc.init(timeout=30)
        comm.barrier(timeout=30)
        messages_go_on(comm, [0, 1])  # both have returned from the barrier
        if comm.rank == 0:
            comm.abort("é" * 100_000)
        said = refusal(lambda: comm.barrier(timeout=30))
        assert said.count("é") >= (100_000 if comm.rank == 0 else 500)
        messages_go_on(comm, [0, 1])
        comm.close()
        with pytest.raises(hmc.ClosedError):
            comm.abort("closed")

    hmc.spawn(work, 2, timeout=60)


@pytest.mark.parametrize("how", ["fused", "messages"])
@pytest.mark.parametrize("end", ["its deadline", "its close"])
def test_a_rank_that_ends_a_collective_is_named(how: str, end: str) -> None:
    def work() -> None:
        with hmc.init(timeout=30) as comm:
            group = comm.split(0, timeout=30)
            assert group is not None
            array = np.ones(50_000, np.float32)
            group.all_reduce(array, timeout=30)
            if comm.rank == 1 and end == "its deadline":
                with pytest.raises(hmc.HmcTimeoutError):
                    group.all_reduce(array, timeout=0.3)
            elif comm.rank == 1:
                group.close()
            comm.barrier(timeout=30)
            if comm.rank != 1:
                began = time.monotonic()
                with pytest.raises(hmc.HmcError, match=r"rank 1 \(") as caught:
                    group.all_reduce(array, timeout=40)
                assert time.monotonic() - began < 30
                assert "another rank" not in str(caught.value)
            comm.barrier(timeout=30)

    hmc.spawn(work, 3, timeout=90, environment={"HMC_FUSED": "1" if how == "fused" else "0"})


@pytest.mark.parametrize("how", ["fused", "messages"])
def test_who_is_done_early_may_close(how: str) -> None:
    """The others get what it has sent, though they call later."""

    def work() -> None:
        with hmc.init(timeout=30) as comm:
            group = comm.split(0, timeout=30)
            assert group is not None
            comm.barrier(timeout=30)
            if group.rank != 0:
                time.sleep(0.3 * group.rank)
            for i in range(5):
                array = np.full(16, i if group.rank == 0 else -1)
                group.broadcast(array, 0, timeout=30)
                assert array.tolist() == [i] * 16
            group.close()
            comm.barrier(timeout=30)

    hmc.spawn(work, 3, timeout=90, environment={"HMC_FUSED": "1" if how == "fused" else "0"})


@pytest.mark.parametrize("how", ["fused", "messages"])
def test_every_rank_that_closes_is_heard(how: str) -> None:
    """One has done its part before it closes, the next has not."""

    def work() -> None:
        with hmc.init(timeout=30) as comm:
            group = comm.split(0, timeout=30)
            assert group is not None
            group.barrier(timeout=30)
            mine, out = np.full(3, group.rank), np.empty(9, int)
            if group.rank == 0:
                group.gather(None, mine, 2, timeout=30)
                group.close()
            comm.barrier(timeout=30)
            if group.rank == 1:
                group.close()
            elif group.rank == 2:
                began = time.monotonic()
                with pytest.raises(hmc.ClosedError, match=r"rank 1 \("):
                    group.gather(out, mine, 2, timeout=40)
                assert time.monotonic() - began < 30
            comm.barrier(timeout=30)

    hmc.spawn(work, 3, timeout=90, environment={"HMC_FUSED": "1" if how == "fused" else "0"})
