"""Messages between processes: sent as frames, taken by a dispatcher thread as they arrive."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from operator import methodcaller
from typing import Any

from hmc._core import Peer, Work
from hmc.errors import ClosedError, HmcError
from hmc.integrations._shared import frames as wire

__all__ = ["Answers", "Receiver", "frames_to_send", "send", "send_frames"]

_SEND_SECONDS = 10.0
_MOST_REQUESTS = 1024  # of a peer that wait for their answer
_MOST_ROUNDS = 3  # of a drain. The second has all that had arrived when it began
_TAKE = methodcaller("_take")


class _Inlet:
    """What a peer sends. The thread that finds it first takes it: the dispatcher thread, or one that asks for notifications."""

    def __init__(self, peer: Peer, deliver: Callable[[Peer, int, bytes], None], ended: Callable[[_Inlet], None]) -> None:
        self.peer = peer
        self._deliver = deliver
        self._ended = ended
        self._assembler = wire.Assembler()
        self._lock = threading.Lock()
        self._frames: deque[tuple[int | None, bytes]] = deque()  # taken, and not yet delivered
        self._waiting: list[Any] = []  # the Work of the next notifications; none in between
        self._called = False  # whether that Work calls drain()
        self._over = False  # the peer has ended

    def drain(self) -> None:
        """Delivers what had arrived when it began. An interrupt loses at most the message that it meets; the next call goes on.

        A peer that sends without a pause holds up neither a caller nor, on the dispatcher thread, other peers.
        """
        rounds = 0
        with self._lock:
            while not self._over:
                while self._frames:
                    _, frame = self._frames.popleft()
                    message = self._assembler.add(frame)
                    if message is not None:
                        self._deliver(self.peer, *message)
                if not self._waiting or not self._called:
                    self._arm()
                    rounds += 1
                    if rounds == _MOST_ROUNDS:  # the dispatcher thread goes on
                        return
                elif not self._waiting[0].done:
                    return
                elif self._waiting[0].error() is not None:
                    self._end()
                else:  # by C functions only: an interrupt comes before or after them, not between
                    self._frames.extend(itertools.chain.from_iterable(map(_TAKE, map(self._waiting.pop, (0,)))))

    def _arm(self) -> None:
        try:
            if not self._waiting:
                self._called = False
                self._waiting.extend(map(self.peer._inotifications, (None,)))
            self._waiting[0].add_done_callback(lambda _: self.drain())
            self._called = True
        except HmcError:  # the peer has ended
            self._end()

    def _end(self) -> None:
        self._over = True
        self._waiting.clear()
        self._ended(self)


class Receiver:
    """Takes the messages of every peer as they arrive, so that no sender waits for the program. Any thread.

    Notifications stay until take(), without a bound: programs of NIXL and Mooncake may take them late, and a sender does not expect
    to wait or to lose one. A bound would also hold up the messages of these libraries behind them, such as metadata.

    Refers to no Context but by its peers, until they end: a Context refers to it. Messages wait at the peers until start().
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._early: list[Peer] | None = []  # until start()
        self._inlets: list[_Inlet] = []
        self._notifs: list[tuple[str, bytes]] = []
        self.control: weakref.WeakMethod[Callable[[Peer, int, bytes], None]] | None = None  # gets the other messages

    def start(self) -> None:
        """Begins to take messages, once the program's part of the process can handle them."""
        with self._lock:
            early, self._early = self._early or [], None
        for peer in early:
            self.watch(peer)

    def watch(self, peer: Peer) -> None:
        """Receives from a peer until it ends. Has no effect on one that is watched, but for an interrupted call, which it ends."""
        with self._lock:
            if self._early is not None:
                self._early.append(peer)
                return
            inlet = next((one for one in self._inlets if one.peer == peer), None)
            if inlet is None:
                inlet = _Inlet(peer, self._deliver, self._forget)
                self._inlets.append(inlet)
        inlet.drain()  # also begins to wait

    def take(self) -> list[tuple[str, bytes]]:
        """The notifications since the last call with the names of their senders, in order of arrival.

        Raises ClosedError in a forked child.
        """
        if self._process != os.getpid():  # a thread of the parent may have held a lock when this process was made
            raise ClosedError("notifications belong to the parent of a fork: make another agent or engine in this process")
        with self._lock:
            inlets = list(self._inlets)
        for inlet in inlets:
            inlet.drain()
        with self._lock:
            taken, self._notifs = self._notifs, []
        return taken

    def _forget(self, inlet: _Inlet) -> None:
        with self._lock:
            self._inlets = [one for one in self._inlets if one is not inlet]

    def _deliver(self, peer: Peer, kind: int, message: bytes) -> None:
        if kind == wire.NOTIFY:
            with self._lock:
                self._notifs.append((peer.name, message))
            return
        control = self.control() if self.control is not None else None
        if control is not None:
            control(peer, kind, message)


_numbers = itertools.count(1)


def frames_to_send(kind: int, message: bytes) -> list[bytes]:
    """The frames of a message for send_frames(). Raises InvalidArgumentError."""
    return wire.frames(kind, message, next(_numbers))[::-1]


def send_frames(peer: Peer, unsent: list[bytes], works: list[Work]) -> None:
    """Sends ``unsent`` from its end without waiting, and adds to ``works``. Raises HmcError.

    By C functions only: an interrupt comes before or after them, and neither loses nor repeats a frame.
    """
    works.extend(map(peer._inotify, map(unsent.pop, itertools.repeat(-1, len(unsent))), itertools.repeat(None)))


def send(peer: Peer, kind: int, message: bytes) -> None:
    """Sends a message. Waits, at most 10 s, while the peer does not take thousands before it. Raises HmcError."""
    for frame in wire.frames(kind, message, next(_numbers)):
        peer.notify(frame, timeout=_SEND_SECONDS)


class Answers:
    """Answers requests of peers, those of a peer one after another, so that one that does not read holds one answer. Any thread."""

    def __init__(self, answer: Callable[[bytes], bytes], logger: logging.Logger, most: int = _MOST_REQUESTS) -> None:
        """``answer``: the answer to a request. ``most``: requests of a peer that wait; older ones are discarded."""
        self._answer = answer
        self._logger = logger
        self._most = most
        self._lock = threading.Lock()
        self._waiting: dict[Peer, deque[bytes]] = {}  # behind an answer in flight

    def ask(self, peer: Peer, request: bytes) -> None:
        """Answers now or later, without waiting. The log says why an answer failed."""
        with self._lock:
            waiting = self._waiting.get(peer)
            if waiting is not None:
                waiting.append(request)
                return
            self._waiting[peer] = deque(maxlen=self._most)
        self._run(peer, request)

    def _run(self, peer: Peer, request: bytes | None) -> None:
        while request is not None:
            try:
                works: list[Work] = []
                send_frames(peer, frames_to_send(wire.METADATA, self._answer(request)), works)
                works[-1].add_done_callback(lambda _: self._run(peer, self._next(peer)))
                return
            except Exception as error:  # a peer is not to end this thread
                self._logger.error("a message of %s was ignored: %s", peer.name, error)
            request = self._next(peer)

    def _next(self, peer: Peer) -> bytes | None:
        with self._lock:
            waiting = self._waiting[peer]
            if waiting and peer.alive:
                return waiting.popleft()
            del self._waiting[peer]
            return None
