"""The decode side of a worker in push mode: offers this engine's blocks to prefill workers, which write into them."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hmc import kv
from hmc._core import Context, Peer
from hmc.errors import (
    HmcCancelledError,
    HmcError,
    HmcTimeoutError,
    InvalidArgumentError,
    LeaseExpiredError,
    PeerLostError,
    ProtocolError,
)
from hmc.integrations.vllm._listening import Listening
from hmc.integrations.vllm._loading import Fetch, Loading
from hmc.integrations.vllm._messages import PIECE_TAG, Answer, Piece
from hmc.integrations.vllm._params import Remote
from hmc.integrations.vllm._ranks import Source

__all__ = ["Receiver"]

_MOST_PIECES = 8  # of a prefill worker that have not ended: it sends one after another


@dataclass(eq=False)
class _Incoming:
    """The part of a request that one prefill worker writes."""

    source: Source
    offer: int
    next: int  # token that its next piece begins at
    peer: Peer | None = None  # once it was offered
    layers: tuple[int, int] = (0, 0)
    heads: tuple[int, int] = (0, 0)
    inboxes: list[kv.Inbox] = field(default_factory=list)


@dataclass(eq=False)
class _Receiving:
    """A request whose blocks are written."""

    fetch: Fetch
    begun: float
    parts: list[_Incoming] = field(default_factory=list)
    begun_offering: bool = False  # a thread has it
    offering: bool = True
    failure: Exception | None = None

    @property
    def end(self) -> int:
        """The token behind its last one."""
        return self.fetch.skip + self.fetch.tokens

    @property
    def inboxes(self) -> Iterator[kv.Inbox]:
        """All of them."""
        return (inbox for part in self.parts for inbox in part.inboxes)


class Receiver(Loading):
    """Offers the blocks of requests to prefill workers, which push into ``pools``. Any thread.

    Arguments are those of :class:`Loading`. ``timeout``: seconds from the offer until all of a request has arrived.
    """

    def __init__(
        self,
        ctx: Context,
        pools: Sequence[kv.Pool],
        sources: Callable[[Remote], list[Source]],
        model: str,
        *,
        connected: Callable[[Peer], None] = lambda peer: None,
        **more: Any,
    ) -> None:
        self._receiving: dict[str, _Receiving] = {}
        self._offers: dict[int, tuple[_Receiving, _Incoming]] = {}
        self._listening = Listening(PIECE_TAG, Piece.decode, self._piece)

        def meet(peer: Peer) -> None:
            self._listening.add(peer)
            connected(peer)

        super().__init__(ctx, pools, sources, model, connected=meet, **more)

    def fetch(self, fetch: Fetch) -> None:
        """Offers the blocks of a request. Returns at once; :meth:`finished` returns it when they are not written any more."""
        one = _Receiving(fetch, time.monotonic())
        with self._lock:
            self._receiving[fetch.request] = one
        self._asking.do(lambda: self._offer(one))

    def cancel(self, request: str) -> None:
        """Ends a request early. It still finishes, as failed. Returns at once; idempotent."""
        with self._lock:
            one = self._receiving.get(request)
            if one is not None:
                self._fail(one, HmcCancelledError(f"the load of request {request} was cancelled"))

    def finished(self) -> tuple[set[str], set[int]]:
        """The requests that have ended, and the blocks of those that failed: these hold garbage. Each is returned once."""
        finished: set[str] = set()
        failed: set[int] = set()
        with self._lock:
            waiting = [one for one in self._receiving.values() if not one.begun_offering and one.failure is None]
            self._renew_wanted(one.fetch.remote for one in waiting)
            for one in list(self._receiving.values()):
                over = self._over(one)  # before the errors: an inbox that ends in between is looked at again
                problem = self._problem(one) if one.failure is None else None
                if problem is not None:
                    self._fail(one, problem)
                    over = self._over(one)
                if one.offering or not over:
                    continue
                self._end(one)
                finished.add(one.fetch.request)
                if one.failure is not None:
                    failed.update(one.fetch.blocks)
        return finished, failed

    def close(self, timeout: float = 10.0) -> None:
        """Cancels what is in flight and waits until nothing is written any more, or until ``timeout`` seconds are over."""
        until = time.monotonic() + timeout
        with self._lock:
            requests = list(self._receiving)
        for request in requests:
            self.cancel(request)
        while self._receiving and time.monotonic() < until:
            self.finished()
            time.sleep(0.005)
        self._listening.close()
        self._asking.close(max(0.0, until - time.monotonic()))

    def _offer(self, one: _Receiving) -> None:
        """Offers a request to all prefill workers that have a part of it."""
        fetch = one.fetch
        with self._lock:
            if one.failure is not None or self._receiving.get(fetch.request) is not one:
                return  # it ended while it waited for a thread
            one.begun_offering = True
        try:
            for source in self._asking.sources(fetch.remote):
                part = _Incoming(source, secrets.randbits(61) | 1, fetch.skip)
                what, answer = ("offer", part.offer) if source.read else ("release", 0)
                ask = self._ask(what, fetch, answer=answer, readers=source.readers)
                peer = self._asking.peer(source.address)
                if source.read:
                    with self._lock:
                        if one.failure is not None:
                            return
                        part.peer = peer
                        one.parts.append(part)
                        self._offers[part.offer] = one, part
                self._asking.say(ask, source.address)
        except Exception as error:
            with self._lock:
                self._fail(one, error)
        finally:
            with self._lock:
                one.offering = False
                if one.failure is not None:
                    self._give_up(one)

    def _piece(self, peer: Peer, piece: Piece) -> None:
        """A prefill worker is about to write, or says that it will not."""
        with self._lock:
            one, part = self._offers.get(piece.offer, (None, None))
            if one is None or part is None or part.peer != peer:
                answer = Answer(error="the decode engine does not wait for this request any more")
            elif one.failure is not None:
                answer = Answer(error=f"the decode engine does not take it: {one.failure}")
            elif piece.error:
                self._fail(one, LeaseExpiredError(piece.error))
                return
            else:
                try:
                    answer = Answer(self._open(one, part, peer, piece))
                except HmcError as error:
                    self._fail(one, error)
                    answer = Answer(error=str(error))
        if piece.answer:
            with contextlib.suppress(HmcError):  # a lost sender needs no answer
                peer.isend(answer.encode(), tag=piece.answer)

    def _open(self, one: _Receiving, part: _Incoming, peer: Peer, piece: Piece) -> list[bytes]:
        """Tickets for a piece, one for each pool. Under the lock."""
        if piece.begin != part.next or piece.tokens < 1 or piece.begin + piece.tokens > one.end:
            raise ProtocolError(
                f"{peer.name} pushes {piece.tokens} tokens of request {one.fetch.request} from token {piece.begin} on; expected "
                f"were some from token {part.next} on, before token {one.end}"
            )
        if sum(not inbox.done for inbox in part.inboxes) > _MOST_PIECES * len(self._pools):
            raise ProtocolError(f"{peer.name} pushes pieces of request {one.fetch.request} before the last ones have ended")
        left = max(0.0, one.begun + self._timeout - time.monotonic())
        fetch, tickets = one.fetch, []
        for pool in self._pools:
            inbox = pool.receive(
                peer,
                fetch.blocks,
                piece.tokens,
                session=fetch.request,
                first=fetch.first + piece.begin - fetch.skip,
                skip=piece.begin,
                timeout=left,
            )
            part.inboxes.append(inbox)
            tickets.append(inbox.ticket)
        part.next += piece.tokens
        part.layers, part.heads = piece.layers, piece.heads
        return tickets

    def _problem(self, one: _Receiving) -> Exception | None:
        """Why a request cannot arrive any more. Under the lock."""
        for inbox in one.inboxes:
            error = inbox.error()
            if isinstance(error, HmcCancelledError):  # by the sender, whose reason may come later: own cancels set ``failure``
                return LeaseExpiredError(str(error))
            if isinstance(error, Exception):
                return error
        for part in one.parts:
            if part.peer is not None and not part.peer.alive and not self._arrived(one, part):
                return PeerLostError(f"the prefill worker {part.peer.name} is lost")
        if one.offering or not all(self._arrived(one, part) for part in one.parts):
            if time.monotonic() > one.begun + self._timeout:
                return HmcTimeoutError(f"the prefill engine has not pushed it within {self._timeout:g} s")
            return None
        try:
            self._check_complete((part.layers, part.heads) for part in one.parts)
        except InvalidArgumentError as error:
            return error
        return None

    def _arrived(self, one: _Receiving, part: _Incoming) -> bool:
        return part.next == one.end and all(inbox.done for inbox in part.inboxes)

    def _over(self, one: _Receiving) -> bool:
        """Whether nothing of a request is written any more, and nothing is to come. Under the lock."""
        if one.failure is not None:
            return all(inbox.done for inbox in one.inboxes)
        return all(self._arrived(one, part) for part in one.parts)

    def _fail(self, one: _Receiving, error: Exception) -> None:
        """Notes the first error of a request, and ends what the request has. Under the lock."""
        if one.failure is None:
            one.failure = error
            if not one.begun_offering:
                one.offering = False
            if not one.offering:  # else _offer does, so that no offer is sent after its release
                self._give_up(one)

    def _give_up(self, one: _Receiving) -> None:
        """Ends what a failed request has, here and at the prefill workers. Under the lock."""
        for inbox in one.inboxes:
            inbox.cancel()
        fetch, offers = one.fetch, {part.source.address: part.offer for part in one.parts}
        if not offers and isinstance(one.failure, PeerLostError | HmcTimeoutError):
            return  # the prefill workers were not reached: they free its blocks in time
        self._asking.tell("release", [fetch.remote], offers, like=self._ask("release", fetch))

    def _end(self, one: _Receiving) -> None:
        """Counts a request that is over. Under the lock."""
        fetch = one.fetch
        del self._receiving[fetch.request]
        for part in one.parts:
            self._offers.pop(part.offer, None)
        if one.failure is None:
            self._tally.loaded(time.monotonic() - one.begun, self._bytes(fetch.tokens), fetch.tokens)
        else:
            self._failed(fetch, one.failure)

    def _bytes(self, tokens: int) -> int:
        """Of so many tokens in this worker's pools."""
        layouts = [pool.layout for pool in self._pools]
        return sum(tokens * one.packed(one.layers, one.heads, 1).buffer_bytes // one.block for one in layouts)
