"""Questions to prefill workers, over one connection to each."""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hmc._core import Context, Peer
from hmc._process import start_thread
from hmc.errors import HmcError, HmcTimeoutError, LeaseExpiredError, PeerLostError
from hmc.integrations.vllm._clock import RunningClock
from hmc.integrations.vllm._log import logger
from hmc.integrations.vllm._messages import ASK_TAG, MAX_BYTES, Answer, Ask
from hmc.integrations.vllm._params import Remote
from hmc.integrations.vllm._ranks import Source

__all__ = ["CONNECT", "Asking", "answer_of"]


CONNECT = 10.0  # seconds to connect, and to send a question
_MOST_NAMES = 256  # of a message, which has at most MAX_BYTES


def answer_of(peer: Peer, tag: int, timeout: float, clock: RunningClock | None = None) -> Answer:
    """The answer that a peer sends with a tag of its own. Raises ProtocolError, LeaseExpiredError with a refusal, HmcError.

    One that is later than ``timeout`` seconds, of ``clock`` if given, is taken and discarded: it would stay unread as long as the
    peer lives.
    """
    array = np.empty(MAX_BYTES, np.uint8)
    work = peer.irecv(array, tag=tag)
    try:
        if clock is None:
            work.wait(timeout)
        else:
            clock.patiently(work.wait, timeout, lambda: work.done)
    except HmcTimeoutError:
        work.add_done_callback(lambda _, kept=array: None)  # keeps the array until then
        raise
    answer = Answer.decode(array[: work.info.bytes].tobytes())
    if answer.error:
        raise LeaseExpiredError(answer.error)
    return answer


class _Attempt:
    """To connect to an address: of one thread, while the others wait. ``failure``: they do not repeat it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.failure: Exception | None = None


@dataclass
class _Tell:
    """A message without an answer, otherwise ``like`` a question.

    ``answers``: offers that it ends, by address. ``skip``: addresses that do not get it.
    """

    what: str
    remotes: list[Remote]
    answers: Mapping[str, int]
    skip: Collection[str]
    like: Ask


class Asking:
    """Connections to prefill workers, and ``threads`` threads for jobs that may wait for them. Any thread.

    Messages without an answer have a thread of their own, and each engine its turn, connected ones first: one that is not reached
    delays the others by one attempt to connect, however many messages there are for it.

    ``sources`` names the prefill workers that have parts of a remote request. ``connected`` is called with each new peer.
    """

    def __init__(
        self, ctx: Context, sources: Callable[[Remote], list[Source]], connected: Callable[[Peer], None], threads: int
    ) -> None:
        self.sources = sources
        self._ctx = ctx
        self._connected = connected
        self._lock = threading.Lock()
        self._peers: dict[str, Peer] = {}
        self._connecting: dict[str, _Attempt] = {}
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._news = threading.Condition()
        self._tells: dict[Remote, list[_Tell]] = {}  # by engine
        self._closed = False
        self._threads = [start_thread(self._work, "hmc.vllm ask") for _ in range(threads)]
        self._threads.append(start_thread(self._tell, "hmc.vllm tell"))

    def do(self, job: Callable[[], None]) -> None:
        """Runs a job on one of the threads. Returns at once."""
        self._jobs.put(job)

    def tell(
        self,
        what: str,
        remotes: Sequence[Remote],
        answers: Mapping[str, int] | None = None,
        *,
        skip: Collection[str] = (),
        like: Ask | None = None,
    ) -> None:
        """Says something that has no answer about requests, all of one engine, to all of its workers. Returns at once.

        ``answers``, ``skip`` and ``like``: see :class:`_Tell`.
        """
        one = remotes[0]
        with self._news:
            waiting = self._tells.setdefault(one.workers, [])
            same = next((tell for tell in waiting if tell.what == what == "renew"), None)
            if same is None:
                waiting.append(_Tell(what, list(remotes), answers or {}, skip, like or Ask(what, one.engine, [])))
            else:
                known = {remote.request for remote in same.remotes}
                same.remotes += [remote for remote in remotes if remote.request not in known]
            self._news.notify_all()

    def say(self, ask: Ask, address: str, timeout: float = CONNECT) -> Peer:
        """Sends a question, and returns the peer that has got it."""
        peer = self.peer(address)
        peer.send(ask.encode(), tag=ASK_TAG, timeout=timeout)
        return peer

    def peer(self, address: str) -> Peer:
        """The peer at an address, connected at the first use and after it was lost. One attempt serves all that wait for it."""
        with self._lock:
            attempt = self._connecting.setdefault(address, _Attempt())
        with attempt.lock:
            if attempt.failure is not None:
                raise PeerLostError(f"{address} was not reached: {attempt.failure}")
            with self._lock:
                peer = self._peers.get(address)
            if peer is None or not peer.alive:
                try:
                    peer = self._ctx.connect(address, timeout=CONNECT)
                except Exception as error:
                    attempt.failure = error
                    with self._lock:  # clients name addresses: nothing of one without an engine is kept
                        self._connecting.pop(address, None)
                    raise
                self._connected(peer)
                with self._lock:
                    for gone in [other for other, known in self._peers.items() if not known.alive and other != address]:
                        del self._peers[gone]
                        self._connecting.pop(gone, None)
                    self._peers[address] = peer
            return peer

    def _connected_to(self, address: str) -> bool:
        with self._lock:
            peer = self._peers.get(address)
        return peer is not None and peer.alive

    def close(self, timeout: float = 10.0) -> None:
        """Waits until the jobs so far have ended, or until ``timeout`` seconds are over."""
        with self._news:
            self._closed = True
            self._news.notify_all()
        for _ in self._threads:
            self._jobs.put(None)
        until = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            try:
                job()
            except Exception:  # an error of one job must not end the thread of all
                logger.exception("HMC: a message to a prefill engine failed")

    def _tell(self) -> None:
        while True:
            with self._news:
                while not self._tells and not self._closed:
                    self._news.wait()
                if not self._tells:
                    return
                engine = self._next()
                waiting = self._tells.pop(engine)
            failed: set[str] = set()
            for tell in waiting:
                try:
                    self._tell_one(engine.engine, tell, failed)
                except Exception:  # an error of one message must not end the thread of all
                    logger.exception("HMC: a message to a prefill engine failed")

    def _next(self) -> Remote:
        """The engine whose turn it is: connected ones come first. Under the lock of ``_news``."""
        with self._lock:
            alive = [address for address, peer in self._peers.items() if peer.alive]
        connected = (engine for engine in self._tells if any(engine.has(address) for address in alive))
        return next(connected, None) or next(iter(self._tells))

    def _tell_one(self, engine: str, tell: _Tell, failed: set[str]) -> None:
        """Sends it to the engine's workers. One that fails is added to ``failed``; from then on only connected ones are tried."""
        requests = [remote.request for remote in tell.remotes]
        try:
            sources = self.sources(tell.remotes[0])
        except HmcError as error:
            logger.warning("HMC: %s of %d requests of %s failed: %s", tell.what, len(requests), engine, error)
            return
        for source in sources:
            if source.address in tell.skip or source.address in failed or (failed and not self._connected_to(source.address)):
                continue
            ask = dataclasses.replace(tell.like, answer=tell.answers.get(source.address, 0), readers=source.readers)
            try:
                for begin in range(0, len(requests), _MOST_NAMES):
                    self.say(dataclasses.replace(ask, requests=requests[begin : begin + _MOST_NAMES]), source.address)
            except HmcError as error:
                failed.add(source.address)
                logger.warning("HMC: %s of %d requests of %s failed: %s", tell.what, len(requests), engine, error)
