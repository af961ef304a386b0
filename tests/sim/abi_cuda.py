"""The ABI of CUDA's driver."""

from __future__ import annotations

from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from abi import Failure, Handle64, Vendor


class Cuda(Vendor):
    copy_call, alloc_call = "cuMemcpyAsync", "cuMemAlloc_v2"

    def start(self) -> None:
        self("cuInit", 0)
        self.contexts = [c_void_p(self.out(c_void_p, "cuDevicePrimaryCtxRetain", index)) for index in range(self.count())]
        self.use(0)

    def count(self) -> int:
        return self.out(c_int, "cuDeviceGetCount")

    def use(self, device: int) -> None:
        self("cuCtxSetCurrent", self.contexts[device])

    def device_name(self, device: int) -> str:
        return self.text("cuDeviceGetName", device)

    def pci(self, device: int) -> str:
        return self.text("cuDeviceGetPCIBusId", device)

    def alloc(self, size: int) -> int:
        return self.out(c_uint64, "cuMemAlloc_v2", c_size_t(size))

    def free(self, pointer: int) -> None:
        self("cuMemFree_v2", c_uint64(pointer))

    def memory(self) -> tuple[int, int]:
        free, total = c_size_t(), c_size_t()
        self("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def host_alloc(self, size: int) -> int:
        return self.out(c_void_p, "cuMemHostAlloc", c_size_t(size), 0)

    def host_free(self, pointer: int) -> None:
        self("cuMemFreeHost", c_void_p(pointer))

    def pin(self, pointer: int, size: int) -> None:
        self("cuMemHostRegister_v2", c_void_p(pointer), c_size_t(size), 0)

    def unpin(self, pointer: int) -> None:
        self("cuMemHostUnregister", c_void_p(pointer))

    def to_device(self, target: int, source: int, size: int) -> None:
        self("cuMemcpyHtoD_v2", c_uint64(target), c_void_p(source), c_size_t(size))

    def to_host(self, target: int, source: int, size: int) -> None:
        self("cuMemcpyDtoH_v2", c_void_p(target), c_uint64(source), c_size_t(size))

    def copy(self, target: int, source: int, size: int, stream: Any, direction: str) -> None:
        self("cuMemcpyAsync", c_uint64(target), c_uint64(source), c_size_t(size), stream)

    def fill(self, target: int, value: int, size: int) -> None:
        self("cuMemsetD8_v2", c_uint64(target), value, c_size_t(size))

    def attributes(self, pointer: int) -> tuple[str, int]:
        kind, device = c_uint(), c_int()
        try:
            self("cuPointerGetAttribute", byref(kind), 2, c_uint64(pointer))
        except Failure as failure:
            if failure.code != 1:
                raise
            return "unknown", -1
        self("cuPointerGetAttribute", byref(device), 9, c_uint64(pointer))
        return {1: "host", 2: "device"}[kind.value], device.value

    def address_range(self, pointer: int) -> tuple[int, int]:
        base, size = c_uint64(), c_size_t()
        self("cuMemGetAddressRange_v2", byref(base), byref(size), c_uint64(pointer))
        return base.value, size.value

    def stream(self) -> Any:
        return c_void_p(self.out(c_void_p, "cuStreamCreate", 1))

    def stream_destroy(self, stream: Any) -> None:
        self("cuStreamDestroy_v2", stream)

    def stream_sync(self, stream: Any) -> None:
        self("cuStreamSynchronize", stream)

    def stream_wait(self, stream: Any, event: Any) -> None:
        self("cuStreamWaitEvent", stream, event, 0)

    def call_host(self, stream: Any, function: Any) -> None:
        self("cuLaunchHostFunc", stream, function, None)

    def event(self) -> Any:
        return c_void_p(self.out(c_void_p, "cuEventCreate", 2))

    def record(self, event: Any, stream: Any) -> None:
        self("cuEventRecord", event, stream)

    def done(self, event: Any) -> bool:
        return self.ready("cuEventQuery", event)

    def event_sync(self, event: Any) -> None:
        self("cuEventSynchronize", event)

    def export(self, pointer: int) -> bytes:
        handle = Handle64()
        self("cuIpcGetMemHandle", byref(handle), c_uint64(pointer))
        return bytes(handle)

    def open(self, handle: bytes) -> int:
        return self.out(c_uint64, "cuIpcOpenMemHandle_v2", Handle64.from_buffer_copy(handle), 1)

    def close(self, pointer: int) -> None:
        self("cuIpcCloseMemHandle", c_uint64(pointer))
