"""cuda-python and hip-python, as PyPI has them, on the simulated libraries: alone, between processes, and with HMC in one process.

They load the vendors' libraries by name, so they are given a folder with those names. That they work is no proof of the simulation,
but they are clients of the vendors' interfaces that know nothing of this project.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

import hmc.testing

SONAMES = {"cuda": "libcuda.so.1", "rocm": "libamdhip64.so"}


def has(*modules: str) -> bool:
    try:
        return all(importlib.util.find_spec(module) is not None for module in modules)
    except ModuleNotFoundError:
        return False


needs_bindings = pytest.mark.skipif(not has("cuda.bindings.driver"), reason="cuda-bindings is not installed")
needs_core = pytest.mark.skipif(not has("cuda.core", "cuda.bindings.driver"), reason="cuda-core is not installed")
needs_hip = pytest.mark.skipif(not has("hip"), reason="hip-python is not installed")

COMMON = """
import ctypes, subprocess, os
SIZE = 300_001
def simulated(name):
    assert ctypes.CDLL(name).hmcsim_description, "not the simulated library"
def other_process(handle):
    # Opens what the handle names, sees pattern 1 in it and leaves pattern 2.
    subprocess.run([sys.executable, __file__, handle.hex()], check=True, timeout=50)
class View:
    def __init__(self, address, size, **more):
        self.__cuda_array_interface__ = dict(shape=(size,), typestr="|u1", data=(address, False), version=3, **more)
def through_hmc(device, source, target):
    # From one package's memory into the other, by a put and a get between two Contexts; HMC asks the runtimes whose it is.
    with hmc.Context(transports="local,shm,staging") as a, hmc.Context(transports="local,shm,staging") as b:
        ab = a.connect(b.addresses[0], timeout=20)
        b.accept(timeout=20)
        local, there = a.register(source), b.register(target)
        assert (local.device, there.device) == device, (local.device, there.device)
        remote = ab.import_buffer(there.descriptor(), timeout=20)
        local.memory.copy_from(pattern(SIZE, 5))
        ab.put(local[1:], remote[:-1]).wait(20)
        got = np.zeros(SIZE, np.uint8)
        there.memory.copy_to(got)
        assert np.array_equal(got[:-1], pattern(SIZE, 5)[1:])
        there.memory.copy_from(pattern(SIZE, 6))
        ab.get(local[1:], remote[:-1]).wait(20)
        local.memory.copy_to(got)
        assert np.array_equal(got, np.concatenate([pattern(SIZE, 5)[:1], pattern(SIZE, 6)[:-1]]))
"""

CUDA = """
from cuda.bindings import driver
simulated("libcuda.so.1")
def call(function, *arguments):
    result = function(*arguments)
    assert result[0] == driver.CUresult.CUDA_SUCCESS, (function.__name__, result[0])
    return result[1] if len(result) == 2 else result[1:]
call(driver.cuInit, 0)
def use(device):
    call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, call(driver.cuDeviceGet, device)))
"""

HIP = """
from hip import hip
simulated("libamdhip64.so")
def call(function, *arguments):
    result = function(*arguments)
    assert result[0] == hip.hipError_t.hipSuccess, (function.__name__, result[0])
    return result[1] if len(result) == 2 else result[1:]
"""


@pytest.fixture
def run_with(tmp_path: Path, run_script: Callable[..., str]) -> Callable[[str, str], None]:
    def run(vendor: str, source: str) -> None:
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / SONAMES[vendor]).symlink_to(hmc.testing.library(vendor))
        environment = {"LD_LIBRARY_PATH": str(tmp_path / "lib"), "HMC_SIM_DEVICES": "2", "CUDA_VISIBLE_DEVICES": None,
                       "HIP_VISIBLE_DEVICES": None, "CUDA_PYTHON_DISABLE_MAJOR_VERSION_WARNING": "1"}  # fmt: skip
        run_script(COMMON + source, {**environment, **dict.fromkeys(hmc.testing.VENDORS.values())})

    return run


@needs_bindings
def test_cuda_bindings_alone(run_with: Callable[[str, str], None]) -> None:
    run_with("cuda", CUDA + """
def open_handle(data):
    handle = driver.CUipcMemHandle()
    ctypes.memmove(handle.getPtr(), data, 64)
    return call(driver.cuIpcOpenMemHandle, handle, 1)
data, got = pattern(SIZE, 1), np.zeros(SIZE, np.uint8)
use(0)
if len(sys.argv) > 1:
    pointer = open_handle(bytes.fromhex(sys.argv[1]))
    call(driver.cuMemcpyDtoH, got.ctypes.data, pointer, SIZE)
    assert np.array_equal(got, data)
    given = pattern(SIZE, 2)  # lives as long as its address is used
    call(driver.cuMemcpyHtoD, pointer, given.ctypes.data, SIZE)
    call(driver.cuIpcCloseMemHandle, pointer)
    sys.exit()
