"""What is posted behind a fence waits for the one-sided operations before it, by every call and in every form."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import hmc.testing

WAYS: list[dict[str, str]] = [
    {"HMC_TRANSPORTS": "shm"},
    {"HMC_TRANSPORTS": "shm", "HMC_SHM_PTRACE": "0"},
    {"HMC_TRANSPORTS": "tcp"},
]

# Rank 0 puts, fences and says so; rank 1 hears of it and looks at every byte.
DOORS = """
import asyncio

SIZE, SMALL = 8 << 20, 4096
comm = hmc.init()
other = 1 - comm.rank
source, target, flag = comm.buffer(SIZE), comm.buffer(SIZE), comm.buffer(SMALL)
remote, remote_flag = (comm.exchange(buffer, timeout=30)[other] for buffer in (target, flag))
word, large = np.zeros(8, np.uint8), np.zeros(300_000, np.uint8)
out, inp = np.zeros(2 * 50_000, np.uint8), np.zeros(2 * 50_000, np.uint8)
batch = comm.prepare_blocks([(flag, [0, 2048], remote_flag, [2048, 0])], block=1024)
works = []

async def awaited(work):
    await work

def get_back():
    back = comm.buffer(SIZE)
    comm.get(back, remote).wait(30)
    assert np.array_equal(back.numpy(), source.numpy())
    comm.send(word, 1, tag=9, timeout=30)

receive = lambda array, tag: lambda: comm.recv(array, 0, tag=tag, timeout=30)
heard = lambda: comm.wait_notify(0, 5, timeout=30)
both = lambda call: (call, call)
doors = {
    "send": (lambda: comm.send(word, 1, tag=1, timeout=30), receive(word, 1)),
    "isend and wait": (lambda: comm.isend(word, 1, tag=2).wait(30), receive(word, 2)),
    "isend, awaited": (lambda: asyncio.run(awaited(comm.isend(word, 1, tag=3))), receive(word, 3)),
    "large isend": (lambda: works.append(comm.isend(large, 1, tag=4)), receive(large, 4)),
    "notify": (lambda: comm.notify(1, 5), heard),
    "put": (lambda: works.append(comm.put(flag, remote_flag, notify=5)), heard),
    "put_blocks": (lambda: works.append(comm.put_blocks(batch, notify=5)), heard),
    "get": (get_back, receive(word, 9)),
    "barrier": both(lambda: comm.barrier(timeout=30)),
    "all_to_all": both(lambda: comm.all_to_all(out[:16], inp[:16], timeout=30)),
    "large all_to_all": both(lambda: comm.all_to_all(out, inp, timeout=30)),
    "iall_to_all, awaited": both(lambda: asyncio.run(awaited(comm.iall_to_all(out[:16], inp[:16])))),
    "exchange_bytes": both(lambda: comm.exchange_bytes(b"here", timeout=30)),
    "Member.send": (lambda: comm.local[0].send(word, 1, tag=6, timeout=30), receive(word, 6)),
    "Member.barrier": both(lambda: comm.local[0].barrier(timeout=30)),
    "Peer.send": (
        lambda: (comm.peer(1).fence(), comm.peer(1).send(word, tag=7, timeout=30)),
        lambda: comm.peer(0).recv(word, tag=7, timeout=30),
    ),
}
number = 0
for repeat in range(REPEATS):
    for name, (say, hear) in doors.items():
        number += 1
        expected = pattern(SIZE, number)
        if comm.rank == 0:
            source.numpy()[:] = expected
            works.append(comm.put(source, remote, complete="local" if number % 2 else "remote"))
            comm.fence(1)
            say()
            for work in works:
                work.wait(30)
            works.clear()
        else:
            hear()
            assert np.array_equal(target.numpy(), expected), (name, repeat)
        comm.barrier(timeout=30)
comm.close()
"""


@pytest.mark.parametrize("way", WAYS, ids=["shm", "ring", "tcp"])
def test_every_call_waits_for_the_put(run_job: Callable[..., str], way: dict[str, str]) -> None:
    run_job(DOORS.replace("REPEATS", "3"), environment=way, timeout=110)


@pytest.mark.parametrize("vendor", ["cuda", "rocm"])
def test_stream_ordered_calls_wait_for_the_put(run_job: Callable[..., str], vendor: str) -> None:
    run_job(
        f"vendor = {vendor!r}\n"
        + """
