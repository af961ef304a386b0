"""A transfer: posted as often as wanted, one at a time."""

from __future__ import annotations

import functools
import os
import threading
import time
from typing import Any

from hmc._core import BlockBatch, Work
from hmc.errors import HmcError, StaleBufferError
from hmc.integrations._shared import frames as wire
from hmc.integrations._shared.batches import build, check_lengths
from hmc.integrations._shared.inbox import frames_to_send, send_frames
from hmc.integrations.nixl._errors import (
    nixlCancelledError,
    nixlInvalidParamError,
    nixlNotPostedError,
    nixlRepostActiveError,
    translate,
    translated,
)
from hmc.integrations.nixl._sides import Side
from hmc.integrations.nixl._types import nixl_xfer_op_t
from hmc.integrations.nixl.logging import get_logger

__all__ = ["Request", "nixlXferTelemetry"]

logger = get_logger(__name__)
_INLINE = 1023  # bytes of a notification that goes with its put


class nixlXferTelemetry:
    """Times of a transfer in microseconds, its bytes and its descriptors."""

    def __init__(self) -> None:
        self.startTime = 0
        self.postDuration = 0
        self.xferDuration = 0
        self.totalBytes = 0
        self.descCount = 0


class Request:
    """Descriptors of two sides, a direction and a notification. Any thread.

    The notification is sent after the last byte is in place, whether or not the program asks for the state: with the only batch of
    a put, else when every batch has ended, on the dispatcher thread.
    """

    def __init__(self, operation: nixl_xfer_op_t, near: Side, near_at: Any, far: Side, far_at: Any, message: bytes) -> None:
        if near.far is not None or far.far is None:
            raise nixlInvalidParamError(
                'the local side is prepared with "NIXL_INIT_AGENT", the remote side with the name of an agent'
            )
        self._writes = operation == nixl_xfer_op_t.NIXL_WRITE
        self._near, self._far = (near, near_at), (far, far_at)
        with translated():
            check_lengths(near.rows[near_at, 1], far.rows[far_at, 1])
        self.nbytes = int(near.rows[near_at, 1].sum())
        self.descs = len(near_at)
        self._message = message
        self._target = far.far
        self._batches: list[BlockBatch] = []
        self._made_for: tuple[int, int] | None = None
        self._lock = threading.RLock()  # a handle may be collected, and so withdrawn, anywhere
        self._process = os.getpid()
        self._works: list[Work] = []
        self._expected = 0  # the least number of works of a transfer whose post was not interrupted
        self._to_notify = b""  # what is to be sent once the works have ended; empty: nothing
        self._unsent: list[bytes] = []  # frames of it
        self._failure: BaseException | None = None
        self._state = ""
        self._released = False
        self._times = [0.0, 0.0, 0.0]  # started, posted, found complete
        self._prepare()

    def post(self, message: bytes) -> str:
        """Starts the transfer; ``message`` replaces the notification unless it is empty. Returns the state.

        Raises nixlRepostActiveError while it is in flight, nixlNotFoundError where memory or the agent is no longer known,
        nixlRemoteDisconnectError.
        """
        with self._lock:
            if self._advance() == "PROC":
                raise nixlRepostActiveError("the transfer is in flight: its state must be DONE or ERR before the next transfer")
            self._state = "ERR"  # where it cannot be posted
        started = time.monotonic()
        while True:
            self._prepare()  # may wait for the remote agent, so without the lock
            with self._lock:
                if self._released:
                    raise nixlInvalidParamError("the transfer was released by another thread")
                if self._state == "PROC":
                    raise nixlRepostActiveError("the transfer was posted by another thread")
                try:
                    self._start(message or self._message)
                except Exception:
                    if self._made_for == self._generations():
                        raise
                    continue  # a registration ended meanwhile; another one may hold the memory
                self._times[0], self._times[1] = started, time.monotonic()
                return self._advance()

    def poll(self) -> str:
        """ "PROC", "DONE", "ERR", or "" before the first post. Never waits."""
        with self._lock:
            return self._advance()

    def state(self) -> str:
        """As poll(). Raises nixlNotPostedError before the first post."""
        return self.poll() or self._not_posted()

    def withdraw(self) -> None:
        """Stops the transfer; a post() on another thread, which waits for the remote agent, then raises nixlInvalidParamError.

        Raises nixlRepostActiveError where some of it is too late to stop: it ends by itself, as ERR.
        Has no effect in a forked child.
        """
        if self._process != os.getpid():  # a thread of the parent may have held the lock when this process was made
            return
        with self._lock:
            if self._advance() != "PROC":
                self._released = True
                return
            self._failure = self._failure or nixlCancelledError("the transfer was cancelled")  # and does not notify
            for work in self._works:
                if not work.done:
                    work._withdraw()
            if self._advance() == "PROC":
                raise nixlRepostActiveError(
                    f"a transfer with agent {self._target.name} cannot be stopped; release it when its state is not PROC"
                )
            self._released = True

    def telemetry(self) -> nixlXferTelemetry:
        """Raises nixlNotPostedError before the first post."""
        self.state()
        told = nixlXferTelemetry()
        started, posted, ended = self._times
        told.startTime = int(started * 1e6)
        told.postDuration = int((posted - started) * 1e6)
        told.xferDuration = int((max(ended, posted) - started) * 1e6)
        told.totalBytes, told.descCount = self.nbytes, self.descs
        return told

    def _not_posted(self) -> str:
        raise nixlNotPostedError("the transfer has not been posted: call transfer()")

    def _generations(self) -> tuple[int, int]:
        return self._near[0].generation, self._far[0].generation

    def _prepare(self) -> None:
        (near, near_at), (far, far_at) = self._near, self._far
        while self._target.removed or self._made_for != self._generations():
            here, there = near.find(near_at), far.find(far_at)
            made_for = (here.generation, there.generation)
            try:
                self._batches = build(near.rows[near_at, 1], here, there, self._target)
            except HmcError as error:
                if isinstance(error, StaleBufferError):
                    self._target.forget_ended()
                    if made_for != self._generations():
                        continue  # another registration may hold the memory
                raise translate(error) from error
            self._made_for = made_for
            return  # a registration that comes or ends meanwhile is found by the post

    def _start(self, message: bytes) -> None:
        inline = self._writes and len(self._batches) == 1 and 0 < len(message) <= _INLINE
        notify = wire.frames(wire.NOTIFY, message, 0)[0] if inline else None
        self._message, self._to_notify = message, b"" if inline else message
        self._unsent, self._works = [], []
        self._failure, self._expected = None, len(self._batches)
        self._state = "PROC"
        peer = self._target.peer
        post = functools.partial(peer.put_blocks, notify=notify) if self._writes else peer.get_blocks
        try:
            self._works.extend(map(post, self._batches))  # by C functions only: an interrupt loses no Work
        except HmcError as error:
            self._failure = error  # what was posted before ends first
            if isinstance(error, StaleBufferError):
                self._target.forget_ended()
            if not self._works:
                self._state = "ERR"
                raise translate(error) from error
            return
        if self._to_notify:
            for work in self._works:
                work.add_done_callback(lambda _: self.poll())

    def _advance(self) -> str:
        if self._state != "PROC" or not all(work.done for work in self._works):
            return self._state
        failure = self._failure or next((error for error in (work.error() for work in self._works) if error is not None), None)
        if failure is None and len(self._works) < self._expected:
            failure = nixlCancelledError("the call that posts the transfer was interrupted")
        if failure is None and self._to_notify:
            self._unsent = frames_to_send(wire.NOTIFY, self._to_notify)
            self._to_notify = b""
        if failure is None and self._unsent:
            try:
                send_frames(self._target.peer, self._unsent, self._works)
            except HmcError as error:
                self._failure = failure = error
            else:
                return self._advance()
        self._times[2] = time.monotonic()
        self._state = "DONE" if failure is None else "ERR"
        if failure is not None and not isinstance(failure, nixlCancelledError):
            logger.error("a transfer of %d bytes with agent %s failed: %s", self.nbytes, self._target.name, failure)
        return self._state
