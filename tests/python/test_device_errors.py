"""Bad days of devices, with simulated vendors: injected errors, missing libraries, full memory, a peer killed amid its transfer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from commands import run_alone

import hmc.testing

ALLOCATE = {"cuda": ("cuMemAlloc_v2", 2), "rocm": ("hipMalloc", 2), "musa": ("musaMalloc", 2), "mlu": ("cnrtMalloc", 100100)}


@pytest.mark.parametrize("vendor", ALLOCATE)
def test_an_injected_failure_names_vendor_call_and_code(vendor: str) -> None:
    call, code = ALLOCATE[vendor]
    run_alone(
        f"""
try:
    hmc.Memory(5000, device="{vendor}:0")
except hmc.OutOfMemoryError as error:
    assert error.native == {code} and "{vendor}:0" in str(error) and "5000" in str(error), (error, error.native)
else:
    raise SystemExit("nothing was refused")
memory, data = hmc.Memory(5000, device="{vendor}:0"), np.arange(5000).astype(np.uint8)
memory.copy_from(data)
back = np.zeros(5000, np.uint8)
memory.copy_to(back)
assert (back == data).all()
""",
        HMC_SIM_FAIL=f"{call}:1={code}",
    )


RECORD = {"cuda": "cuEventRecord", "rocm": "hipEventRecord", "musa": "musaEventRecord", "mlu": "cnrtPlaceNotifier"}


@pytest.mark.parametrize("vendor", RECORD)
def test_nothing_is_written_after_a_copy_whose_event_fails(vendor: str) -> None:
    """The caller may free the memory when the call has raised."""
    run_alone(
        f"""
import ctypes, time, hmc.testing
hmc.devices()
library = ctypes.CDLL(hmc.testing.library("{vendor}"))
source, target = hmc.Memory(70_000, "{vendor}:0"), np.zeros(70_000, np.uint8)
source.fill(0xEE)
source.copy_to(target)
target[:] = 0
assert library.hmcsim_fail(b"{RECORD[vendor]}", 1, 999) == 0
try:
    source.copy_to(target)
except hmc.DeviceError as error:
    assert "999" in str(error), error
else:
    raise SystemExit("no error")
found = target.copy()
time.sleep(0.5)
assert (target == found).all(), f"{{int((target != found).sum())}} bytes came later"
""",
        HMC_SIM_DELAY_US="20000",
    )


@pytest.mark.parametrize("vendor", ALLOCATE)
def test_numpy_of_device_memory_is_a_buffer_error(vendor: str) -> None:
    run_alone(
        f"""
for device in ("{vendor}:0", "{vendor}:1"):
    memory = hmc.Memory(5000, device=device)
    with hmc.Context() as context:
        for view in (memory, memory[1:17], context.buffer(100, device=device)):
            for call in (view.numpy, lambda: view.numpy("u1"), lambda: view.numpy(shape=(2, -1)), lambda: memoryview(view)):
                try:
                    call()
                except BufferError as error:
                    assert device in str(error) + str(error.__cause__), error
                else:
                    raise SystemExit(f"{{view!r}} as CPU memory")
"""
    )


def test_registering_beyond_the_end_of_an_allocation_is_refused() -> None:
    run_alone(
        """
class View:
    def __init__(self, pointer, size):
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (pointer, False), "version": 3}
with hmc.Context() as context:
    for device in ("cuda:0", "cuda:1", "rocm:0"):
        size = 2 << 20
        memory = hmc.Memory(size, device=device)
        pointer = memory.__cuda_array_interface__["data"][0]
        for offset, beyond in ((0, 1), (1000, 1), (size - 1, 1), (0, 1 << 40)):
            try:
                context.register(View(pointer + offset, size - offset + beyond))
            except hmc.InvalidArgumentError as error:
                said = f"{size - offset + beyond} bytes on {device}: their allocation ends after {size - offset}"
                assert said in str(error), error
            else:
                raise SystemExit("memory of another allocation was registered")
        for offset in (0, 1, size - 1):
            assert len(context.register(View(pointer + offset, size - offset))) == size - offset
"""
    )


def test_memory_that_is_full_is_refused_and_the_next_works() -> None:
    run_alone(
        """
kept = hmc.Memory(3 << 20, device="cuda:1")
for _ in range(3):
    try:
        hmc.Memory(2 << 20, device="cuda:1")
    except hmc.OutOfMemoryError as error:
        assert "cuda:1" in str(error)
    else:
        raise SystemExit("more than there is")
del kept
hmc.Memory(3 << 20, device="cuda:1").fill(7)
""",
        HMC_SIM_MEMORY=str(4 << 20),
    )


def test_absent_runtimes_say_why_and_nothing_else_changes() -> None:
    out = run_alone(
        """
