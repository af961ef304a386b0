"""hmc.layout in the memory of simulated devices: those with kernels compute what the CPU does, the others say so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run_alone

import hmc.testing

HERE = Path(__file__).parent


@pytest.mark.timeout(300)
def test_random_layouts_on_devices() -> None:
    result = subprocess.run(
        [sys.executable, "layout_on_devices.py", "80", "cuda:1", "rocm:0"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=HERE,
        env={**os.environ, **hmc.testing.environment()},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "checked: 160" in result.stdout


@pytest.mark.timeout(300)
def test_random_layouts_on_real_devices() -> None:
    real = [name for name in hmc.devices() if name.startswith(("cuda", "rocm"))]
    if not real:
        pytest.skip("this machine has no device for which HMC has a kernel")
    result = subprocess.run(
        [sys.executable, "layout_on_devices.py", "80", real[0]],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=HERE,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "checked: 80" in result.stdout


@pytest.mark.timeout(120)
def test_devices_without_kernels_refuse() -> None:
    out = run_alone(
        """
from hmc import layout
made = layout.Layout("L=2 B=3 kv H=2 N=4 D=8 bf16")
here = np.random.default_rng(1).integers(0, 256, made.buffer_bytes, dtype=np.uint8)
for device in ("hygon:0", "mlu:0", "musa:1"):
    memory, other = hmc.Memory(here.nbytes, device), hmc.Memory(here.nbytes, device)
    memory.copy_from(here)
    for call in (
        lambda: layout.digest(made, memory, [2, 0], 7),
        lambda: layout.digests(made, memory, [2, 0], 7),
        lambda: layout.convert(made, memory, [2, 0], made, other, [0, 1], 7),
        lambda: layout.convert(made, here, [2, 0], made, other, [0, 1], 7),
    ):
        try:
            call()
        except hmc.UnsupportedError as error:
            assert device in str(error), error
        else:
            raise AssertionError(device)
on_cuda, on_rocm = hmc.Memory(here.nbytes, "cuda:0"), hmc.Memory(here.nbytes, "rocm:0")
try:
    layout.convert(made, on_cuda, [2, 0], made, on_rocm, [0, 1], 7)
except hmc.UnsupportedError as error:
    print(error)
"""
    )
    assert "cuda:0" in out
    assert "rocm:0" in out


@pytest.mark.timeout(120)
def test_calls_come_after_what_is_queued_on_the_arrays_streams() -> None:
    run_alone(
        """
import ctypes, os, time
from hmc import layout
cuda = ctypes.CDLL(os.environ["HMC_CUDA_LIBRARY"])
made = layout.Layout("L=2 B=3 kv H=2 N=4 D=8 bf16")
here = np.random.default_rng(2).integers(0, 256, made.buffer_bytes, dtype=np.uint8)
memory, staged = hmc.Memory(here.nbytes, "cuda:0"), hmc.Memory(here.nbytes, "cuda:0")
memory.copy_from(here[::-1].copy())
staged.copy_from(here)

class Array:
    def __init__(self, stream):
        self.__cuda_array_interface__ = {
            "shape": (here.nbytes,), "typestr": "|u1", "data": (memory.address, False), "version": 3, "stream": stream.value}

context, stream = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxPushCurrent_v2(context) == 0
assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
late = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(0.3))
assert cuda.cuLaunchHostFunc(stream, late, None) == 0
size = ctypes.c_size_t(here.nbytes)
assert cuda.cuMemcpyDtoDAsync_v2(ctypes.c_uint64(memory.address), ctypes.c_uint64(staged.address), size, stream) == 0
assert layout.digest(made, Array(stream), [2, 0], 7) == layout.digest(made, here, [2, 0], 7)
"""
    )


@pytest.mark.timeout(120)
def test_a_failing_call_of_the_vendor_is_an_error_and_the_next_call_works() -> None:
    run_alone(
        """
import ctypes, os
from hmc import layout
library = ctypes.CDLL(os.environ["HMC_CUDA_LIBRARY"])
made = layout.Layout("L=2 B=3 kv H=2 N=4 D=8 bf16")
here = np.random.default_rng(3).integers(0, 256, made.buffer_bytes, dtype=np.uint8)
memory, other = hmc.Memory(here.nbytes, "cuda:0"), hmc.Memory(here.nbytes, "cuda:0")
memory.copy_from(here)
wanted = layout.digest(made, here, [2, 0], 7)
errors = set()
calls = ["cuMemAlloc_v2", "cuCtxPushCurrent_v2", "cuMemcpyHtoDAsync_v2", "cuMemsetD8Async", "cuLaunchKernel",
         "cuMemcpyDtoHAsync_v2", "cuEventRecord", "cuEventQuery"]
for call in calls:
    other.copy_from(here[::-1].copy())
    library.hmcsim_fail(call.encode(), 1, 999)
    try:
        found = layout.convert(made, memory, [2, 0], made, other, [0, 1], 7, digest="source")
        assert found == wanted, call
    except hmc.HmcError as error:
        assert "cuda" in str(error) and "999" in str(error), (call, str(error))
        errors.add(call)
    library.hmcsim_reset()
    assert layout.convert(made, memory, [2, 0], made, other, [0, 1], 7, digest="source") == wanted, call
    assert layout.digest(made, other, [0, 1], 7) == wanted, call
assert errors == set(calls), set(calls) - errors
"""
    )


@pytest.mark.timeout(120)
def test_threads_digest_and_convert_at_the_same_time() -> None:
    run_alone(
        """
import threading
from concurrent.futures import ThreadPoolExecutor
from hmc import layout
made = layout.Layout("L=2 B=40 kv H=3 N=4 D=8 bf16")
turned = layout.Layout("L=2 B=40 kv N=4 H=3 D=8 f32")
here = np.random.default_rng(4).integers(0, 256, made.buffer_bytes, dtype=np.uint8)
memories = [hmc.Memory(here.nbytes, f"cuda:{index}") for index in range(2)]
for memory in memories:
    memory.copy_from(here)
start = threading.Barrier(6)

def run(thread):
    rng = np.random.default_rng(thread)
    start.wait(30)
    for _ in range(15):
        memory = memories[int(rng.integers(2))]
        blocks = rng.permutation(40)[: int(rng.integers(2, 40))]
        tokens = int(rng.integers(1, 4 * len(blocks)))
        table = layout.digests(made, memory, blocks, tokens)
        assert (table == layout.digests(made, here, blocks, tokens)).all()
        target = hmc.Memory(turned.buffer_bytes, memory.device)
        found, wanted = np.zeros(turned.buffer_bytes, np.uint8), np.zeros(turned.buffer_bytes, np.uint8)
        target.copy_from(found)
        total = layout.convert(made, memory, blocks, turned, target, blocks[::-1].copy(), tokens, digest="source")
        assert total == layout.convert(made, here, blocks, turned, wanted, blocks[::-1].copy(), tokens, digest="source")
        assert total == int(table.sum(dtype=np.uint64))
        target.copy_to(found)
        a, b = found.view(np.float32), wanted.view(np.float32)
        assert ((found.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all()

with ThreadPoolExecutor(6) as pool:
    list(pool.map(run, range(6)))
"""
    )
