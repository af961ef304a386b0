"""From CPU memory here into a device of another process and back: the other process's device copies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from test_host_copies import PIN, prelude

import hmc.testing


@pytest.mark.parametrize("carrier", ["shm", "tcp"])
@pytest.mark.parametrize("vendor", PIN)
def test_every_size_and_offset(run_job: Callable[..., str], vendor: str, carrier: str) -> None:
    out = run_job(
        prelude(vendor)
        + """
import time
with hmc.init() as comm:
    other = 1 - comm.rank
    mine = comm.buffer(SIZE, device="cpu" if comm.rank == 0 else DEVICE)
    mine.memory.copy_from(pattern(SIZE, comm.rank))
    shown = comm.register(hmc.Memory(SIZE, device=mine.device), access="r")
    shown.memory.copy_from(pattern(SIZE, 20 + comm.rank))
    array = pattern(SIZE, 30)
    foreign = comm.register(array)
    remote, shown_remote = (comm.exchange(each, timeout=30)[other] for each in (mine, shown))
    if comm.rank == 0:
        mirror = comm.buffer(SIZE)
        def look():
            comm.get(mirror, remote).wait(30)
            return read(mirror).copy()
        assert (look() == pattern(SIZE, 1)).all()
        for seed, size in enumerate([0, 1, 7, 4095, 4096, 4097, 1_000_001]):
            near, far = 4096 + seed, 8192 - 3 * seed
            mine.memory.copy_from(pattern(SIZE, 100 + seed))
            before = look()
            comm.put(mine[near : near + size], remote[far : far + size], notify=seed).wait(30)
            after = look()
            assert (after[far : far + size] == pattern(SIZE, 100 + seed)[near : near + size]).all(), ("put", size)
            assert (after[:far] == before[:far]).all() and (after[far + size :] == before[far + size :]).all(), ("guards", size)
        exercise(comm, mine, remote, look, 5)
        # What its owner shows for reading is read, and not written.
        comm.get(mine[9:], shown_remote[9:]).wait(30)
        assert (mine.numpy()[9:] == pattern(SIZE, 21)[9:]).all()
        try:
            comm.put(mine, shown_remote).wait(30)
        except hmc.InvalidArgumentError as error:
            assert "reading only" in str(error), error
        else:
            raise SystemExit("it was written")
        # Memory that peers may only read is a source, and then a target of the owner's own gets.
        comm.put(shown[3:], remote[3:]).wait(30)
        assert (look()[3:] == pattern(SIZE, 20)[3:]).all()
        comm.get(shown, shown_remote).wait(30)
        assert (read(shown) == pattern(SIZE, 21)).all()
        path = comm.path(1, "cpu", DEVICE)
        assert path.transport == "ipc" and path.direct and "peer's device" in path.detail, str(path)
        assert path.messages == "staging", str(path)
        found = comm.context.counters()
        assert found["bytes_staged"] == 0 and "routes.refused.ipc" not in found, found
        with open("/proc/self/maps") as maps:
            assert "libhmcsim" not in maps.read()  # who has no device opens no device's library
        mine.memory.copy_from(pattern(SIZE, 70))
        comm.put(mine, remote, notify=99).wait(30)
    else:
        for seed in range(7):
            comm.wait_notify(0, seed, timeout=30)
        comm.wait_notify(0, 99, timeout=30)
        assert (read(mine) == pattern(SIZE, 70)).all(), "a notification comes after the bytes"
        assert comm.context.counters()["bytes_staged"] == 0
    comm.barrier(timeout=30)
    # Buffers come and go, and many operations are under way.
    def mapped():
        with open("/proc/self/maps") as maps:
            return sum("/memfd:hmc " in line for line in maps)
    before = mapped()
    for turn in range(6):
        each = comm.buffer(200_003 + turn, device=mine.device)
        each.memory.copy_from(pattern(200_003 + turn, turn))
        target = comm.exchange(each, timeout=30)[other]
        if comm.rank == 0:
            works = [comm.put(each[i * 1000 : i * 1000 + 997], target[i * 1000 + 1 : i * 1000 + 998], notify=i) for i in range(200)]
            for work in works:
                work.wait(30)
        else:
            for i in range(200):
                comm.wait_notify(0, i, timeout=30)
            got, wanted = read(each), pattern(200_003 + turn, turn)
            for i in range(200):
                assert (got[i * 1000 + 1 : i * 1000 + 998] == wanted[i * 1000 : i * 1000 + 997]).all(), i
        comm.barrier(timeout=30)
        each.close(timeout=10)
        del each, target
    comm.barrier(timeout=30)
    deadline = time.monotonic() + 10
    while comm.rank == 1 and mapped() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert comm.rank == 0 or mapped() <= before, (before, mapped())  # what was closed is not kept mapped
    print("direct", flush=True)
    # A message's memory is not mapped; memory that HMC did not allocate has no descriptor.
    data = np.zeros(SIZE, np.uint8)
    if comm.rank == 0:
        comm.send(pattern(SIZE, 44), dst=1, timeout=30)
        comm.put(foreign[1:], remote[1:]).wait(30)
        comm.get(foreign[:-1], remote[1:]).wait(30)
        assert (array[:-1] == pattern(SIZE, 30)[1:]).all()
        found = comm.context.counters()
        assert found["bytes_staged"] >= 2 * SIZE - 2 and found["routes.refused.ipc"] == 1, found
    else:
        receiving = comm.irecv(mine, src=0)
        receiving.wait(30)
    comm.barrier(timeout=30)
