"""Pull: reads the pages of a lease into pages here, then checks that they were the lease's."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hmc._core import PageMove, Peer, StreamMark, Work
from hmc._streams import wait_for
from hmc._waits import SLICE, drained
from hmc.errors import CorruptError, HmcError, InvalidArgumentError, LeaseExpiredError, PeerLostError, StaleBufferError
from hmc.kv._load import OWN_THREAD_BYTES, Load
from hmc.kv._moves import DEVICE_LOADED, LOADED, SHORT, Chunk, InFlight, Side, chunks, common, conversions, groups
from hmc.kv._remote import END_WORD, Ending, RemotePool, end_lease, finish
from hmc.kv._transfer import Transfer
from hmc.kv._wire import Ticket

if TYPE_CHECKING:
    from hmc.kv._pool import Pool

_HEARTBEAT = 1.0  # seconds between two, at most
_BEATS = 4  # within the time that a lease lasts without one
_LEAST_PAUSE = 0.01  # seconds between two
_MOST_BEATS = 8  # in flight
_END_SECONDS = 1.0
_MASK = (1 << 64) - 1


class _Reads(NamedTuple):
    """Reads in flight."""

    works: list[Work]
    what: Any  # the layers that they read; a Chunk, of those that are converted
    buffer: Any = None  # of a chunk


class Pull:
    """One pull, on a thread of its own.

    No function in a function refers to it, which the traceback of an error would keep: see ThreadedWork.
    """

    def __init__(
        self,
        pool: Pool,
        peer: Peer,
        ticket: Ticket,
        transfer: Transfer,
        target: Side,
        skip: int,
        tokens: int,
        verify: bool,
        behind: list[StreamMark],
    ) -> None:
        self.pool = pool
        self.peer = peer
        self.ticket = ticket
        self.transfer = transfer
        self.target = target
        self.skip = skip
        self.tokens = tokens
        self.verify = verify
        self.behind = behind
        self.remote: RemotePool | None = None
        self.ending: Ending | None = None
        self.there: list[Any] | None = None  # the peer's arrays, where this side reads them without an operation
        self._refused = False  # the device does not compute, or not yet
        self.beats = 0
        self.beating: list[Work] = []  # heartbeats in flight
        self.last_beat = time.monotonic()
        # Of a ticket that does not say how long its lease lasts, as seldom as possible.
        pause = max(_LEAST_PAUSE, ticket.milliseconds / 1000 / _BEATS) if ticket.milliseconds else _HEARTBEAT
        self.pause = min(_HEARTBEAT, pause)  # seconds between two heartbeats
        self._look_pause = min(SLICE, max(_LEAST_PAUSE, self.pause))
        self.bytes_read = self.bytes_loaded = self.bytes_converted = self.digest = 0

    def run(self) -> None:
        ended = False
        held = True  # the lease, as far as is known here
        try:
            remote = self.remote = self.pool.remote(self.peer, self.ticket.pool, self.transfer._check_cancelled)
            remote.check(self.ticket)
            if self.pause < _HEARTBEAT:  # much of a short lease may be over
                self._write_beat(remote)
            wait_for(self.behind, partial(self._hold, remote))
            self._move(remote)
            ended = True
        except LeaseExpiredError:
            held = False  # its words may be those of another lease now
            raise
        except StaleBufferError as error:
            held = False
            raise self._expired() from error
        finally:
            if held and self.peer.alive:
                with contextlib.suppress(HmcError):  # the lease then expires by itself
                    self._give_back()
            if self.ending is not None:
                self.ending.drop()
            self.pool.counts.add(
                self.transfer.session,
                bytes_read=self.bytes_read,
                bytes_loaded=self.bytes_loaded,
                bytes_converted=self.bytes_converted,
                pulls=ended,
                pulls_failed=not ended,
                tokens=self.tokens if ended else 0,
            )

    def _give_back(self) -> None:
        """Ends the lease. Waits only where the pool was not imported, and then at most a second."""
        ending, self.ending = self.ending, None
        if ending is not None:
            ending.post()
        elif self.remote is not None:
            self.remote.write_words(self.ticket.slot, END_WORD, [self.ticket.generation], self.pool.scratch)
        else:
            end_lease(self.peer, self.ticket, self.pool.scratch, _END_SECONDS)

    def _prepared(self, remote: RemotePool, rows: Any) -> Ending:
        """What follows the pages. Made while these travel."""
        if self.ending is None:
            self.ending = Ending(remote, self.ticket, rows, self.pool.scratch)
        return self.ending

    def _move(self, remote: RemotePool) -> None:
        ticket, near = self.ticket, self.target.layout
        first = ticket.first + self.skip
        block, end = remote.layout.block, ticket.first + ticket.tokens
        aligned = (first == ticket.first or first % block == 0) and (
            first + self.tokens == end or (first + self.tokens) % block == 0
        )
        if self.verify and ticket.digests and not aligned:
            raise InvalidArgumentError(
                f"pull of {self.tokens} tokens from token {self.skip} on: digests are of whole blocks of {block} tokens; "
                "begin and end at a block of the lease, or pass verify=False"
            )
        blocks = ticket.blocks[first // block : -(-(first + self.tokens) // block)]
        rows = ticket.rows[first // block : -(-(first + self.tokens) // block)]
        source = Side(remote.layout, blocks, first % block)
        layers, heads = common(near.layers, remote.layout.layers), common(near.heads, remote.layout.heads)
        verify = self.verify and ticket.digests
        if layers[1] == 0 or heads[1] == 0:
            raise InvalidArgumentError(f"pull: the pool {near} has no layer or no head of the peer's pool {remote.layout}")
        wanted = self._read(remote, source, rows, verify, layers, heads)
        self._check_generations(remote, rows)
        found = self.digest & _MASK
        if verify and wanted != found:
            raise CorruptError(
                f"pull of session {self.transfer.session!r}: the digest is {found:#018x}, the lease's is {wanted:#018x}; "
                "pages changed during the lease. Do not use the pages that were written: compute the tokens here"
            )

    def _read(
        self, remote: RemotePool, source: Side, rows: Any, verify: bool, layers: tuple[int, int], heads: tuple[int, int]
    ) -> int | None:
        """Reads the layers. Returns the sum of the digests that what is read is checked against."""
        wanted = None
        if verify and self._finds_there(remote):  # digested as it is copied
            sizes = list(self._sizes(source, layers, heads))
            beside = not self.pool.cache.on_cpu and sum(size for size, _ in sizes) >= OWN_THREAD_BYTES
            with self._load(remote, source, layers, verify, beside) as load:
                self._prepared(remote, rows)
                wanted = self._digest_of_lease(remote, rows, layers, heads)
                if self._loaded(remote, load):
                    self.bytes_converted += sum(size for size, is_converted in sizes if is_converted)
                    return wanted
        chunk_bytes = self.pool.cache.chunk_bytes if verify else 0
        flight = InFlight(2, partial(self._arrived, remote, heads, verify))
        move = PageMove(self.peer, source, self.target, self.tokens, self.pool.buffers, remote.buffers, reading=True)
        convert = (0, 0)  # layers without runs that are long enough
        try:
            for group in groups(move.layer_bytes, layers, chunk_bytes):
                self.transfer._check_cancelled()
                reads = self._posted(remote, move, group, group, SHORT)
                if reads is None:
                    convert = (convert[0] if convert[1] else group[0], convert[1] + group[1])
                    continue
                flight.add(reads)
                self._prepared(remote, rows)
                if convert[1]:
                    self._convert(remote, source, convert, verify)
                    convert = (0, 0)
                if verify and wanted is None:  # while the first pages travel
                    wanted = self._digest_of_lease(remote, rows, layers, heads)
            flight.drain()
        finally:
            flight.give_up(self._drop)
        if convert[1]:
            self._convert(remote, source, convert, verify)
        return self._digest_of_lease(remote, rows, layers, heads) if verify and wanted is None else wanted

    def _convert(self, remote: RemotePool, source: Side, layers: tuple[int, int], verify: bool) -> None:
        if self._finds_there(remote):
            with self._load(remote, source, layers, verify) as load:
                if self._loaded(remote, load):
                    self.bytes_converted += load.packed_bytes
                    return
        cache = self.pool.cache
        flight = InFlight(1, partial(self._written, remote, verify))
        try:
            for chunk in chunks(self.target, source, self.tokens, layers, cache.chunk_bytes):
                self.transfer._check_cancelled()
                buffer = cache.take_chunk(chunk.packed.buffer_bytes, remote.buffers)
                try:
                    posted = self._posted(remote, chunk.move(self.peer, buffer, remote.buffers, reading=True), chunk)
                    assert posted is not None  # packed elements are as the peer has them
                except BaseException:
                    self.pool.scratch.give(buffer)
                    raise
                flight.add(posted._replace(buffer=buffer))
            flight.drain()
        finally:
            flight.give_up(self._drop)

    def _finds_there(self, remote: RemotePool) -> bool:
        """Whether this side reads the peer's arrays without an operation."""
        by = self.pool.cache.loads_on
        if self.there is None and by is not None and not self._refused:
            self.there = remote.loadable(by)
        return self.there is not None and not self._refused

    def _sizes(self, source: Side, layers: tuple[int, int], heads: tuple[int, int]) -> Iterator[tuple[int, bool]]:
        """The bytes of ranges of layers, and whether these are converted. InvalidArgumentError for a move that cannot be."""
        for some, is_converted in conversions(self.target, source, self.tokens, layers):
            yield source.layout.packed(some, heads, len(source.blocks)).buffer_bytes, is_converted

    @contextlib.contextmanager
    def _load(
        self, remote: RemotePool, source: Side, layers: tuple[int, int], verify: bool, beside: bool = False
    ) -> Iterator[Load]:
        """Of layers, from where they lie in the peer's memory. Counts what was read, whatever the outcome."""
        assert self.there is not None
        cache = self.pool.cache
        todo = chunks(self.target, source, self.tokens, layers, LOADED if cache.on_cpu else DEVICE_LOADED)
        load = Load(partial(self._load_chunk, remote, self.there, verify), todo, beside)
        try:
            with load:
                yield load
        finally:
            self.bytes_read += load.nbytes
            self.bytes_loaded += load.nbytes

    def _load_chunk(self, remote: RemotePool, there: list[Any], verify: bool, chunk: Chunk) -> int | None:
        return self.pool.cache.load(chunk, there, remote.buffers, self.skip + chunk.token, verify)

    def _loaded(self, remote: RemotePool, load: Load) -> bool:
        """Waits for a load. False: the device does not compute, and the layers are to be moved by the transport."""
        if not load.wait(partial(self._hold, remote), self._look_pause):
            self._refused = True
            return False
        self.digest += load.digest
        return True

    def _posted(
        self, remote: RemotePool, move: PageMove, what: Any, layers: tuple[int, int] = (0, 0), shortest: int = 0
    ) -> _Reads | None:
        """Begins to read. None: the layers are to be converted. Then, and after an error, nothing is in flight."""
        reads = _Reads([], what)
        try:
            nbytes = move.post(reads.works, layers, shortest)
            if nbytes is None:
                return None
            self.bytes_read += nbytes
            self._beat(remote)
        except BaseException:
            self._drop(reads)
            raise
        return reads

    def _arrived(self, remote: RemotePool, heads: tuple[int, int], verify: bool, reads: _Reads) -> None:
        """Waits for a group of layers, and digests it."""
        self._finish_all(remote, reads)
        if verify:
            self._beat(remote)
            self.digest += self.pool.cache.digest(
                self.target, self.tokens, session=self.transfer.session, position=self.skip, layers=reads.what, heads=heads
            )
            self._beat(remote)

    def _written(self, remote: RemotePool, verify: bool, reads: _Reads) -> None:
        """Waits for a chunk, and converts it into the pages."""
        chunk: Chunk = reads.what
        try:
            self._finish_all(remote, reads)
            self._beat(remote)
            position = self.skip + chunk.token
            self.digest += self.pool.cache.write(chunk, reads.buffer, self.transfer.session, position, verify)
            self.bytes_converted += chunk.packed.buffer_bytes
            self._beat(remote)
        finally:
            self._drop(reads)

    def _finish_all(self, remote: RemotePool, reads: _Reads) -> None:
        try:
            for work in reads.works:
                self._finish(remote, work)
        finally:
            for work in reads.works:
                drained(work)

    def _drop(self, reads: _Reads) -> None:
        for work in reads.works:
            drained(work)
        if reads.buffer is not None:
            self.pool.scratch.give(reads.buffer)

    def _hold(self, remote: RemotePool) -> None:
        """Keeps the lease while nothing is in flight. Raises what ends the pull."""
        self.transfer._check_cancelled()
        if not self.peer.alive:
            raise PeerLostError(f"pull of session {self.transfer.session!r}: the owner of its lease, {self.peer.name}, is lost")
        self._beat(remote)

    def _finish(self, remote: RemotePool, work: Work) -> None:
        """Waits for a read, and keeps the lease meanwhile."""
        finish(work, self.transfer, partial(self._beat, remote), self._look_pause)

    def _beat(self, remote: RemotePool) -> None:
        """Sends a heartbeat where it is time for one."""
        if time.monotonic() - self.last_beat > self.pause:
            self.beating = [work for work in self.beating if not work.done]
            if len(self.beating) < _MOST_BEATS:  # else the owner is stopped
                self._write_beat(remote)

    def _write_beat(self, remote: RemotePool) -> None:
        self.last_beat = time.monotonic()
        self.beats += 1
        words = [self.ticket.generation, self.beats]
        self.beating.append(remote.write_words(self.ticket.slot, 0, words, self.pool.scratch))

    def _digest_of_lease(self, remote: RemotePool, rows: Any, layers: tuple[int, int], heads: tuple[int, int]) -> int:
        """The sum of the pages' digests. They are the lease's where the generations are found to be its own later on."""
        count = remote.layout.heads[1]
        layer, head = layers[0] - remote.layout.layers[0], heads[0] - remote.layout.heads[0]
        total = 0
        finish_one = partial(self._finish, remote)
        for read in remote.read_rows(rows, 1 + layer * count, layers[1] * count, self.pool.scratch, finish_one):
            table = read.reshape(len(read), layers[1], count)[:, :, head : head + heads[1]]
            total += int(table.sum(dtype=np.uint64))
        return total & _MASK

    def _check_generations(self, remote: RemotePool, rows: Any) -> None:
        """LeaseExpiredError unless the lease has lasted until now, so that what was read before is its own."""
        if not self._prepared(remote, rows).holds(partial(self._finish, remote)):
            raise self._expired()

    def _expired(self) -> LeaseExpiredError:
        return LeaseExpiredError(
            f"pull of session {self.transfer.session!r}: the lease ended before its pages were read; its pages may hold "
            "other data now. Ask the prefill side for a new lease, or compute the tokens here"
        )
