"""The ABI of the CUDA runtime under other prefixes: HIP, DTK and MUSA."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path
from typing import Any, ClassVar

from abi import Failure, Handle64, Vendor


class HipAttributes(ctypes.Structure):
    _fields_: ClassVar[Any] = [("type", c_int), ("device", c_int), ("device_pointer", c_void_p), ("host_pointer", c_void_p),
                               ("managed", c_int), ("flags", c_uint)]  # fmt: skip


class MusaAttributes(ctypes.Structure):
    _fields_: ClassVar[Any] = [("type", c_int), ("device", c_int), ("device_pointer", c_void_p), ("host_pointer", c_void_p)]


class Runtime(Vendor):
    """HIP, DTK and MUSA: the CUDA runtime under another prefix."""

    directions: ClassVar[dict[str, int]] = {"h2h": 0, "h2d": 1, "d2h": 2, "d2d": 3, "any": 4}

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(name, path)
        self.prefix = "musa" if name == "musa" else "hip"
        self.types = {0: "host", 1: "device"} if name in ("rocm5", "hygon") else {0: "unknown", 1: "host", 2: "device"}
        self.lazy_peer_access = 0 if name == "hygon" else 1  # changed between HIP 5.2 and 6
        self.copy_call, self.alloc_call = f"{self.prefix}MemcpyAsync", f"{self.prefix}Malloc"

    def rt(self, call: str, *arguments: Any) -> None:
        self(self.prefix + call, *arguments)

    def rt_out(self, kind: Any, call: str, *arguments: Any) -> Any:
        return self.out(kind, self.prefix + call, *arguments)

    def start(self) -> None:
        self("muInit" if self.prefix == "musa" else "hipInit", 0)

    def count(self) -> int:
        return self.rt_out(c_int, "GetDeviceCount")

    def use(self, device: int) -> None:
        self.rt("SetDevice", device)

    def device_name(self, device: int) -> str:
        return self.text("muDeviceGetName" if self.prefix == "musa" else "hipDeviceGetName", device)

    def pci(self, device: int) -> str:
        return self.text(self.prefix + "DeviceGetPCIBusId", device)

    def alloc(self, size: int) -> int:
        return self.rt_out(c_void_p, "Malloc", c_size_t(size))

    def free(self, pointer: int) -> None:
        self.rt("Free", c_void_p(pointer))

    def memory(self) -> tuple[int, int]:
        free, total = c_size_t(), c_size_t()
        self.rt("MemGetInfo", byref(free), byref(total))
        return free.value, total.value

    def host_alloc(self, size: int) -> int:
        return self.rt_out(c_void_p, "HostAlloc" if self.prefix == "musa" else "HostMalloc", c_size_t(size), 0)

    def host_free(self, pointer: int) -> None:
        self.rt("FreeHost" if self.prefix == "musa" else "HostFree", c_void_p(pointer))

    def pin(self, pointer: int, size: int) -> None:
        self.rt("HostRegister", c_void_p(pointer), c_size_t(size), 0)

    def unpin(self, pointer: int) -> None:
        self.rt("HostUnregister", c_void_p(pointer))

    def to_device(self, target: int, source: int, size: int) -> None:
        self.rt("Memcpy", c_void_p(target), c_void_p(source), c_size_t(size), 1)

    def to_host(self, target: int, source: int, size: int) -> None:
        self.rt("Memcpy", c_void_p(target), c_void_p(source), c_size_t(size), 2)

    def copy(self, target: int, source: int, size: int, stream: Any, direction: str) -> None:
        self.rt("MemcpyAsync", c_void_p(target), c_void_p(source), c_size_t(size), self.directions[direction], stream)

    def fill(self, target: int, value: int, size: int) -> None:
        self.rt("Memset", c_void_p(target), value, c_size_t(size))

    def attributes(self, pointer: int) -> tuple[str, int]:
        found: Any = MusaAttributes() if self.prefix == "musa" else HipAttributes()
        try:
            self.rt("PointerGetAttributes", byref(found), c_void_p(pointer))
        except Failure as failure:
            if failure.code != 1 or self.name not in ("rocm5", "hygon"):
                raise
            return "unknown", -1
        kind = self.types[found.type]
        assert found.device_pointer == (None if kind == "unknown" else pointer)
        assert found.host_pointer == (pointer if kind == "host" else None)
        return kind, -1 if kind == "unknown" else found.device

    def address_range(self, pointer: int) -> tuple[int, int]:
        base, size = c_void_p(), c_size_t()
        self(
            "muMemGetAddressRange" if self.prefix == "musa" else "hipMemGetAddressRange",
            byref(base),
            byref(size),
            c_void_p(pointer),
        )
        return base.value or 0, size.value

    def stream(self) -> Any:
        return c_void_p(self.rt_out(c_void_p, "StreamCreateWithFlags", 1))

    def stream_destroy(self, stream: Any) -> None:
        self.rt("StreamDestroy", stream)

    def stream_sync(self, stream: Any) -> None:
        self.rt("StreamSynchronize", stream)

    def stream_wait(self, stream: Any, event: Any) -> None:
        self.rt("StreamWaitEvent", stream, event, 0)

    def call_host(self, stream: Any, function: Any) -> None:
        self.rt("LaunchHostFunc", stream, function, None)

    def event(self) -> Any:
        return c_void_p(self.rt_out(c_void_p, "EventCreateWithFlags", 2))

    def record(self, event: Any, stream: Any) -> None:
        self.rt("EventRecord", event, stream)

    def done(self, event: Any) -> bool:
        return self.ready(self.prefix + "EventQuery", event)

    def event_sync(self, event: Any) -> None:
        self.rt("EventSynchronize", event)

    def export(self, pointer: int) -> bytes:
        handle = Handle64()
        self.rt("IpcGetMemHandle", byref(handle), c_void_p(pointer))
        return bytes(handle)

    def open(self, handle: bytes) -> int:
        return self.rt_out(c_void_p, "IpcOpenMemHandle", Handle64.from_buffer_copy(handle), self.lazy_peer_access)

    def close(self, pointer: int) -> None:
        self.rt("IpcCloseMemHandle", c_void_p(pointer))
