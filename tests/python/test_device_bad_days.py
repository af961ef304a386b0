"""Bad days of devices, continued: memory that is not what it was said to be, deaths, other numbering, each vendor call failing."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from commands import run_alone

import hmc.testing

VARIABLES = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "rocm": "HIP_VISIBLE_DEVICES",
    "hygon": "HIP_VISIBLE_DEVICES",
    "musa": "MUSA_VISIBLE_DEVICES",
    "mlu": "MLU_VISIBLE_DEVICES",
}


def test_a_pointer_belongs_to_whom_the_vendors_say() -> None:
    run_alone(
        """
import ctypes, hmc.testing
hmc.devices()
rocm = ctypes.CDLL(hmc.testing.library("rocm"))
pointer = ctypes.c_void_p()
assert rocm.hipMalloc(ctypes.byref(pointer), ctypes.c_size_t(5000)) == 0

class Claims:  # CUDA's protocol, as torch on ROCm speaks it too
    def __init__(self, address):
        self.__cuda_array_interface__ = {"shape": (5000,), "typestr": "|u1", "data": (address, False), "version": 3}

with hmc.Context() as ctx:
    buf = ctx.register(Claims(pointer.value))
    assert buf.device == "rocm:0", buf.device
    buf.memory.copy_from(np.arange(5000).astype(np.uint8))
    back = np.zeros(5000, np.uint8)
    buf.memory.copy_to(back)
    assert (back == np.arange(5000).astype(np.uint8)).all()
    host = np.zeros(5000, np.uint8)
    assert rocm.hipFree(pointer) == 0
    for address in (host.ctypes.data, 0x1000, pointer.value):  # the CPU's, nobody's, freed
        try:
            ctx.register(Claims(address))
        except hmc.InvalidArgumentError as error:
            assert "no device runtime" in str(error), error
        else:
            raise SystemExit(hex(address))
"""
    )


def test_memory_that_was_freed_under_its_buffer(run_job: Callable[..., str]) -> None:
    run_job(
        """
from virtual_memory import Driver
driver = Driver()
with hmc.init() as comm:
    peer = 1 - comm.rank
    memory = driver.pooled(comm.rank, 100_000)
    buf = comm.register(memory)
    remote = comm.exchange(buf, timeout=30)[peer]
    comm.barrier(timeout=30)  # the peer has what it needs to reach it
    driver("cuMemFreeAsync", __import__("ctypes").c_uint64(memory.pointer), None)
    comm.barrier(timeout=30)
    source = comm.buffer(100_000, device=f"cuda:{comm.rank}")
    try:
        comm.put(source, remote).wait(30)
    except hmc.DeviceError as error:
        assert "CUDA_ERROR_INVALID_VALUE" in str(error), error
    else:
        raise SystemExit("it was written")
    comm.barrier(timeout=30)
    good = comm.buffer(100_000, device=f"cuda:{comm.rank}")
    remote = comm.exchange(good, timeout=30)[peer]
    source.memory.copy_from(pattern(100_000, comm.rank))
    comm.put(source, remote, notify=1).wait(30)
    comm.wait_notify(peer, 1, timeout=30)
    back = np.zeros(100_000, np.uint8)
    good.memory.copy_to(back)
    assert (back == pattern(100_000, peer)).all()
    comm.barrier(timeout=30)
""",
        environment=hmc.testing.environment(),
    )


def test_a_handle_whose_owner_died(run_job: Callable[..., str]) -> None:
    out = run_job(
        """
import os, signal, time
comm = hmc.init()
buf = comm.buffer(1 << 20, device=f"cuda:{comm.rank}")
remote = comm.exchange(buf, timeout=30)[1 - comm.rank]  # with its handle, which is opened at the first put
if comm.rank == 1:
    comm.send(np.array([os.getpid()]), 0)
    time.sleep(60)
pid = np.zeros(1, np.int64)
comm.recv(pid, 1, timeout=30)
os.kill(int(pid[0]), signal.SIGKILL)
start = time.monotonic()
try:
    while True:  # the handle is dead before the death is known
        comm.put(buf, remote).wait(30)
except hmc.PeerLostError:
    pass
assert time.monotonic() - start < 25
again = hmc.Memory(1 << 20, device="cuda:0")
again.copy_from(buf.memory)
print("survived", flush=True)
os._exit(0)
""",
        environment=hmc.testing.environment(),
        expect=1,  # of the killed rank
    )
    assert "survived" in out, out


@pytest.mark.parametrize("vendor", VARIABLES)
def test_processes_that_number_their_devices_differently(run_job: Callable[..., str], vendor: str) -> None:
    run_job(
        f"""
