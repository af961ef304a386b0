"""A remote agent: its connection, and its registrations, which are imported when a descriptor first names them."""

from __future__ import annotations

import threading
from typing import Any

from hmc._core import Peer, RemoteBuffer
from hmc.integrations._shared.imports import Importable, imported
from hmc.integrations._shared.ranges import Found, Range, Ranges
from hmc.integrations.nixl._metadata import Entry, Metadata

__all__ = ["Remote"]


class Remote:
    """One remote agent, between two calls of add_remote_agent that had to connect. Any thread."""

    def __init__(self, metadata: Metadata, peer: Peer) -> None:
        self.name = name = metadata.name
        self.context = metadata.context
        self.peer = peer
        self.removed = False
        self.ranges: Ranges[Importable] = Ranges(lambda: f"agent {name}, as far as its metadata says")
        self._lock = threading.Lock()

    @property
    def alive(self) -> bool:
        """False once the agent has ended or was removed."""
        return not self.removed and self.peer.alive

    def add(self, entries: list[Entry]) -> None:
        """Takes registrations over; one that is known already stays as it is, imported or not, unless it has ended."""
        with self._lock:
            known = {(*one.key, one.holder.descriptor) for one in self.ranges.all()}
            added = []
            for one in entries:
                new = Range(one.kind, one.address, one.nbytes, one.device, Importable(one.descriptor))
                if (*new.key, one.descriptor) not in known:
                    added.append(new)
            replaced = {one.key for one in added}
            self.ranges.replace(added, [one for one in self.ranges.all() if one.key in replaced or one.holder.ended])

    def forget_ended(self) -> None:
        """Removes registrations that were found to have ended, so that another one that holds their memory is found."""
        with self._lock:
            ended = [one for one in self.ranges.all() if one.holder.ended]
            if ended:
                self.ranges.replace([], ended)

    def buffers(self, found: Found[Importable], used: Any) -> dict[int, RemoteBuffer]:
        """As batches.Target wants them."""
        return dict(zip(used, imported(self.peer, [found.ranges[number] for number in used]), strict=True))