SIZE = 4 << 20
stream = 0

def read(buf):
    array = np.empty(len(buf), np.uint8)
    buf.memory.copy_to(array)
    return array

with hmc.init() as comm:
    source, target, flag = (comm.buffer(size, device=vendor + ":0") for size in (SIZE, SIZE, 4096))
    host, word = np.zeros(SIZE, np.uint8), comm.buffer(4096, device=vendor + ":0")
    remote, remote_flag = (comm.exchange(buffer, timeout=30)[1 - comm.rank] for buffer in (target, flag))
    batch = comm.prepare_blocks([(flag, [0, 2048], remote_flag, [2048, 0])], block=1024)
    out, inp = (comm.buffer(2 * 4096, device=vendor + ":0") for _ in range(2))
    number = 0
    for name in ["isend", "put", "put_blocks", "iall_to_all"] * 3:
        number += 1
        expected = pattern(SIZE, number)
        if comm.rank == 0:
            source.memory.copy_from(expected)
            works = [comm.put(source, remote, stream=stream, complete="local" if number % 2 else "remote")]
            comm.fence(1)
            if name == "isend":
                works.append(comm.isend(flag, 1, tag=3, stream=stream))
            elif name == "put":
                works.append(comm.put(flag, remote_flag, notify=5, stream=stream))
            elif name == "put_blocks":
                works.append(comm.put_blocks(batch, notify=5, stream=stream))
            else:
                works.append(comm.iall_to_all(out, inp))
            for work in works:
                work.wait(30)
        else:
            if name == "isend":
                comm.recv(word, 0, tag=3, timeout=30)
            elif name == "iall_to_all":
                comm.iall_to_all(out, inp).wait(30)
            else:
                comm.wait_notify(0, 5, timeout=30)
            assert np.array_equal(read(target), expected), (name, number)
        comm.barrier(timeout=30)
""",
        environment=hmc.testing.environment(),
        timeout=110,
    )


# Rank 0 notifies by one connection, fences, and then speaks by another: host memory, device memory and messages go different ways.
ACROSS = """
import itertools, time

comm = hmc.init()
target = comm.buffer(SIZE)
remote = comm.exchange(target, timeout=30)[1]
host, device, word = comm.buffer(SIZE), comm.register(hmc.Memory(SIZE, device="VENDOR:0")), np.zeros(8, np.uint8)
say = {
    "put of host memory": lambda id: comm.put(host, remote, notify=id),
    "local put of host memory": lambda id: comm.put(host, remote, notify=id, complete="local"),
    "put of device memory": lambda id: comm.put(device, remote, notify=id),
    "local put of device memory": lambda id: comm.put(device, remote, notify=id, complete="local"),
    "notify": lambda id: comm.notify(1, id),
    "send": lambda id: comm.send(word, 1, tag=id, timeout=30),
}
id = 0
for repeat in range(REPEATS):
    for first, then in itertools.permutations(say, 2):
        if first == "send":
            continue
        id += 2
        if comm.rank == 0:
            works = [say[first](id)]
            comm.fence(1)
            works.append(say[then](id + 1))
            for work in works:
                if work is not None:
                    work.wait(30)
        elif then == "send":
            comm.recv(word, 0, tag=id + 1, timeout=30)
        else:
            comm.wait_notify(0, id + 1, timeout=30)
        if comm.rank == 1:
            try:
                comm.wait_notify(0, id, timeout=0)
            except hmc.HmcTimeoutError:
                raise SystemExit(f"{then} was there before {first}, round {repeat}")
comm.barrier(timeout=30)
"""


@pytest.mark.parametrize("transports", ["shm", "tcp"])
@pytest.mark.parametrize("size", [40, 100_001])
def test_notifications_keep_their_order_across_connections(run_job: Callable[..., str], size: int, transports: str) -> None:
    environment = {**hmc.testing.environment(), "HMC_TRANSPORTS": f"{transports},staging"}
    source = ACROSS.replace("VENDOR", "rocm").replace("SIZE", str(size)).replace("REPEATS", "20")
    run_job(source, environment=environment, timeout=110)
