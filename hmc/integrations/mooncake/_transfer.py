"""Transfers: posted, waited for, or asked about."""

from __future__ import annotations

import time
from typing import Any

from hmc._core import Work
from hmc.errors import HmcError, HmcTimeoutError, StaleBufferError
from hmc.integrations._shared.batches import build
from hmc.integrations._shared.errors import NotRegisteredError
from hmc.integrations.mooncake import _arguments as arguments
from hmc.integrations.mooncake._registrations import Registrations
from hmc.integrations.mooncake._session import Session
from hmc.integrations.mooncake._types import Space, TransferOpcode, logger

__all__ = ["DONE", "FAILED", "PENDING", "TIMED_OUT", "Transfer"]

# What transfer_check_status() returns.
DONE, PENDING, FAILED, TIMED_OUT = 1, 0, -1, -2


class Transfer:
    """Operations in flight with one engine. One thread at a time."""

    def __init__(self, session: Session | None, seconds: float) -> None:
        """``session``: None for a transfer that could not be posted, or has no byte. ``seconds``: how long it may take."""
        self.session = session
        self._until = time.monotonic() + seconds
        self._works: list[Work] = []
        self._opcode = TransferOpcode.Read
        self._failure: BaseException | None = None

    def post(self, local: Registrations, opcode: TransferOpcode, here: Any, there: Any, lengths: Any) -> None:
        """Starts it: ``here`` and ``there`` are arrays of addresses. Raises HmcError where nothing was posted."""
        session = self.session
        assert session is not None
        self._opcode = opcode
        post = self._post_one if len(lengths) == 1 else self._post_batches
        try:
            post(session, local, opcode, here, there, lengths)
        except (NotRegisteredError, StaleBufferError):  # of what is known here; nothing was posted
            session.refresh()
            post(session, local, opcode, here, there, lengths)

    def fail(self, error: BaseException) -> None:
        """Makes it one that could not be posted."""
        self._failure = error

    def state(self) -> int:
        """DONE, PENDING, FAILED or TIMED_OUT. Never waits. The log says why it failed."""
        if not all(work.done for work in self._works):
            if time.monotonic() < self._until:
                return PENDING
            self._stop()
            return TIMED_OUT
        return self._end()

    def wait(self) -> int:
        """DONE, FAILED or TIMED_OUT."""
        for work in self._works:
            try:
                work.wait(max(0.0, self._until - time.monotonic()))
            except HmcError as error:
                if isinstance(error, HmcTimeoutError) and not work.done:
                    self._stop()
                    return TIMED_OUT
        return self._end()

    def _post_one(
        self, session: Session, local: Registrations, opcode: TransferOpcode, here: Any, there: Any, lengths: Any
    ) -> None:
        nbytes = int(lengths[0])
        near, start = local.ranges.locate(Space.memory, int(here[0]), nbytes)
        far, target = session.locate(int(there[0]), nbytes)
        mine, theirs = near.holder[start : start + nbytes], far[target : target + nbytes]
        self._works.append(session.peer.put(mine, theirs) if opcode == TransferOpcode.Write else session.peer.get(mine, theirs))

    def _post_batches(
        self, session: Session, local: Registrations, opcode: TransferOpcode, here: Any, there: Any, lengths: Any
    ) -> None:
        near = local.ranges.find(Space.memory, arguments.rows(here, lengths))
        far = session.find(arguments.rows(there, lengths))
        post = session.peer.put_blocks if opcode == TransferOpcode.Write else session.peer.get_blocks
        for batch in build(lengths, near, far, session):
            try:
                self._works.append(post(batch))
            except HmcError as error:
                if not self._works:
                    raise
                self._failure = error  # what was posted before ends first
                break

    def _end(self) -> int:
        failure = self._failure or next((error for error in (work.error() for work in self._works) if error is not None), None)
        if failure is None:
            return DONE
        name = "an engine" if self.session is None else f"engine {self.session.name}"
        logger.error("a transfer with %s failed: %s", name, failure)
        return FAILED

    def _stop(self) -> None:
        """Cancels what can still be stopped, and says what cannot."""
        assert self.session is not None
        late = [work for work in self._works if not work.done and not work._withdraw()]
        after = ""
        if late and self._opcode == TransferOpcode.Read:
            after = "; its bytes may still be written into the memory here: keep that until unregister_memory() has returned 0"
        elif late:
            after = "; its bytes may still be written at the engine"
        logger.error(
            "a transfer with engine %s has not ended in time%s; MC_TRANSFER_TIMEOUT sets the seconds", self.session.name, after
        )
