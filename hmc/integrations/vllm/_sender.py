"""The prefill side of a worker in push mode: writes each layer of a prompt into the blocks that decode workers offer."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial

from hmc import kv
from hmc._core import Context, Peer
from hmc._workers import run_on_thread
from hmc.errors import HmcCancelledError, HmcError, HmcTimeoutError, InvalidArgumentError, PeerLostError
from hmc.integrations.vllm._asking import answer_of
from hmc.integrations.vllm._clock import RunningClock
from hmc.integrations.vllm._listening import Listening
from hmc.integrations.vllm._log import logger
from hmc.integrations.vllm._messages import ASK_TAG, PIECE_TAG, Answer, Ask, Piece
from hmc.integrations.vllm._outgoing import Chunk, Dropped, Early, Outgoing, Reader
from hmc.integrations.vllm._tally import Tally

__all__ = ["Chunk", "Dropped", "Sender"]


_PREEMPTION = 1.0  # seconds for the pushes of a request that loses its blocks
_LOOK = 0.2  # seconds between two looks whether a peer is alive
_REMEMBERED = 4096
_MOST_READERS = 1024  # of a request; each has a thread


class Sender:
    """Pushes requests out of ``pools``, which all have the same blocks. The engine's thread calls; it waits in ``begin`` only.

    ``engine``: id of this engine; offers to another one are refused. ``model``: fingerprint that a reader's must equal, or "".
    ``seconds``: how long a finished request waits for a reader, and a push for a reader that is behind. While this process is
    paused no time passes. ``credits``: layers of a request that may be in flight, or not yet checked by the reader, in each pool.
    """

    def __init__(
        self,
        ctx: Context,
        pools: Sequence[kv.Pool],
        engine: str,
        model: str,
        seconds: float,
        credits: int = 16,
        tally: Tally | None = None,
    ) -> None:
        self._pools = list(pools)
        self._engine = engine
        self._model = model
        self._seconds = seconds
        self._credits = credits
        self._tally = tally or Tally()
        self._layers = range(self._pools[0].layout.layers[0], sum(self._pools[0].layout.layers))
        self._changed = threading.Condition()
        self._outgoing: dict[str, Outgoing] = {}  # by transfer
        self._clock = RunningClock(lambda: bool(self._outgoing))
        self._step: list[Outgoing] = []  # what the engine computes now
        self._early = Early()
        self._ended: set[str] = set()  # not yet returned by finished()
        self._past: OrderedDict[str, str] = OrderedDict()  # why transfers are not here any more
        self._listening = Listening(ASK_TAG, Ask.decode, self._asked)
        self._listening.accept(ctx)

    # ---- the engine's steps ----

    def begin(self, chunks: Iterable[Chunk], preempted: Iterable[str] = ()) -> None:
        """A step begins, which computes ``chunks``. The blocks of ``preempted`` may change on return: it waits for their pushes."""
        for request in preempted:
            self._preempt(request)
        with self._changed:
            self._step = []
            for chunk in chunks:
                one = self._outgoing.get(chunk.transfer)
                if one is None:
                    one = Outgoing(chunk.request, chunk.transfer, chunk.tokens, chunk.prompt)
                    self._outgoing[chunk.transfer] = one
                    self._clock.wake()
                    self._past.pop(chunk.transfer, None)
                elif one.request != chunk.request:
                    logger.warning(
                        "HMC: request %s is not pushed: transfer_id %s is that of request %s; give each request its own",
                        chunk.request,
                        chunk.transfer,
                        one.request,
                    )
                    continue
                one.blocks, one.coming, one.saved = chunk.blocks, chunk.end, set()
                self._step.append(one)
                for peer, ask in self._early.take(chunk.transfer):
                    self._handle(peer, ask, one)
            self._changed.notify_all()

    def saved(self, layer: int) -> None:
        """The step has computed a layer."""
        with self._changed:
            for one in self._step:
                one.saved.add(layer)
            if self._step:
                self._changed.notify_all()

    def end(self) -> None:
        """The step has ended. Requests whose layers were not all saved in it are not pushed."""
        with self._changed:
            for one in self._step:
                if one.saved.issuperset(self._layers):
                    one.done = max(one.done, one.coming)
                else:
                    one.error = f"the prefill engine saved layers {sorted(one.saved)} of {self._layers} in a step"
                    one.cancel(one.error)
            self._step = []
            self._changed.notify_all()

    def keep(self, request: str, transfer: str) -> None:
        """A request has finished. Its blocks must not change until :meth:`finished` returns it."""
        with self._changed:
            one = self._outgoing.get(transfer)
            if one is None or one.request != request:
                self._ended.add(request)
                return
            one.kept, one.expires = True, self._clock.now() + self._seconds

    def drop(self, dropped: Dropped) -> None:
        """A request was aborted. ``held``: its blocks must not change until :meth:`finished` returns it."""
        with self._changed:
            one = self._outgoing.get(dropped.transfer)
            if one is None:
                one = Outgoing(dropped.request, dropped.transfer, 0)
                self._outgoing[dropped.transfer] = one
                self._clock.wake()
                for peer, ask in self._early.take(dropped.transfer):
                    if ask.what == "offer":
                        self._refuse(peer, ask, "the prefill request was aborted")
            elif one.request != dropped.request:
                if dropped.held:
                    self._ended.add(dropped.request)
                return
            one.error = one.error or "the prefill request was aborted"
            one.kept = dropped.held
            one.cancel(one.error)
            if not dropped.held:
                self._forget(one, one.error)
            self._changed.notify_all()

    def finished(self) -> set[str]:
        """The requests whose blocks may change now: every reader has ended, or none has come in time. Each is returned once."""
        now = self._clock.now()
        with self._changed:
            for one in [one for one in self._outgoing.values() if one.kept and not one.busy]:
                if one.error:
                    self._forget(one, one.error)
                elif not one.readers and one.ended >= one.expected:
                    self._forget(one, "every reader has ended")
                    self._tally.count("requests_lent")
                elif not one.readers and now > one.expires:
                    self._forget(one, f"no reader came within {self._seconds:g} s")
                    self._tally.count("requests_expired")
                    logger.warning(
                        "HMC: request %s waited for %g s, and no decode engine took it; its blocks are free now",
                        one.request,
                        self._seconds,
                    )
            ended, self._ended = self._ended, set()
        return ended

    @property
    def held(self) -> int:
        """Requests that are pushed, or wait for a reader."""
        with self._changed:
            return len(self._outgoing)

    def serve(self, peer: Peer) -> None:
        """Takes offers of a peer, until it is lost. Idempotent."""
        self._listening.add(peer)

    def close(self) -> None:
        """Takes no further offers, and ends what is pushed."""
        self._listening.close()
        with self._changed:
            for one in self._outgoing.values():
                one.error = one.error or "the prefill engine ends"
                one.cancel(one.error)
            self._changed.notify_all()
        self._clock.close()

    def _preempt(self, request: str) -> None:
        """Returns when the blocks of a request may change, also beside a stopped reader. Its tokens are computed once more."""
        with self._changed:
            for one in [one for one in self._outgoing.values() if one.request == request]:
                until = self._clock.now() + _PREEMPTION
                while one.busy and (left := until - self._clock.now()) > 0:
                    self._changed.wait(left)
                if one.busy:
                    one.cancel("the prefill engine required the blocks for another request")
                one.done = one.coming = 0
                one.blocks = []

    def _forget(self, one: Outgoing, why: str) -> None:
        """Under the lock."""
        del self._outgoing[one.transfer]
        if one.kept:
            self._ended.add(one.request)
        self._past[one.transfer] = why
        while len(self._past) > _REMEMBERED:
            self._past.popitem(last=False)

    # ---- the readers ----

    def _asked(self, peer: Peer, ask: Ask) -> None:
        with self._changed:
            if ask.what == "renew":
                for one in [self._outgoing[name] for name in ask.requests if name in self._outgoing]:
                    one.expires = self._clock.now() + self._seconds
                return
            if ask.what == "lease":
                answer = Answer(error="this engine has mode push: give both engines the same mode in kv_connector_extra_config")
                with contextlib.suppress(HmcError):
                    peer.isend(answer.encode(), tag=ask.answer)
                return
            transfer = ask.requests[0]
            found = self._outgoing.get(transfer)
            wrong = self._wrong(ask)
            if wrong or (found is None and transfer in self._past):
                self._refuse(peer, ask, wrong or f"request {transfer} is not here: {self._past[transfer]}")
            elif found is not None:
                self._handle(peer, ask, found)
            else:
                for other, early in self._early.add(peer, ask):
                    self._refuse(other, early, "too many requests are waited for")

    def _wrong(self, ask: Ask) -> str:
        """Why an offer is refused, whatever its request."""
        if ask.engine and ask.engine != self._engine:
            return f"this engine is {self._engine}, not {ask.engine}: the prefill engine was restarted"
        if ask.model and self._model and ask.model != self._model:
            return f"the decode engine has another model ({ask.model}, here {self._model}): serve the same model on both sides"
        return ""

    def _refuse(self, peer: Peer, ask: Ask, why: str) -> None:
        if ask.what == "offer":
            with contextlib.suppress(HmcError):  # a lost reader needs no answer
                peer.isend(Piece(ask.answer, error=why).encode(), tag=PIECE_TAG)

    def _handle(self, peer: Peer, ask: Ask, one: Outgoing) -> None:
        """An offer or a release of a request that is here. Under the lock."""
        if ask.prompt and one.prompt and ask.prompt != one.prompt:
            # Not one of its readers: it waits for those all the same.
            self._refuse(peer, ask, f"request {one.transfer} has another prompt here: give each request a transfer_id of its own")
            return
        one.expected = ask.readers
        if ask.what == "release":
            for reader in one.readers:
                if ask.answer and reader.offer.answer == ask.answer:
                    reader.cancel("the decode engine does not take it any more")
                    self._changed.notify_all()
                    return
            one.ended += not ask.answer  # one with an offer has ended already
        elif any(reader.peer == peer and reader.offer.answer == ask.answer for reader in one.readers):
            logger.warning("HMC: %s has offered blocks for request %s twice with one number", peer.name, one.request)
        elif len(one.readers) >= _MOST_READERS:
            self._refuse(peer, ask, f"{_MOST_READERS} readers of request {one.transfer} are served already")
        elif one.error or ask.first + ask.tokens > one.tokens or ask.tokens < 1:
            end = ask.first + ask.tokens - 1
            self._refuse(peer, ask, one.error or f"tokens {ask.first} to {end} were asked for; the prompt has {one.tokens}")
            one.ended += 1
        else:
            reader = Reader(peer, ask, ask.first)
            one.readers.append(reader)
            try:
                run_on_thread(lambda: self._serve(one, reader), "hmc.vllm push")
            except HmcError as error:  # no thread left
                one.readers.remove(reader)
                one.ended += 1
                self._refuse(peer, ask, str(error))

    def _serve(self, one: Outgoing, reader: Reader) -> None:
        """Pushes to a reader what the engine computes, until it has all. On a thread of its own."""
        why = ""
        try:
            while reader.sent < reader.end:
                end = self._computed(one, reader, reader.sent + 1)
                self._push(one, reader, end)
                reader.sent = end
        except HmcError as error:
            why = str(error)
            if not isinstance(error, HmcCancelledError):
                logger.warning("HMC: request %s was not pushed to %s: %s", one.request, reader.peer.name, error)
        except Exception as error:  # the reader must be told whatever happens
            why = repr(error)
            logger.exception("HMC: request %s was not pushed to %s", one.request, reader.peer.name)
        finally:
            with self._changed:
                one.readers.remove(reader)
                one.ended += 1
                self._changed.notify_all()
            if why:
                self._refuse(reader.peer, reader.offer, why)

    def _computed(self, one: Outgoing, reader: Reader, end: int, layer: int | None = None) -> int:
        """Waits until the engine computes the tokens before ``end``, or has computed them in ``layer``. Returns how far it is."""
        with self._changed:
            while True:
                self._check(one, reader)
                far = max(one.done, one.coming)
                if far >= end and (layer is None or one.has(layer, end)):
                    return min(far, reader.end)
                self._changed.wait(_LOOK)

    def _check(self, one: Outgoing, reader: Reader) -> None:
        """Raises where a reader gets nothing more. Under the lock."""
        if one.error or reader.cancelled:
            raise HmcCancelledError(one.error or reader.cancelled)
        if not reader.peer.alive:
            raise PeerLostError(f"the decode worker {reader.peer.name} is lost")

    def _push(self, one: Outgoing, reader: Reader, end: int) -> None:
        """Pushes the tokens from ``reader.sent`` to ``end``, each layer as soon as it is computed."""
        tickets = self._tickets(reader, end)
        try:
            with self._changed:
                self._computed(one, reader, end)  # once more: the request may have been preempted meanwhile
                for pool, ticket in zip(self._pools, tickets, strict=True):
                    push = pool.push(reader.peer, ticket, one.blocks, session=one.request, credits=self._credits)
                    reader.pushes.append(push)
                pushes = list(reader.pushes)
            for layer in self._layers:
                self._computed(one, reader, end, layer)
                for push in pushes:
                    self._clock.patiently(partial(push.ready, layer), self._seconds, partial(getattr, push, "done"))
            for push in pushes:
                self._clock.patiently(push.close, self._seconds, partial(getattr, push, "done"))
        finally:
            for push in reader.pushes:
                push.cancel()  # what one that has not ended reads from now on is never accepted
            with self._changed:
                reader.pushes = []
                self._changed.notify_all()

    def _tickets(self, reader: Reader, end: int) -> list[bytes]:
        """The reader's tickets for the next tokens, one for each pool."""
        layout, answer = self._pools[0].layout, secrets.randbits(61) | 1
        piece = Piece(reader.offer.answer, reader.sent, end - reader.sent, answer, layout.layers, layout.heads)
        sent = reader.peer.isend(piece.encode(), tag=PIECE_TAG)
        try:
            self._clock.patiently(sent.wait, self._seconds, lambda: sent.done)
        except HmcTimeoutError:
            sent._withdraw()  # else its answer would stay unread
            raise
        found = answer_of(reader.peer, answer, self._seconds, self._clock)
        if len(found.tickets) != len(self._pools):
            raise InvalidArgumentError(f"{len(found.tickets)} tickets; this engine has {len(self._pools)} pools")
        return found.tickets
