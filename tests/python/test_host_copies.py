"""Between a device and CPU memory of this process and of another one: pinned once, given back, and what is left to staging.

And blocks between the devices of one process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import hmc.testing

PIN = {
    "cuda": "cuMemHostRegister_v2",
    "rocm": "hipHostRegister",
    "hygon": "hipHostRegister",
    "musa": "musaHostRegister",
    "mlu": None,  # its runtime cannot
}

PRELUDE = """
import ctypes, gc, os, time
os.dup2(1, 2)  # warnings with the output
VENDOR = {vendor!r}
DEVICE = VENDOR + ":0"
SIZE = 3_000_007
CAN_PIN = VENDOR != "mlu"

def sim():
    hmc.devices()
    library = ctypes.CDLL(hmc.testing.library(VENDOR))
    if VENDOR == "cuda":
        context = ctypes.c_void_p()
        assert library.cuInit(0) == 0
        assert library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and library.cuCtxSetCurrent(context) == 0
    return library

def pinned(library, address):
    if not CAN_PIN:
        return False
    found = ctypes.c_uint64()
    call = {{"cuda": "cuMemHostGetDevicePointer_v2", "musa": "musaHostGetDevicePointer"}}.get(VENDOR, "hipHostGetDevicePointer")
    return getattr(library, call)(ctypes.byref(found), ctypes.c_void_p(address), 0) == 0

def address_of(buf):
    return buf.numpy().ctypes.data

def read(buf):
    out = np.empty(len(buf), np.uint8)
    buf.memory.copy_to(out)
    return out

def filled(comm, device, seed):
    buf = comm.buffer(SIZE, device=device)
    buf.memory.copy_from(pattern(SIZE, seed))
    return buf

