"""What the prefill side of a worker knows of the requests that it pushes. One lock, of the sender, is held around every call."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from dataclasses import dataclass, field

from hmc import kv
from hmc._core import Peer
from hmc.integrations.vllm._messages import Ask

__all__ = ["Chunk", "Dropped", "Early", "Outgoing", "Reader"]

_MOST = 4096
_MOST_ASKED = 1024  # offers and releases of one request
_MOST_IN_ALL = 65536


@dataclass(frozen=True)
class Chunk:
    """A step computes a prompt of ``tokens`` tokens as far as token ``end``, into ``blocks``; those before are there.

    ``prompt``: digest of its tokens, or "".
    """

    request: str
    transfer: str
    blocks: list[int]
    end: int
    tokens: int
    prompt: str = ""


@dataclass(frozen=True)
class Dropped:
    """A request that is not pushed any more. ``held``: its blocks stay until the worker returns it."""

    request: str
    transfer: str
    held: bool


@dataclass(eq=False)
class Reader:
    """A decode worker that waits for a request: what it offered, and the tokens that were pushed so far."""

    peer: Peer
    offer: Ask
    sent: int
    cancelled: str = ""  # why
    pushes: list[kv.Push] = field(default_factory=list)  # that read the blocks

    @property
    def end(self) -> int:
        """The token behind the last one that it waits for."""
        return self.offer.first + self.offer.tokens

    def cancel(self, why: str) -> None:
        """Ends its pushes early. Returns at once."""
        self.cancelled = self.cancelled or why
        for push in self.pushes:
            push.cancel()


@dataclass(eq=False)
class Outgoing:
    """A prefill request. Its first ``done`` tokens are computed in all layers, those up to ``coming`` in the layers ``saved``.

    ``prompt``: digest of its tokens, or "".
    """

    request: str
    transfer: str
    tokens: int
    prompt: str = ""
    blocks: list[int] = field(default_factory=list)
    done: int = 0
    coming: int = 0
    saved: set[int] = field(default_factory=set)
    readers: list[Reader] = field(default_factory=list)
    expected: int = 1  # decode workers that each read, or release
    ended: int = 0
    kept: bool = False  # finished; its blocks stay until it is returned
    expires: float = 0.0
    error: str = ""  # why it is not pushed any more

    @property
    def busy(self) -> bool:
        """Whether a push that reads its blocks may still succeed. What a cancelled one reads is never accepted."""
        return any(reader.pushes and not reader.cancelled for reader in self.readers)

    def has(self, layer: int, end: int) -> bool:
        """Whether the tokens before ``end`` are computed in a layer."""
        return self.done >= end or (self.coming >= end and layer in self.saved)

    def cancel(self, why: str) -> None:
        """Ends all its pushes early. Returns at once."""
        for reader in self.readers:
            reader.cancel(why)


class Early:
    """Offers and releases of requests that have not been computed yet: of the last 4096 requests, and 65536 in all."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, list[tuple[Peer, Ask]]] = OrderedDict()
        self._count = 0

    def add(self, peer: Peer, ask: Ask) -> list[tuple[Peer, Ask]]:
        """Keeps one. Returns those that are kept no more."""
        asked = self._found.setdefault(ask.requests[0], [])
        if len(asked) >= _MOST_ASKED:
            return [(peer, ask)]
        before = len(asked)
        if ask.what == "release":
            asked[:] = [one for one in asked if one[1].answer != ask.answer or not ask.answer]
            ask = dataclasses.replace(ask, answer=0)  # its offer is gone
        asked.append((peer, ask))
        self._count += len(asked) - before
        if len(self._found) <= _MOST and self._count <= _MOST_IN_ALL:
            return []
        return self._pop(next(iter(self._found)))

    def take(self, transfer: str) -> list[tuple[Peer, Ask]]:
        """Those of a request, of peers that are there."""
        return [(peer, ask) for peer, ask in self._pop(transfer) if peer.alive]

    def _pop(self, transfer: str) -> list[tuple[Peer, Ask]]:
        found = self._found.pop(transfer, [])
        self._count -= len(found)
        return found
