"""The ABI of CNRT."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p, create_string_buffer
from typing import Any, ClassVar

from abi import ILLEGAL, INVALID, NO_MEMORY, Vendor


class CnrtAttributes(ctypes.Structure):
    _fields_: ClassVar[Any] = [("type", c_int), ("device", c_int), ("size", c_size_t), ("device_pointer", c_void_p),
                               ("host_pointer", c_void_p), ("cache_mode", c_int), ("base", c_void_p)]  # fmt: skip


class Cnrt(Vendor):
    codes: ClassVar[dict[str, int]] = {INVALID: 100006, NO_MEMORY: 100100, ILLEGAL: 100006}
    not_ready = 632014
    copy_call, alloc_call = "cnrtMemcpyAsync_V3", "cnrtMalloc"
    has_pin = False
    directions: ClassVar[dict[str, int]] = {"h2d": 0, "d2d": 1, "d2h": 2, "h2h": 3, "any": 5}

    def start(self) -> None:
        pass

    def count(self) -> int:
        return self.out(c_uint, "cnrtGetDeviceCount")

    def use(self, device: int) -> None:
        self("cnrtSetDevice", device)

    def device_name(self, device: int) -> str:
        properties = create_string_buffer(b"\xff" * 512, 512)
        self("cnrtGetDeviceProperties_V3", properties, device)
        assert properties.raw[256:] == b"\xff" * 256, "written beyond the name"
        return properties.value.decode()

    def pci(self, device: int) -> str:
        return self.text("cnrtDeviceGetPCIBusId", device)

    def alloc(self, size: int) -> int:
        return self.out(c_void_p, "cnrtMalloc", c_size_t(size))

    def free(self, pointer: int) -> None:
        self("cnrtFree", c_void_p(pointer))

    def memory(self) -> tuple[int, int]:
        free, total = c_size_t(), c_size_t()
        self("cnrtMemGetInfo", byref(free), byref(total))
        return free.value, total.value

    def host_alloc(self, size: int) -> int:
        return self.out(c_void_p, "cnrtHostMalloc", c_size_t(size))

    def host_free(self, pointer: int) -> None:
        self("cnrtFreeHost", c_void_p(pointer))

    def to_device(self, target: int, source: int, size: int) -> None:
        self("cnrtMemcpy", c_void_p(target), c_void_p(source), c_size_t(size), 0)

    def to_host(self, target: int, source: int, size: int) -> None:
        self("cnrtMemcpy", c_void_p(target), c_void_p(source), c_size_t(size), 2)

    def copy(self, target: int, source: int, size: int, stream: Any, direction: str) -> None:
        self("cnrtMemcpyAsync_V3", c_void_p(target), c_void_p(source), c_size_t(size), stream, self.directions[direction])

    def fill(self, target: int, value: int, size: int) -> None:
        self("cnrtMemset", c_void_p(target), value, c_size_t(size))

    def attributes(self, pointer: int) -> tuple[str, int]:
        found = CnrtAttributes()
        self("cnrtPointerGetAttributes", byref(found), c_void_p(pointer))
        return {0: "unknown", 1: "host", 2: "device"}[found.type], found.device if found.type else -1

    def address_range(self, pointer: int) -> tuple[int, int]:
        found = CnrtAttributes()
        self("cnrtPointerGetAttributes", byref(found), c_void_p(pointer))
        return found.base, found.size

    def stream(self) -> Any:
        return c_void_p(self.out(c_void_p, "cnrtQueueCreate"))

    def stream_destroy(self, stream: Any) -> None:
        self("cnrtQueueDestroy", stream)

    def stream_sync(self, stream: Any) -> None:
        self("cnrtQueueSync", stream)

    def stream_wait(self, stream: Any, event: Any) -> None:
        self("cnrtQueueWaitNotifier", event, stream, 0)

    def call_host(self, stream: Any, function: Any) -> None:
        self("cnrtInvokeHostFunc", stream, function, None)

    def event(self) -> Any:
        return c_void_p(self.out(c_void_p, "cnrtNotifierCreateWithFlags", 4))

    def record(self, event: Any, stream: Any) -> None:
        self("cnrtPlaceNotifier", event, stream)

    def done(self, event: Any) -> bool:
        return self.ready("cnrtQueryNotifier", event)

    def event_sync(self, event: Any) -> None:
        self("cnrtWaitNotifier", event)

    def export(self, pointer: int) -> bytes:
        handle = c_uint64()
        self("cnrtAcquireMemHandle", byref(handle), c_void_p(pointer))
        return bytes(handle)

    def open(self, handle: bytes) -> int:
        return self.out(c_void_p, "cnrtMapMemHandle", c_uint64.from_buffer_copy(handle), 0)

    def close(self, pointer: int) -> None:
        self("cnrtUnMapMemHandle", c_void_p(pointer))
