"""What only one of the simulated vendors has: contexts and stream values of CUDA, symbols of HIP that come and go."""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import vendors
from abi import INVALID
from harness import expect, run
from vendors import load


def test_cuda_needs_a_context() -> None:
    if vendors.library_path("cuda") is None:
        pytest.skip("not built")
    run("cuda", """
        def code(call, *arguments):
            return getattr(v.lib, call)(*arguments)
        pointer, context = c_uint64(), c_void_p()
        assert code("cuCtxPopCurrent_v2", byref(context)) == 0 and context.value == v.contexts[0].value
        assert code("cuMemAlloc_v2", byref(pointer), c_size_t(100)) == 201
        assert code("cuCtxPushCurrent_v2", v.contexts[1]) == 0
        assert code("cuMemAlloc_v2", byref(pointer), c_size_t(100)) == 0 and v.attributes(pointer.value)[1] == 1
        assert code("cuCtxEnablePeerAccess", v.contexts[0], 0) == 0
        assert code("cuCtxEnablePeerAccess", v.contexts[0], 0) == 704
        assert code("cuModuleLoadData", byref(context), None) == 801
        found, status = c_void_p(), c_int()
        assert code("cuGetProcAddress_v2", b"cuMemAlloc", byref(found), 12000, c_uint64(0), byref(status)) == 0
        assert found.value == ctypes.cast(v.lib.cuMemAlloc_v2, c_void_p).value
        assert code("cuGetProcAddress_v2", b"cuNoSuchThing", byref(found), 12000, c_uint64(0), byref(status)) == 500
        assert code("cuDevicePrimaryCtxRelease_v2", 1) == 0
        assert code("cuMemFree_v2", pointer) == 709
    """)  # fmt: skip


def test_cuda_stream_values() -> None:
    if vendors.library_path("cuda") is None:
        pytest.skip("not built")
    cuda = load("cuda")
    stream, other, event = cuda.stream(), cuda.stream(), cuda.event()
    flag, result = cuda.alloc(4), ctypes.c_uint32()
    cuda("cuStreamWaitValue32_v2", stream, ctypes.c_uint64(flag), 5, 0)
    cuda.record(event, stream)
    time.sleep(0.05)
    assert not cuda.done(event)
    cuda("cuStreamWriteValue32_v2", other, ctypes.c_uint64(flag), 6, 0)
    cuda.event_sync(event)
    cuda.to_host(ctypes.addressof(result), flag, 4)
    assert result.value == 6
    expect(cuda, INVALID, cuda, "cuStreamWriteValue32_v2", other, ctypes.c_uint64(ctypes.addressof(result)), 6, 0)
    cuda.stream_destroy(stream)
    cuda.stream_destroy(other)
    cuda.free(flag)


def test_the_null_stream_waits_for_blocking_streams() -> None:
    if vendors.library_path("rocm") is None:
        pytest.skip("not built")
    run("rocm", """
        p, s, result = v.alloc(5000), c_void_p(), ctypes.create_string_buffer(5000)
        v("hipStreamCreate", byref(s))
        v("hipMemsetAsync", c_void_p(p), 9, c_size_t(5000), s)
        v.to_host(address(result), p, 5000)
        assert result.raw == bytes([9]) * 5000
        v("hipMemsetAsync", c_void_p(p), 8, c_size_t(5000), None)
        v.copy(address(result), p, 5000, s, "d2h")
        v.stream_sync(s)
        assert result.raw == bytes([8]) * 5000
        assert v.lib.hipStreamQuery(None) == 0 and v.lib.hipStreamQuery(s) == 0
    """, HMC_SIM_DELAY_US="50000")  # fmt: skip


def test_hip_of_old_lacks_symbols() -> None:
    for name, has in (("rocm", True), ("rocm5", False), ("hygon", False)):
        if vendors.library_path(name) is not None:
            assert hasattr(load(name).lib, "hipMemGetHandleForAddressRange") == has
            assert hasattr(load(name).lib, "hipPointerSetAttribute") == has


@pytest.mark.parametrize(("name", "taken"), [("rocm", 1), ("hygon", 0)])
def test_the_flag_that_opens_a_handle_is_the_versions_own(name: str, taken: int) -> None:
    if vendors.library_path(name) is None:
        pytest.skip("not built")
    vendor = load(name)
    pointer = vendor.alloc(100)
    handle = vendors.Handle64.from_buffer_copy(vendor.export(pointer))
    expect(vendor, INVALID, vendor.rt_out, ctypes.c_void_p, "IpcOpenMemHandle", handle, 1 - taken)
    with pytest.raises(vendors.Failure, match="201"):  # this process made it
        vendor.rt_out(ctypes.c_void_p, "IpcOpenMemHandle", handle, taken)
    vendor.free(pointer)
