"""A peer's publication as this side sees it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np

from hmc._core import ConnBuffer, Context, Descriptor, Peer, RemoteBuffer, Work
from hmc._deadline import Deadline
from hmc._workers import run_on_thread
from hmc.errors import (
    AuthenticationError,
    ClosedError,
    HmcError,
    HmcTimeoutError,
    InvalidArgumentError,
    PeerLostError,
    ProtocolError,
    StaleBufferError,
    TransportError,
)
from hmc.weights._manifest import MAX_EPOCH, MAX_MANIFEST, STATE_BYTES, Manifest, published_as

__all__ = ["LOST", "Source", "lookup", "lookup_async", "release", "scratch"]

# What ends the use of a source, but not of others.
LOST = (PeerLostError, StaleBufferError, ClosedError, TransportError)


@contextlib.contextmanager
def scratch(ctx: Context, nbytes: int) -> Iterator[ConnBuffer]:
    """Memory for short reads. Beside a stopped peer HMC keeps it for as long as it may be written; the caller does not wait."""
    buffer = ctx.buffer(nbytes)
    try:
        yield buffer
    finally:
        release(buffer)


def release(buffer: ConnBuffer) -> None:
    """Ends a registration without waiting."""
    with contextlib.suppress(HmcError):
        buffer.close(timeout=0)


@contextlib.contextmanager
def _named(peer: Peer, name: str, timeout: float | None) -> Iterator[None]:
    try:
        yield
    except HmcTimeoutError as error:
        raise HmcTimeoutError(f"peer {peer.name} has published no weights {name!r} within {timeout} s") from error


class Source:
    """Weights that a peer publishes. Made by lookup(); several plans may use it. Any thread."""

    def __init__(self, ctx: Context, peer: Peer, name: str, timeout: float | None, published: RemoteBuffer | None = None) -> None:
        self.ctx = ctx
        self.peer = peer
        self.name = name
        left = Deadline(timeout).left
        if published is None:
            with _named(peer, name, timeout):
                published = peer.lookup(published_as(name), timeout=timeout)
        if published.nbytes > MAX_MANIFEST:
            raise ProtocolError(f"the peer's description of its weights has {published.nbytes} bytes; the limit is {MAX_MANIFEST}")
        with scratch(ctx, published.nbytes) as buffer:
            peer.get(buffer, published).wait(left())
            manifest = Manifest.decode(bytes(buffer.numpy()))

        def imported(data: bytes) -> RemoteBuffer:
            try:
                return peer.import_buffer(Descriptor.parse(data), timeout=left())
            except (InvalidArgumentError, AuthenticationError) as error:
                raise ProtocolError(
                    f"peer {peer.name} describes memory of weights {name!r} that it does not have: {error}"
                ) from None

        self.shards = manifest.shards
        self._state, self._table = imported(manifest.state), imported(manifest.digests)
        self.buffers = [imported(data) for data in manifest.arrays]
        entries = max((s.table + s.grid.entries for s in self.shards if s.table >= 0), default=0)
        fits = all(s.buffer < 0 or self.buffers[s.buffer].nbytes == s.nbytes for s in self.shards)
        if not fits or self._state.nbytes != STATE_BYTES or self._table.nbytes < 8 * entries:
            raise ProtocolError(f"peer {peer.name}: the memory of weights {name!r} is smaller than its description says")

    @property
    def digested(self) -> bool:
        """The source has digests."""
        return all(shard.table >= 0 for shard in self.shards)

    def state(self, words: ConnBuffer, finish: Callable[[Work], None]) -> tuple[int, int]:
        """(generation, epoch). The generation is odd during an update. StaleBufferError once the publication is closed."""
        finish(self.peer.get(words[:16], self._state[:16]))
        generation, epoch = (int(word) for word in words.numpy(np.uint64)[:2])
        if generation == 0:
            raise StaleBufferError(f"peer {self.peer.name} no longer publishes weights {self.name!r}")
        if epoch > MAX_EPOCH:
            raise ProtocolError(f"peer {self.peer.name} says epoch {epoch}")
        return generation, epoch

    def read_table(self, buffer: ConnBuffer, here: Any, there: Any, nbytes: int) -> Work:
        """Begins to read blocks of ``nbytes`` from offsets ``there`` of the table of digests to offsets ``here`` of a buffer."""
        if len(here) == 1:
            at, first = int(here[0]), int(there[0])
            return self.peer.get(buffer[at : at + nbytes], self._table[first : first + nbytes])
        return self.peer.get_blocks(self.peer.prepare_blocks([(buffer, here, self._table, there)], nbytes))


def _check_sides(ctx: Context, peer: Peer) -> None:
    if not isinstance(ctx, Context):
        raise TypeError(f"ctx must be a hmc.Context, not a {type(ctx).__name__}")
    if not isinstance(peer, Peer):
        raise TypeError(f"peer must be a hmc.Peer, not a {type(peer).__name__}")


def lookup(ctx: Context, peer: Peer, name: str = "weights", timeout: float | None = None) -> Source:
    """The weights that ``peer``, a peer of ``ctx``, publishes under ``name``; waits for them to be published.

    ``timeout``: seconds, for all of it. Raises HmcTimeoutError, PeerLostError, ProtocolError, StaleBufferError for a
    publication that is closed meanwhile.
    """
    _check_sides(ctx, peer)
    return Source(ctx, peer, name, timeout)


async def lookup_async(ctx: Context, peer: Peer, name: str = "weights", timeout: float | None = None) -> Source:
    """As lookup(). Waits without a thread and reads on one.

    A cancelled task ends at once. The thread ends at its timeout; the end of the event loop and of the program do not wait for it.
    """
    _check_sides(ctx, peer)
    deadline = Deadline(timeout)
    with _named(peer, name, timeout):
        published = await peer.lookup_async(published_as(name), timeout=timeout)
    found: Future[Source] = Future()
    read = functools.partial(Source, ctx, peer, name, deadline.left(), published)
    run_on_thread(functools.partial(_read, found, read), "hmc.weights lookup")
    return await asyncio.wrap_future(found)


def _read(found: Future[Source], read: Callable[[], Source]) -> None:
    try:
        if found.set_running_or_notify_cancel():
            found.set_result(read())
    except BaseException as error:
        found.set_exception(error)
    finally:
        del found, read  # the error's traceback refers to this frame
