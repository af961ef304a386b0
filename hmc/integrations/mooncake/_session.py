"""A remote engine: its connection, and its registrations, which are asked for when an address is not known."""

from __future__ import annotations

import itertools
import struct
import threading
import time
from typing import Any

from hmc._core import Peer, RemoteBuffer
from hmc.errors import HmcTimeoutError, PeerLostError, StaleBufferError
from hmc.integrations._shared import frames as wire
from hmc.integrations._shared.imports import Importable, imported
from hmc.integrations._shared.inbox import send
from hmc.integrations._shared.ranges import Found, Range, Ranges
from hmc.integrations.mooncake import _catalogue
from hmc.integrations.mooncake._types import Space

__all__ = ["REQUEST", "Session"]

REQUEST = struct.Struct("<I")  # number of a request for registrations, which its answer begins with
_ANSWER_SECONDS = 10.0
_LOOK_SECONDS = 0.05
_numbers = itertools.count(1)  # of all sessions: an engine may have several names, and so sessions


class _Answer:
    def __init__(self) -> None:
        self.came = threading.Event()
        self.data = b""
        self.place = 0  # among the answers of the session


class Session:
    """One engine, from one connection to its end. Any thread."""

    def __init__(self, name: str, peer: Peer) -> None:
        self.name = name
        self.peer = peer
        self.ranges: Ranges[Importable] = Ranges(lambda: f"engine {name}")
        self._lock = threading.Lock()
        self._waiting: dict[int, _Answer] = {}
        self._places = itertools.count(1)
        self._newest = 0  # place of the answer that ``ranges`` is from

    def locate(self, address: int, nbytes: int) -> tuple[RemoteBuffer, int]:
        """The imported buffer that holds one piece, and the offset there. Raises NotRegisteredError, HmcError."""
        found, offset = self.ranges.locate(Space.memory, address, nbytes)
        return self._alive([found])[0], offset

    def find(self, rows: Any) -> Found[Importable]:
        """Where descriptors lie, as far as is known here. Raises NotRegisteredError."""
        return self.ranges.find(Space.memory, rows)

    def refresh(self) -> None:
        """Asks the engine for its registrations. Waits at most 10 s. Raises HmcError."""
        answer = _Answer()
        with self._lock:
            number = next(_numbers) & 0xFFFFFFFF
            self._waiting[number] = answer
        try:
            send(self.peer, wire.FETCH, REQUEST.pack(number))
            until = time.monotonic() + _ANSWER_SECONDS
            while not answer.came.wait(_LOOK_SECONDS):
                if not self.peer.alive:
                    raise PeerLostError(f"engine {self.name} ended while it was asked for its registrations")
                if time.monotonic() > until:
                    raise HmcTimeoutError(f"engine {self.name} did not list its registrations within {_ANSWER_SECONDS:.0f} s")
        finally:
            with self._lock:
                del self._waiting[number]
        self._learn(_catalogue.decode(answer.data), answer.place)

    def answered(self, message: bytes) -> None:
        """Takes an answer. Called by the dispatcher thread, so it does not wait."""
        if len(message) < REQUEST.size:
            return
        with self._lock:
            answer = self._waiting.get(REQUEST.unpack_from(message)[0])
        if answer is not None:
            answer.data, answer.place = message[REQUEST.size :], next(self._places)
            answer.came.set()

    def _learn(self, listed: list[Range[Importable]], place: int) -> None:
        """Takes over what an answer lists, unless another thread has taken over a later one."""
        with self._lock:
            if place < self._newest:
                return
            self._newest = place
            old = self.ranges.all()
            known = {(one.key, one.holder.descriptor): one for one in old}
            # What stays the same stays imported.
            self.ranges.replace([known.get((one.key, one.holder.descriptor), one) for one in listed], old)

    def buffers(self, found: Found[Importable], used: Any) -> dict[int, RemoteBuffer]:
        """As batches.Target wants them. Raises StaleBufferError where one was unregistered since it was imported."""
        return dict(zip(used, self._alive([found.ranges[number] for number in used]), strict=True))

    def _alive(self, ranges: list[Range[Importable]]) -> list[RemoteBuffer]:
        buffers = imported(self.peer, ranges)
        for one, buffer in zip(ranges, buffers, strict=True):
            if not buffer.alive:
                raise StaleBufferError(f"engine {self.name} has unregistered {one.nbytes} bytes at {one.address:#x}")
        return buffers
