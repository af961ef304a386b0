"""The receiving side of a push: pages that wait for a peer's layers, which are checked and acknowledged one by one."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from hmc import layout as layouts
from hmc._core import Peer
from hmc.errors import CorruptError, HmcCancelledError, HmcError, HmcTimeoutError, ProtocolError
from hmc.kv._moves import Side, common
from hmc.kv._transfer import Transfer
from hmc.kv._wire import ABORT, ACCEPTED, BYE, CREDIT, END, GO, LAYER, RECORD, RECORD_WORDS, START, Ticket, record

if TYPE_CHECKING:
    from hmc.kv._pool import Pool

__all__ = ["Inbox"]


class Inbox(Transfer):
    """Pages that wait for a push; made by :meth:`Pool.receive`. Give ``ticket`` to the prefill side. Ends as a Transfer does.

    After a cancel it ends once the sender has stopped writing, or is lost.
    """

    def __init__(
        self, pool: Pool, peer: Peer, ticket: Ticket, session: str, target: Side, tokens: int, verify: bool, limit: float | None
    ) -> None:
        super().__init__(session, "receive")
        self.ticket = ticket.encode()
        self._pool = pool
        self._peer = peer
        self._ticket = ticket
        self._target = target
        self._tokens = tokens
        self._verify = verify
        self._limit = None if limit is None else time.monotonic() + limit
        self._arrived: set[int] = set()
        self._news = threading.Condition()

    @property
    def layers(self) -> list[int]:
        """The layers that have arrived and were verified, of the whole model."""
        with self._news:
            return sorted(self._arrived)

    def wait_layer(self, layer: int, timeout: float | None = None) -> None:
        """Waits until a layer, of the whole model, has arrived and was verified. Raises the transfer's error, HmcTimeoutError."""
        until = None if timeout is None else time.monotonic() + timeout
        with self._news:
            while layer not in self._arrived:
                if self.done:
                    break
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise HmcTimeoutError(f"layer {layer} of session {self.session!r} has not arrived within {timeout} s")
                self._news.wait(left)
            else:
                return
        error = self.error()
        raise error if error is not None else ProtocolError(f"the push of session {self.session!r} ended without layer {layer}")

    def _main(self, run: Any) -> None:
        super()._main(run)
        with self._news:
            self._news.notify_all()

    def _next(self, draining: bool) -> list[int] | None:
        """The sender's next record; None where this side is to stop, which is over only when the sender has stopped."""
        array = np.zeros(RECORD_WORDS, RECORD)
        work = self._peer.irecv(array, tag=self._ticket.tag)
        while True:
            try:
                work.wait(0.05)
            except HmcTimeoutError:
                expired = self._limit is not None and time.monotonic() > self._limit
                if not draining and (self._cancel.is_set() or expired) and work._withdraw():
                    return None
            else:
                return [int(word) for word in array]

    def _run(self) -> None:
        ended = False
        try:
            failure = self._receive()
            if failure is not None:
                raise failure
            self._send(ACCEPTED)
            ended = True
        finally:
            self._pool.leases.give_slot(self._ticket.slot)
            self._pool.count(self.session, receives=ended, receives_failed=not ended, tokens=self._tokens if ended else 0)

    def _receive(self) -> HmcError | None:
        """Takes layers until the end. Returns why it stopped early, once the sender writes no more."""
        who = f"of session {self.session!r}"
        started = False
        while True:
            found = self._next(draining=False)
            if found is None:
                why = "the push {} has not ended in time" if not self._cancel.is_set() else "the receive {} was cancelled"
                error_of = HmcCancelledError if self._cancel.is_set() else HmcTimeoutError
                stopped = error_of(why.format(who) + "; its pages may have been written in part")
                return self._stopped(started or self._late_start(), stopped)
            kind, layer, digest, generation, *heads = found
            if kind == ABORT:
                self._send(BYE)
                return HmcCancelledError(f"the sender stopped the push {who}; its pages may have been written in part")
            if generation != self._ticket.generation or kind not in (START, LAYER, END) or (kind == START) == started:
                return self._stopped(True, ProtocolError(f"a record of kind {kind} that is not of the push {who} arrived"))
            if kind == END:
                return None
            if kind == START:
                started = True
                self._send(GO)
                continue
            error = self._check_layer(layer, digest, (heads[0], heads[1]))
            if error is not None:
                return self._stopped(True, error)
            with self._news:
                self._arrived.add(layer)
                self._news.notify_all()
            self._send(CREDIT, layer)

    def _late_start(self) -> bool:
        """Refuses the sender that has not begun. True: it has begun meanwhile."""
        slot, generation = self._ticket.slot, self._ticket.generation
        while self._peer.alive and self._pool.leases.refuse_claims(slot, generation):
            found = self._next(draining=False)
            if found is not None:
                return found[0] == START
        return False

    def _stopped(self, started: bool, error: HmcError) -> HmcError:
        """Returns once the sender writes no more: it has not begun, has answered, or is lost."""
        if started:
            with contextlib.suppress(HmcError):
                self._send(ABORT)
                while (self._next(draining=True) or [0])[0] != ABORT:
                    pass
                self._send(BYE)
        return error

    def _check_layer(self, layer: int, digest: int, heads: tuple[int, int]) -> HmcError | None:
        layout = self._target.layout
        if common(layout.layers, (layer, 1))[1] == 0 or heads[1] == 0 or common(layout.heads, heads) != heads:
            return ProtocolError(
                f"layer {layer}, heads {heads}, was pushed; this pool has layers {layout.layers} and heads {layout.heads}"
            )
        if not self._verify:
            return None
        found = layouts.digest(
            layout, self._pool.arrays, self._target.blocks, self._tokens, first=self._target.first, layers=(layer, 1), heads=heads
        )
        if found == digest:
            return None
        return CorruptError(
            f"layer {layer} of session {self.session!r}: the digest is {found:#018x}, the sender's is {digest:#018x}. Do not "
            "use the pages: "
            "compute the tokens here"
        )

    def _send(self, kind: int, layer: int = 0) -> None:
        self._peer.isend(record(kind, layer, 0, self._ticket.generation), tag=self._ticket.tag).wait(30)
