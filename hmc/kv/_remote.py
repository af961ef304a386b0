"""A peer's pool as this side sees it: imported once, used by every transfer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hmc import _core, _waits
from hmc._core import BlockBatch, ConnBuffer, Descriptor, Peer, RemoteBuffer, Work
from hmc._scratch import Scratch
from hmc._waits import SLICE, drained
from hmc.errors import HmcTimeoutError, InvalidArgumentError, LeaseExpiredError, ProtocolError, StaleBufferError
from hmc.kv._leases import SLOT_WORDS, SLOTS
from hmc.kv._wire import MAX_DESCRIPTION, Description, Ticket

if TYPE_CHECKING:
    from hmc.kv._transfer import Transfer

__all__ = ["END_WORD", "Ending", "RemotePool", "end_lease", "finish"]

END_WORD = 2  # of a lease's slot: its reader writes the generation there when it has finished
_READ_BYTES = 16 << 20  # of rows that are read together


def finish(work: Work, transfer: Transfer, tick: Callable[[], None] | None = None, pause: float = SLICE) -> None:
    """Waits until an operation of a transfer has ended. Where the transfer is cancelled, withdraws it, or lets it end.

    Calls ``tick`` every ``pause`` seconds meanwhile. Where that raises, the operation is still in flight.
    """
    _waits.finish(work, partial(_look, work, transfer, tick), lambda: pause)


def _look(work: Work, transfer: Transfer, tick: Callable[[], None] | None) -> None:
    if transfer._cancel.asked and work._withdraw():
        transfer._check_cancelled()
    if tick is not None:
        tick()


class _Importing:
    """What ends the import of a pool early: its time is over, or ``check`` raises, which is called all the while."""

    def __init__(self, peer: Peer, timeout: float, check: Callable[[], None]) -> None:
        self.peer = peer
        self._timeout = timeout
        self._until = time.monotonic() + timeout
        self._check = check

    def left(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def buffer(self, data: bytes) -> RemoteBuffer:
        work = self.peer._iimport(Descriptor.parse(data), None)  # finish() keeps the time, and says whose it was
        self.finish(work)
        return work._take()

    def finish(self, work: Work) -> None:
        """Waits until an operation has ended. Where it is to end early, withdraws it, or lets it end."""
        try:
            _waits.finish(work, self._look, self._pause)
        except BaseException:
            drained(work)
            raise

    def _pause(self) -> float:
        return min(SLICE, self.left())

    def _look(self) -> None:
        self._check()
        if self.left() == 0:
            raise HmcTimeoutError(
                f"{self.peer.name} did not answer the import of its pool within {self._timeout:g} s; is it stopped?"
            ) from None


def _described(importing: _Importing, pool: bytes) -> RemoteBuffer:
    """The description of a peer's pool, which a ticket names."""
    try:
        return importing.buffer(pool)
    except ProtocolError as error:
        raise InvalidArgumentError(f"the ticket is damaged: {error}") from error
    except (StaleBufferError, InvalidArgumentError) as error:
        raise _absent(importing.peer) from error


def _description(importing: _Importing, pool: bytes, scratch: Scratch) -> Description:
    published = _described(importing, pool)
    if published.nbytes > MAX_DESCRIPTION:
        raise ProtocolError("the peer's description of its pool is too long")
    buffer = scratch.take(published.nbytes)
    try:
        importing.finish(importing.peer.get(buffer[: published.nbytes], published))
        return Description.decode(bytes(buffer.numpy()[: published.nbytes]))
    except StaleBufferError as error:  # it is being closed
        raise _absent(importing.peer) from error
    finally:
        scratch.give(buffer)


def _absent(peer: Peer) -> LeaseExpiredError:
    return LeaseExpiredError(
        f"{peer.name} does not have the pool of the ticket: it closed the pool, or restarted, or the ticket is of another peer. "
        "Ask for a new ticket"
    )


def _all_of(found: Iterable[Any]) -> list[Any] | None:
    """None where one of them is."""
    arrays = []
    for array in found:
        if array is None:
            return None
        arrays.append(array)
    return arrays


