"""What pools send each other: tickets, the description of a pool, records of a push. Every length that is read is bounded."""

from __future__ import annotations

import secrets
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hmc.errors import InvalidArgumentError, ProtocolError
from hmc.layout import Layout

LEASE, INBOX = 1, 2
MAX_BLOCKS = 1 << 20
MAX_TOKENS = (1 << 40) - 1
MAX_BUFFERS = 1 << 13
MAX_DESCRIPTION = 1 << 20  # bytes
_VERSION = 2
_MAX_TAG = 1 << 62
_TICKET = struct.Struct("<4sHHHIQIQQQQII")
_DESCRIPTION = struct.Struct("<4sHHHI")

# Records of the sender of a push. It begins with START, writes pages after GO, and writes no more after END or ABORT.
START, LAYER, END, ABORT = 1, 2, 3, 4
# Answers of the receiver. CREDIT: one credit for each of the layers. ACCEPTED: it has every layer. STOP: the sender is to end with
# ABORT. REFUSED: there is no such session.
GO, CREDIT, ACCEPTED, STOP, REFUSED = 5, 6, 7, 8, 9
WORDS = np.dtype("<u8")
_NUMBER = np.dtype("<u4")
_BYTES = (bytes, bytearray, memoryview)
RECORD_WORDS = 8


@dataclass(frozen=True)
class Record:
    """A message of a push. Both directions have the generation of the ticket."""

    kind: int
    generation: int
    answer: int  # the tag that answers to this record have
    layers: tuple[int, int] = (0, 0)  # first, count; of START: of the sender
    heads: tuple[int, int] = (0, 0)  # of the sender: first, count
    digest: int = 0

    def encode(self) -> Any:
        """The array that is sent."""
        return np.array([self.kind, self.generation, self.answer, *self.layers, *self.heads, self.digest], WORDS)

    @staticmethod
    def decode(words: Any) -> Record:
        kind, generation, answer, layer, layers, head, heads, digest = (int(word) for word in words)
        return Record(kind, generation, answer % _MAX_TAG, (layer, layers), (head, heads), digest)


class Ticket(NamedTuple):
    """Names a lease, or pages that wait for a push. Holds no address and no key."""

    kind: int
    pool: bytes  # descriptor of the pool's description
    generation: int
    slot: int  # of the words of a lease
    tag: int  # of the records that the pool receives
    tokens: int
    first: int  # token of the first block that the sequence begins at
    skip: int  # tokens before these that the receiver of a push has already
    digests: bool
    blocks: Any  # uint32
    rows: Any  # uint32; one per block of a lease
    milliseconds: int = 0  # that a lease lasts without a heartbeat; 0: not said

    @staticmethod
    def of_inbox(pool: bytes, tag: int, tokens: int, first: int, skip: int, digests: bool, blocks: Any) -> Ticket:
        """Of a receive, with a generation of its own."""
        generation, none = secrets.randbits(63) | 1, np.zeros(0, np.uint32)
        return Ticket(INBOX, pool, generation, 0, tag, tokens, first, skip, digests, blocks.astype(np.uint32), none)

    def encode(self) -> bytes:
        head = _TICKET.pack(
            b"HMKV",
            _VERSION,
            self.kind | (256 if self.digests else 0),
            len(self.pool),
            self.milliseconds,
            self.generation,
            self.slot,
            self.tag,
            self.tokens,
            self.first,
            self.skip,
            len(self.blocks),
            len(self.rows),
        )
        body: bytes = self.blocks.astype(_NUMBER).tobytes() + self.rows.astype(_NUMBER).tobytes()
        return head + self.pool + body

    @staticmethod
    def decode(data: bytes, kind: int) -> Ticket:
        if not isinstance(data, _BYTES):
            raise TypeError(f"a ticket is bytes, not {type(data).__name__}")
        data = bytes(data)
        if len(data) < _TICKET.size or data[:4] != b"HMKV":
            raise InvalidArgumentError(f"these {len(data)} bytes are no ticket of hmc.kv")
        _, version, flags, named, milliseconds, generation, slot, tag, tokens, first, skip, blocks, rows = _TICKET.unpack_from(data)
        if version != _VERSION:
            raise ProtocolError(
                f"the ticket is of version {version}, this is version {_VERSION}: use one release of HMC on both sides"
            )
        if flags & 255 != kind or flags > 511:
            what = {LEASE: "pull() takes the ticket of a lease", INBOX: "push() takes the ticket of receive()"}[kind]
            raise InvalidArgumentError(f"{what}; this one is of kind {flags & 255}")
        wanted_rows = blocks if kind == LEASE else 0
        at = _TICKET.size + named
        fits = blocks <= MAX_BLOCKS and rows == wanted_rows and len(data) == at + 4 * (blocks + rows)
        if (
            not fits
            or (milliseconds and kind != LEASE)
            or tag >= _MAX_TAG
            or generation == 0
            or max(tokens, first, skip) > MAX_TOKENS
        ):
            raise InvalidArgumentError(f"the ticket is damaged: {len(data)} bytes, {blocks} blocks")
        numbers = np.frombuffer(data[at:], _NUMBER)  # a copy: aligned, whatever the length of the pool's descriptor
        digests = bool(flags & 256)
        pool = data[_TICKET.size : at]
        body = numbers[:blocks], numbers[blocks:]
        return Ticket(kind, pool, generation, slot, tag, tokens, first, skip, digests, *body, milliseconds)


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
