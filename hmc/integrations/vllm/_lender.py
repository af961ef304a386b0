"""The prefill side of a worker: keeps the blocks of finished requests, and lends them to the decode workers that ask."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from hmc import kv
from hmc._core import Context, Peer
from hmc._process import start_thread
from hmc.errors import HmcError, InvalidArgumentError
from hmc.integrations.vllm._clock import RunningClock
from hmc.integrations.vllm._listening import Listening
from hmc.integrations.vllm._log import logger
from hmc.integrations.vllm._messages import ASK_TAG, PIECE_TAG, Answer, Ask, Piece
from hmc.integrations.vllm._tally import Tally

__all__ = ["Lender"]


# Seconds that a question about an unknown request waits: the proxy may be faster than the engine's next step.
_GRACE = 5.0
_LOOK = 0.05
_MOST_WAITING = 4096  # such questions; further ones do not wait
_REMEMBERED = 4096


@dataclass
class _Kept:
    """A finished request whose blocks stay."""

    request: str
    blocks: list[int]
    tokens: int
    expires: float  # on the lender's clock
    prompt: str  # digest of its tokens, or ""
    readers: int = 1  # that each read, or release
    reading: int = 0  # that have leases, or get them now
    ended: int = 0

    def differs(self, ask: Ask) -> bool:
        """Whether a question is about another prompt, as far as can be told. Its asker is not one of the readers."""
        known = ask.prompt and self.prompt and ask.first + ask.tokens == self.tokens
        return bool(known and ask.prompt != self.prompt)


class Lender:
    """Lends the blocks of finished requests out of ``pools``, which all have the same blocks.

    ``engine``: id of this engine; questions for another one are refused. ``model``: fingerprint that a reader's must equal, or "".
    ``seconds``: how long a request is kept without a sign of life of a reader. While this process is paused no time passes.
    Any thread.
    """

    def __init__(
        self, ctx: Context, pools: Sequence[kv.Pool], engine: str, model: str, seconds: float, tally: Tally | None = None
    ) -> None:
        self._pools = list(pools)
        self._engine = engine
        self._model = model
        self._seconds = seconds
        self._tally = tally or Tally()
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        # Questions about requests that may become known, by request; and until when, in this order.
        self._waiting: dict[str, list[tuple[Peer, Ask, float]]] = {}
        self._due: deque[tuple[float, str]] = deque()
        self._clock = RunningClock(lambda: bool(self._kept or self._waiting))
        self._ended: set[str] = set()  # not yet returned by finished()
        self._past: OrderedDict[str, str] = OrderedDict()  # why requests are kept no more
        # Questions, requests that are known from now on, and None at the end.
        self._asked: queue.SimpleQueue[tuple[Peer, Ask] | str | None] = queue.SimpleQueue()
        self._closed = False
        self._listening = Listening(ASK_TAG, Ask.decode, lambda peer, ask: self._asked.put((peer, ask)))
        self._listening.accept(ctx)
        start_thread(self._serve, "hmc.vllm lend")

    def keep(self, request: str, blocks: Sequence[int], tokens: int, prompt: str = "") -> None:
        """Keeps the ``tokens`` tokens of a finished request. Its blocks must not change until :meth:`finished` returns it.

        ``prompt``: their digest, or "".
        """
        kept = _Kept(request, list(blocks), tokens, self._clock.now() + self._seconds, prompt)
        with self._lock:
            self._kept[request] = kept
        self._clock.wake()
        self._asked.put(request)

    def finished(self) -> set[str]:
        """The requests whose blocks may change now: every reader has ended, or none has come in time. Each is returned once."""
        now = self._clock.now()
        with self._lock:
            expired = [kept for kept in self._kept.values() if kept.reading == 0 and now > kept.expires]
            for kept in expired:
                self._forget(kept, f"no reader came within {self._seconds:g} s")
                self._tally.count("requests_expired")
                logger.warning(
                    "HMC: request %s was kept for %g s, and no decode engine read it; its blocks are free now",
                    kept.request,
                    self._seconds,
                )
            ended, self._ended = self._ended, set()
        return ended

    @property
    def held(self) -> int:
        """Requests that are kept."""
        with self._lock:
            return len(self._kept)

    def serve(self, peer: Peer) -> None:
        """Takes questions of a peer, until it is lost. Idempotent."""
        self._listening.add(peer)

    def close(self) -> None:
        """Lends no more. Leases end with their pools."""
        self._closed = True
        self._listening.close()
        self._asked.put(None)
        self._clock.close()

    def _serve(self) -> None:
        while not self._closed:
            with contextlib.suppress(queue.Empty):
                asked = self._asked.get(timeout=_LOOK if self._due else None)
                if isinstance(asked, str):
                    self._look(self._waiting.pop(asked, []))
                elif asked is not None:
                    self._ask(*asked)
            while self._due and self._due[0][0] <= self._clock.now():
                self._look(self._waiting.pop(self._due.popleft()[1], []))

    def _ask(self, peer: Peer, ask: Ask) -> None:
        """Handles a new question, or lets it wait."""
        until = self._clock.now() + (_GRACE if len(self._due) < _MOST_WAITING else 0.0)
        self._look([(peer, ask, until)])
        if ask.requests[0] in self._waiting:
            self._due.append((until, ask.requests[0]))
            self._clock.wake()

    def _look(self, questions: list[tuple[Peer, Ask, float]]) -> None:
        """Handles questions whose requests are known, or are waited for no more."""
        for one in questions:
            if not self._handled(*one):
                self._waiting.setdefault(one[1].requests[0], []).append(one)

    def _handled(self, peer: Peer, ask: Ask, until: float) -> bool:
        try:
            return self._handle(peer, ask, until)
        except Exception:  # an error of one question must not end the thread that answers all
            logger.exception("HMC: %s of %s by %s failed", ask.what, ask.requests, peer.name)
            return True

    def _handle(self, peer: Peer, ask: Ask, until: float) -> bool:
        """Handles a question. False: its request may still become known."""
        if ask.what == "renew":
            self._renew(ask)
            return True
        if ask.what == "offer":
            why = "this engine has mode pull: give both engines the same mode in kv_connector_extra_config"
            with contextlib.suppress(HmcError):
                peer.isend(Piece(ask.answer, error=why).encode(), tag=PIECE_TAG)
            return True
        request = ask.requests[0]
        is_reader = False
        with self._lock:
            kept = self._kept.get(request)
            past = self._past.get(request)
            if kept is not None:
                kept.reading += 1
                is_reader = ask.engine == self._engine and not kept.differs(ask)
                if is_reader:
                    kept.readers = ask.readers
        try:
            if ask.engine != self._engine:
                raise InvalidArgumentError(f"this engine is {self._engine}, not {ask.engine}: the prefill engine was restarted")
            if kept is None:
                if past is None and self._clock.now() < until:
                    return False
                raise InvalidArgumentError(f"request {request} is not kept here: {past or 'it is unknown, or was aborted'}")
            if kept.differs(ask):
                raise InvalidArgumentError(f"request {request} has other tokens here than the prompt of the decode engine")
            layout = self._pools[0].layout
            answer = Answer(self._lend(peer, ask, kept), layout.layers, layout.heads) if ask.what == "lease" else None
        except Exception as error:
            answer = Answer(error=str(error) or repr(error))
            if not isinstance(error, HmcError):
                logger.exception("HMC: %s of request %s by %s failed", ask.what, request, peer.name)
        finally:
            if kept is not None:
                # Leases count for themselves by now.
                self._reader_left(kept, ended=ask.what == "release" and is_reader)
        if ask.what == "lease" and answer is not None:
            with contextlib.suppress(HmcError):  # a lost reader needs no answer
                peer.isend(answer.encode(), tag=ask.answer)
        return True

    def _lend(self, peer: Peer, ask: Ask, kept: _Kept) -> list[bytes]:
        """Leases of every pool for a reader, which has ended when they all have, or when there are none."""
        left = len(self._pools)  # leases of this reader that have not ended
        leases: list[kv.Lease] = []

        def ended(count: int) -> None:
            nonlocal left
            with self._lock:
                left -= count
                last = left == 0
            if last:
                self._reader_left(kept, ended=True)

        with self._lock:
            kept.reading += 1
        try:
            blocks, first = self._blocks(ask, kept)
            for pool in self._pools:
                leases.append(
                    pool.lease(
                        kept.request,
                        blocks,
                        ask.tokens,
                        first=first,
                        seconds=self._seconds,
                        peer=peer,
                        on_end=lambda _: ended(1),
                    )
                )
        except BaseException:
            for lease in leases:
                lease.release()
            ended(len(self._pools) - len(leases))
            raise
        return [lease.ticket for lease in leases]

    def _blocks(self, ask: Ask, kept: _Kept) -> tuple[list[int], int]:
        """The blocks of the tokens that were asked for, and where in the first one they begin."""
        if ask.model and self._model and ask.model != self._model:
            raise InvalidArgumentError(
                f"the decode engine has another model ({ask.model}, here {self._model}): serve the same model on both sides"
            )
        if ask.tokens < 1 or ask.first + ask.tokens > kept.tokens:
            raise InvalidArgumentError(
                f"tokens {ask.first} to {ask.first + ask.tokens - 1} of request {kept.request} were asked for; it has {kept.tokens}"
            )
        block = self._pools[0].layout.block
        return kept.blocks[ask.first // block : -(-(ask.first + ask.tokens) // block)], ask.first % block

    def _renew(self, ask: Ask) -> None:
        if ask.engine != self._engine:
            return
        with self._lock:
            for request in ask.requests:
                kept = self._kept.get(request)
                if kept is not None:
                    kept.expires = self._clock.now() + self._seconds

    def _reader_left(self, kept: _Kept, *, ended: bool) -> None:
        with self._lock:
            kept.reading -= 1
            kept.ended += ended
            if kept.reading == 0 and kept.ended >= kept.readers:
                self._forget(kept, "every reader has ended")
                self._tally.count("requests_lent")

    def _forget(self, kept: _Kept, why: str) -> None:
        """Under the lock."""
        if self._kept.pop(kept.request, None) is None:
            return
        self._ended.add(kept.request)
        self._past[kept.request] = why
        while len(self._past) > _REMEMBERED:
            self._past.popitem(last=False)