class RemotePool:
    """Layout and buffers of a peer's pool. ``check``, called while they are imported, raises what ends that early."""

    def __init__(self, peer: Peer, pool: bytes, scratch: Scratch, timeout: float, check: Callable[[], None]) -> None:
        importing = _Importing(peer, timeout, check)
        described = _description(importing, pool, scratch)
        self.peer = peer
        self.layout = described.layout
        self.row_words = 1 + self.layout.layers[1] * self.layout.heads[1]
        try:
            self.rows, self.words, *self.buffers = map(importing.buffer, described.descriptors)
        except StaleBufferError as error:
            raise _absent(peer) from error
        if any(buffer.nbytes < self.layout.buffer_bytes for buffer in self.buffers) or self.words.nbytes != SLOTS * SLOT_WORDS * 8:
            raise ProtocolError("the peer's pool is smaller than it says")

    @property
    def alive(self) -> bool:
        """False once the peer has closed the pool, or is lost."""
        return bool(self.rows.alive)

    def loadable(self, device: str) -> list[Any] | None:
        """The peer's arrays where they lie, for a device of this process or the CPU to read without an operation; None: not all.

        They stay readable when the peer ends, and when it closes them: see BufferHold.
        """
        return _all_of(buffer.loadable(device) for buffer in self.buffers)

    def storable(self, device: str) -> list[Any] | None:
        """The same to write, within a BufferHold."""
        return _all_of(buffer.storable(device) for buffer in self.buffers)

    def check(self, ticket: Ticket) -> None:
        """What a lease's ticket names exists in this pool."""
        self.check_pages(ticket)
        if not _core.below(ticket.rows, self.rows.nbytes // (8 * self.row_words)):
            raise InvalidArgumentError("the ticket names rows that the pool does not have")

    def check_pages(self, ticket: Ticket) -> None:
        """The blocks that a ticket names exist in this pool."""
        fits = ticket.tokens > 0 and -(-(ticket.first + ticket.tokens) // self.layout.block) <= len(ticket.blocks)
        if not fits or ticket.slot >= SLOTS or not _core.below(ticket.blocks, self.layout.blocks):
            raise InvalidArgumentError(f"the ticket names blocks that the pool {self.layout} does not have")

    def read_rows(self, rows: Any, first: int, words: int, scratch: Scratch, end: Callable[[Work], None]) -> Iterator[Any]:
        """Words [first, first + words) of some pages' rows: word 0 is a generation, digests follow. ``end`` waits for a read.

        In parts of (pages, words) that have about _READ_BYTES: the peer's layout, and so the length of a row, is the peer's choice.
        """
        count = max(1, _READ_BYTES // (8 * words))
        for at in range(0, len(rows), count):
            yield self._read_some_rows(rows[at : at + count], first, words, scratch, end)

    def _read_some_rows(self, rows: Any, first: int, words: int, scratch: Scratch, end: Callable[[Work], None]) -> Any:
        buffer = scratch.take(8 * words * len(rows))
        try:
            self.read(self.prepared_rows(rows, first, words, buffer), end)
            return buffer.numpy(np.uint64)[: words * len(rows)].reshape(len(rows), words).copy()
        finally:
            scratch.give(buffer)

    def prepared_rows(self, rows: Any, first: int, words: int, buffer: ConnBuffer, at: int = 0) -> BlockBatch:
        """A read of words of some pages' rows, to byte ``at`` of a buffer."""
        return _core.row_batch(self.peer, buffer, at, self.rows, rows, 8 * self.row_words, 8 * first, 8 * words)

    def read(self, batch: BlockBatch, end: Callable[[Work], None]) -> None:
        """Reads a prepared batch. ``end`` waits for it."""
        _ended(self.peer.get_blocks(batch), end)

    def write_words(self, slot: int, at: int, words: list[int], scratch: Scratch) -> Work:
        """Writes some of a slot's words. Does not wait: an owner that is stopped must hold up neither a cancel nor the end."""
        return _write_words(self.peer, self.words, slot, at, words, scratch)


class Ending:
    """How a pull ends: it compares its pages' generations, then says that it has finished.

    Prepared while the pages travel, so that little is left to do behind them. Both take turns at one buffer. One thread.
    """

    def __init__(self, remote: RemotePool, ticket: Ticket, rows: Any, scratch: Scratch) -> None:
        self._remote = remote
        self._scratch = scratch
        self._buffer = scratch.take(8 * (1 + len(rows)))
        try:
            words = self._buffer.numpy(np.uint64)[: 1 + len(rows)]
            words[0] = ticket.generation
            self._words = words  # the generation of the lease, then one read from each page's row
            self._batch = remote.prepared_rows(rows, 0, 1, self._buffer, 8)
            self._word = self._buffer[:8], _slot_words(remote.words, ticket.slot, END_WORD, 1)
        except BaseException:
            self.drop()
            raise

    def holds(self, end: Callable[[Work], None]) -> bool:
        """Whether the lease has lasted until now. ``end`` waits for the read."""
        self._remote.read(self._batch, end)
        return bool((self._words == self._words[0]).all())

    def post(self) -> None:
        """Gives the lease back; instead of ``drop``. Does not wait, as ``write_words``."""
        _put_from(self._remote.peer, self._buffer, *self._word, self._scratch)

    def drop(self) -> None:
        self._scratch.give(self._buffer)


def _ended(work: Work, end: Callable[[Work], None]) -> None:
    """Waits for an operation by ``end``. Afterwards it is not in flight, whatever its outcome."""
    try:
        end(work)
    finally:
        drained(work)


def _slot_words(words: RemoteBuffer, slot: int, at: int, count: int) -> RemoteBuffer:
    start = (slot * SLOT_WORDS + at) * 8
    return words[start : start + 8 * count]


def _write_words(peer: Peer, target: RemoteBuffer, slot: int, at: int, words: list[int], scratch: Scratch) -> Work:
    buffer = scratch.take(8 * len(words))
    try:
        buffer.numpy(np.uint64)[: len(words)] = np.array(words, np.uint64)
        source, target = buffer[: 8 * len(words)], _slot_words(target, slot, at, len(words))
    except BaseException:
        scratch.give(buffer)
        raise
    return _put_from(peer, buffer, source, target, scratch)


def _put_from(peer: Peer, buffer: ConnBuffer, source: ConnBuffer, target: RemoteBuffer, scratch: Scratch) -> Work:
    """Puts a slice of a scratch buffer, which is given back once nothing reads it any more."""
    try:
        work = peer.put(source, target)
    except BaseException:
        scratch.give(buffer)
        raise
    work.add_done_callback(lambda _: scratch.give(buffer))
    return work


def end_lease(peer: Peer, ticket: Ticket, scratch: Scratch, timeout: float) -> None:
    """Gives a lease back to a pool that was not imported: imports its words alone. Raises HmcError."""
    importing = _Importing(peer, timeout, lambda: None)
    words = importing.buffer(_description(importing, ticket.pool, scratch).descriptors[1])
    if ticket.slot >= SLOTS or words.nbytes != SLOTS * SLOT_WORDS * 8:
        raise ProtocolError("the peer's pool is smaller than it says")
    _write_words(peer, words, ticket.slot, END_WORD, [ticket.generation], scratch)
