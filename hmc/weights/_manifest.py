"""What a publication tells its readers: its tensors, and the descriptors of their memory. Everything that is read is bounded."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from hmc.errors import InvalidArgumentError, ProtocolError, UnsupportedError
from hmc.tensors import _dtypes
from hmc.weights._digest import Grid
from hmc.weights._parts import text_bytes

__all__ = ["MAX_AXES", "MAX_EPOCH", "MAX_EXTENT", "MAX_MANIFEST", "STATE_BYTES", "Manifest", "Shard", "published_as"]

MAX_MANIFEST = 256 << 20  # bytes
MAX_EPOCH = (1 << 62) - 1
STATE_BYTES = 64  # generation, epoch, six words of zeros
_VERSION = 1
MAX_AXES = 16
MAX_EXTENT = 1 << 48


def published_as(name: str) -> str:
    """Under which name a publication's manifest is published."""
    if not 0 < text_bytes(name) <= 128:
        raise InvalidArgumentError(f"the name {name!r} of a publication: pass a text of 1 to 128 bytes")
    return "hmc.weights." + name


@dataclass(frozen=True)
class Shard:
    """A part of a tensor at its source."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    at: tuple[int, ...]
    extents: tuple[int, ...]
    buffer: int  # number of its descriptor; -1: it has no bytes
    table: int  # first entry of its digests; -1: it has none
    grid: Grid

    @property
    def nbytes(self) -> int:
        return math.prod(self.extents) * _dtypes.size_of(self.dtype)

    @staticmethod
    def of(name: str, dtype: str, shape: Any, at: Any, extents: Any, buffer: int, table: int) -> Shard:
        """A checked Shard. ValueError where something is out of bounds."""
        lists = [tuple(shape), tuple(at), tuple(extents)]
        if not 0 < text_bytes(name) <= 1024 or not isinstance(dtype, str):
            raise ValueError("a tensor without a name or type")
        if not 0 < len(lists[0]) <= MAX_AXES or len({len(one) for one in lists}) != 1:
            raise ValueError(f"tensor {name}: axes")
        if any(type(n) is not int or not 0 <= n <= MAX_EXTENT for one in lists for n in one):
            raise ValueError(f"tensor {name}: extents")
        if any(a + e > s for s, a, e in zip(*lists, strict=True)) or math.prod(max(1, e) for e in lists[0]) > MAX_EXTENT:
            raise ValueError(f"tensor {name}: a shard outside the tensor")
        if type(buffer) is not int or type(table) is not int or min(buffer, table) < -1:
            raise ValueError(f"tensor {name}: memory")
        if dtype not in _dtypes.NAMES:  # NumPy would evaluate other texts
            raise ValueError(f"tensor {name}: element type {dtype:.40}")
        grid = Grid(lists[2], _dtypes.size_of(dtype))
        return Shard(name, dtype, lists[0], lists[1], lists[2], buffer, table, grid)


@dataclass(frozen=True)
class Manifest:
    """The shards of a publication, and the descriptors of its state, its digests and its arrays."""

    shards: list[Shard]
    state: bytes
    digests: bytes
    arrays: list[bytes]

    def encode(self) -> bytes:
        shards = [[s.name, s.dtype, s.shape, s.at, s.extents, s.buffer, s.table] for s in self.shards]
        described = {
            "hmc.weights": _VERSION,
            "shards": shards,
            "state": self.state.hex(),
            "digests": self.digests.hex(),
            "arrays": [one.hex() for one in self.arrays],
        }
        data = json.dumps(described, separators=(",", ":")).encode()
        if len(data) > MAX_MANIFEST:
            raise InvalidArgumentError(f"{len(shards)} shards take {len(data)} bytes to describe; the limit is {MAX_MANIFEST}")
        return data

    @staticmethod
    def decode(data: bytes) -> Manifest:
        """The manifest that a peer sent. ProtocolError where it is damaged or of another version."""
        try:
            found = json.loads(data)
            version = found["hmc.weights"]
            if version != _VERSION:
                raise ProtocolError(
                    f"the publication is of version {version!r:.40}, this is version {_VERSION}: use one release of HMC"
                )
            arrays = [bytes.fromhex(one) for one in found["arrays"]]
            shards = [Shard.of(*one) for one in found["shards"]]
            if any(s.buffer >= len(arrays) or (s.buffer < 0) != (s.nbytes == 0) for s in shards):
                raise ValueError("a shard without memory")
            return Manifest(shards, bytes.fromhex(found["state"]), bytes.fromhex(found["digests"]), arrays)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, UnsupportedError) as error:
            raise ProtocolError(f"the peer's description of its weights is damaged: {error!s:.2000}") from None