assert call(driver.cuDeviceGetCount) == 2
assert b"Simulated" in call(driver.cuDeviceGetName, 100, 1)
first = call(driver.cuMemAlloc, SIZE)
use(1)
second = call(driver.cuMemAlloc, SIZE)
# Not the ordinal: cuda-bindings 13.3 says 0 of every device.
attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
assert [call(driver.cuPointerGetAttribute, attribute, p) for p in (first, second)] == [driver.CUmemorytype.CU_MEMORYTYPE_DEVICE] * 2
assert [int(n) for n in call(driver.cuMemGetAddressRange, int(first) + 99)] == [int(first), SIZE]
writer = call(driver.cuStreamCreate, driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
reader = call(driver.cuStreamCreate, driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
event = call(driver.cuEventCreate, driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
call(driver.cuMemcpyHtoDAsync, first, data.ctypes.data, SIZE, writer)
call(driver.cuMemcpyDtoDAsync, second, first, SIZE, writer)
call(driver.cuEventRecord, event, writer)
call(driver.cuStreamWaitEvent, reader, event, 0)
call(driver.cuMemcpyDtoHAsync, got.ctypes.data, second, SIZE, reader)
call(driver.cuStreamSynchronize, reader)
assert np.array_equal(got, data)
call(driver.cuEventSynchronize, event)
call(driver.cuEventQuery, event)
handle = call(driver.cuIpcGetMemHandle, first)
other_process(ctypes.string_at(handle.getPtr(), 64))
call(driver.cuMemcpyDtoH, got.ctypes.data, first, SIZE)
assert np.array_equal(got, pattern(SIZE, 2))
assert driver.cuMemAlloc(1 << 40)[0] == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
for destroy, what in ((driver.cuEventDestroy, event), (driver.cuStreamDestroy, writer), (driver.cuStreamDestroy, reader),
                      (driver.cuMemFree, first), (driver.cuMemFree, second)):
    call(destroy, what)
""")  # fmt: skip


@needs_hip
def test_hip_python_alone(run_with: Callable[[str, str], None]) -> None:
    run_with("rocm", HIP + """
def open_handle(data):
    handle = hip.hipIpcMemHandle_t()
    ctypes.memmove(int(handle), data, 64)
    return call(hip.hipIpcOpenMemHandle, handle, 1)
up, down, across = (getattr(hip.hipMemcpyKind, "hipMemcpy" + name) for name in ("HostToDevice", "DeviceToHost", "Default"))
data, got = pattern(SIZE, 1), np.zeros(SIZE, np.uint8)
if len(sys.argv) > 1:
    pointer = open_handle(bytes.fromhex(sys.argv[1]))
    call(hip.hipMemcpy, got, pointer, SIZE, down)
    assert np.array_equal(got, data)
    call(hip.hipMemcpy, pointer, pattern(SIZE, 2), SIZE, up)
    call(hip.hipIpcCloseMemHandle, pointer)
    sys.exit()
call(hip.hipInit, 0)
assert call(hip.hipGetDeviceCount) == 2
first = call(hip.hipMalloc, SIZE)
call(hip.hipSetDevice, 1)
second = call(hip.hipMalloc, SIZE)
writer, reader = (call(hip.hipStreamCreateWithFlags, hip.hipStreamNonBlocking) for _ in range(2))
event = call(hip.hipEventCreateWithFlags, hip.hipEventDisableTiming)
call(hip.hipMemcpyAsync, first, data, SIZE, up, writer)
call(hip.hipMemcpyAsync, second, first, SIZE, across, writer)
call(hip.hipEventRecord, event, writer)
call(hip.hipStreamWaitEvent, reader, event, 0)
call(hip.hipMemcpyAsync, got, second, SIZE, down, reader)
call(hip.hipStreamSynchronize, reader)
assert np.array_equal(got, data)
call(hip.hipEventSynchronize, event)
call(hip.hipEventQuery, event)
handle = call(hip.hipIpcGetMemHandle, first)
other_process(ctypes.string_at(int(handle), 64))
call(hip.hipMemcpy, got, first, SIZE, down)
assert np.array_equal(got, pattern(SIZE, 2))
assert hip.hipMalloc(1 << 40)[0] == hip.hipError_t.hipErrorOutOfMemory
for destroy, what in ((hip.hipEventDestroy, event), (hip.hipStreamDestroy, writer), (hip.hipStreamDestroy, reader),
                      (hip.hipFree, first), (hip.hipFree, second)):
    call(destroy, what)
""")  # fmt: skip


@needs_bindings
def test_hmc_moves_what_cuda_bindings_allocates(run_with: Callable[[str, str], None]) -> None:
    run_with("cuda", CUDA + """
use(1)
source = call(driver.cuMemAlloc, SIZE)
use(0)
target = call(driver.cuMemAlloc, SIZE)
stream = call(driver.cuStreamCreate, 1)
through_hmc(("cuda:1", "cuda:0"), View(int(source), SIZE, stream=int(stream)), View(int(target), SIZE))
through_hmc(("cpu", "cuda:0"), np.zeros(SIZE, np.uint8), View(int(target), SIZE))
# The package's stream comes first, and joins what HMC does.
memory, got = hmc.Memory.from_array(View(int(target), SIZE)), np.zeros(SIZE, np.uint8)
with hmc.Context() as a, hmc.Context() as b:
    ab = a.connect(b.addresses[0], timeout=20)
    b.accept(timeout=20)
    local, there = a.register(memory), b.buffer(SIZE, device="cuda:1")
    remote = ab.import_buffer(there.descriptor(), timeout=20)
    call(driver.cuMemsetD8Async, target, 7, SIZE, stream)
    work = ab.put(local, remote, stream=stream)
    work.join(stream, "cuda:0")
    call(driver.cuMemcpyDtoHAsync, got.ctypes.data, there.__cuda_array_interface__["data"][0], SIZE, stream)
    call(driver.cuStreamSynchronize, stream)
    work.wait(20)
    assert (got == 7).all()
""")  # fmt: skip


@needs_core
def test_hmc_and_cuda_core(run_with: Callable[[str, str], None]) -> None:
    run_with("cuda", CUDA + """
from cuda.core import Buffer, Device
from cuda.core.utils import StridedMemoryView
device = Device(1)
device.set_current()
stream = device.create_stream()
source, target = (device.allocate(SIZE, stream=stream) for _ in range(2))
through_hmc(("cuda:1", "cuda:1"), source, target)
# Its own copy, from and to memory of HMC's that it sees through DLPack and through __cuda_array_interface__.
memory, got = hmc.Memory(SIZE, "cuda:1"), np.zeros(SIZE, np.uint8)
memory.copy_from(pattern(SIZE, 8))
for take in (StridedMemoryView.from_dlpack, StridedMemoryView.from_cuda_array_interface):
    view = take(memory, stream_ptr=-1)
    assert (view.shape, view.readonly, view.is_device_accessible, view.dtype) == ((SIZE,), False, True, np.dtype("u1"))
    seen = Buffer.from_handle(view.ptr, SIZE, owner=memory)
    target.copy_from(seen, stream=stream)
    hmc.Memory.from_array(target).copy_to(got)  # its stream is no part of the Buffer
    stream.sync()
    hmc.Memory.from_array(target).copy_to(got)
    assert np.array_equal(got, pattern(SIZE, 8))
with hmc.Context() as a, hmc.Context() as b:
    ab = a.connect(b.addresses[0], timeout=20)
    b.accept(timeout=20)
    there = b.buffer(SIZE, device="cuda:0")
    remote = ab.import_buffer(there.descriptor(), timeout=20)
    source.fill(9, stream=stream)
    ab.put(a.register(source), remote, stream=stream).wait(20)
    there.memory.copy_to(got)
    assert (got == 9).all()
""")  # fmt: skip


@needs_hip
def test_hmc_moves_what_hip_python_allocates(run_with: Callable[[str, str], None]) -> None:
    run_with("rocm", HIP + """
call(hip.hipSetDevice, 1)
source = call(hip.hipMalloc, SIZE)
call(hip.hipSetDevice, 0)
target = call(hip.hipMalloc, SIZE)
# These arrays offer the buffer protocol too, which would have the CPU touch the device's memory.
through_hmc(("rocm:1", "rocm:0"), source, target)
through_hmc(("cpu", "rocm:0"), np.zeros(SIZE, np.uint8), target)
# HMC's memory as an argument of the package, by its address: of a Memory it would ask the buffer protocol.
memory, got = hmc.Memory(SIZE, "rocm:0"), np.zeros(SIZE, np.uint8)
call(hip.hipMemcpy, memory.__cuda_array_interface__["data"][0], pattern(SIZE, 3), SIZE, hip.hipMemcpyKind.hipMemcpyHostToDevice)
memory.copy_to(got)
assert np.array_equal(got, pattern(SIZE, 3))
call(hip.hipSetDevice, 1)
stream = call(hip.hipStreamCreateWithFlags, 1)
with hmc.Context() as a, hmc.Context() as b:
    ab = a.connect(b.addresses[0], timeout=20)
    b.accept(timeout=20)
    there = b.buffer(SIZE, device="rocm:1")
    remote = ab.import_buffer(there.descriptor(), timeout=20)
    call(hip.hipMemsetAsync, source, 9, SIZE, stream)
    ab.put(a.register(source), remote, stream=stream).wait(20)
    there.memory.copy_to(got)
    assert (got == 9).all()
""")  # fmt: skip
