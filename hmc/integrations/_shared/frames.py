"""Messages of 0 bytes to 64 MiB as HMC's notifications, which have 1 to 1024 bytes."""

from __future__ import annotations

import struct

from hmc.errors import InvalidArgumentError

__all__ = ["FETCH", "INVALIDATE", "MAX_MESSAGE", "METADATA", "NOTIFY", "Assembler", "frames"]

# Kinds of messages. METADATA: of the sender. FETCH: asks for it. INVALIDATE: it is void.
NOTIFY, METADATA, FETCH, INVALIDATE = 0, 1, 2, 3
_KINDS = (NOTIFY, METADATA, FETCH, INVALIDATE)
MAX_MESSAGE = 64 << 20
_FRAME = 1024
_PART = 0x80  # in the first byte of a frame: one of several
_PART_HEAD = struct.Struct("<BIII")  # kind, number of the message, place of the part, bytes of the message
_ROOM = _FRAME - _PART_HEAD.size
_MOST_OPEN = 64  # messages of a peer that have not arrived whole
_MOST_HELD = 4 * MAX_MESSAGE  # bytes of these


def frames(kind: int, message: bytes, number: int) -> list[bytes]:
    """The frames of a message. ``number`` differs among the messages in flight to a peer. Raises InvalidArgumentError."""
    if len(message) < _FRAME:
        return [bytes([kind]) + message]
    if len(message) > MAX_MESSAGE:
        raise InvalidArgumentError(f"a message of {len(message)} bytes; at most {MAX_MESSAGE} can be sent as a notification")
    return [
        _PART_HEAD.pack(kind | _PART, number & 0xFFFFFFFF, at // _ROOM, len(message)) + message[at : at + _ROOM]
        for at in range(0, len(message), _ROOM)
    ]


class Assembler:
    """Puts the frames of one peer together. Frames of several messages may alternate. Not thread-safe."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[int, int, dict[int, bytes]]] = {}
        self._held = 0  # bytes

    def add(self, frame: bytes) -> tuple[int, bytes] | None:
        """(kind, message) once it is whole, else None. A frame that breaks the format is ignored."""
        if not frame:
            return None
        if not frame[0] & _PART:
            return (frame[0], frame[1:]) if frame[0] in _KINDS else None
        if len(frame) <= _PART_HEAD.size:
            return None
        kind, number, place, nbytes = _PART_HEAD.unpack_from(frame)
        kind &= ~_PART
        if kind not in _KINDS or nbytes > MAX_MESSAGE:
            return None
        part = frame[_PART_HEAD.size :]
        if len(part) != min(_ROOM, nbytes - place * _ROOM):
            return None
        if (number not in self._open and len(self._open) >= _MOST_OPEN) or self._held > _MOST_HELD:
            self._end(next(iter(self._open)))  # most likely its sender gave up
        known_kind, known_bytes, parts = self._open.setdefault(number, (kind, nbytes, {}))
        if (known_kind, known_bytes) != (kind, nbytes):
            return None
        self._held += len(part) - len(parts.get(place, b""))
        parts[place] = part
        if len(parts) < -(-nbytes // _ROOM):
            return None
        self._end(number)
        return kind, b"".join(parts[at] for at in range(len(parts)))

    def _end(self, number: int) -> None:
        _, _, parts = self._open.pop(number)
        self._held -= sum(map(len, parts.values()))
