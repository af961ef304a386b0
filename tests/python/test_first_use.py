"""The first put, get or batch between two buffers needs the peer, yet returns a Work at once, also beside a stopped one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import hmc.testing

# Rank 1 stops itself; rank 0 posts through every door, with targets whose region it has not asked for by that transport.
STOPPED = """
import asyncio, os, signal, time

SIZE = 40_000
comm = hmc.init()
other = 1 - comm.rank
targets = [comm.buffer(SIZE) for _ in range(6)]
for at, target in enumerate(targets):
    target.numpy()[:] = pattern(SIZE, 10 + at)
remotes = [comm.exchange(target, timeout=30)[other] for target in targets]
pid = int(comm.exchange_bytes(str(os.getpid()).encode(), timeout=30)[other])
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
    comm.wait_notify(0, 4, count=2, timeout=30)
    comm.peer(0).wait_notify(4, timeout=30)
    for at in range(3):
        assert np.array_equal(targets[at].numpy(), pattern(SIZE, at)), at
    assert np.array_equal(targets[5].numpy(), pattern(SIZE, 15))
    comm.barrier(timeout=30)
    raise SystemExit

peer = comm.peer(1)
while open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "T":
    time.sleep(0.001)
local = [comm.register(hmc.Memory(SIZE, device="DEVICE")) for _ in range(6)]
for at, buffer in enumerate(local):
    buffer.memory.copy_from(pattern(SIZE, at))
blocks = lambda at: [(local[at], [0, SIZE // 2], remotes[at], [0, SIZE // 2])]
works = [
    peer.put(local[0], remotes[0], notify=4),
    comm.put(local[1], remotes[1], notify=4),
    comm.local[0].put_blocks(comm.prepare_blocks(blocks(2), block=SIZE // 2), notify=4),
    comm.get(local[3], remotes[3]),
    peer.get_blocks(peer.prepare_blocks(blocks(4), block=SIZE // 2)),
]
given_up = peer.put(local[5], remotes[5], notify=4)
for work in [*works, given_up]:
    try:
        work.wait(0.05)
    except hmc.HmcTimeoutError:
        pass
    else:
        raise SystemExit("complete beside a stopped peer")

async def awaited(work):
    await work

async def give_up():
    try:
        await asyncio.wait_for(awaited(given_up), 0.05)
    except (TimeoutError, asyncio.TimeoutError):
        return True

assert asyncio.run(give_up())
try:
    given_up.wait(10)
except hmc.HmcCancelledError:
    pass
else:
    raise SystemExit("cancelled, and complete")
os.kill(pid, signal.SIGCONT)
for work in works:
    work.wait(30)
for at in (3, 4):
    back = np.zeros(SIZE, np.uint8)
    local[at].memory.copy_to(back)
    assert np.array_equal(back, pattern(SIZE, 10 + at)), at
comm.barrier(timeout=30)
"""

# What was posted before a close is sent, though its regions are not there yet.
CLOSED = """
comm = hmc.init()
target = comm.buffer(300_000)
remote = comm.exchange(target, timeout=30)[1]
if comm.rank == 0:
    source = comm.register(hmc.Memory(300_000, device="DEVICE"))
    source.memory.copy_from(pattern(300_000, 5))
    comm.put(source, remote, notify=3, complete="local")
    comm.close(timeout=30)
else:
    comm.wait_notify(0, 3, timeout=30)
    assert np.array_equal(target.numpy(), pattern(300_000, 5))
"""


@pytest.mark.parametrize("transports", ["shm", "tcp"])
@pytest.mark.parametrize("vendor", ["cuda", "mlu"])
def test_calls_return_beside_a_stopped_peer(run_job: Callable[..., str], vendor: str, transports: str) -> None:
    environment = {**hmc.testing.environment(), "HMC_TRANSPORTS": f"{transports},staging"}
    run_job(STOPPED.replace("DEVICE", f"{vendor}:0"), environment=environment, timeout=110)


@pytest.mark.parametrize("transports", ["shm", "tcp"])
def test_close_sends_what_was_posted_first(run_job: Callable[..., str], transports: str) -> None:
    environment = {**hmc.testing.environment(), "HMC_TRANSPORTS": f"{transports},staging"}
    run_job(CLOSED.replace("DEVICE", "rocm:0"), environment=environment)