""",
        timeout=120,
        environment={
            **hmc.testing.environment(vendor),
            "HMC_STAGING_CHUNK_BYTES": "262144",
            "HMC_TRANSPORTS": f"{carrier},staging,ipc,local",
        },
    )
    lines = out.splitlines()
    over = max(number for number, line in enumerate(lines) if "direct" in line and "] direct" in line)
    assert not [line for line in lines[: over - 1] if "warning" in line and "not pinned" not in line], out
    assert len([line for line in lines if "does not reach some memory" in line and "HMC did not allocate" in line]) == 1, out


@pytest.mark.parametrize("kind", ["pooled", "mapped"])
def test_memory_without_a_handle(run_job: Callable[..., str], kind: str) -> None:
    """The owner's device reaches it all the same."""
    make = {"pooled": "Driver().pooled(0, SIZE)", "mapped": "Driver().mapped(0, [1, 1], offset=333, size=SIZE, shareable=False)"}[
        kind
    ]
    run_job(
        prelude("cuda")
        + f"""
with hmc.init(policy="direct") as comm:
    if comm.rank == 1:
        from virtual_memory import Driver
        mine = comm.register({make})
    else:
        mine = comm.buffer(SIZE)
    remote = comm.exchange(mine, timeout=30)[1 - comm.rank]
    if comm.rank == 0:
        mirror = comm.buffer(SIZE)
        def look():
            comm.get(mirror, remote).wait(30)
            return read(mirror).copy()
        exercise(comm, mine, remote, look, 5)
        assert comm.context.counters()["bytes_staged"] == 0
    comm.barrier(timeout=30)
""",
        environment=hmc.testing.environment("cuda"),
    )


def test_both_ways_at_once(run_job: Callable[..., str]) -> None:
    """Each process has CPU memory and a device of another vendor, and puts from the one into the peer's other."""
    run_job(
        prelude("cuda")
        + """
with hmc.init(policy="direct") as comm:
    peer = 1 - comm.rank
    host, device = comm.buffer(SIZE), comm.buffer(SIZE, device=["cuda:0", "musa:1"][comm.rank])
    host_remote, device_remote = (comm.exchange(each, timeout=30)[peer] for each in (host, device))
    for turn in range(5):
        host.numpy()[:] = pattern(SIZE, 10 * turn + comm.rank)
        comm.barrier(timeout=30)
        comm.put(host[1:], device_remote[:-1], notify=turn).wait(30)
        comm.wait_notify(peer, turn, timeout=30)
        assert (read(device)[:-1] == pattern(SIZE, 10 * turn + peer)[1:]).all()
        back = comm.buffer(SIZE)
        comm.get(back[: SIZE - 5], device_remote[3 : SIZE - 2]).wait(30)
        assert (back.numpy()[: SIZE - 5] == pattern(SIZE, 10 * turn + comm.rank)[4 : SIZE - 1]).all()
        comm.barrier(timeout=30)
    assert comm.context.counters()["bytes_staged"] == 0
    comm.barrier(timeout=30)
""",
        environment=hmc.testing.environment(),
    )


