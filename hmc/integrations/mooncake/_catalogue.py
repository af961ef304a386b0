"""The registrations of an engine as bytes: what others ask for when they meet an address that they do not know.

The descriptors inside are HMC's: they name buffers and grant nothing to a process that cannot connect. Every length that is read
is bounded.
"""

from __future__ import annotations

import struct

from hmc._core import ConnBuffer
from hmc.errors import ClosedError, ProtocolError
from hmc.integrations._shared.imports import Importable
from hmc.integrations._shared.ranges import Range
from hmc.integrations.mooncake._types import Space

__all__ = ["decode", "encode"]

_ENTRY = struct.Struct("<QQH")  # address, bytes, bytes of the descriptor


def encode(ranges: list[Range[ConnBuffer]]) -> bytes:
    """The registrations, oldest first."""
    parts = []
    for one in ranges:
        try:
            descriptor = bytes(one.holder.descriptor())
        except ClosedError:  # it is being unregistered
            continue
        parts += [_ENTRY.pack(one.address, one.nbytes, len(descriptor)), descriptor]
    return b"".join(parts)


def decode(data: bytes) -> list[Range[Importable]]:
    """Raises ProtocolError for damaged bytes."""
    found, at = [], 0
    while at < len(data):
        if at + _ENTRY.size > len(data):
            raise ProtocolError(f"registrations of an engine, {len(data)} bytes, end within an entry")
        address, nbytes, descriptor_bytes = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        if at + descriptor_bytes > len(data) or address + nbytes >= 1 << 64:
            raise ProtocolError(f"registrations of an engine, {len(data)} bytes, are damaged: {nbytes} bytes at {address:#x}")
        found.append(Range(Space.memory, address, nbytes, 0, Importable(data[at : at + descriptor_bytes])))
        at += descriptor_bytes
    return found