import os
rank = int(os.environ["HMC_RANK"])
os.environ["{VARIABLES[vendor]}"] = ("1", "0")[rank]  # each sees one card, which it calls :0
with hmc.init() as comm:
    found = [device for runtime in hmc.info()["runtimes"] for device in runtime["devices"] if runtime["vendor"] == "{vendor}"]
    assert [device["device"] for device in found] == ["{vendor}:0"]
    buf = comm.buffer(300_007, device="{vendor}:0")
    remote = comm.exchange(buf, timeout=30)[1 - rank]
    source = comm.buffer(300_007, device="{vendor}:0")
    source.memory.copy_from(pattern(300_007, rank))
    comm.put(source[3:], remote[3:], notify=1).wait(30)
    comm.wait_notify(1 - rank, 1, timeout=30)
    back = np.zeros(300_007, np.uint8)
    buf.memory.copy_to(back)
    assert (back[3:] == pattern(300_007, 1 - rank)[3:]).all() and not back[:3].any()
    receiving = comm.irecv(buf, src=1 - rank)
    comm.send(source, dst=1 - rank, timeout=30)
    receiving.wait(30)
    buf.memory.copy_to(back)
    assert (back == pattern(300_007, 1 - rank)).all()
    path = comm.path(1 - rank, "{vendor}:0", "{vendor}:0")
    assert path.transport == "ipc" and comm.context.counters()["bytes_staged"] == 0, str(path)
    names = np.frombuffer(found[0]["pci"].encode().ljust(32), np.uint8).copy()
    other = np.zeros(32, np.uint8)
    receiving = comm.irecv(other, src=1 - rank)
    comm.send(names, dst=1 - rank, timeout=30)
    receiving.wait(30)
    assert bytes(other) != bytes(names)
""",
        environment=hmc.testing.environment(),
    )


COMMON = [
    "Malloc",
    "Free",
    "PointerGetAttributes",
    "MemcpyAsync",
    "MemsetAsync",
    "EventRecord",
    "EventQuery",
    "GetDevice",
    "SetDevice",
    "EventCreateWithFlags",
    "StreamCreateWithFlags",
    "IpcGetMemHandle",
    "IpcOpenMemHandle",
    "IpcCloseMemHandle",
    "HostRegister",
    "HostUnregister",
    "DeviceEnablePeerAccess",
    "StreamWaitEvent",
    "MemGetAddressRange",
]
CALLS = {
    "cuda": ("cuMemAlloc_v2", "cuMemFree_v2", "cuPointerGetAttributes", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2",
             "cuMemcpyDtoDAsync_v2", "cuMemsetD8Async", "cuEventCreate", "cuEventRecord", "cuEventQuery", "cuStreamCreate",
             "cuStreamWaitEvent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuCtxEnablePeerAccess", "cuDeviceGet",
             "cuDevicePrimaryCtxRetain", "cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle",
             "cuMemHostRegister_v2", "cuMemHostUnregister", "cuModuleLoadData", "cuMemGetAddressRange_v2",
             "cuMemRetainAllocationHandle"),
    "rocm": tuple("hip" + call for call in COMMON),
    "hygon": tuple("hip" + call for call in COMMON),
    "musa": tuple("musa" + call for call in COMMON),
    "mlu": ("cnrtMalloc", "cnrtFree", "cnrtPointerGetAttributes", "cnrtMemcpyAsync_V3", "cnrtMemsetAsync",
            "cnrtNotifierCreateWithFlags", "cnrtPlaceNotifier", "cnrtQueryNotifier", "cnrtQueueCreate", "cnrtQueueWaitNotifier",
            "cnrtGetDevice", "cnrtSetDevice", "cnrtAcquireMemHandle", "cnrtMapMemHandle", "cnrtUnMapMemHandle"),
}  # fmt: skip


@pytest.mark.parametrize("vendor", CALLS)
def test_every_call_failing_once(run_job: Callable[..., str], vendor: str) -> None:
    out = run_job(
        f"""
import ctypes, gc
library = ctypes.CDLL(hmc.testing.library({vendor!r}))
SIZE = 200_000
errors = set()

def attempt(step, call):
    try:
        return step()
    except hmc.HmcError as error:
        assert {vendor!r} in str(error) and "999" in str(error), (call, str(error))
        errors.add(call)

