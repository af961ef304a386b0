"""Every ordered pair of kinds of memory: put, get, send, recv, blocks and all-to-all, every byte compared.

Runs over the devices of this machine, and over one simulated device of every vendor.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

import hmc
import hmc.testing


@pytest.fixture
def ucx_between_devices() -> list[str]:
    """The accelerators, where UCX has a way for their memory between processes."""
    devices = [device for device in hmc.devices() if device != "cpu"]
    if not devices:
        pytest.skip("this machine has no accelerator that HMC can use")
    source = "import hmc; print([t['reason'] for t in hmc.info()['transports'] if t['name'] == 'ucx'][0])"
    environment = {**os.environ, "HMC_TRANSPORTS": "ucx"}
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, env=environment, cwd="/", check=True
    )
    if "_ipc" not in done.stdout:
        pytest.skip(f"UCX has no way for their memory: {done.stdout}")
    return devices


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
            # A device reaches memory of its vendor, and by ipc the CPU's, whoever of the two starts.
            direct = here.split(":")[0] == there.split(":")[0] or ({by!r} == "ipc" and "cpu" in (here, there))
            assert path.transport == ({by!r} if direct else "staging"), str(path)
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
        PAIR_JOB.format(devices=devices, by="ipc"),
        timeout=170,
        environment={**hmc.testing.environment(), "HMC_STAGING_CHUNK_BYTES": "262144", **environment},
    )
    assert f"pairs: {len(devices) ** 2}" in out


def test_every_pair_of_real_devices(run_job: Callable[..., str]) -> None:
    devices = hmc.devices()
    if devices == ["cpu"]:
        pytest.skip("this machine has no accelerator that HMC can use")
    out = run_job(PAIR_JOB.format(devices=devices, by="ipc"), timeout=170)
    assert f"pairs: {len(devices) ** 2}" in out


def test_every_pair_of_real_devices_over_ucx(run_job: Callable[..., str], ucx_between_devices: list[str]) -> None:
    devices = ["cpu", *ucx_between_devices]
    out = run_job(PAIR_JOB.format(devices=devices, by="ucx"), timeout=170, environment={"HMC_TRANSPORTS": "ucx,staging"})
    assert f"pairs: {len(devices) ** 2}" in out


# Blocks of two pairs at once, which go different ways, with one notification behind both.
MIXED_JOB = """
device = {device!r}
with hmc.init() as comm:
    other, count, block = 1 - comm.rank, 50, 1777
    own = {{kind: comm.buffer(2 * count * block, device=kind) for kind in ("cpu", device)}}
    sources = {{kind: comm.buffer(2 * count * block, device=kind) for kind in own}}
    remotes = {{kind: comm.exchange(own[kind], timeout=30)[other] for kind in own}}
    order = np.random.default_rng(3)
    here, there = (order.permutation(2 * count)[:count] * block for _ in range(2))
    for turn in range(4):
        batch = comm.prepare_blocks([(sources[kind], here, remotes[kind], there) for kind in own], block=block)
        for i, kind in enumerate(own):
            sources[kind].memory.copy_from(pattern(2 * count * block, 100 * turn + 10 * i + comm.rank))
            own[kind].memory.fill(0x5A)
        comm.barrier(timeout=30)
        comm.put_blocks(batch, notify=turn).wait(timeout=30)
        comm.wait_notify(other, turn, timeout=30)
        for i, kind in enumerate(own):
            got, sent = np.empty(2 * count * block, np.uint8), pattern(2 * count * block, 100 * turn + 10 * i + other)
            own[kind].memory.copy_to(got)
            expected = np.full(2 * count * block, 0x5A, np.uint8)
            for a, b in zip(here, there):
                expected[b : b + block] = sent[a : a + block]
            assert np.array_equal(got, expected), (turn, kind)
        comm.barrier(timeout=30)
        back = {{kind: comm.buffer(2 * count * block, device=kind) for kind in own}}
        batch = comm.prepare_blocks([(back[kind], there, remotes[kind], there) for kind in own], block=block)
        comm.get_blocks(batch).wait(timeout=30)
        for i, kind in enumerate(own):
            got, sent = np.empty(2 * count * block, np.uint8), pattern(2 * count * block, 100 * turn + 10 * i + comm.rank)
            back[kind].memory.copy_to(got)
            for a, b in zip(here, there):
                assert np.array_equal(got[b : b + block], sent[a : a + block]), (turn, kind)
        comm.barrier(timeout=30)
"""


def test_blocks_that_go_two_ways_over_ucx(run_job: Callable[..., str], ucx_between_devices: list[str]) -> None:
    run_job(MIXED_JOB.format(device=ucx_between_devices[0]), timeout=100, environment={"HMC_TRANSPORTS": "ucx,staging"})


# What is put has been queued on the stream only, behind a tenth of a second of other work; nobody waits for it.
STREAM_JOB = """
import torch
with hmc.init() as comm:
    torch.cuda.set_device(0)
    other, size = 1 - comm.rank, 3 << 20
    target = comm.buffer(size, device="cuda:0")
    remote = comm.exchange(target, timeout=30)[other]
    tensor = torch.zeros(size, dtype=torch.uint8, device="cuda:0")
    source, stream = comm.register(tensor), torch.cuda.Stream()
    comm.barrier(timeout=30)
    for turn in range(5):
        wanted = pattern(size, 10 * turn + comm.rank)
        staged = torch.from_numpy(wanted).cuda()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)
            tensor.copy_(staged)
        comm.put(source, remote, notify=turn, stream=stream).wait(timeout=30)
        comm.wait_notify(other, turn, timeout=30)
        got = np.empty(size, np.uint8)
        target.memory.copy_to(got)
        assert np.array_equal(got, pattern(size, 10 * turn + other)), turn
        comm.barrier(timeout=30)
"""


KILLED_JOB = """
import os, time
comm = hmc.init()
other, size = 1 - comm.rank, 64 << 20
target = comm.buffer(size, device={device!r})
remote = comm.exchange(target, timeout=30)[other]
source = comm.buffer(size, device={device!r})
comm.barrier(timeout=30)
if comm.rank == 1:
    comm.recv(np.zeros(1), 0, timeout=30)  # its death would end a barrier that rank 0 has not returned from
    time.sleep(0.5)
    os.kill(os.getpid(), 9)
comm.send(np.zeros(1), 1, timeout=30)
start = time.monotonic()
try:
    while time.monotonic() - start < 30:
        works = [comm.put(source, remote), comm.get(source, remote)]
        for work in works:
            work.wait(timeout=30)
except hmc.PeerLostError as error:
    print("lost:", error, flush=True)
    os._exit(0)
raise AssertionError("the peer's death was not noticed")
"""


def test_a_peer_killed_over_ucx(run_job: Callable[..., str], ucx_between_devices: list[str]) -> None:
    out = run_job(
        KILLED_JOB.format(device=ucx_between_devices[0]), timeout=60, environment={"HMC_TRANSPORTS": "ucx,staging"}, expect=137
    )
    assert "lost:" in out


def test_streams_over_ucx(run_job: Callable[..., str], ucx_between_devices: list[str]) -> None:
    pytest.importorskip("torch")
    run_job(STREAM_JOB, timeout=100, environment={"HMC_TRANSPORTS": "ucx,staging"})
