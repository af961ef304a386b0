"""Every ordered pair of kinds of memory: put, get, send, recv, blocks and all-to-all, every byte compared.

Runs over the devices of this machine, and over one simulated device of every vendor.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import hmc
import hmc.testing

SIMULATED = ["cuda:0", "rocm:0", "hygon:0", "mlu:0", "musa:1"]

PAIR_JOB = """
import itertools
devices = {devices!r}
SIZES = [1, 7, 4097, 65537, (1 << 20) + 3]

def on(comm, device, data, at=0, room=None):
    buf = comm.buffer(room or len(data) + at, device=device)
    buf.memory.fill(0x5A)
    if len(data):
        buf.memory[at : at + len(data)].copy_from(data)
    return buf

def read(buf):
    out = np.empty(len(buf), np.uint8)
    buf.memory.copy_to(out)
    return out

with hmc.init() as comm:
    me, peer = comm.rank, 1 - comm.rank
    for number, pair in enumerate(itertools.product(devices, devices)):
        here, there = pair[me], pair[peer]
        room = SIZES[-1] + 200
        target = on(comm, here, b"", room=room)
        remote = comm.exchange(target, timeout=30)[peer]
        assert remote.device == there, (remote.device, there)
        for seed, size in enumerate(SIZES):
            what = (here, there, size)
            data, expected = pattern(size, 10 * seed + me), pattern(size, 10 * seed + peer)
            source = on(comm, here, data, at=33)
            comm.barrier(timeout=30)
            comm.put(source[33 : 33 + size], remote[65 : 65 + size], notify=seed).wait(timeout=30)
            comm.wait_notify(peer, seed, timeout=30)
            got = read(target)
            assert np.array_equal(got[65 : 65 + size], expected), ("put", what)
            assert (got[:65] == 0x5A).all() and (got[65 + size :] == 0x5A).all(), ("guards of put", what)
            back = on(comm, here, b"", room=size + 64)
            comm.get(back[31 : 31 + size], remote[65 : 65 + size]).wait(timeout=30)
            got = read(back)
            assert np.array_equal(got[31 : 31 + size], data), ("get", what)
            assert (got[:31] == 0x5A).all() and (got[31 + size :] == 0x5A).all(), ("guards of get", what)
            comm.barrier(timeout=30)
            receiving = comm.irecv(back[16 : 16 + size], src=peer, tag=seed)
            comm.send(source[33 : 33 + size], dst=peer, tag=seed, timeout=30)
            receiving.wait(timeout=30)
            got = read(back)
            assert np.array_equal(got[16 : 16 + size], expected), ("send", what)
            target.memory.fill(0x5A)
            comm.barrier(timeout=30)
        count, block = 40, 1000
        order = np.random.default_rng(number)
        offsets = [order.permutation(2 * count)[:count] * block for _ in range(4)]
        own = on(comm, here, pattern(2 * count * block, number + 7 * me))
        comm.barrier(timeout=30)
        batch = comm.prepare_blocks([(own, offsets[2 * me], remote, offsets[2 * me + 1])], block=block)
        comm.put_blocks(batch, notify=99).wait(timeout=30)
        comm.wait_notify(peer, 99, timeout=30)
        whole, got = pattern(2 * count * block, number + 7 * peer), read(target)
        for a, b in zip(offsets[2 * peer], offsets[2 * peer + 1]):
            assert np.array_equal(got[b : b + block], whole[a : a + block]), ("blocks", here, there)
        comm.barrier(timeout=30)
        inp, out = on(comm, here, pattern(2 * 5000, number + 3 * me)), on(comm, here, b"", room=10000)
        comm.all_to_all(out, inp, timeout=30)
        got = read(out)
        for rank in range(2):
            part = pattern(10000, number + 3 * rank)[me * 5000 : me * 5000 + 5000]
            assert np.array_equal(got[rank * 5000 : rank * 5000 + 5000], part), ("all_to_all", here, there)
        path = comm.path(peer, here, there)
        if here != "cpu" or there != "cpu":
            # A device reaches memory of its vendor, and the CPU's, whoever of the two starts.
            direct = "cpu" in (here, there) or here.split(":")[0] == there.split(":")[0]
            assert path.transport == ("ipc" if direct else "staging"), str(path)
            assert path.direct == direct and (path.bytes_staged > 0) != direct, str(path)
        comm.barrier(timeout=30)
    if me == 0:
        print("pairs:", len(devices) ** 2)
"""


@pytest.mark.parametrize(
    "environment",
    [{}, {"HMC_STAGING_CHUNK_BYTES": "65536"}, {"HMC_TRANSPORTS": "tcp,staging,ipc", "HMC_STAGING_SHARED": "0"}],
    ids=["default", "small-chunks", "carried-by-tcp"],
)
def test_every_pair_of_simulated_vendors(run_job: Callable[..., str], environment: dict[str, str]) -> None:
    devices = ["cpu", *SIMULATED]
    out = run_job(
        PAIR_JOB.format(devices=devices),
        timeout=170,
        environment={**hmc.testing.environment(), "HMC_STAGING_CHUNK_BYTES": "262144", **environment},
    )
    assert f"pairs: {len(devices) ** 2}" in out


def test_every_pair_of_real_devices(run_job: Callable[..., str]) -> None:
    devices = hmc.devices()
    if devices == ["cpu"]:
        pytest.skip("this machine has no accelerator that HMC can use")
    out = run_job(PAIR_JOB.format(devices=devices), timeout=170)
    assert f"pairs: {len(devices) ** 2}" in out
