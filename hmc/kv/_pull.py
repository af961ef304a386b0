"""Pull: reads the pages of a lease into pages here, then checks that they were the lease's."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from hmc import layout as layouts
from hmc._core import Peer, StreamMark, Work
from hmc._streams import wait_for
from hmc.errors import CorruptError, HmcError, InvalidArgumentError, LeaseExpiredError, PeerLostError, StaleBufferError
from hmc.kv._moves import Chunk, Direct, InFlight, Side, batches, chunks, common, groups
from hmc.kv._remote import END_WORD, SLICE, RemotePool, drained, end_lease, finish
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


class Pull:
    """One pull, on a thread of its own."""

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
        self.beats = 0
        self.beating: list[Work] = []  # heartbeats in flight
        self.last_beat = time.monotonic()
        # Of a ticket that does not say how long its lease lasts, as seldom as possible.
        pause = max(_LEAST_PAUSE, ticket.milliseconds / 1000 / _BEATS) if ticket.milliseconds else _HEARTBEAT
        self.pause = min(_HEARTBEAT, pause)  # seconds between two heartbeats
        self.bytes_read = self.bytes_converted = 0

    def run(self) -> None:
        ended = False
        held = True  # the lease, as far as is known here
        try:
            remote = self.remote = self.pool.remote(self.peer, self.ticket.pool)
            remote.check(self.ticket)
            if self.pause < _HEARTBEAT:  # much of a short lease may be over
                self._write_beat(remote)
            wait_for(self.behind, lambda: self._hold(remote))
            self._move(remote)
            ended = True
        except LeaseExpiredError:
            held = False  # its words may be those of another lease now
            raise
        except StaleBufferError as error:
            held = False
            raise self._expired() from error
        finally:
            self.pool.counts.add(
                self.transfer.session, bytes_read=self.bytes_read, bytes_converted=self.bytes_converted, pulls_failed=not ended
            )
            if held and self.peer.alive:
                with contextlib.suppress(HmcError):  # the lease then expires by itself
                    self._give_back()
        self.pool.counts.add(self.transfer.session, pulls=1, tokens=self.tokens)

    def _give_back(self) -> None:
        """Ends the lease. Waits only where the pool could not be imported, and then at most a second."""
        if self.remote is None:
            end_lease(self.peer, self.ticket, self.pool.scratch, _END_SECONDS)
        else:
            self.remote.write_words(self.ticket.slot, END_WORD, [self.ticket.generation], self.pool.scratch)

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
        found = self._read(remote, source, layers, heads, verify)
        self._check(remote, rows, layers, heads, found, verify)

    def _read(self, remote: RemotePool, source: Side, layers: tuple[int, int], heads: tuple[int, int], verify: bool) -> int:
        total = 0
        target, cache, session = self.target, self.pool.cache, self.transfer.session

        def check(item: tuple[list[Any], tuple[int, int]]) -> None:
            nonlocal total
            works, group = item
            try:
                for work in works:
                    self._finish(work, remote)
            finally:
                for work in works:
                    drained(work)
            if verify:
                self._beat(remote)
                total += cache.digest(target, self.tokens, session=session, position=self.skip, layers=group, heads=heads)
                self._beat(remote)

        def drop(item: tuple[list[Any], tuple[int, int]]) -> None:
            for work in item[0]:
                drained(work)

        flight = InFlight(2, check)
        direct = Direct(source, target, self.tokens)
        convert = (0, 0)  # layers without runs that are long enough
        try:
            for group in groups(target.layout, self.tokens, layers, cache.chunk_bytes if verify else 0):
                self.transfer._check_cancelled()
                runs = direct.runs(group)
                if runs is None:
                    convert = (convert[0] if convert[1] else group[0], convert[1] + group[1])
                    continue
                if convert[1]:
                    total += self._convert(remote, source, convert, verify)
                    convert = (0, 0)
                works: list[Any] = []
                try:
                    for batch, nbytes in batches(self.peer, runs, self.pool.buffers, remote.buffers, reading=True):
                        works.append(self.peer.get_blocks(batch))
                        self.bytes_read += nbytes
                        self._beat(remote)
                except BaseException:
                    drop((works, group))
                    raise
                flight.add((works, group))
            flight.drain()
        finally:
            flight.give_up(drop)
        if convert[1]:
            total += self._convert(remote, source, convert, verify)
        return total & _MASK

    def _convert(self, remote: RemotePool, source: Side, layers: tuple[int, int], verify: bool) -> int:
        total = 0
        scratch, cache, session = self.pool.scratch, self.pool.cache, self.transfer.session

        def convert(item: tuple[Any, Any, Chunk]) -> None:
            nonlocal total
            works, buffer, chunk = item
            try:
                for work in works:
                    self._finish(work, remote)
                self._beat(remote)
                total += cache.write(chunk, buffer, session, self.skip + chunk.token, verify)
                self.bytes_converted += chunk.packed.buffer_bytes
                self._beat(remote)
            finally:
                for work in works:
                    drained(work)
                scratch.give(buffer)

        def drop(item: tuple[Any, Any, Chunk]) -> None:
            for work in item[0]:
                drained(work)
            scratch.give(item[1])

        flight = InFlight(1, convert)
        try:
            for chunk in chunks(self.target, source, self.tokens, layers, cache.chunk_bytes):
                self.transfer._check_cancelled()
                buffer = cache.take_chunk(chunk.packed.buffer_bytes, remote.buffers)
                works: list[Any] = []
                item = (works, buffer, chunk)
                packed = np.arange(len(chunk.far.blocks), dtype=np.uint64)
                try:
                    runs = layouts.runs(
                        chunk.far.layout,
                        chunk.far.blocks,
                        chunk.packed,
                        packed,
                        chunk.tokens,
                        source_first=chunk.far.first,
                        target_first=chunk.far.first,
                    )
                    for batch, nbytes in batches(self.peer, runs, [buffer], remote.buffers, reading=True):
                        works.append(self.peer.get_blocks(batch))
                        self.bytes_read += nbytes
                except BaseException:
                    drop(item)
                    raise
                flight.add(item)
            flight.drain()
        finally:
            flight.give_up(drop)
        return total & _MASK

    def _hold(self, remote: RemotePool) -> None:
        """Keeps the lease while the pages' streams have not come so far."""
        self.transfer._check_cancelled()
        if not self.peer.alive:
            raise PeerLostError(f"pull of session {self.transfer.session!r}: the owner of its lease, {self.peer.name}, is lost")
        self._beat(remote)

    def _finish(self, work: Work, remote: RemotePool) -> None:
        """Waits for a read, and keeps the lease meanwhile."""
        finish(work, self.transfer, lambda: self._beat(remote), min(SLICE, max(_LEAST_PAUSE, self.pause)))

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

    def _check(
        self, remote: RemotePool, rows: Any, layers: tuple[int, int], heads: tuple[int, int], found: int, verify: bool
    ) -> None:
        read = remote.read_rows(rows, self.pool.scratch, lambda work: self._finish(work, remote))
        if (read[:, 0] != np.uint64(self.ticket.generation)).any():
            raise self._expired()
        if not verify:
            return
        table = read[:, 1:].reshape(len(rows), *(n for _, n in (remote.layout.layers, remote.layout.heads)))
        layer, head = layers[0] - remote.layout.layers[0], heads[0] - remote.layout.heads[0]
        wanted = int(table[:, layer : layer + layers[1], head : head + heads[1]].sum(dtype=np.uint64))
        if wanted != found:
            raise CorruptError(
                f"pull of session {self.transfer.session!r}: the digest is {found:#018x}, the lease's is {wanted:#018x}; "
                "pages changed during the lease. Do not use the pages that were written: compute the tokens here"
            )

    def _expired(self) -> LeaseExpiredError:
        return LeaseExpiredError(
            f"pull of session {self.transfer.session!r}: the lease ended before its pages were read; its pages may hold "
            "other data now. Ask the prefill side for a new lease, or compute the tokens here"
        )
