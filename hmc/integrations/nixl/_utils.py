"""What ``nixl._utils`` has for tests and examples: plain memory by its address."""

from __future__ import annotations

import ctypes

__all__ = ["ba_buf", "free_passthru", "malloc_passthru", "verify_transfer"]

_libc = ctypes.CDLL(None)
_libc.malloc.restype, _libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
_libc.free.restype, _libc.free.argtypes = None, (ctypes.c_void_p,)


def malloc_passthru(size: int) -> int:
    """The address of ``size`` bytes of CPU memory. MemoryError."""
    address = _libc.malloc(size)
    if not address:
        raise MemoryError(f"{size} bytes")
    return int(address)


def free_passthru(address: int) -> None:
    """Frees what malloc_passthru() returned."""
    _libc.free(address)


def ba_buf(address: int, size: int) -> None:
    """Fills memory with 0xba."""
    ctypes.memset(address, 0xBA, size)


def verify_transfer(first: int, second: int, size: int) -> None:
    """Raises AssertionError unless two memories hold equal bytes."""
    if ctypes.string_at(first, size) != ctypes.string_at(second, size):
        raise AssertionError(f"{size} bytes at {first:#x} and {second:#x} differ")