def test_the_device_s_process_killed_amid_the_copies(run_job: Callable[..., str]) -> None:
    out = run_job(
        prelude("cuda")
        + """
import signal, time
comm = hmc.init()
mine = comm.buffer(SIZE, device="cpu" if comm.rank == 0 else DEVICE)
mine.memory.copy_from(pattern(SIZE, 3))
remote = comm.exchange(mine, timeout=30)[1 - comm.rank]
if comm.rank == 1:
    comm.send(np.array([os.getpid()]), 0)
    time.sleep(60)
pid = np.zeros(1, np.int64)
comm.recv(pid, 1, timeout=30)
comm.put(mine[:100], remote[:100]).wait(30)
works = [comm.put(mine, remote) for _ in range(20)] + [comm.get(mine, remote) for _ in range(3)]
os.kill(int(pid[0]), signal.SIGKILL)
start = time.monotonic()
lost = 0
for work in works:
    try:
        work.wait(30)
    except hmc.PeerLostError:
        lost += 1  # or it was over in time
while not lost:  # this process was so slow that all were
    try:
        comm.put(mine, remote).wait(30)
    except hmc.PeerLostError:
        lost += 1
assert time.monotonic() - start < 25
mine.numpy()[:] = pattern(SIZE, 4)
time.sleep(0.3)
assert (mine.numpy() == pattern(SIZE, 4)).all()
mine.close(timeout=10)
print("survived", flush=True)
os._exit(0)
""",
        environment={**hmc.testing.environment("cuda"), "HMC_SIM_DELAY_US": "20000"},
        expect=1,  # of the killed rank
    )
    assert "survived" in out, out


def test_the_starter_killed_amid_the_copies(run_job: Callable[..., str]) -> None:
    out = run_job(
        prelude("cuda")
        + """
import signal, time
comm = hmc.init()
mine = comm.buffer(SIZE, device="cpu" if comm.rank == 0 else DEVICE)
mine.memory.copy_from(pattern(SIZE, 3))
remote = comm.exchange(mine, timeout=30)[1 - comm.rank]
if comm.rank == 0:
    comm.put(mine[:100], remote[:100]).wait(30)
    works = [comm.put(mine, remote) for _ in range(20)]
    comm.notify(1, 5)
    works[0].wait(30)
    os.kill(os.getpid(), signal.SIGKILL)
try:
    comm.wait_notify(0, 5, timeout=30)  # or it died before this arrived
    comm.recv(np.zeros(1, np.uint8), 0, timeout=30)
except hmc.PeerLostError:
    pass
mine.close(timeout=10)
assert (read(mine) == pattern(SIZE, 3)).all()
mine.memory.copy_from(pattern(SIZE, 4))
time.sleep(0.3)
assert (read(mine) == pattern(SIZE, 4)).all()
print("survived", flush=True)
os._exit(0)
""",
        environment={**hmc.testing.environment("cuda"), "HMC_SIM_DELAY_US": "20000"},
        expect=1,
    )
    assert "survived" in out, out


