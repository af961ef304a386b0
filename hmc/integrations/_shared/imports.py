"""Registrations of another process, which are imported when a transfer first names them."""

from __future__ import annotations

import time
from typing import Any

from hmc._core import Descriptor, Peer, RemoteBuffer
from hmc.integrations._shared.ranges import Found

__all__ = ["Importable", "import_used"]

_IMPORT_SECONDS = 10.0


class Importable:
    """A registration of another process."""

    def __init__(self, descriptor: bytes) -> None:
        self.descriptor = descriptor
        self.buffer: RemoteBuffer | None = None


def import_used(peer: Peer, found: Found[Importable], used: Any) -> dict[int, RemoteBuffer]:
    """The imported buffers of some registrations, by their numbers in ``found``. Waits at most 10 s. Raises HmcError."""
    wanted = {number: found.ranges[number].holder for number in used}
    until = time.monotonic() + _IMPORT_SECONDS
    missing = [one for one in wanted.values() if one.buffer is None]
    works = [peer._iimport(Descriptor.parse(one.descriptor), _IMPORT_SECONDS) for one in missing]
    for one, work in zip(missing, works, strict=True):
        work.wait(max(0.0, until - time.monotonic()))
        one.buffer = work._take()
    return {number: one.buffer for number, one in wanted.items() if one.buffer is not None}
