"""Memory that is known by its address, registered with HMC in place."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np

from hmc._core import ConnBuffer, Context
from hmc.errors import HmcTimeoutError
from hmc.integrations.nixl._errors import nixlBackendError, nixlNotSupportedError, translated
from hmc.integrations.nixl._ranges import Range, Ranges
from hmc.integrations.nixl._types import nixl_mem_t

__all__ = ["LocalMemory", "check_kind"]

_CLOSE_SECONDS = 5.0
_PAGE = os.sysconf("SC_PAGE_SIZE")
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)


class _DeviceBytes:
    """Device memory by its address. HMC asks every vendor's runtime whose it is; the protocol's name does not say."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}


def check_kind(kind: nixl_mem_t) -> None:
    """Raises nixlNotSupportedError for storage."""
    if kind not in (nixl_mem_t.DRAM_SEG, nixl_mem_t.VRAM_SEG):
        raise nixlNotSupportedError(
            f"{kind.name}: HMC moves DRAM and VRAM, not files, blocks of disks or objects. Use NIXL's storage backends for these"
        )


def _check_mapped(address: int, nbytes: int) -> None:
    for at in (address, address + nbytes - 1):
        # ctypes would take an address beyond 64 bits as one within.
        if at >> 64 or _libc.mincore(at - at % _PAGE, _PAGE, ctypes.create_string_buffer(1)) != 0:
            raise nixlBackendError(
                f"{nbytes} bytes at {address:#x} are not mapped in this process: {os.strerror(ctypes.get_errno())}"
            )


def _in_place(kind: nixl_mem_t, address: int, nbytes: int) -> Any:
    if kind == nixl_mem_t.VRAM_SEG:
        return _DeviceBytes(address, nbytes)
    _check_mapped(address, nbytes)
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


class LocalMemory:
    """The registrations of this process's agent. Any thread.

    The caller keeps the memory until it has deregistered it, as with NIXL: an address keeps nothing alive.
    """

    def __init__(self, ctx: Context, name: str) -> None:
        self._ctx = ctx
        self.ranges: Ranges[ConnBuffer | None] = Ranges(lambda: f"agent {name}")

    def register(self, kind: nixl_mem_t, rows: Any) -> None:
        """Registers every row, or none. Raises NIXL's exceptions."""
        check_kind(kind)
        made: list[Range[ConnBuffer | None]] = []
        try:
            with translated():
                for address, nbytes, device in rows.tolist():
                    buffer = self._ctx.register(_in_place(kind, address, nbytes)) if nbytes else None
                    made.append(Range(kind, address, nbytes, device, buffer))
        except BaseException:
            self._close(made)
            raise
        self.ranges.replace(made)

    def deregister(self, kind: nixl_mem_t, rows: Any) -> None:
        """Ends the registrations of these rows. Afterwards nothing is read from them or written to them through HMC.

        Raises nixlNotFoundError if a row is not registered, and then leaves all; nixlBackendError where a process that is stopped
        may still write the memory: keep it until that process goes on or ends.
        """
        self._close(self.ranges.take(kind, rows))

    def _close(self, ranges: list[Range[ConnBuffer | None]]) -> None:
        late: HmcTimeoutError | None = None
        for one in ranges:
            if one.holder is None:
                continue
            try:
                one.holder.close(timeout=_CLOSE_SECONDS if late is None else 0)
            except HmcTimeoutError as error:
                late = error
        if late is not None:
            with translated():
                raise late
