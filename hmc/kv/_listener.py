"""Records of pushes: one posted receive per peer takes the records of every session.

A receive per session would have to be withdrawn when the session is aborted, while its record may be arriving. Here no receive is
withdrawn before the pool closes. Records of sessions that have ended are answered, so that neither side waits for the other.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable

import numpy as np

from hmc._core import Peer, Work
from hmc.errors import ClosedError, HmcError, InvalidArgumentError
from hmc.kv._wire import ABORT, END, LAYER, RECORD_WORDS, REFUSED, START, STOP, WORDS, Record

__all__ = ["Listener", "Taker"]

Taker = Callable[[Record | BaseException], None]
_MOST_BEGUN = 1 << 16  # pushes of a peer that are remembered
_MOST_ANSWERS = 1024  # answers to a peer that does not read them


class Listener:
    """Receives the records that peers send to a pool, and hands each to the transfer it belongs to. Any thread.

    A receive is posted from the first transfer with a peer until the peer leaves or the pool closes. It is posted again on the
    dispatcher thread, which never waits here. ``on_left`` is called there when a peer has left.
    """

    def __init__(self, tag: int, on_left: Callable[[], None]) -> None:
        self.tag = tag
        self._on_left = on_left
        self._lock = threading.Lock()
        self._posted: dict[Peer, Work] = {}
        self._takers: dict[tuple[Peer, int], Taker] = {}
        self._begun: dict[Peer, dict[int, None]] = {}
        self._answers: dict[Peer, deque[Work]] = {}  # of posted peers, in flight
        self._closed = False

    def open(self, peer: Peer, generation: int, take: Taker) -> None:
        """Hands a session's records to ``take``, in order, and one exception when the peer is lost. ``take`` must not wait.

        Raises InvalidArgumentError for a generation that is open already, PeerLostError, ClosedError.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the pool is closed")
            if (peer, generation) in self._takers:
                raise InvalidArgumentError("the ticket is in use by another push: each receive() takes one push")
            if peer not in self._posted:
                self._post(peer)
            self._takers[peer, generation] = take

    def watch(self, peer: Peer) -> None:
        """Receives from a peer, so that its leaving is noticed. Raises PeerLostError."""
        with self._lock:
            if not self._closed and peer not in self._posted:
                self._post(peer)

    def begin(self, peer: Peer, generation: int) -> bool:
        """Notes that a ticket's push sends its first record. False where an earlier push did: its answers may be on their way."""
        with self._lock:
            if peer not in self._posted:
                return True  # it has left: sending says so
            begun = self._begun.setdefault(peer, {})
            if generation in begun:
                return False
            begun[generation] = None
            if len(begun) > _MOST_BEGUN:
                del begun[next(iter(begun))]
            return True

    def end(self, peer: Peer, generation: int, take: Taker) -> None:
        """Hands no further record of the session to ``take``: this answers them. Idempotent."""
        with self._lock:
            if self._takers.get((peer, generation)) == take:
                del self._takers[peer, generation]

    def close(self) -> None:
        """Withdraws every receive. The transfers have ended."""
        with self._lock:
            self._closed = True
            posted, self._posted = self._posted, {}
            self._answers.clear()
        for work in posted.values():
            work._withdraw()

    @property
    def sessions(self) -> int:
        """Sessions that records are handed to now."""
        with self._lock:
            return len(self._takers)

    def refuse(self, peer: Peer, record: Record) -> None:
        """Answers a record of a session that is not here. Never waits."""
        if record.kind in (START, LAYER, END):
            kind = REFUSED
        elif record.kind == STOP:
            kind = ABORT  # its push has ended here, and writes no more
        else:
            return  # answers need no answer
        with self._lock:
            if peer not in self._posted:
                return  # it has left
            answers = self._answers.setdefault(peer, deque())
            while answers and answers[0].done:
                answers.popleft()
            if len(answers) >= _MOST_ANSWERS:
                return
            with contextlib.suppress(HmcError):  # a lost peer waits for nothing
                answers.append(peer.isend(Record(kind, record.generation, self.tag).encode(), tag=record.answer))

    def _post(self, peer: Peer) -> None:
        words = np.zeros(RECORD_WORDS, WORDS)
        posted: list[Work] = []
        try:
            # In one call: what a signal's handler raises behind irecv() would leave a receive that takes a record and drops it.
            posted.extend(map(peer.irecv, (words,), (self.tag,)))
            self._posted[peer] = posted[0]
            posted[0].add_done_callback(lambda done: self._arrived(peer, done, words))
        except BaseException:
            self._posted.pop(peer, None)
            for work in posted:
                work._withdraw()
            raise

    def _arrived(self, peer: Peer, work: Work, words: np.ndarray) -> None:
        error: BaseException | None = work.error()
        record = None
        with self._lock:
            if self._posted.get(peer) is not work:
                return  # withdrawn
            if error is None and work.info.bytes == words.nbytes:
                record = Record.decode(words)
            if error is None or isinstance(error, InvalidArgumentError):  # a message of another length is no record
                try:
                    self._post(peer)
                    error = None
                except HmcError as lost:
                    error = lost
            if record is not None:
                take = self._takers.get((peer, record.generation))
                if take is not None:
                    take(record)
                    record = None
            if error is not None:
                self._posted.pop(peer, None)
                self._begun.pop(peer, None)
                self._answers.pop(peer, None)
                for key in [key for key in self._takers if key[0] == peer]:
                    self._takers.pop(key)(error)
        if error is not None:
            self._on_left()
        elif record is not None:
            self.refuse(peer, record)
