"""What pools send each other: tickets, the description of a pool, records of a push. Everything that is read is bounded."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from hmc.errors import InvalidArgumentError, ProtocolError
from hmc.layout import Layout

LEASE, INBOX = 1, 2
MAX_BLOCKS = 1 << 20
MAX_BUFFERS = 1 << 13
MAX_DESCRIPTION = 1 << 20  # bytes
_VERSION = 1
_TICKET = struct.Struct("<4sHH16sQIQQQII")
_DESCRIPTION = struct.Struct("<4sHHHI")
# Records of a push: kind, layer, digest, generation of the ticket, first head, number of heads.
RECORD_WORDS = 6
RECORD = np.dtype("<u8")
# The sender begins with START, and writes once it has GO. The last record is the receiver's: ACCEPTED, or BYE after the sender's
# ABORT.
START, LAYER, END, ABORT, GO, CREDIT, ACCEPTED, BYE = 1, 2, 3, 4, 5, 6, 7, 8


@dataclass(frozen=True)
class Ticket:
    """Names a lease, or pages that wait for a push. Holds no address and no key."""

    kind: int
    pool: bytes  # 16 bytes
    generation: int
    slot: int
    tag: int  # of the messages of a push
    tokens: int
    first: int  # token of the first block that the sequence begins at
    digests: bool
    blocks: Any  # uint32
    rows: Any  # uint32; one per block of a lease

    def encode(self) -> bytes:
        head = _TICKET.pack(
            b"HMKV",
            _VERSION,
            self.kind | (256 if self.digests else 0),
            self.pool,
            self.generation,
            self.slot,
            self.tag,
            self.tokens,
            self.first,
            len(self.blocks),
            len(self.rows),
        )
        body: bytes = self.blocks.astype("<u4").tobytes() + self.rows.astype("<u4").tobytes()
        return head + body

    @staticmethod
    def decode(data: bytes, kind: int) -> Ticket:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"a ticket is bytes, not {type(data).__name__}")
        data = bytes(data)
        if len(data) < _TICKET.size or data[:4] != b"HMKV":
            raise InvalidArgumentError(f"these {len(data)} bytes are no ticket of hmc.kv")
        _, version, flags, pool, generation, slot, tag, tokens, first, blocks, rows = _TICKET.unpack_from(data)
        if version != _VERSION:
            raise ProtocolError(
                f"the ticket is of version {version}, this is version {_VERSION}: use one release of HMC on both sides"
            )
        if flags & 255 != kind or flags > 511:
            what = {LEASE: "pull() takes the ticket of a lease", INBOX: "push() takes the ticket of receive()"}[kind]
            raise InvalidArgumentError(f"{what}; this one is of kind {flags & 255}")
        wanted_rows = blocks if kind == LEASE else 0
        length = _TICKET.size + 4 * (blocks + rows)
        if blocks > MAX_BLOCKS or rows != wanted_rows or len(data) != length or tag >= 1 << 62 or generation == 0:
            raise InvalidArgumentError(f"the ticket is damaged: {len(data)} bytes, {blocks} blocks")
        numbers = np.frombuffer(data, "<u4", blocks + rows, _TICKET.size)
        digests = bool(flags & 256)
        return Ticket(kind, pool, generation, slot, tag, tokens, first, digests, numbers[:blocks], numbers[blocks:])


@dataclass(frozen=True)
class Description:
    """A pool as others see it: layout, and descriptors of its digests, its words and its buffers."""

    layout: Layout
    descriptors: list[bytes]

    def encode(self) -> bytes:
        text = str(self.layout).encode()
        parts = [_DESCRIPTION.pack(b"HMKD", _VERSION, len(self.descriptors), len(text), 0), text]
        for descriptor in self.descriptors:
            parts += [struct.pack("<H", len(descriptor)), descriptor]
        return b"".join(parts)

    @staticmethod
    def decode(data: bytes) -> Description:
        broken = ProtocolError("the peer's description of its pool is damaged")
        if len(data) < _DESCRIPTION.size or data[:4] != b"HMKD":
            raise broken
        _, version, count, length, _ = _DESCRIPTION.unpack_from(data)
        if version != _VERSION:
            raise ProtocolError(
                f"the peer's pool is of version {version}, this is version {_VERSION}: use one release of HMC on both sides"
            )
        at = _DESCRIPTION.size + length
        if at > len(data) or not 3 <= count <= MAX_BUFFERS:
            raise broken
        try:
            layout = Layout(data[_DESCRIPTION.size : at].decode())
        except (InvalidArgumentError, UnicodeDecodeError) as error:
            raise ProtocolError(f"the peer's pool describes itself wrongly: {error}") from error
        descriptors = []
        for _ in range(count):
            if at + 2 > len(data):
                raise broken
            size = int.from_bytes(data[at : at + 2], "little")
            descriptors.append(data[at + 2 : at + 2 + size])
            at += 2 + size
            if at > len(data):
                raise broken
        if at != len(data) or count != layout.buffers + 2:
            raise broken
        return Description(layout, descriptors)


def record(kind: int, layer: int = 0, digest: int = 0, generation: int = 0, heads: tuple[int, int] = (0, 0)) -> Any:
    """A record of a push, as the array that is sent."""
    return np.array([kind, layer, digest, generation, *heads], RECORD)