rows = {row["vendor"]: row for row in hmc.info()["runtimes"]}
assert not rows["cuda"]["available"] and "HMC_CUDA_LIBRARY" in rows["cuda"]["reason"]
assert not rows["rocm"]["available"] and "/nonexistent.so" in rows["rocm"]["reason"]
assert not rows["musa"]["available"] and "no device" in rows["musa"]["reason"]
assert rows["mlu"]["available"] and rows["cpu"]["available"]
for device in ("cuda:0", "rocm:0", "musa:0"):
    try:
        hmc.Memory(10, device=device)
    except hmc.UnsupportedError as error:
        assert device in str(error)
    else:
        raise SystemExit(device)
try:
    hmc.Memory(10, device="mlu:9")
except hmc.UnsupportedError as error:
    assert "mlu:9" in str(error) and "2 devices" in str(error)
print("ok")
""",
        HMC_CUDA_LIBRARY="off",
        HMC_ROCM_LIBRARY="/nonexistent.so",
        MUSA_VISIBLE_DEVICES="-1",
    )
    assert out == "ok\n"


# What one transport does not reach another one moves: tests/python/test_virtual_memory.py.
FAULTS = [
    ("cuda:0", "cuda:1", "cuMemcpyDtoDAsync_v2:1=1"),
    ("cuda:0", "rocm:0", "cuMemcpyDtoHAsync_v2:2=1"),
    ("rocm:0", "cuda:0", "cuMemcpyHtoDAsync_v2:2=1"),
    ("mlu:0", "musa:0", "cnrtMemcpyAsync_V3:3=100006"),
]


@pytest.mark.parametrize(("here", "there", "fault"), FAULTS, ids=[fault.split(":")[0] for _, _, fault in FAULTS])
def test_a_transfer_that_fails_says_so_and_the_next_works(run_job: Callable[..., str], here: str, there: str, fault: str) -> None:
    run_job(
        f"""
size = 200_000
with hmc.init() as comm:
    buf = comm.buffer(size, device={here!r} if comm.rank == 0 else {there!r})
    if comm.rank == 0:
        buf.memory.copy_from(pattern(size, 3))
    failed = 0
    remote = comm.exchange(buf, timeout=30)[1 - comm.rank]
    if comm.rank == 0:
        for attempt in range(4):
            try:
                comm.put(buf, remote).wait(30)
            except (hmc.DeviceError, hmc.UnsupportedError) as error:
                failed += 1
                continue
        assert 1 <= failed <= 2, failed
    comm.barrier(timeout=30)
    if comm.rank == 1:
        got = np.empty(size, np.uint8)
        buf.memory.copy_to(got)
        assert np.array_equal(got, pattern(size, 3))
    comm.barrier(timeout=30)
""",
        environment={**hmc.testing.environment(), "HMC_STAGING_CHUNK_BYTES": "65536", "HMC_SIM_FAIL": fault},
    )


@pytest.mark.parametrize("pair", [("cuda:0", "cuda:1"), ("cuda:0", "mlu:0"), ("rocm:0", "cpu")], ids=["ipc", "staging", "cpu"])
def test_a_peer_killed_amid_the_transfer(run_job: Callable[..., str], pair: tuple[str, str]) -> None:
    out = run_job(
        f"""
import os, signal, time
here, there = {pair!r}
size = 8 << 20
comm = hmc.init()
buf = comm.buffer(size, device=here if comm.rank == 0 else there)
buf.memory.fill(comm.rank + 1)
remote = comm.exchange(buf, timeout=30)[1 - comm.rank]
if comm.rank == 1:
    comm.send(np.array([os.getpid()]), 0)
    time.sleep(60)
pid = np.zeros(1, np.int64)
comm.recv(pid, 1, timeout=30)
works = [comm.put(buf, remote) for _ in range(20)]
os.kill(int(pid[0]), signal.SIGKILL)
start = time.monotonic()
lost = 0
for work in works:
    try:
        work.wait(30)
    except (hmc.PeerLostError, hmc.DeviceError):
        lost += 1
assert time.monotonic() - start < 25
try:
    while True:
        comm.send(buf, 1, timeout=30)
except hmc.PeerLostError:
    pass
own = hmc.Memory(size, device=here)
own.copy_from(buf.memory)
assert own.device == here
print("survived", lost, flush=True)
os._exit(0)
""",
        environment={**hmc.testing.environment(), "HMC_STAGING_CHUNK_BYTES": "65536", "HMC_SIM_DELAY_US": "2000"},
        expect=1,  # of the killed rank
    )
    assert "survived" in out, out
