"""A remote agent: its connection, and its registrations, which are imported when a descriptor first names them."""

from __future__ import annotations

import threading
import time
from typing import Any

from hmc._core import Descriptor, Peer, RemoteBuffer
from hmc.integrations.nixl._errors import translated
from hmc.integrations.nixl._metadata import Entry, Metadata
from hmc.integrations.nixl._ranges import Found, Range, Ranges

__all__ = ["Importable", "Remote"]

_IMPORT_SECONDS = 10.0


class Importable:
    """A registration of a remote agent."""

    def __init__(self, descriptor: bytes) -> None:
        self.descriptor = descriptor
        self.buffer: RemoteBuffer | None = None


class Remote:
    """One remote agent, between two calls of add_remote_agent that had to connect. Any thread."""

    def __init__(self, metadata: Metadata, peer: Peer) -> None:
        self.name = metadata.name
        self.context = metadata.context
        self.peer = peer
        self.removed = False
        self.ranges: Ranges[Importable] = Ranges(lambda: f"agent {metadata.name}, as far as its metadata says")
        self._lock = threading.Lock()

    @property
    def alive(self) -> bool:
        """False once the agent has ended or was removed."""
        return not self.removed and self.peer.alive

    def add(self, entries: list[Entry]) -> None:
        """Takes registrations over; one that is known already stays as it is, imported or not."""
        with self._lock:
            known = {(*one.key, one.holder.descriptor) for one in self.ranges.all()}
            added = []
            for one in entries:
                new = Range(one.kind, one.address, one.nbytes, one.device, Importable(one.descriptor))
                if (*new.key, one.descriptor) not in known:
                    added.append(new)
            replaced = {one.key for one in added}
            self.ranges.replace(added, [one for one in self.ranges.all() if one.key in replaced])

    def buffers(self, found: Found[Importable], used: Any) -> dict[int, RemoteBuffer]:
        """The imported buffers of some registrations, by their numbers in ``found``. Raises NIXL's exceptions."""
        wanted = {number: found.ranges[number].holder for number in used}
        until = time.monotonic() + _IMPORT_SECONDS
        with translated():
            missing = [one for one in wanted.values() if one.buffer is None]
            works = [self.peer._iimport(Descriptor.parse(one.descriptor), _IMPORT_SECONDS) for one in missing]
            for one, work in zip(missing, works, strict=True):
                work.wait(max(0.0, until - time.monotonic()))
                one.buffer = work._take()
        return {number: one.buffer for number, one in wanted.items() if one.buffer is not None}