def test_the_buffer_closed_amid_the_puts(run_job: Callable[..., str]) -> None:
    run_job(
        prelude("cuda")
        + """
import time
with hmc.init() as comm:
    memory = hmc.Memory(SIZE, device="cpu" if comm.rank == 0 else DEVICE)
    memory.copy_from(pattern(SIZE, comm.rank))
    mine = comm.register(memory)
    remote = comm.exchange(mine, timeout=30)[1 - comm.rank]
    if comm.rank == 0:
        comm.put(mine, remote).wait(30)
        works = [comm.put(mine, remote) for _ in range(20)]
        comm.notify(1, 5)
        ended = 0
        for work in works:
            try:
                work.wait(30)
            except hmc.HmcError as error:
                assert "closed" in str(error), error
                ended += 1
        comm.wait_notify(1, 6, timeout=30)  # all puts may have ended before it closed the buffer
        try:
            comm.put(mine, remote).wait(30)
        except hmc.HmcError as error:
            assert "closed" in str(error), error
        else:
            raise SystemExit("into a closed buffer")
    else:
        comm.wait_notify(0, 5, timeout=30)
        mine.close(timeout=30)
        comm.notify(0, 6)
        memory.copy_from(pattern(SIZE, 9))
        time.sleep(0.3)
        out = np.empty(SIZE, np.uint8)
        memory.copy_to(out)
        assert (out == pattern(SIZE, 9)).all(), "something landed after close"
    comm.barrier(timeout=30)
""",
        environment={**hmc.testing.environment("cuda"), "HMC_SIM_DELAY_US": "20000"},
    )


@pytest.mark.parametrize("where", [0, 1], ids=["at-the-starter", "at-the-device"])
def test_no_descriptors_left(run_job: Callable[..., str], where: int) -> None:
    out = run_job(
        prelude("cuda")
        + f"""
with hmc.init() as comm:
    mine = comm.buffer(SIZE, device="cpu" if comm.rank == 0 else DEVICE)
    first, second = comm.buffer(SIZE), comm.buffer(SIZE)
    remote = comm.exchange(mine, timeout=30)[1 - comm.rank]
    if comm.rank == 0:
        comm.put(first, remote).wait(30)
        comm.send(first, 1, timeout=30)  # staging has its descriptors
    else:
        comm.irecv(mine, 0).wait(30)
    comm.barrier(timeout=30)
    opened, order = [], np.random.default_rng(1).permutation(SIZE // 1000)[:1000] * 1000
    try:
        while comm.rank == {where}:
            opened.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    comm.barrier(timeout=30)
    if comm.rank == 0:
        before = comm.context.counters()["bytes_staged"]
        second.numpy()[:] = pattern(SIZE, 5)
        comm.put(second, remote, notify=3).wait(30)
        assert comm.context.counters()["bytes_staged"] == before + SIZE
        third = comm.buffer(SIZE) if {where} == 1 else None
        if third is not None:
            third.numpy()[:] = pattern(SIZE, 6)
            comm.put_blocks(comm.prepare_blocks([(third, order, remote, order)], block=1000), notify=4).wait(30)
        comm.put(first[1:2], remote[1:2]).wait(30)  # what is mapped stays
    else:
        comm.wait_notify(0, 3, timeout=30)
        if {where} == 1:
            comm.wait_notify(0, 4, timeout=30)
    for fd in opened:
        os.close(fd)
    comm.barrier(timeout=30)
    if comm.rank == 1:
        wanted = pattern(SIZE, 5)
        if {where} == 1:
            for at in order:
                wanted[at : at + 1000] = pattern(SIZE, 6)[at : at + 1000]
        wanted[1:2] = 0
        assert (read(mine) == wanted).all()
    comm.barrier(timeout=30)
    # And there are some again: only what had met the end of them is staged from now on.
    if comm.rank == 0:
        before = comm.context.counters()["bytes_staged"]
        last = comm.buffer(SIZE)
        last.numpy()[:] = pattern(SIZE, 7)
        comm.put(last, remote).wait(30)
        assert comm.context.counters()["bytes_staged"] == before
        comm.get(second[7:], remote[7:]).wait(30)
        assert (second.numpy()[7:] == pattern(SIZE, 7)[7:]).all()
        assert comm.context.counters()["bytes_staged"] == before + SIZE - 7
    comm.barrier(timeout=30)
""",
        environment={**hmc.testing.environment("cuda"), "HMC_STAGING_CHUNK_BYTES": "262144"},
        timeout=90,
    )
    assert "ulimit" in out or "Too many open files" in out, out
