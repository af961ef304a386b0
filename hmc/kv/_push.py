"""Push: writes the layers of a session into a peer's pages as they become ready, with bounded credits."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from hmc import layout as layouts
from hmc._core import Peer
from hmc.errors import HmcCancelledError, HmcError, HmcTimeoutError, InvalidArgumentError, LeaseExpiredError, ProtocolError
from hmc.kv._leases import CLAIM_WORD, INBOX_WORD
from hmc.kv._moves import InFlight, Side, batches, chunks, common, direct_runs
from hmc.kv._pull import drained
from hmc.kv._remote import RemotePool, finish
from hmc.kv._transfer import Transfer
from hmc.kv._wire import ABORT, ACCEPTED, BYE, CREDIT, END, GO, LAYER, RECORD, RECORD_WORDS, START, Ticket, record

if TYPE_CHECKING:
    from hmc.kv._pool import Pool

__all__ = ["Push"]

_LEAVE = 10.0  # seconds that a failed push waits for a receiver that does not answer


class Push(Transfer):
    """The sending side of a push; made by :meth:`Pool.push`. Any thread.

    As a context manager it closes at the end, and cancels after an error.
    """

    def __init__(self, pool: Pool, peer: Peer, ticket: Ticket, session: str, source: Side, credits: int) -> None:
        super().__init__(session, "push")
        self._pool = pool
        self._peer = peer
        self._ticket = ticket
        self._source = source
        self._credits = credits
        self._changed = threading.Condition()
        self._events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._closed = False

    def ready(self, layer: int, timeout: float | None = None) -> None:
        """Sends a layer, of the whole model, whose pages are complete and stay so until the push has ended.

        Returns at once while fewer than ``credits`` layers are not yet acknowledged, else waits. Raises HmcTimeoutError (nothing
        was sent), and the error of a push that has failed.
        """
        until = None if timeout is None else time.monotonic() + timeout
        if common(self._source.layout.layers, (layer, 1))[1] == 0:
            raise InvalidArgumentError(f"layer {layer} is not in {self._source.layout}")
        with self._changed:
            while self._credits == 0 and not self.done:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise HmcTimeoutError(
                        f"layer {layer} of session {self.session!r}: no credit within {timeout} s; the receiver is behind"
                    )
                self._changed.wait(left)
            if not self.done:
                if self._closed:
                    raise InvalidArgumentError("the push is closed")
                self._credits -= 1
                self._events.put(("layer", layer))
                return
        error = self.error()
        raise error if error is not None else InvalidArgumentError("the push has ended")

    def close(self, timeout: float | None = None) -> None:
        """No further layers: waits until the receiver has accepted all. Raises the error of the push, or HmcTimeoutError."""
        self._closed = True
        self._events.put(("close", None))
        self.wait(timeout)

    def cancel(self) -> None:
        """Asks it to end, with HmcCancelledError, once nothing of it is in flight. Returns at once; idempotent."""
        super().cancel()
        self._events.put(("cancel", None))

    def __enter__(self) -> Push:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
            return
        self.cancel()
        with contextlib.suppress(HmcError):
            self.wait()

    def _main(self, run: Any) -> None:
        super()._main(run)
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        started = ended = False
        receive: tuple[Any, Any] | None = None
        try:
            remote = self._pool.remote(self._peer, self._ticket.pool)
            remote.check_pages(self._ticket)
            self._check_cancelled()
            self._claim(remote)
            receive = self._post_receive()
            started = True
            self._send(START)
            waiting: deque[tuple[str, Any]] | None = deque()  # until GO
            while not ended:
                event, kind = self._events.get(), 0
                if event[0] == "answer":
                    receive = None
                    kind = self._take_answer(*event[1])
                    ended = kind == ACCEPTED
                    receive = None if ended else self._post_receive()
                if not ended:
                    self._check_cancelled()
                if kind == GO:
                    for held in waiting or ():
                        self._write(remote, *held)
                    waiting = None
                elif not kind and waiting is not None:
                    waiting.append(event)
                elif not kind:
                    self._write(remote, *event)
        finally:
            if started and not ended:
                self._leave(receive)
            self._pool.count(self.session, pushes=ended, pushes_failed=not ended)

    def _claim(self, remote: RemotePool) -> None:
        """Begins, or raises where the receiver waits no longer. One of the two sees the other's word."""
        slot, scratch = self._ticket.slot, self._pool.scratch
        remote.write_words(slot, CLAIM_WORD, [self._ticket.generation], scratch)
        if remote.read_word(slot, INBOX_WORD, scratch) != self._ticket.generation:
            remote.write_words(slot, CLAIM_WORD, [0], scratch)
            raise LeaseExpiredError(f"push of session {self.session!r}: the receiver waits no longer; ask it for another ticket")

    def _post_receive(self) -> tuple[Any, Any]:
        array = np.zeros(RECORD_WORDS, RECORD)
        work = self._peer.irecv(array, tag=self._ticket.tag)
        work.add_done_callback(lambda done: self._events.put(("answer", (done, array))))
        return work, array

    def _take_answer(self, work: Any, array: Any) -> int:
        error = work.error()
        if error is not None:
            raise error
        kind, _, _, generation, *_ = (int(word) for word in array)
        if generation != self._ticket.generation or kind not in (GO, CREDIT, ACCEPTED, ABORT):
            raise ProtocolError(f"a record of kind {kind} that is not of the push of session {self.session!r} arrived")
        if kind == ABORT:
            raise HmcCancelledError(f"the receiver stopped the push of session {self.session!r}; its own error says why")
        if kind == CREDIT:
            with self._changed:
                self._credits += 1
                self._changed.notify_all()
        return kind

    def _write(self, remote: RemotePool, what: str, layer: int) -> None:
        if what == "layer":
            self._send_layer(remote, layer)
        elif what == "close":
            self._send(END)

    def _leave(self, receive: tuple[Any, Any] | None) -> None:
        """After an error, when nothing is in flight: says so, and takes what the receiver has sent until it knows."""
        until = time.monotonic() + _LEAVE
        if receive is not None and receive[0].done and int(receive[1][0]) in (BYE, ACCEPTED):
            return
        with contextlib.suppress(HmcError):
            self._send(ABORT)
            while True:
                if receive is None or receive[0].done:
                    array = np.zeros(RECORD_WORDS, RECORD)
                    receive = self._peer.irecv(array, tag=self._ticket.tag), array
                receive[0].wait(max(0.0, until - time.monotonic()))
                if int(receive[1][0]) in (BYE, ACCEPTED):
                    return
        if receive is not None:
            drained(receive[0])

    def _send_layer(self, remote: RemotePool, layer: int) -> None:
        ticket, near = self._ticket, self._source.layout
        target = Side(remote.layout, ticket.blocks, ticket.first)
        heads = common(near.heads, remote.layout.heads)
        if common(near.heads, remote.layout.heads)[1] == 0 or common(remote.layout.layers, (layer, 1))[1] == 0:
            raise InvalidArgumentError(f"layer {layer}, heads {near.heads}: the target has none of them ({remote.layout})")
        runs = direct_runs(self._source, target, ticket.tokens, layers=(layer, 1))
        if runs is not None:
            digest = layouts.digest(
                near,
                self._pool.arrays,
                self._source.blocks,
                ticket.tokens,
                first=self._source.first,
                layers=(layer, 1),
                heads=heads,
            )
            self._put(remote, runs, self._pool.buffers)
        else:
            digest = self._convert(remote, target, layer)
        self._send(LAYER, layer, digest, heads)

    def _put(self, remote: RemotePool, runs: list[layouts.Runs], near: Any) -> None:
        flight = InFlight(2, lambda work: finish(work, self))
        written = 0
        try:
            for batch, nbytes in batches(self._peer, runs, near, remote.buffers, reading=False):
                self._check_cancelled()
                flight.add(self._peer.put_blocks(batch))
                written += nbytes
            flight.drain()
        finally:
            flight.give_up(drained)
            self._pool.count(self.session, bytes_written=written)

    def _convert(self, remote: RemotePool, target: Side, layer: int) -> int:
        total = 0
        for chunk in chunks(self._source, target, self._ticket.tokens, (layer, 1)):
            self._check_cancelled()
            buffer = self._pool.scratch.take(chunk.packed.buffer_bytes)
            packed = np.arange(len(chunk.far.blocks), dtype=np.uint64)
            try:
                layouts.convert(
                    chunk.near.layout,
                    self._pool.arrays,
                    chunk.near.blocks,
                    chunk.packed,
                    buffer,
                    packed,
                    chunk.tokens,
                    source_first=chunk.near.first,
                    target_first=chunk.far.first,
                )
                total += layouts.digest(chunk.packed, buffer, packed, chunk.tokens, first=chunk.far.first, position=chunk.token)
                runs = layouts.runs(
                    chunk.packed,
                    packed,
                    chunk.far.layout,
                    chunk.far.blocks,
                    chunk.tokens,
                    source_first=chunk.far.first,
                    target_first=chunk.far.first,
                )
                self._pool.count(self.session, bytes_converted=chunk.packed.buffer_bytes)
                self._put(remote, runs, [buffer])
            finally:
                self._pool.scratch.give(buffer)
        return total & (1 << 64) - 1

    def _send(self, kind: int, layer: int = 0, digest: int = 0, heads: tuple[int, int] = (0, 0)) -> None:
        finish(self._peer.isend(record(kind, layer, digest, self._ticket.generation, heads), tag=self._ticket.tag))
