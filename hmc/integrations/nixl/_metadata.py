"""What an agent gives others so that they can reach it: its addresses and its registrations. Every length that is read is bounded.

The bytes end with a BLAKE2b digest. Where a job key is set the digest is keyed, so that only a holder of the key can make metadata.
The descriptors inside are HMC's: they name buffers and grant nothing to a process that cannot connect.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from dataclasses import dataclass, field

from hmc.integrations.nixl._errors import nixlMismatchError, nixlNotAllowedError
from hmc.integrations.nixl._types import nixl_mem_t

__all__ = ["MAX_METADATA", "Entry", "Metadata"]

MAX_METADATA = 64 << 20
_MAGIC = b"HMCNIXL1"
_DIGEST = 32
_HEAD = struct.Struct("<8sBHHHI")  # magic, keyed, bytes of name, of id and host, number of addresses, of entries
_ENTRY = struct.Struct("<BQQQH")  # kind, device, address, bytes, bytes of the descriptor
_TEXT = struct.Struct("<H")


@dataclass(frozen=True)
class Entry:
    """A registration, and HMC's descriptor of it (empty for one of 0 bytes)."""

    kind: nixl_mem_t
    address: int
    nbytes: int
    device: int
    descriptor: bytes


@dataclass(frozen=True)
class Metadata:
    """An agent. ``addresses`` is empty in partial metadata without connection info."""

    name: str
    context: str
    host: str
    addresses: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    def encode(self) -> bytes:
        key = _key()
        name, identity = self.name.encode(), f"{self.context} {self.host}".encode()
        parts = [_HEAD.pack(_MAGIC, key != b"", len(name), len(identity), len(self.addresses), len(self.entries)), name, identity]
        for address in self.addresses:
            text = address.encode()
            parts += [_TEXT.pack(len(text)), text]
        for one in self.entries:
            parts += [_ENTRY.pack(int(one.kind), one.device, one.address, one.nbytes, len(one.descriptor)), one.descriptor]
        body = b"".join(parts)
        return body + _digest(body, key)

    @staticmethod
    def decode(data: bytes) -> Metadata:
        """Raises nixlMismatchError for damaged or foreign bytes, nixlNotAllowedError for another job key."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise nixlMismatchError(f"metadata is bytes, not {type(data).__name__}")
        data = bytes(data)
        if not data.startswith(_MAGIC):
            raise nixlMismatchError(
                f"{len(data)} bytes are no metadata of HMC's NIXL drop-in. Run both agents on HMC: NIXL's wire format is another"
            )
        if not _HEAD.size + _DIGEST <= len(data) <= MAX_METADATA:
            raise nixlMismatchError(
                f"metadata of {len(data)} bytes; between {_HEAD.size + _DIGEST} and {MAX_METADATA} are possible"
            )
        body, given = data[:-_DIGEST], data[-_DIGEST:]
        key, keyed = _key(), data[len(_MAGIC)] == 1
        if keyed != (key != b""):
            have, want = ("with", "without") if keyed else ("without", "with")
            raise nixlNotAllowedError(
                f"the metadata was made {have} a job key, and this process runs {want} one: set the same HMC_JOB_KEY on both"
            )
        if not hmac.compare_digest(_digest(body, key), given):
            if keyed:
                raise nixlNotAllowedError(
                    "the metadata is damaged, or made with another job key: HMC_JOB_KEY differs between the agents"
                )
            raise nixlMismatchError(f"the metadata of {len(data)} bytes is damaged: its digest is wrong")
        try:
            return _parse(body)
        except (struct.error, ValueError, IndexError) as error:
            raise nixlMismatchError(f"the metadata of {len(data)} bytes is damaged: {error}") from error


def _parse(body: bytes) -> Metadata:
    at = _HEAD.size
    _, _, name_bytes, identity_bytes, addresses, entries = _HEAD.unpack_from(body)

    def take(nbytes: int) -> bytes:
        nonlocal at
        at += nbytes
        if at > len(body):
            raise ValueError("it ends too early")
        return body[at - nbytes : at]

    name = take(name_bytes).decode()
    context, _, host = take(identity_bytes).decode().partition(" ")
    listed = [take(_TEXT.unpack(take(_TEXT.size))[0]).decode() for _ in range(addresses)]
    found = []
    for _ in range(entries):
        kind, device, address, nbytes, descriptor_bytes = _ENTRY.unpack(take(_ENTRY.size))
        if address + nbytes >= 1 << 64:
            raise ValueError("a registration ends beyond the address space")
        found.append(Entry(nixl_mem_t(kind), address, nbytes, device, take(descriptor_bytes)))
    if at != len(body):
        raise ValueError(f"{len(body) - at} bytes too many")
    return Metadata(name, context, host, listed, found)


def _key() -> bytes:
    return os.environ.get("HMC_JOB_KEY", "").encode()


def _digest(body: bytes, key: bytes) -> bytes:
    # BLAKE2b takes keys of at most 64 bytes, so the key is digested first.
    secret = hashlib.blake2b(key, person=b"hmc nixl").digest() if key else b""
    return hashlib.blake2b(body, digest_size=_DIGEST, key=secret).digest()
