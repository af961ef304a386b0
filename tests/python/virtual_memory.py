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
        base, handle = ctypes.c_uint64(), ctypes.c_uint64()
        where = Location(1, device)
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
            properties = Properties(1, 1 if shareable else 0, where)
            self("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(piece * PIECE), ctypes.byref(properties), ctypes.c_uint64(0))
            self("cuMemMap", ctypes.c_uint64(at), ctypes.c_size_t(piece * PIECE), ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
            self("cuMemRelease", handle)
            at += piece * PIECE
        access = Access(where, 3)
        self("cuMemSetAccess", base, ctypes.c_size_t(total), ctypes.byref(access), ctypes.c_size_t(1))
        return Foreign(base.value + offset, total - offset if size is None else size)

    def pooled(self, device: int, size: int) -> Foreign:
        """Memory of the device's stream-ordered pool."""
        pointer = ctypes.c_uint64()
        self.context(device)
        self("cuMemAllocAsync", ctypes.byref(pointer), ctypes.c_size_t(size), None)
        return Foreign(pointer.value, size)
