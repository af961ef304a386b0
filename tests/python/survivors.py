"""Jobs in which ranks die or stop: the others go on, and each prints "survived" at its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from commands import HMC
from patterns import pattern

import hmc

PRELUDE = f"""
import os, signal, subprocess, sys, threading, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np
import hmc
from patterns import pattern
from survivors import all_pids, check_collectives, end, give, meet, messages_go_on, old_job, refusal, take
"""


def run_survivors(source: str, ranks: int, living: Sequence[int], folder: Path, timeout: float = 60) -> dict[int, list[str]]:
    """Runs a script as a job, of which only ``living`` survive. What each rank printed before its "survived", by rank."""
    script = folder / "job.py"
    script.write_text(PRELUDE + textwrap.dedent(source))
    # What fails by itself ends at its own deadlines, with a traceback.
    command = [*HMC, "run", "-n", str(ranks), "--grace", str(timeout), str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        try:
            output, errors = job.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            job.kill()  # its ranks end with it
            output, errors = job.communicate(timeout=20)
            raise AssertionError(f"the job did not end:\n{output}{errors}") from None
    printed: dict[int, list[str]] = {rank: [] for rank in range(ranks)}
    for line in output.splitlines():
        rank, _, text = line.removeprefix("[").partition("] ")
        if rank.isdigit() and not text.startswith("hmc["):  # a warning of HMC's
            printed[int(rank)].append(text)
    for rank in range(ranks):
        assert (printed[rank][-1:] == ["survived"]) == (rank in living), f"rank {rank}:\n{output}{errors}"
    return {rank: printed[rank][:-1] for rank in living}


# ---- in the job ----


def old_job(ranks: int) -> hmc.Communicator | None:
    """The job that the first ``ranks`` processes form; None in the others."""
    rank = int(os.environ["HMC_RANK"])
    return hmc.init(rank=rank, size=ranks, timeout=60) if rank < ranks else None


def give(name: str, text: str = "") -> None:
    """For take() in any process of the job, by a file beside the script."""
    path = Path(sys.argv[0]).with_name(name)
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").rename(path)


def take(name: str, seconds: float = 60) -> str:
    path = Path(sys.argv[0]).with_name(name)
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, name
        time.sleep(0.005)
    return path.read_text()


def meet(name: str, rank: int, ranks: int) -> None:
    """Returns when so many processes have called it. One that dies afterwards ends no earlier call of another one."""
    give(f"{name} {rank}")
    for other in range(ranks):
        take(f"{name} {other}")


def all_pids(comm: hmc.Communicator) -> list[int]:
    return [int(pid) for pid in comm.exchange_bytes(str(os.getpid()).encode(), timeout=30)]


def refusal(kind: type[hmc.HmcError] | tuple[type[hmc.HmcError], ...], call: object, *arguments: object, **named: object) -> str:
    """The message of the error with which a call ends."""
    assert callable(call)
    try:
        call(*arguments, **named)
    except kind as error:
        return str(error)
    raise AssertionError("the call succeeded")


def messages_go_on(comm: hmc.Communicator, ranks: Sequence[int], seed: int = 0) -> None:
    """Every pair of these ranks, every byte. Returns when all of them have come here."""
    receiving = [(rank, np.zeros(5001, np.uint8)) for rank in ranks]
    works = [comm.irecv(array, rank, tag=3 + seed) for rank, array in receiving]
    works += [comm.isend(pattern(5001, seed * 10_000 + comm.rank * 100 + rank), rank, tag=3 + seed) for rank in ranks]
    hmc.wait_all(works, timeout=60)
    for rank, array in receiving:
        assert np.array_equal(array, pattern(5001, seed * 10_000 + rank * 100 + comm.rank))


def check_collectives(comm: hmc.Communicator, seed: int = 0) -> None:
    """Every collective, small and large, against NumPy."""
    size, me = comm.size, comm.rank
    for count in (1, 777, 100_003):
        data = [np.random.Generator(np.random.SFC64([seed, rank, count])).integers(-99, 99, (size, count)) for rank in range(size)]
        mine = data[me]
        total = np.empty_like(mine)
        comm.all_reduce(total, mine, timeout=60)
        assert np.array_equal(total, sum(data))
        part = np.empty_like(mine[0])
        comm.reduce_scatter(part, mine, timeout=60)
        assert np.array_equal(part, sum(data)[me])
        for root in {0, size - 1}:
            reduced = np.zeros_like(mine)
            comm.reduce(reduced, mine, root=root, op="max", timeout=60)
            assert me != root or np.array_equal(reduced, np.max(data, axis=0))
            sent = data[root].copy() if me == root else np.empty_like(mine)
            comm.broadcast(sent, root=root, timeout=60)
            assert np.array_equal(sent, data[root])
            collected = np.zeros_like(mine)
            comm.gather(collected, mine[0], root=root, timeout=60)
            assert me != root or np.array_equal(collected, [one[0] for one in data])
            comm.scatter(part, mine, root=root, timeout=60)
            assert np.array_equal(part, data[root][me])
        gathered = np.empty_like(mine)
        comm.all_gather(gathered, mine[1 % size], timeout=60)
        assert np.array_equal(gathered, [one[1 % size] for one in data])
        comm.all_to_all(gathered, mine, timeout=60)
        assert np.array_equal(gathered, [one[me] for one in data])
        comm.all_to_all_v(gathered, [count] * size, mine, [count] * size, timeout=60)
        assert np.array_equal(gathered, [one[me] for one in data])
    assert comm.exchange_bytes(f"{seed} {me}".encode(), timeout=60) == [f"{seed} {rank}".encode() for rank in range(size)]
    with_buffer = comm.buffer(4096)
    with_buffer.numpy()[:] = pattern(4096, me)
    for rank, remote in enumerate(comm.exchange(with_buffer, timeout=60)):
        read = comm.buffer(4096)
        comm.get(read, remote).wait(60)
        assert np.array_equal(read.numpy(), pattern(4096, rank))
    comm.barrier(timeout=60)
    messages_go_on(comm, range(size), seed)


def end(*stopped: int) -> None:
    """The end of a survivor. ``stopped``: processes that would never end."""
    for pid in stopped:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # another survivor was first
            continue
    print("survived", flush=True)
    sys.exit(0)
