"""What was sent before the sender closed or ended arrives, also at a process that did not run meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from commands import run_alone

# Rank 1 sends while rank 0 is stopped, closes, and lets rank 0 go on.
STOPPED = """
import asyncio, os, signal, time
from pathlib import Path
import numpy as np, hmc
comm = hmc.init()
COUNT = {count}
def stopped(pid):
    try:
        return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return False  # a thread ended meanwhile
def message(i):
    return (np.arange(i % 97) * (i + 3)).astype(np.uint16)
if comm.rank == 1:
    pid = np.zeros(1, np.int64)
    comm.recv(pid, 0, tag=1, timeout=60)
    os.kill(int(pid[0]), signal.SIGSTOP)
    while not stopped(int(pid[0])):
        time.sleep(0.01)
    for i in range(COUNT):
        comm.send(message(i), 0, tag=2, timeout=60)
        comm.notify(0, 7)
    comm.close(timeout=60)
    os.kill(int(pid[0]), signal.SIGCONT)
else:
    comm.send(np.array([os.getpid()], np.int64), 1, tag=1, timeout=60)
    into = np.zeros(96, np.uint16)
    def check(i, got):
        assert got.bytes == message(i).nbytes and np.array_equal(into[: got.bytes // 2], message(i)), (i, got)
    async def receive_all():
        for i in range(COUNT):
            work = comm.irecv(into, 1, tag=2)
            await work
            check(i, work.info)
        await comm.wait_notify_async(1, 7, COUNT, timeout=60)
    if {door!r} == "asyncio":
        asyncio.run(receive_all())
    else:
        for i in range(COUNT):
            if {door!r} == "work":
                work = comm.irecv(into, 1, tag=2)
                work.wait(60)
                check(i, work.info)
            else:
                check(i, comm.recv(into, 1, tag=2, timeout=60))
        comm.wait_notify(1, 7, COUNT, timeout=60)
    try:
        comm.recv(into, 1, tag=2, timeout=60)
        raise SystemExit("one more")
    except hmc.ClosedError:
        pass
"""


@pytest.mark.parametrize("door", ["blocking", "work", "asyncio"])
@pytest.mark.parametrize("transports", ["shm", "ring", "tcp", "ucx"])
def test_messages_of_a_rank_that_closed(
    run_job: Callable[..., str], monkeypatch: pytest.MonkeyPatch, transports: str, door: str
) -> None:
    monkeypatch.setenv("HMC_TRANSPORTS", "shm" if transports == "ring" else transports)
    if transports == "ring":
        monkeypatch.setenv("HMC_SHM_PTRACE", "0")
    if transports == "ucx" and "True" not in run_alone(
        "print([each['available'] for each in hmc.info()['transports'] if each['name'] == 'ucx'])"
    ):
        pytest.skip("no UCX")
    count = "8" if transports == "ucx" else "200"  # what UCX takes for a process that does not poll
    run_job(STOPPED.replace("{door!r}", repr(door)).replace("{count}", count))
