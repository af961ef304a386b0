"""Device memory as frameworks' allocators make it, on the simulated CUDA driver: pieces mapped side by side, and pools."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

import hmc
import hmc.testing

PIECE = 2 << 20  # the driver's granularity


class Location(ctypes.Structure):
    _fields_: ClassVar[Any] = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    _fields_: ClassVar[Any] = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location),
                               ("win32", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]  # fmt: skip


class Access(ctypes.Structure):
    _fields_: ClassVar[Any] = [("location", Location), ("flags", ctypes.c_int)]


class Foreign:
    """Memory that HMC did not allocate, as it comes in from a framework."""

    def __init__(self, pointer: int, size: int) -> None:
        self.pointer = pointer
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (pointer, False), "version": 3}


class Driver:
    """The few calls of the CUDA driver that make such memory."""

    def __init__(self) -> None:
        hmc.devices()  # a library that HMC_CUDA_LIBRARY names is HMC's to open
        self.library = ctypes.CDLL(hmc.testing.library("cuda"))
        self("cuInit", 0)

    def __call__(self, call: str, *arguments: Any) -> None:
        code = getattr(self.library, call)(*arguments)
        assert code == 0, f"{call} returned {code}"

    def context(self, device: int) -> None:
        context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)

    def mapped(
        self, device: int, pieces: list[int], *, offset: int = 0, size: int | None = None, shareable: bool = True
    ) -> Foreign:
        """`size` bytes from `offset` on of pieces of so many granules each, as torch's expandable segments are."""
        total = sum(pieces) * PIECE
        base = ctypes.c_uint64()
        self(
            "cuMemAddressReserve",
            ctypes.byref(base),
            ctypes.c_size_t(total),
            ctypes.c_size_t(0),
            ctypes.c_uint64(0),
            ctypes.c_uint64(0),
        )
        at = base.value
        for piece in pieces:
            self.map_at(at, device, piece, shareable=shareable)
            at += piece * PIECE
        return Foreign(base.value + offset, total - offset if size is None else size)

    def map_at(self, address: int, device: int, granules: int, *, shareable: bool = True) -> None:
        """A new piece, at an address that is reserved and free."""
        where, handle, size = Location(1, device), ctypes.c_uint64(), ctypes.c_size_t(granules * PIECE)
        properties, access = Properties(1, 1 if shareable else 0, where), Access(where, 3)
        self("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(properties), ctypes.c_uint64(0))
        self("cuMemMap", ctypes.c_uint64(address), size, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        self("cuMemRelease", handle)
        self("cuMemSetAccess", ctypes.c_uint64(address), size, ctypes.byref(access), ctypes.c_size_t(1))

    def unmap(self, address: int, granules: int) -> None:
        """As an allocator that gives a piece back."""
        self("cuMemUnmap", ctypes.c_uint64(address), ctypes.c_size_t(granules * PIECE))

    def pooled(self, device: int, size: int) -> Foreign:
        """Memory of the device's stream-ordered pool."""
        pointer = ctypes.c_uint64()
        self.context(device)
        self("cuMemAllocAsync", ctypes.byref(pointer), ctypes.c_size_t(size), None)
        return Foreign(pointer.value, size)
