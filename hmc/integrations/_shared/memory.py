"""Memory that is known by its address only, as HMC takes it: in place, kept by the caller."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from hmc._core import ConnBuffer
from hmc.errors import HmcTimeoutError, TransportError

__all__ = ["close_buffers", "cpu_bytes", "device_bytes"]

_CLOSE_SECONDS = 5.0
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PART = 1 << 28  # bytes that one call looks at
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)


class device_bytes:
    """Device memory by its address. HMC asks every vendor's runtime whose it is; the protocol's name does not say."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}


def cpu_bytes(address: int, nbytes: int) -> Any:
    """CPU memory by its address, as an array. Raises TransportError where some of it is not mapped."""
    at, end = address - address % _PAGE, address + nbytes
    states = ctypes.create_string_buffer(min(_PART, end - at) // _PAGE + 1)
    while at < end:
        part = min(_PART, end - at)
        # ctypes would take an address beyond 64 bits as one within.
        if end >> 64 or _libc.mincore(at, part, states) != 0:
            raise TransportError(
                f"{nbytes} bytes at {address:#x} are not mapped as a whole in this process: {os.strerror(ctypes.get_errno())}"
            )
        at += part
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


def close_buffers(buffers: Iterable[ConnBuffer]) -> None:
    """Ends registrations: afterwards nothing reads or writes the memory through them.

    Raises HmcTimeoutError where a process that is stopped may still write the memory: keep it until that process goes on or ends.
    """
    late: HmcTimeoutError | None = None
    for one in buffers:
        try:
            one.close(timeout=_CLOSE_SECONDS if late is None else 0)
        except HmcTimeoutError as error:
            late = error
    if late is not None:
        raise late
