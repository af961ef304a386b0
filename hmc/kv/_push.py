"""Push: writes the layers of a session into a peer's pages as they become ready, with bounded credits."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hmc._arguments import whole
from hmc._core import PageMove, Peer, StreamMark, Work
from hmc._deadline import Deadline
from hmc._waits import drained
from hmc.errors import (
    HmcCancelledError,
    HmcError,
    HmcTimeoutError,
    InvalidArgumentError,
    LeaseExpiredError,
    PeerLostError,
    ProtocolError,
)
from hmc.kv._backlog import Backlog, Layer
from hmc.kv._blocks import Session
from hmc.kv._moves import SHORT, Side, chunks, common, named
from hmc.kv._remote import RemotePool, finish
from hmc.kv._store import Store
from hmc.kv._transfer import Transfer
from hmc.kv._wire import ABORT, ACCEPTED, CREDIT, END, GO, LAYER, REFUSED, START, STOP, Record, Ticket

if TYPE_CHECKING:
    from hmc.kv._pool import Pool

__all__ = ["Push"]

_ANSWER = 30.0  # seconds until the receiver has answered the first record
_LOOK = 0.1  # seconds between two looks whether the receiver's pool is still open
_SCRATCH = 16 << 20  # bytes of a chunk of several layers that are converted here: each chunk takes as much memory
_COMPLETE = 0.0005  # seconds between two looks whether a layer is complete


@dataclass
class _Piece:
    """Layers, or a chunk of them, whose pages are being written."""

    works: list[Work] = field(default_factory=list)
    buffer: Any = None  # of a chunk that was converted
    said: tuple[tuple[int, int], tuple[int, int], int] | None = None  # in the record behind a group: layers, heads, digest


class Push(Transfer):
    """The sending side of a push; made by :meth:`Pool.push`. Any thread.

    As a context manager it closes at the end, and cancels after an error.
    """

    def __init__(
        self, pool: Pool, peer: Peer, ticket: Ticket, session: str, source: Side, credits: int, moves: Session | None
    ) -> None:
        super().__init__(session, "push")
        self._pool = pool
        self._peer = peer
        self._ticket = ticket
        self._source = source
        self._credits = self._most_credits = credits
        self._backlog = Backlog(source, credits)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # What happens to the push: ("layer", Layer), also for the end, ("cancel", 0), ("record", record or exception).
        self._events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._stopped_by: Record | BaseException | None = None  # what ended it at the receiver
        self._closed = False
        self._moves = moves  # the session that leaves this pool
        self._sent: set[int] = set()
        self._complete = False  # every layer and END were sent
        self._travelling: deque[_Piece] = deque()  # of the transfer's own thread
        self._move: PageMove | None = None
        self._store: Store | None = None

    def ready(self, layer: int, timeout: float | None = None, *, stream: Any = None) -> None:
        """Sends a layer, of the whole model, whose pages are complete and stay so until the push has ended.

        They are complete when what is queued on ``stream`` now is over: it writes them (see :class:`Pool`). Returns at once while
        fewer than ``credits`` layers are not yet acknowledged, else waits. Raises HmcTimeoutError (nothing was sent), and the error
        of a push that has failed.
        """
        self._check_process()
        deadline, layer = Deadline(timeout), whole("layer", layer)
        if common(self._source.layout.layers, (layer, 1))[1] == 0:
            raise InvalidArgumentError(f"layer {layer} is not in {self._source.layout}")
        behind = self._pool.cache.marks(stream)
        with self._lock:
            while self._credits == 0 and not self.done:
                left = deadline.left()
                if left == 0:
                    raise HmcTimeoutError(
                        f"layer {layer} of session {self.session!r}: no credit within {timeout} s; the receiver is behind"
                    )
                self._changed.wait(left)
            if not self.done:
                if self._closed:
                    raise InvalidArgumentError("the push is closed")
                self._credits -= 1
                self._events.put(("layer", Layer(layer, behind)))
                return
        self._raise_error()
        raise InvalidArgumentError("the push has ended")

    def close(self, timeout: float | None = None) -> None:
        """No further layers: waits until the receiver has accepted all. Raises the error of the push, or HmcTimeoutError.

        A push that lacks a layer which both pools have fails on both sides.
        """
        self._check_process()
        Deadline(timeout)  # refuses a wrong one before the push is closed
        self._finish()
        self.wait(timeout)

    def cancel(self) -> None:
        """Asks it to end, with HmcCancelledError, once nothing of it is in flight. Returns at once; idempotent.

        The receiver accepts no layer that the push reads after this call: the pages may change at once.
        """
        super().cancel()
        self._events.put(("cancel", 0))

    def __enter__(self) -> Push:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
            return
        self.cancel()
        with contextlib.suppress(HmcError):
            self.wait()

    def _migrate(self, layers: range, behind: list[StreamMark]) -> None:
        """Sends all layers, which are complete behind the marks. The push has a credit for each."""
        for layer in layers:
            self._events.put(("layer", Layer(layer, behind)))
        self._finish()

    def _finish(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._events.put(("layer", Layer(None, [])))

    def _open(self) -> None:
        self._pool.listener.open(self._peer, self._ticket.generation, self._noted)

    def _unstarted(self) -> None:
        self._pool.listener.end(self._peer, self._ticket.generation, self._noted)

    def _noted(self, found: Record | BaseException) -> None:
        if isinstance(found, Record) and found.kind == CREDIT:
            self._credited(found.layers[1])  # here: each thread on the way to ready() would take its time
            return
        if not isinstance(found, Record) or found.kind == STOP:
            self._stopped_by = found
        self._events.put(("record", found))

    def _ended(self) -> None:
        with self._lock:
            self._changed.notify_all()

    def _run(self) -> None:
        begun = ended = absent = False
        try:
            try:
                remote = self._pool.remote(self._peer, self._ticket.pool, self._check_cancelled)
            except (InvalidArgumentError, LeaseExpiredError):
                absent = True
                raise
            remote.check_pages(self._ticket)
            self._check_cancelled()
            near, far = self._source.layout, remote.layout
            if self._moves is not None and (
                common(near.layers, far.layers) != near.layers or common(near.heads, far.heads) != near.heads
            ):
                raise InvalidArgumentError(
                    f"migrate of session {self.session!r}: the target {far} lacks layers or heads of {near}; push() to several "
                    "targets, then free()"
                )
            begun = self._begin()
            if not begun:
                raise self._refused()
            self._serve(remote)
            ended = True
            if self._moves is not None:
                self._pool.blocks.free_session(self._moves)
        finally:
            self._drop()
            if not ended and not absent:
                with contextlib.suppress(HmcError):  # a lost receiver waits for nothing
                    if begun or self._begin():  # ends the receive also where the push sent nothing so far
                        self._send(ABORT)
            self._unstarted()
            self._pool.counts.add(self.session, pushes=ended, pushes_failed=not ended)

    def _begin(self) -> bool:
        """Sends the first record. False where an earlier push has used the ticket."""
        if not self._pool.listener.begin(self._peer, self._ticket.generation):
            return False
        near = self._source.layout
        self._send(START, near.layers, near.heads)
        return True

    def _serve(self, remote: RemotePool) -> None:
        """Sends layers until the receiver has accepted them."""
        looks = 0  # counted, as this process may be stopped while the answer arrives
        answered = False
        while True:
            try:
                what, found = self._next(_LOOK if not answered else _COMPLETE if self._backlog else None)
            except queue.Empty:
                what = ""
                if not answered:
                    looks += 1
                    self._look(remote, looks * _LOOK > _ANSWER)
            self._check_cancelled()
            if what == "record":
                kind = self._take(found)
                if kind == ACCEPTED:
                    return
                answered = answered or kind == GO
            elif what == "layer":
                self._backlog.add(found)
            if not self._events.empty():
                continue  # a layer that comes next may travel with it
            while answered and (layers := self._backlog.take()) is not None:
                self._write(remote, layers)

    def _next(self, timeout: float | None) -> tuple[str, Any]:
        """The next event. While there is none, the travelling layers land."""
        if self._travelling:
            with contextlib.suppress(queue.Empty):
                return self._events.get_nowait()
            self._land()
        return self._events.get(timeout=timeout)

    def _look(self, remote: RemotePool, late: bool) -> None:
        """Raises where the receiver cannot answer the first record: it is lost, its pool is closed, or waits for another peer."""
        if not remote.alive:
            if not self._peer.alive:
                raise PeerLostError(f"push of session {self.session!r}: its receiver {self._peer.name} is lost")
            raise self._refused()
        if late:
            raise HmcTimeoutError(
                f"push of session {self.session!r}: {self._peer.name} has not answered within {_ANSWER} s; its process is stopped, "
                "or the ticket is of a receive from another peer"
            )

    def _refused(self) -> LeaseExpiredError:
        return LeaseExpiredError(
            f"push of session {self.session!r}: the receiver does not wait for it; it was cancelled, timed out, or the ticket was "
            "used before. Ask it for another ticket"
        )

    def _take(self, found: Record | BaseException) -> int:
        """Handles a record and returns its kind."""
        if isinstance(found, BaseException):
            raise self._lost(found)
        if found.kind == STOP:
            raise HmcCancelledError(f"the receiver stopped the push of session {self.session!r}; its own error says why")
        if found.kind == REFUSED:
            raise self._refused()
        if found.kind != GO and not (found.kind == ACCEPTED and self._complete):
            raise ProtocolError(f"push of session {self.session!r}: a receiver does not send a record of kind {found.kind} now")
        return found.kind

    def _credited(self, count: int) -> None:
        with self._lock:
            self._credits = min(self._credits + count, self._most_credits)
            self._changed.notify_all()

    def _write(self, remote: RemotePool, layers: tuple[int, int]) -> None:
        """Sends layers, or the end (0, 0)."""
        if layers[1] == 0:
            self._end(remote)
            return
        first, count = common(remote.layout.layers, layers)
        self._credited(layers[1] - count)  # the others stay here
        if count > 0:
            self._send_layers(remote, (first, count))
            self._sent.update(range(first, first + count))

    def _end(self, remote: RemotePool) -> None:
        first, count = common(self._source.layout.layers, remote.layout.layers)
        missing = sorted(set(range(first, first + count)) - self._sent)
        if missing:
            raise InvalidArgumentError(
                f"close of the push of session {self.session!r}: layers {missing} were not sent; call ready() for each first"
            )
        self._land()
        self._complete = True
        self._send(END)

    def _send_layers(self, remote: RemotePool, layers: tuple[int, int]) -> None:
        """Writes layers where the receiver has them, or posts them: they travel while their digest is taken."""
        heads = common(self._source.layout.heads, remote.layout.heads)
        if heads[1] == 0:
            raise InvalidArgumentError(
                f"{named(layers)}, heads {self._source.layout.heads}: the target has none of them ({remote.layout})"
            )
        target = Side(remote.layout, self._ticket.blocks, self._ticket.first)
        if self._store is None:
            self._store = Store(self._pool.cache, remote, self._source, target, self._ticket.tokens, self._ticket.digests)
        if self._store.possible():
            self._write_there(self._store, layers, heads)
            return
        if self._move is None:
            self._move = PageMove(
                self._peer, self._source, target, self._ticket.tokens, self._pool.buffers, remote.buffers, reading=False
            )
        piece = _Piece()
        if self._post(piece, self._move, layers):
            digest = self._digest(layers, heads)
        else:
            digest = 0
            cache = self._pool.cache
            most = cache.chunk_bytes if layers[1] == 1 else min(cache.chunk_bytes, _SCRATCH)
            for chunk in chunks(self._source, target, self._ticket.tokens, layers, most):
                piece = _Piece(buffer=cache.take_chunk(chunk.packed.buffer_bytes, remote.buffers))
                self._travelling.append(piece)
                digest += cache.read(chunk, piece.buffer, self.session, digest=self._ticket.digests)
                self._pool.counts.add(self.session, bytes_converted=chunk.packed.buffer_bytes)
                self._post(piece, chunk.move(self._peer, piece.buffer, remote.buffers, reading=False))
        piece.said = layers, heads, digest & (1 << 64) - 1

    def _write_there(self, store: Store, layers: tuple[int, int], heads: tuple[int, int]) -> None:
        """Writes layers into the receiver's arrays, and says so."""
        self._land()
        stored = store.write(layers, self._check_stopped)
        self._pool.counts.add(
            self.session, bytes_written=stored.nbytes, bytes_stored=stored.nbytes, bytes_converted=stored.converted_bytes
        )
        self._check_cancelled()  # their pages may have changed since
        self._send(LAYER, layers, heads, stored.digest)

    def _check_stopped(self) -> None:
        self._check_cancelled()
        if self._stopped_by is not None:
            self._take(self._stopped_by)

    def _post(self, piece: _Piece, move: PageMove, layers: tuple[int, int] | None = None) -> bool:
        """Posts a piece, once at most one other piece travels. False: it was not, as its ``layers`` are to be converted first."""
        if piece.buffer is None:
            self._travelling.append(piece)
        self._land(2)
        self._check_stopped()
        nbytes = move.post(piece.works, layers or (0, 0), SHORT if layers else 0)
        if nbytes is None:
            self._travelling.remove(piece)
            return False
        self._pool.counts.add(self.session, bytes_written=nbytes)
        return True

    def _land(self, left: int = 0) -> None:
        """Waits until all but so many of the travelling pieces are written, and says so after the last piece of some layers."""
        while len(self._travelling) > left:
            piece = self._travelling[0]
            for work in piece.works:
                finish(work, self)
            self._travelling.popleft()
            self._give(piece)
            if piece.said is not None:
                self._check_cancelled()  # their pages may have changed since
                self._send(LAYER, *piece.said)

    def _give(self, piece: _Piece) -> None:
        if piece.buffer is not None:
            self._pool.scratch.give(piece.buffer)

    def _drop(self) -> None:
        """After an error: returns when nothing is written any more."""
        for piece in self._travelling:
            for work in piece.works:
                drained(work)
            self._give(piece)
        self._travelling.clear()
        self._move = self._store = None  # which keep the buffers of both pools

    def _digest(self, layers: tuple[int, int], heads: tuple[int, int]) -> int:
        """The digest of layers as they lie here, or 0 where the receiver does not verify."""
        if not self._ticket.digests:
            return 0
        return self._pool.cache.digest(self._source, self._ticket.tokens, session=self.session, layers=layers, heads=heads)

    def _send(self, kind: int, layers: tuple[int, int] = (0, 0), heads: tuple[int, int] = (0, 0), digest: int = 0) -> None:
        """Sends a record. Records keep their order and are small, so nothing waits for them here."""
        ticket = self._ticket
        record = Record(kind, ticket.generation, self._pool.listener.tag, layers, heads, digest)
        self._peer.isend(record.encode(), tag=ticket.tag)
