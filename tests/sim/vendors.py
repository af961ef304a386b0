"""The ABIs of the simulated vendors as a client sees them, by ctypes alone: nothing here comes from HMC."""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_byte, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p, create_string_buffer
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("cuda", "rocm", "rocm5", "hygon", "musa", "mlu")
INVALID, NO_MEMORY, ILLEGAL = "invalid", "no memory", "illegal address"
CUDA_CODES = {INVALID: 1, NO_MEMORY: 2, ILLEGAL: 700}


def library_path(name: str) -> Path | None:
    """$HMC_SIM_DIR, else the build folders of this tree."""
    folder = os.environ.get("HMC_SIM_DIR")
    folders = [Path(folder)] if folder else [ROOT / "build" / "sim", *sorted((ROOT / "build").glob("*/sim"))]
    return next((path for path in (where / f"libhmcsim_{name}.so" for where in folders) if path.exists()), None)


class Failure(Exception):
    """A call returned something else than success."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} returned {code}")
        self.code = code


class Handle64(ctypes.Structure):
    _fields_: ClassVar[Any] = [("data", c_byte * 64)]


class Vendor:
    """What every ABI can do. A device pointer is an int here, a host pointer too."""

    codes = CUDA_CODES
    not_ready = 600
    copy_call: str  # the entry point of copy()
    alloc_call: str
    has_pin = True

    def __init__(self, name: str) -> None:
        path = library_path(name)
        assert path is not None, f"libhmcsim_{name}.so is not built"
        self.name = name
        self.lib = ctypes.CDLL(str(path))
        self.lib.hmcsim_description.restype = c_char_p

    def __call__(self, call: str, *arguments: Any) -> None:
        code = getattr(self.lib, call)(*arguments)
        if code != 0:
            raise Failure(call, code)

    def out(self, kind: Any, call: str, *arguments: Any) -> Any:
        """Calls with a place for a result in front."""
        value = kind()
        self(call, byref(value), *arguments)
        return value.value

    def text(self, call: str, *arguments: Any) -> str:
        buffer = create_string_buffer(64)
        self(call, buffer, 64, *arguments)
        return buffer.value.decode()

    def fail(self, call: str, nth: int, code: int) -> None:
        assert self.lib.hmcsim_fail(call.encode(), nth, code) == 0

    def ready(self, call: str, handle: Any) -> bool:
        try:
            self(call, handle)
        except Failure as failure:
            if failure.code == self.not_ready:
                return False
            raise
        return True


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


class HipAttributes(ctypes.Structure):
    _fields_: ClassVar[Any] = [("type", c_int), ("device", c_int), ("device_pointer", c_void_p), ("host_pointer", c_void_p),
                               ("managed", c_int), ("flags", c_uint)]  # fmt: skip


class MusaAttributes(ctypes.Structure):
    _fields_: ClassVar[Any] = [("type", c_int), ("device", c_int), ("device_pointer", c_void_p), ("host_pointer", c_void_p)]


class Runtime(Vendor):
    """HIP, DTK and MUSA: the CUDA runtime under another prefix."""

    directions: ClassVar[dict[str, int]] = {"h2h": 0, "h2d": 1, "d2h": 2, "d2d": 3, "any": 4}

    def __init__(self, name: str) -> None:
        super().__init__(name)
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


def load(name: str) -> Any:
    """The vendor's library in this process, started, with device 0 current."""
    vendor: Any = {"cuda": Cuda, "mlu": Cnrt}.get(name, Runtime)(name)
    vendor.start()
    return vendor


def address(buffer: Any, offset: int = 0) -> int:
    return ctypes.addressof(buffer) + offset
