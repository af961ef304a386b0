"""Device memory that has no IPC handle: pieces are shared one by one, and what cannot be shared is staged, buffer by buffer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import hmc.testing

PRELUDE = """
from virtual_memory import PIECE, Driver

driver = Driver()

def read(memory):
    out = np.empty(len(memory), np.uint8)
    memory.copy_to(out)
    return out

def counters(comm):
    return comm.context.counters()

# Put, get, blocks and messages between `mine` here and there; every byte.
def exchange_all(comm, buf, seed):
    me, peer, size = comm.rank, 1 - comm.rank, len(buf)
    remote = comm.exchange(buf, timeout=30)[peer]
    other = comm.buffer(size, device=buf.device)
    other.memory.copy_from(pattern(size, seed + me))
    buf.memory.fill(0x5A)
    comm.barrier(timeout=30)
    comm.put(other[5 : size - 3], remote[5 : size - 3], notify=1).wait(30)
    comm.wait_notify(peer, 1, timeout=30)
    got, wanted = read(buf.memory), pattern(size, seed + peer)
    assert (got[5 : size - 3] == wanted[5 : size - 3]).all(), "put"
    assert (got[:5] == 0x5A).all() and (got[size - 3 :] == 0x5A).all(), "guards"
    comm.barrier(timeout=30)
    back = comm.buffer(size, device=buf.device)
    comm.get(back[5 : size - 3], remote[5 : size - 3]).wait(30)
    assert (read(back.memory)[5 : size - 3] == pattern(size, seed + me)[5 : size - 3]).all(), "get"
    comm.barrier(timeout=30)
    block = 4096
    offsets = np.random.default_rng(seed).permutation(size // block - 1)[:50] * block
    batch = comm.prepare_blocks([(other, offsets, remote, offsets + 7)], block=block)
    buf.memory.fill(0)
    comm.barrier(timeout=30)
    comm.put_blocks(batch, notify=2).wait(30)
    comm.wait_notify(peer, 2, timeout=30)
    got = read(buf.memory)
    for at in offsets:
        assert (got[at + 7 : at + 7 + block] == wanted[at : at + block]).all(), "blocks"
    comm.barrier(timeout=30)
    receiving = comm.irecv(buf[1 : size - 1], src=peer, tag=4)
    comm.send(other[1 : size - 1], dst=peer, tag=4, timeout=30)
    receiving.wait(30)
    assert (read(buf.memory)[1 : size - 1] == wanted[1 : size - 1]).all(), "into it"
    comm.barrier(timeout=30)
    receiving = comm.irecv(back[1 : size - 1], src=peer, tag=5)
    comm.send(buf[1 : size - 1], dst=peer, tag=5, timeout=30)
    receiving.wait(30)
    assert (read(back.memory)[1 : size - 1] == pattern(size, seed + me)[1 : size - 1]).all(), "out of it"
    comm.barrier(timeout=30)
"""


def simulated(**more: str) -> dict[str, str]:
    return {**hmc.testing.environment(), "HMC_STAGING_CHUNK_BYTES": "262144", **more}


@pytest.mark.parametrize("pieces", [[1], [1, 3, 2]], ids=["one-piece", "several"])
def test_pieces_are_mapped_by_the_peer(run_job: Callable[..., str], pieces: list[int]) -> None:
    run_job(
        PRELUDE
        + f"""
with hmc.init() as comm:
    memory = driver.mapped(comm.rank, {pieces!r}, offset=70_001, size=sum({pieces!r}) * PIECE - 90_003)
    buf = comm.register(memory)
    assert buf.device == f"cuda:{{comm.rank}}"
    remote = comm.exchange(buf, timeout=30)[1 - comm.rank]
    source = comm.buffer(len(buf), device=buf.device)
    source.memory.copy_from(pattern(len(buf), comm.rank))
    comm.put(source, remote, notify=9).wait(30)
    comm.wait_notify(1 - comm.rank, 9, timeout=30)
    assert (read(buf.memory) == pattern(len(buf), 1 - comm.rank)).all()
    found = counters(comm)
    assert found["bytes_staged"] == 0 and "routes.refused.ipc" not in found, found
    # Another device here reaches the same mapping.
    second = comm.buffer(len(buf), device=f"cuda:{{1 - comm.rank}}")
    comm.get(second, remote).wait(30)
    assert (read(second.memory) == pattern(len(buf), comm.rank)).all()
    assert counters(comm)["bytes_staged"] == 0
    comm.barrier(timeout=30)
    exchange_all(comm, buf, 10)
    found = counters(comm)
    assert found["bytes_staged"] == 0 and "routes.refused.ipc" not in found, found
    buf.close(timeout=30)
""",
        environment=simulated(),
        timeout=120,
    )


def test_messages_into_pieces_that_come_and_go(run_job: Callable[..., str]) -> None:
    """What is mapped at the sender is the memory that lies there now, however often its owner has put other pieces there."""
    run_job(
        PRELUDE
        + """
import os
with hmc.init(policy="direct") as comm:
    peer = 1 - comm.rank
    memory = driver.mapped(comm.rank, [1, 2, 1])
    inside = comm.register(memory)
    sizes = [1, 8, 4097, 1_000_003, 4 * PIECE - 77]
    source = comm.buffer(4 * PIECE, device=f"cuda:{comm.rank}")
    def swap(seed):
        source.memory.copy_from(pattern(4 * PIECE, seed + comm.rank))
        for tag, size in enumerate(sizes):
            inside.memory.fill(0x5A)
            comm.barrier(timeout=30)
            at = 4 * PIECE - size if tag % 2 else 77 if size < 3 * PIECE else 0
            receiving = comm.irecv(inside[at : at + size], src=peer, tag=tag)
            comm.send(source[33 : 33 + size], dst=peer, tag=tag, timeout=30)
            receiving.wait(30)
            got = read(inside.memory)
            assert (got[at : at + size] == pattern(4 * PIECE, seed + peer)[33 : 33 + size]).all(), (seed, size)
            assert (got[:at] == 0x5A).all() and (got[at + size :] == 0x5A).all(), ("guards", seed, size)
            comm.barrier(timeout=30)
    for turn in range(4):
        swap(10 * turn)
        swap(10 * turn + 5)
        base = memory.pointer + PIECE * (turn % 2)
        for address, granules in ((base, 1 + turn % 2), (memory.pointer + 3 * PIECE, 1)):
            driver.unmap(address, granules)
            driver.map_at(address, comm.rank, granules)
    # More ranges than stay mapped, again and again.
    ranges = [comm.register(driver.mapped(comm.rank, [1])) for _ in range(40)]
    opened = len(os.listdir("/proc/self/fd"))
    for turn in range(3):
        for tag, each in enumerate(ranges):
            each.memory.fill(0)
            receiving = comm.irecv(each[5:1005], src=peer, tag=tag)
            comm.barrier(timeout=30)
            comm.send(source[tag : tag + 1000], dst=peer, tag=tag, timeout=30)
            receiving.wait(30)
            assert (read(each.memory[:1010])[5:1005] == pattern(4 * PIECE, 35 + peer)[tag : tag + 1000]).all(), (turn, tag)
    found = counters(comm)
    assert found["bytes_staged"] == 0 and "routes.refused.ipc" not in found, found
    # Descriptors are closed once they are mapped; the simulated driver keeps one for each piece.
    assert len(os.listdir("/proc/self/fd")) < opened + 90, (opened, len(os.listdir("/proc/self/fd")))
    comm.barrier(timeout=30)
""",
        environment=simulated(),
        timeout=120,
    )


MAKE = {
    "not-shareable": "driver.mapped(comm.rank, [1, 1], offset=333, shareable=False)",
    "too-many-pieces": "driver.mapped(comm.rank, [1] * 130, offset=5_000)",
    "pool": "driver.pooled(comm.rank, 3_000_001)",
}


@pytest.mark.parametrize("kind", MAKE)
def test_what_cannot_be_shared_is_staged(run_job: Callable[..., str], capfd: pytest.CaptureFixture[str], kind: str) -> None:
    out = run_job(
        PRELUDE
        + f"""
import os
os.dup2(1, 2)  # warnings with the output
with hmc.init() as comm:
    buf = comm.register({MAKE[kind]})
    if len(buf) > 6_000_000:
        remote = comm.exchange(buf, timeout=30)[1 - comm.rank]
        source = comm.buffer(1_000_000, device=buf.device)
        source.memory.copy_from(pattern(1_000_000, comm.rank))
        comm.put(source, remote[PIECE - 500_000 : PIECE + 500_000], notify=1).wait(30)
        comm.wait_notify(1 - comm.rank, 1, timeout=30)
        assert (read(buf.memory[PIECE - 500_000 : PIECE + 500_000]) == pattern(1_000_000, 1 - comm.rank)).all()
    else:
        exchange_all(comm, buf, 20)
    found = counters(comm)
    assert found["bytes_staged"] > 0 and found["routes.refused.ipc"] >= 1, found
    # Only this memory: the rest goes as before.
    plain = comm.buffer(50_000, device=buf.device)
    remote = comm.exchange(plain, timeout=30)[1 - comm.rank]
    plain.memory.copy_from(pattern(50_000, comm.rank))
    comm.barrier(timeout=30)
    target = comm.buffer(50_000, device=buf.device)
    before = counters(comm)["bytes_staged"]
    comm.get(target, remote).wait(30)
    assert (read(target.memory) == pattern(50_000, 1 - comm.rank)).all()
    assert counters(comm)["bytes_staged"] == before
    path = comm.path(1 - comm.rank, buf.device, f"cuda:{{1 - comm.rank}}")
    assert path.transport == "ipc" and path.direct, str(path)
    comm.barrier(timeout=30)
""",
        environment=simulated(),
        timeout=120,
    )
    reason = {"not-shareable": "no descriptor", "too-many-pieces": "more than 128 pieces", "pool": "no descriptor"}[kind]
    warnings = [line for line in out.splitlines() if "does not reach some memory" in line]
    assert len(warnings) == 2, out  # one of each rank
    assert all(reason in line and "CUDA_ERROR_INVALID_VALUE" in line for line in warnings), warnings


REFUSALS = {
    "cuda": "cuIpcGetMemHandle",
    "rocm": "hipIpcGetMemHandle",
    "hygon": "hipIpcGetMemHandle",
    "musa": "musaIpcGetMemHandle",
    "mlu": "cnrtAcquireMemHandle",
}


@pytest.mark.parametrize("vendor", REFUSALS)
def test_a_vendor_that_gives_no_handle(run_job: Callable[..., str], vendor: str) -> None:
    code = 100006 if vendor == "mlu" else 1
    every = ",".join(f"{REFUSALS[vendor]}:{n}={code}" for n in range(1, 40))
    run_job(
        PRELUDE
        + f"""
with hmc.init() as comm:
    buf = comm.buffer(300_007, device="{vendor}:" + str(comm.rank))
    exchange_all(comm, buf, 30)
    found = counters(comm)
    assert found["bytes_staged"] > 5 * 300_000 and found["routes.refused.ipc"] >= 3, found
""",
        environment=simulated(HMC_SIM_FAIL=every),
    )


@pytest.mark.parametrize("vendor", REFUSALS)
def test_devices_without_peer_access(run_job: Callable[..., str], vendor: str) -> None:
    out = run_job(
        PRELUDE
        + f"""
import os
os.dup2(1, 2)
with hmc.init() as comm:
    buf = comm.buffer(300_007, device="{vendor}:" + str(comm.rank))
    exchange_all(comm, buf, 40)
    found = counters(comm)
    assert found["bytes_staged"] > 5 * 300_000 and found["routes.refused.ipc"] >= 3, found
    # On one device there is nothing to reach across.
    same = comm.buffer(300_007, device="{vendor}:0")
    before = found["bytes_staged"]
    remote = comm.exchange(same, timeout=30)[1 - comm.rank]
    source = comm.buffer(300_007, device="{vendor}:0")
    source.memory.copy_from(pattern(300_007, 50 + comm.rank))
    comm.put(source, remote, notify=3).wait(30)
    comm.wait_notify(1 - comm.rank, 3, timeout=30)
    assert (read(same.memory) == pattern(300_007, 51 - comm.rank)).all()
    assert counters(comm)["bytes_staged"] == before
    comm.barrier(timeout=30)
""",
        environment=simulated(HMC_SIM_PEERS="0"),
    )
    assert len([line for line in out.splitlines() if "does not reach some memory" in line]) == 2, out


def test_policy_direct_makes_it_an_error(run_job: Callable[..., str]) -> None:
    run_job(
        PRELUDE
        + """
with hmc.init(policy="direct") as comm:
    peer = 1 - comm.rank
    plain = comm.buffer(100_000, device=f"cuda:{comm.rank}")
    buf = comm.register(driver.mapped(comm.rank, [1], shareable=False))
    remotes = [comm.exchange(each, timeout=30)[peer] for each in (plain, buf)]
    source = comm.buffer(100_000, device=plain.device)
    source.memory.copy_from(pattern(100_000, comm.rank))
    comm.put(source, remotes[0], notify=1).wait(30)
    comm.wait_notify(peer, 1, timeout=30)
    assert (read(plain.memory) == pattern(100_000, peer)).all()
    host = comm.buffer(100_000)  # to which the owner's device copies
    comm.get(host, remotes[1][:100_000]).wait(30)
    try:
        comm.put(source, remotes[1][:100_000]).wait(30)
    except hmc.HmcError as error:
        text = str(error)
        assert "no descriptor" in text and 'policy="direct" forbids' in text, text
    else:
        raise SystemExit("it was staged")
    receiving = comm.irecv(buf[:100_000], src=peer, tag=1)
    sending = comm.isend(source, dst=peer, tag=1)
    for work in (receiving, sending):
        try:
            work.wait(30)
        except hmc.HmcError as error:
            assert 'policy="direct" forbids' in str(error), error
        else:
            raise SystemExit("it was staged")
    comm.barrier(timeout=30)
""",
        environment=simulated(),
    )