# Puts and gets `mine` to and from `remote`, whose bytes `look` gives, in one piece and in blocks, and never at offset 0.
def exercise(comm, mine, remote, look, seed):
    mine.memory.copy_from(pattern(SIZE, seed))
    before, sent = look(), pattern(SIZE, seed)
    comm.put(mine[5 : SIZE - 90], remote[71 : SIZE - 24]).wait(30)
    after = look()
    assert (after[71 : SIZE - 24] == sent[5 : SIZE - 90]).all(), "put"
    assert (after[:71] == before[:71]).all() and (after[SIZE - 24 :] == before[SIZE - 24 :]).all(), "guards of put"
    mine.memory.fill(0x5A)
    comm.get(mine[33 : SIZE - 62], remote[71 : SIZE - 24]).wait(30)
    got = read(mine)
    assert (got[33 : SIZE - 62] == after[71 : SIZE - 24]).all(), "get"
    assert (got[:33] == 0x5A).all() and (got[SIZE - 62 :] == 0x5A).all(), "guards of get"
    count, block = 6000, 333
    order = np.random.default_rng(seed)
    here, there = (7 + order.permutation(SIZE // block - 1)[:count] * block for _ in range(2))
    mine.memory.copy_from(pattern(SIZE, seed + 1))
    wanted, sent = look(), pattern(SIZE, seed + 1)
    for a, b in zip(here, there):
        wanted[b : b + block] = sent[a : a + block]
    batch = comm.prepare_blocks([(mine, here, remote, there)], block=block)
    comm.put_blocks(batch).wait(30)
    after = look()
    assert (after == wanted).all(), "put_blocks"
    mine.memory.fill(0x5A)
    comm.get_blocks(batch).wait(30)
    wanted = np.full(SIZE, 0x5A, np.uint8)
    for a, b in zip(here, there):
        wanted[a : a + block] = after[b : b + block]
    assert (read(mine) == wanted).all(), "get_blocks"
"""


def prelude(vendor: str) -> str:
    return PRELUDE.format(vendor=vendor)


@pytest.mark.parametrize("vendor", PIN)
def test_cpu_memory_of_this_process_is_pinned_and_given_back(run_job: Callable[..., str], vendor: str) -> None:
    out = run_job(
        prelude(vendor)
        + """
library = sim()
with hmc.init() as comm:
    device, host = comm.buffer(SIZE, device=DEVICE), comm.buffer(SIZE)
    device_remote, host_remote = comm.exchange(device, timeout=30)[0], comm.exchange(host, timeout=30)[0]
    assert not pinned(library, address_of(host))
    exercise(comm, device, host_remote, lambda: read(host), 1)  # the memory of the far region
    assert comm.path(0, DEVICE, "cpu").transport == "local"
    assert pinned(library, address_of(host)) == CAN_PIN
    assert pinned(library, address_of(host) + (SIZE - 1) // 4096 * 4096) == CAN_PIN
    near = comm.buffer(SIZE)
    comm.put(near, host_remote).wait(30)  # known to the transport, and to no device
    assert not pinned(library, address_of(near))
    exercise(comm, near, device_remote, lambda: read(device), 10)  # of the near one
    assert pinned(library, address_of(near)) == CAN_PIN
    array = pattern(SIZE, 20)
    foreign = comm.register(array)
    comm.put(foreign, device_remote).wait(30)
    assert (read(device) == array).all()
    assert not pinned(library, address_of(foreign))  # its pages may hold others' bytes
    addresses = [address_of(host), address_of(near)]
    for buf in (host, near):
        buf.close(timeout=30)
    del host, near, buf, host_remote
    gc.collect()
    until = time.monotonic() + 20
    while any(pinned(library, address) for address in addresses) and time.monotonic() < until:
        time.sleep(0.01)  # the background thread may hold the last reference
        comm.context.counters()
        device.memory.fill(0)
print([pinned(library, address) for address in addresses])
""",
        ranks=1,
        environment=hmc.testing.environment(),
    )
    assert "[False, False]" in out, out
    assert ("not pinned for mlu:0" in out) == (vendor == "mlu"), out


@pytest.mark.parametrize("vendor", [vendor for vendor, call in PIN.items() if call])
def test_one_memory_is_pinned_once(run_job: Callable[..., str], vendor: str) -> None:
    out = run_job(
        prelude(vendor)
        + """
with hmc.init() as comm:
    memory = hmc.Memory(2 * SIZE)
    halves = [comm.register(memory[:SIZE]), comm.register(memory[SIZE:])]
    target = filled(comm, DEVICE, 1)
    remote = comm.exchange(target, timeout=30)[0]
    back = comm.exchange(halves[1], timeout=30)[0]
    for seed, half in enumerate(halves):
        half.numpy()[:] = pattern(SIZE, seed)
        comm.put(half[1:], remote[1:]).wait(30)
    device = filled(comm, DEVICE, 7)
    comm.put(device, back).wait(30)
    assert (halves[0].numpy() == pattern(SIZE, 0)).all() and (halves[1].numpy() == pattern(SIZE, 7)).all()
""",
        ranks=1,
        environment={**hmc.testing.environment(), "HMC_SIM_FAIL": f"{PIN[vendor]}:2=999"},
    )
    assert "pinned" not in out, out


@pytest.mark.parametrize("vendor", [vendor for vendor, call in PIN.items() if call])
def test_memory_that_the_program_has_pinned(run_job: Callable[..., str], vendor: str) -> None:
    unpin = {"cuda": "cuMemHostUnregister", "musa": "musaHostUnregister"}.get(vendor, "hipHostUnregister")
    out = run_job(
        prelude(vendor)
        + f"""
library = sim()
with hmc.init() as comm:
    host = comm.buffer(SIZE)
    start = ctypes.c_void_p(address_of(host))
    assert library.{PIN[vendor]}(start, ctypes.c_size_t(SIZE), 0) == 0
    remote = comm.exchange(host, timeout=30)[0]
    exercise(comm, comm.buffer(SIZE, device=DEVICE), remote, lambda: read(host), 3)
    assert library.{unpin}(start) == 0
""",
        ranks=1,
        environment=hmc.testing.environment(),
    )
    assert "pinned" not in out, out


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("vendor", [vendor for vendor, call in PIN.items() if call])
def test_pinning_that_is_refused(run_job: Callable[..., str], vendor: str, ranks: int) -> None:
    every = ",".join(f"{PIN[vendor]}:{n}=2" for n in range(1, 9))
    out = run_job(
        prelude(vendor)
        + """
with hmc.init() as comm:
    last = comm.size - 1
    device = comm.buffer(SIZE, device=DEVICE if comm.rank == 0 else "cpu")
    host = comm.buffer(SIZE)
    remotes = comm.exchange(host, timeout=30)
    mirror = comm.buffer(SIZE)
    if comm.rank == 0:
        def look():
            comm.get(mirror, remotes[last]).wait(30)
            return read(mirror)
        exercise(comm, device, remotes[last], look, 5)
        assert comm.path(last, DEVICE, "cpu").transport == ("ipc" if last else "local")
    comm.barrier(timeout=30)
""",
        ranks=ranks,
        environment={**hmc.testing.environment(), "HMC_SIM_FAIL": every},
    )
    assert out.count("CPU memory is not pinned") == 1, out


@pytest.mark.parametrize("vendor", PIN)
def test_a_device_reaches_cpu_memory_of_another_process(run_job: Callable[..., str], vendor: str) -> None:
    out = run_job(
        prelude(vendor)
        + """
with hmc.init() as comm:
    host, mirror = comm.buffer(SIZE), comm.buffer(SIZE)
    host.numpy()[:] = pattern(SIZE, 40 + comm.rank)
    shown = comm.register(hmc.Memory(SIZE), access="r")
    shown.memory.numpy()[:] = pattern(SIZE, 50 + comm.rank)
    array = pattern(SIZE, 60 + comm.rank)
    foreign = comm.register(array)
    remote, shown_remote, foreign_remote = (comm.exchange(each, timeout=30)[1 - comm.rank] for each in (host, shown, foreign))
    if comm.rank == 0:
        device = comm.buffer(SIZE, device=DEVICE)
        def look():
            comm.get(mirror, remote).wait(30)
            return read(mirror)
        exercise(comm, device, remote, look, 5)
        comm.get(device[9:], shown_remote[9:]).wait(30)
        assert (read(device)[9:] == pattern(SIZE, 51)[9:]).all(), "read-only"
        try:
            comm.put(device, shown_remote).wait(30)
        except hmc.InvalidArgumentError as error:
            assert "reading only" in str(error), error
        else:
            raise SystemExit("it was written")
        path = comm.path(1, DEVICE, "cpu")
        assert path.transport == "ipc" and path.direct and "mapped host memory" in path.detail, str(path)
        assert path.messages == "staging" and "messages by staging" in str(path), str(path)
        found = comm.context.counters()
        assert found["bytes_staged"] == 0 and "routes.refused.ipc" not in found, found
        # A notification comes after the bytes.
        device.memory.copy_from(pattern(SIZE, 70))
        comm.put(device, remote, notify=4).wait(30)
    else:
        comm.wait_notify(0, 4, timeout=30)
        assert (host.numpy() == pattern(SIZE, 70)).all()
        with open("/proc/self/maps") as maps:
            assert "libhmcsim" not in maps.read()  # who has no device does no device's work
    comm.barrier(timeout=30)
    # Messages go by staging, and nobody is told that they should not.
    mine = filled(comm, DEVICE, 80) if comm.rank == 0 else filled(comm, "cpu", 81)
    back = comm.buffer(SIZE, device=mine.device)
    for tag in range(2):
        receiving = comm.irecv(back[tag:], src=1 - comm.rank, tag=tag)
        comm.send(mine[tag:], dst=1 - comm.rank, tag=tag, timeout=30)
        receiving.wait(30)
        assert (read(back)[tag:] == pattern(SIZE, 81 - comm.rank)[tag:]).all(), "message"
    found = comm.context.counters()
    assert found["bytes_staged"] >= SIZE and "routes.refused.ipc" not in found, found
    if comm.rank == 0:
        print("messages are over", flush=True)
    comm.barrier(timeout=30)
    if comm.rank == 0:
        comm.put(device[1:], foreign_remote[1:], notify=6).wait(30)
        comm.get(device[:-1], foreign_remote[1:]).wait(30)
        assert (read(device)[:-1] == pattern(SIZE, 70)[1:]).all()
        assert comm.context.counters()["routes.refused.ipc"] == 1
    else:
        comm.wait_notify(0, 6, timeout=30)
        assert (array[1:] == pattern(SIZE, 70)[1:]).all() and array[0] == pattern(SIZE, 61)[0]
    comm.barrier(timeout=30)
""",
        environment={**hmc.testing.environment(), "HMC_STAGING_CHUNK_BYTES": "262144"},
    )
    lines = [line for line in out.splitlines() if "not pinned" not in line]
    assert not [line for line in lines if line.startswith("[1]") and "warning" in line], out
    over = lines.index("[0] messages are over")
    assert not [line for line in lines[:over] if "warning" in line], out
    assert len([line for line in lines[over:] if "does not reach some memory" in line and "HMC did not allocate" in line]) == 1, out


@pytest.mark.parametrize("peers", ["0", "1"])
@pytest.mark.parametrize("vendor", PIN)
def test_blocks_between_devices_of_this_process(run_job: Callable[..., str], vendor: str, peers: str) -> None:
    run_job(
        prelude(vendor)
        + """
with hmc.init() as comm:
    near, same, other = (comm.buffer(SIZE, device=f"{VENDOR}:{index}") for index in (0, 0, 1))
    for seed, far in enumerate((same, other)):
        exercise(comm, near, comm.exchange(far, timeout=30)[0], lambda far=far: read(far), 30 + seed)
    assert comm.path(0, near.device, other.device).transport == "local"
    if VENDOR == "cuda":  # a pool, which another device may not be let into
        from virtual_memory import Driver
        far = comm.register(Driver().pooled(1, SIZE))
        exercise(comm, near, comm.exchange(far, timeout=30)[0], lambda: read(far), 35)
""",
        ranks=1,
        environment={**hmc.testing.environment(), "HMC_SIM_PEERS": peers},
    )


def test_policy_direct_takes_it(run_job: Callable[..., str]) -> None:
    run_job(
        prelude("rocm")
        + """
with hmc.init(policy="direct") as comm:
    host = comm.buffer(SIZE)
    remote = comm.exchange(host, timeout=30)[1 - comm.rank]
    if comm.rank == 0:
        comm.put(filled(comm, DEVICE, 9), remote, notify=1).wait(30)
    else:
        comm.wait_notify(0, 1, timeout=30)
        assert (host.numpy() == pattern(SIZE, 9)).all()
    comm.barrier(timeout=30)
""",
        environment=hmc.testing.environment("rocm"),
    )


def test_the_owner_killed_amid_the_copies(run_job: Callable[..., str]) -> None:
    out = run_job(
        prelude("cuda")
        + """
import signal, time
comm = hmc.init()
host = comm.buffer(SIZE)
remote = comm.exchange(host, timeout=30)[1 - comm.rank]
if comm.rank == 1:
    comm.send(np.array([os.getpid()]), 0)
    time.sleep(60)
pid = np.zeros(1, np.int64)
comm.recv(pid, 1, timeout=30)
device = filled(comm, DEVICE, 3)
comm.put(device[:100], remote[:100]).wait(30)
works = [comm.put(device, remote) for _ in range(20)]
os.kill(int(pid[0]), signal.SIGKILL)
for work in works:
    try:
        work.wait(30)
    except hmc.PeerLostError:
        pass  # or it was over in time
try:
    while True:
        comm.get(device, remote).wait(30)
except hmc.PeerLostError:
    pass
device.memory.copy_from(pattern(SIZE, 4))
assert (read(device) == pattern(SIZE, 4)).all()
print("survived", flush=True)
os._exit(0)
""",
        environment={**hmc.testing.environment("cuda"), "HMC_SIM_DELAY_US": "20000"},
        expect=1,  # of the killed rank
    )
    assert "survived" in out, out
