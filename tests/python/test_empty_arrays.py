"""Arrays without elements on a device: no address, but a device, in every call (an expert without tokens is the normal case)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import hmc
import hmc.testing

# What each vendor's arrays look like through each protocol; DLPack calls are answered by HMC's own export of empty device memory.
ARRAYS = """
class Dlpack:
    def __init__(self, memory): self.memory = memory
    def __dlpack__(self, **settings): return self.memory.__dlpack__(**settings)
    def __dlpack_device__(self): return self.memory.__dlpack_device__()
class Cuda:
    def __init__(self, **more):
        self.__cuda_array_interface__ = dict(shape=(0, 7), typestr="<f4", data=(0, False), version=3, **more)
class CudaAndDlpack(Cuda):
    def __init__(self, where, **more):
        super().__init__(**more)
        self.where = where
    def __dlpack_device__(self): return self.where
class Named(Cuda):
    '''As torch's tensors: device.type and device.index.'''
    def __init__(self, vendor, index):
        super().__init__()
        self.device = type("device", (), {"type": vendor, "index": index})
def arrays(vendor):
    memory = hmc.Memory(0, f"{vendor}:1")
    yield "Memory", memory
    yield "slice", hmc.Memory(10, f"{vendor}:1")[5:5]
    yield "DLPack", Dlpack(memory)
    if vendor != "mlu":
        yield "__cuda_array_interface__ alone", Cuda()
        yield "with DLPack", CudaAndDlpack(memory.__dlpack_device__(), stream=1)
        yield "with a device's name", Named(vendor, 1)
"""


@pytest.mark.parametrize("vendor", ["cuda", "rocm", "hygon", "mlu", "musa"])
@pytest.mark.parametrize("transports", ["", "tcp,staging"])
def test_every_call_takes_empty_arrays(run_job: Callable[..., str], vendor: str, transports: str) -> None:
    run_job(
        ARRAYS
        + f"vendor, transports = {vendor!r}, {transports!r}\n"
        + """
with hmc.init(transports=transports or None, timeout=40) as comm:
    other = 1 - comm.rank
    full = hmc.Memory(100, f"{vendor}:0")
    for name, array in arrays(vendor):
        assert hmc.Memory.from_array(array).nbytes == 0
        if name != "__cuda_array_interface__ alone":
            assert hmc.Memory.from_array(array).device == f"{vendor}:1", (name, hmc.Memory.from_array(array).device)
        for stream in (None, 1, 0):
            works = [comm.irecv(array, other, tag=1, stream=stream), comm.isend(array, other, tag=1, stream=stream)]
            hmc.wait_all(works, 20)
            assert works[0].info.bytes == 0
        if comm.rank == 0:
            comm.send(array, other, tag=2, timeout=20)
            assert comm.recv(array, other, tag=2, timeout=20).bytes == 0
        else:
            assert comm.recv(array, other, tag=2, timeout=20).bytes == 0
            comm.send(array, other, tag=2, timeout=20)
        comm.all_to_all(array, array, timeout=20)
        comm.iall_to_all(array, array).wait(20)
        comm.all_to_all_v(array, [0, 0], array, [0, 0], timeout=20)
        comm.iall_to_all_v(array, [0, 0], array, [0, 0]).wait(20)
        # Order is kept: an empty message between two that are not.
        full.copy_from(pattern(100, comm.rank))
        got = hmc.Memory(100, f"{vendor}:0")
        sends = [comm.isend(full, other, tag=3), comm.isend(array, other, tag=3), comm.isend(full, other, tag=3)]
        assert [comm.recv(got, other, tag=3, timeout=20).bytes for _ in range(3)] == [100, 0, 100]
        hmc.wait_all(sends, 20)
        read = np.zeros(100, np.uint8)
        got.copy_to(read)
        assert np.array_equal(read, pattern(100, other)), name
    buffer = comm.buffer(100, f"{vendor}:0")
    remote = comm.exchange(buffer, 20)[other]
    comm.put(buffer[50:50], remote[50:50], notify=3, stream=1).wait(20)
    comm.get(buffer[50:50], remote[50:50], stream=1).wait(20)
    comm.wait_notify(other, 3, timeout=20)
    empty = comm.buffer(0, f"{vendor}:0")
    remote = comm.exchange(empty, 20)[other]
    comm.put(empty, remote, notify=4).wait(20)
    comm.wait_notify(other, 4, timeout=20)
    registered = comm.register(hmc.Memory(0, f"{vendor}:1"))
    comm.exchange(registered, 20)
    comm.barrier(20)
""",
        environment=hmc.testing.environment(vendor),
    )


def test_a_stream_still_needs_device_memory(run_script: Callable[..., str]) -> None:
    run_script(
        """
with hmc.init(0, 1) as comm:
    for array in (np.zeros(0), np.zeros(5)):
        try:
            comm.isend(array, 0, stream=1)
        except hmc.InvalidArgumentError as error:
            assert "CPU" in str(error)
        else:
            raise AssertionError("a stream ordered CPU memory")
""",
        hmc.testing.environment("cuda"),
    )


def test_empty_cpu_arrays() -> None:
    with hmc.init(0, 1) as comm:
        for array in (np.zeros(0), bytearray(), np.zeros((3, 0, 2)), np.zeros((0, 5)).T, memoryview(b"")[0:0]):
            writable = np.zeros(0)
            work = comm.irecv(writable, 0)
            comm.send(np.ascontiguousarray(array) if isinstance(array, np.ndarray) else array, 0, timeout=10)
            work.wait(10)
            assert work.info.bytes == 0


def test_counts_of_elements_without_bytes(run_script: Callable[..., str]) -> None:
    run_script(
        """
import ctypes
class NoBytes(ctypes.Structure):
    pass
with hmc.init(0, 1) as comm:
    for array in (np.empty(3, dtype=[]), (NoBytes * 3)()):
        comm.all_to_all_v(array, [3], array, [3], [0], [0], timeout=20)
        comm.all_to_all_v({comm.local[0]: (array, [3], array, [3])}, timeout=20)
        comm.iall_to_all_v(array, [3], array, [3]).wait(20)
        comm.all_gather(array, array, counts=[3], timeout=20)
        comm.iall_gather(array, array, counts=[3]).wait(20)
        comm.gather(array, array, counts=[3], timeout=20)
        comm.scatter(array, array, counts=[3], timeout=20)
""",
        {},
    )


def test_empty_torch_tensors_on_a_real_device(run_job: Callable[..., str]) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    run_job("""
import torch
with hmc.init(timeout=40) as comm:
    other = 1 - comm.rank
    for shape in ((0,), (0, 7), (3, 0)):
        empty = torch.zeros(shape, device="cuda")
        stream = torch.cuda.Stream()
        works = [comm.irecv(empty, other), comm.isend(empty, other, stream=stream)]
        hmc.wait_all(works, 20)
        (comm.send if comm.rank == 0 else comm.recv)(empty, other, timeout=20)
        comm.all_to_all(empty, empty, timeout=20)
        comm.all_to_all_v(empty, [0, 0], empty, [0, 0], timeout=20)
""")
