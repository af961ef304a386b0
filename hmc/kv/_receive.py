"""The receiving side of a push: pages that wait for a peer's layers, which are checked and acknowledged as they come."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import TYPE_CHECKING

from hmc._arguments import whole
from hmc._core import Peer, StreamMark
from hmc._deadline import Deadline
from hmc._waits import SLICE
from hmc.errors import CorruptError, HmcCancelledError, HmcError, HmcTimeoutError, InvalidArgumentError, ProtocolError
from hmc.kv._moves import Side, common, named
from hmc.kv._transfer import Transfer
from hmc.kv._wire import ABORT, ACCEPTED, CREDIT, END, GO, LAYER, START, STOP, Record, Ticket

if TYPE_CHECKING:
    from hmc.kv._pool import Pool

__all__ = ["Inbox"]

_LOOK = "look"  # in place of an event: the streams that the pages are written behind may have come so far
_PAUSE = 0.0005  # seconds between two looks


class Inbox(Transfer):
    """Pages that wait for a push; made by :meth:`Pool.receive`. Give ``ticket`` to the prefill side. Ends as a Transfer does.

    After a cancel it ends once the sender has stopped writing. Where the sender's Peer is closed or lost, it ends once that is
    ``gone``.
    """

    def __init__(
        self,
        pool: Pool,
        peer: Peer,
        ticket: Ticket,
        session: str,
        target: Side,
        tokens: int,
        verify: bool,
        deadline: Deadline,
        behind: list[StreamMark],
    ) -> None:
        super().__init__(session, "receive")
        self.ticket = ticket.encode()
        self._pool = pool
        self._peer = peer
        self._ticket = ticket
        self._target = target
        self._tokens = tokens
        self._verify = verify
        self._deadline = deadline
        self._behind = behind
        self._held = False  # the sender has begun, and is to write once ``behind`` is reached
        self._arrived: set[int] = set()
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        # Records, an exception when the peer is lost, None after a cancel.
        self._events: queue.SimpleQueue[Record | BaseException | None] = queue.SimpleQueue()
        self._sender: Record | None = None  # how the sender began
        self._layers = self._heads = (0, 0)  # that it will send

    @property
    def layers(self) -> list[int]:
        """The layers that have arrived and were verified, of the whole model."""
        self._check_process()
        with self._lock:
            return sorted(self._arrived)

    def wait_layer(self, layer: int, timeout: float | None = None) -> None:
        """Waits until a layer, of the whole model, has arrived and was verified. Raises the transfer's error, HmcTimeoutError."""
        self._check_process()
        deadline, layer, here = Deadline(timeout), whole("layer", layer), self._target.layout
        if common(here.layers, (layer, 1))[1] == 0:
            raise InvalidArgumentError(f"layer {layer} is not in {here}")
        with self._lock:
            while layer not in self._arrived:
                if self.done:
                    break
                left = deadline.left()
                if left == 0:
                    raise HmcTimeoutError(f"layer {layer} of session {self.session!r} has not arrived within {timeout} s")
                self._news.wait(left)
            else:
                return
        self._raise_error()
        raise ProtocolError(f"the push of session {self.session!r} ended without layer {layer}")

    def _open(self) -> None:
        self._pool.listener.open(self._peer, self._ticket.generation, self._events.put)

    def _unstarted(self) -> None:
        self._pool.listener.end(self._peer, self._ticket.generation, self._events.put)

    def _ended(self) -> None:
        with self._lock:
            self._news.notify_all()

    def cancel(self) -> None:
        """Asks it to end, with HmcCancelledError, once the sender has stopped writing. Returns at once; idempotent."""
        super().cancel()
        self._events.put(None)

    def _run(self) -> None:
        ended = False
        try:
            self._serve()
            ended = True
        finally:
            self._refuse_further()
            self._pool.counts.add(self.session, receives=ended, receives_failed=not ended, tokens=self._tokens if ended else 0)

    def _serve(self) -> None:
        """Takes layers until the end. Raises why it stopped early, once the sender writes no more."""
        failure: HmcError | None = None
        while True:
            found = self._next(draining=failure is not None)
            if isinstance(found, BaseException):
                self._outlast()
                raise failure or self._lost(found)
            if isinstance(found, Record) and not self._is_of_sender(found):
                self._pool.listener.refuse(self._peer, found)
                continue
            if failure is not None:
                if isinstance(found, Record) and found.kind == ABORT:
                    raise failure
                continue
            if found is None:
                failure = self._given_up()
                if self._sender is None:
                    raise failure
            elif isinstance(found, str):
                failure = self._let_write()
            else:
                if found.kind == ABORT:
                    raise HmcCancelledError(
                        f"the sender stopped the push of session {self.session!r}; its pages may have been written in part"
                    )
                failure = self._take(found)
                if failure is None and found.kind == END:
                    self._send(ACCEPTED)
                    return
            if failure is not None:
                self._send(STOP)

    def _next(self, draining: bool) -> Record | BaseException | str | None:
        """The next event, or _LOOK; None where this side is to stop, which is over only when the sender has stopped."""
        if draining:
            return self._events.get()
        left = self._deadline.left()
        if self._cancel.asked:
            return None
        try:
            return self._events.get(timeout=_PAUSE if self._held and left != 0 else left)
        except queue.Empty:
            return _LOOK if self._held and left != 0 else None

    def _outlast(self) -> None:
        """Waits until a sender that has left, or was closed here, writes no more. Its process may be stopped."""
        pause = _PAUSE
        while self._sender is not None and not self._peer.alive and not self._peer.gone:
            time.sleep(pause)
            pause = min(2 * pause, SLICE)

    def _given_up(self) -> HmcError:
        if self._cancel.asked:
            return HmcCancelledError(
                f"the receive of session {self.session!r} was cancelled; its pages may have been written in part"
            )
        return HmcTimeoutError(
            f"the push of session {self.session!r} has not ended in time; its pages may have been written in part"
        )

    def _is_of_sender(self, record: Record) -> bool:
        """False for a record of another push with the same ticket, and for one before the first START."""
        if self._sender is None:
            return record.kind == START
        return record.answer == self._sender.answer

    def _take(self, record: Record) -> HmcError | None:
        """Handles a record of the sender. Returns what is wrong with it."""
        if self._sender is None:
            self._sender = record
            return self._begin(record)
        if record.kind == LAYER:
            failure = self._check_layers(record)
            if failure is None:
                first, count = record.layers
                with self._lock:
                    self._arrived.update(range(first, first + count))
                    self._news.notify_all()
                self._send(CREDIT, record.layers)
            return failure
        missing = sorted(set(range(self._layers[0], sum(self._layers))) - self._arrived)
        if record.kind == END and not missing and self._layers[1]:
            return None
        return ProtocolError(
            f"the push of session {self.session!r} sent a record of kind {record.kind}; layers {missing} have not arrived"
        )

    def _begin(self, record: Record) -> HmcError | None:
        here = self._target.layout
        layers, heads = common(here.layers, record.layers), common(here.heads, record.heads)
        if layers[1] == 0 or heads[1] == 0:
            return ProtocolError(
                f"the push of session {self.session!r} has layers {record.layers} and heads {record.heads}; this "
                f"pool has layers {here.layers} and heads {here.heads}"
            )
        self._layers, self._heads = layers, heads
        self._held = True
        return self._let_write()

    def _let_write(self) -> HmcError | None:
        """Lets the sender write once the pages' streams have come so far. Returns the error of a device."""
        try:
            self._held = not all(mark.reached for mark in self._behind)
        except HmcError as error:
            return error
        if not self._held:
            self._send(GO)
        return None

    def _refuse_further(self) -> None:
        """Answers the records that come after the end, and those that have come already."""
        self._unstarted()
        with contextlib.suppress(queue.Empty):
            while True:
                found = self._events.get_nowait()
                if isinstance(found, Record):
                    self._pool.listener.refuse(self._peer, found)

    def _check_layers(self, record: Record) -> HmcError | None:
        layers, heads = record.layers, record.heads
        if layers[1] == 0 or common(self._layers, layers) != layers or heads != self._heads:
            return ProtocolError(
                f"layers {layers}, heads {heads}, were pushed; expected were layers {self._layers} and heads {self._heads}"
            )
        if not self._verify:
            return None
        try:
            found = self._pool.cache.digest(self._target, self._tokens, session=self.session, layers=layers, heads=heads)
        except HmcError as error:  # of a device, or no memory left
            return error
        if found == record.digest:
            return None
        return CorruptError(
            f"{named(layers)} of session {self.session!r}: the digest is {found:#018x}, the sender's is {record.digest:#018x}. "
            "Do not use the pages: compute the tokens here"
        )

    def _send(self, kind: int, layers: tuple[int, int] = (0, 0)) -> None:
        """Answers the sender. Never waits; a lost sender is an event of its own."""
        assert self._sender is not None
        record = Record(kind, self._ticket.generation, self._pool.listener.tag, layers)
        with contextlib.suppress(HmcError):
            self._peer.isend(record.encode(), tag=self._sender.answer)