with hmc.init() as comm:
    me, peer = comm.rank, 1 - comm.rank
    shared = comm.buffer(SIZE, device="{vendor}:0" if me == 0 else "{vendor}:1")
    host = comm.buffer(SIZE)
    for call in {CALLS[vendor]!r}:
        target = comm.buffer(SIZE, device=shared.device)
        remote = comm.exchange(target, timeout=30)[peer]
        hosts = comm.exchange(host, timeout=30)[peer]
        if me == 0:
            data = pattern(SIZE, len(call))
            library.hmcsim_fail(call.encode(), 1, 999)
            made = []
            steps = [
                lambda: made.append(hmc.Memory(SIZE, device="{vendor}:0")),
                lambda: shared.memory.copy_from(data),
                lambda: shared.memory.copy_to(np.zeros(SIZE, np.uint8)),
                lambda: shared.memory.fill(3),
                lambda: comm.put(shared, remote, stream=1).wait(30),
                lambda: comm.put(shared, hosts, stream=1).wait(30),
                lambda: comm.get(shared, remote).wait(30),
            ]
            for step in steps:
                attempt(step, call)
            made.clear()
            gc.collect()
            library.hmcsim_reset()
            # And again, with nothing in the way.
            memory = hmc.Memory(SIZE, device="{vendor}:0")
            memory.copy_from(data)
            shared.memory.copy_from(memory)
            comm.put(shared, remote).wait(30)
            comm.put(shared, hosts).wait(30)
            shared.memory.fill(0)
            comm.get(shared, remote).wait(30)
            back = np.zeros(SIZE, np.uint8)
            shared.memory.copy_to(back)
            assert (back == data).all(), call
        comm.barrier(timeout=30)
    if me == 0:
        print("raised:", len(errors), *sorted(errors))
""",
        environment={**hmc.testing.environment(), "HMC_STAGING_CHUNK_BYTES": "65536"},
        timeout=120,
    )
    raised = re.search(r"raised: (\d+)", out)
    assert raised is not None, out
    assert int(raised[1]) >= 5, out


def test_a_stream_of_another_device_or_vendor(run_job: Callable[..., str]) -> None:
    run_job(
        """
import ctypes
cuda, rocm = (ctypes.CDLL(hmc.testing.library(vendor)) for vendor in ("cuda", "rocm"))
with hmc.init() as comm:
    peer = 1 - comm.rank
    buf, source = (comm.buffer(100_000, device="cuda:0") for _ in range(2))
    remote = comm.exchange(buf, timeout=30)[peer]
    streams = [ctypes.c_void_p(), ctypes.c_void_p()]
    context = ctypes.c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1) == 0 and cuda.cuCtxPushCurrent_v2(context) == 0
    assert cuda.cuStreamCreate(ctypes.byref(streams[0]), 1) == 0 and rocm.hipStreamCreateWithFlags(ctypes.byref(streams[1]), 1) == 0
    for stream in streams:
        try:
            comm.put(source, remote, stream=stream.value)
        except hmc.InvalidArgumentError as error:
            assert "cuda:0" in str(error) and "stream" in str(error) and error.native == 400, error
        else:
            raise SystemExit("accepted")
    source.memory.copy_from(pattern(100_000, comm.rank))
    comm.put(source, remote, stream=1, notify=1).wait(30)
    comm.wait_notify(peer, 1, timeout=30)
    back = np.zeros(100_000, np.uint8)
    buf.memory.copy_to(back)
    assert (back == pattern(100_000, peer)).all()
    comm.barrier(timeout=30)
""",
        environment=hmc.testing.environment(),
    )


@pytest.mark.parametrize("vendor", VARIABLES)
def test_a_forked_child_leaves_devices_alone(vendor: str) -> None:
    run_alone(
        f"""
import gc, os
memory, data = hmc.Memory(100_000, device="{vendor}:0"), np.arange(100_000).astype(np.uint8)
memory.copy_from(data)
child = os.fork()
if child == 0:
    refused = 0
    for call in (lambda: hmc.Memory(10, device="{vendor}:0"), lambda: memory.copy_from(data), lambda: memory.fill(1)):
        try:
            call()
        except hmc.ClosedError as error:
            refused += "fork" in str(error)
    del memory
    gc.collect()
    os._exit(0 if refused == 3 else 1)
assert os.waitpid(child, 0)[1] == 0
back = np.zeros(100_000, np.uint8)
memory.copy_to(back)
assert (back == data).all()
hmc.Memory(10, device="{vendor}:1").fill(2)
"""
    )


def test_a_rank_may_close_after_its_last_collective(run_job: Callable[..., str]) -> None:
    """What a large message of device memory ends with goes by another connection than the goodbye, which must not overtake it."""
    run_job(
        """
import os, pathlib
rank = int(os.environ["HMC_RANK"])
device = ("cuda:0", "mlu:0")[rank]
size = 100_001
for number in range(40):
    path = pathlib.Path(sys.argv[0]).with_name(f"meet{number}")
    with hmc.init(rank=rank, size=2, rendezvous=f"unix:{path}", devices=[device], timeout=30) as comm:
        memory = hmc.Memory(4 * size, device=device)
        memory.copy_from(np.arange(size, dtype=np.int32) * (rank + 1))
        comm.all_reduce(memory, dtype="int32", timeout=30)
    summed = np.zeros(size, np.int32)
    memory.copy_to(summed)
    assert np.array_equal(summed, np.arange(size) * 3), number
""",
        environment=hmc.testing.environment("cuda", "mlu"),
    )
