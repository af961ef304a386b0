"""monitored_barrier(): a barrier that says which ranks did not come."""

from __future__ import annotations

import contextlib
import itertools
import struct
from collections.abc import Iterable
from typing import NamedTuple

import hmc
from hmc._deadline import Deadline
from hmc.errors import BY_CODE

# Of all its messages; those of torch are 32 bits.
TAG = 1 << 40
_HEAD = struct.Struct("<qB")  # the number of a rank's call, and a code; then text
_LONGEST_TEXT = 400  # bytes
# To rank 0: the rank waits in this call, or has given up. From rank 0: all ranks came, or the code of an error (hmc.errors).
_WAITS, _LEFT = 0, 1
_PASSED = 0
_EVERY_CALL = 0  # a number that answers this call and all later ones
_CODES = {error: code for code, error in BY_CODE.items()}


class _Said(NamedTuple):
    number: int
    code: int
    text: str


class _Receive:
    """A posted receive."""

    def __init__(self, communicator: hmc.Communicator, rank: int) -> None:
        self._into = bytearray(_HEAD.size + _LONGEST_TEXT)
        self.work = communicator.irecv(self._into, rank, TAG)

    def said(self) -> _Said:
        """Once it is complete. Raises its error."""
        error = self.work.error()
        if error is not None:
            raise error
        text = bytes(self._into[_HEAD.size : self.work.info.bytes])
        number, code = _HEAD.unpack_from(self._into)
        return _Said(number, code, text.decode(errors="replace"))

    def withdraw(self) -> _Said | None:
        """None: it was withdrawn, and its message is left to the next receive, or it failed."""
        with contextlib.suppress(hmc.HmcError):
            try:
                self.work.cancel()
            except hmc.UnsupportedError:  # its message is arriving
                self.work.wait(1)
            except hmc.InvalidArgumentError:  # its message has arrived
                pass
            else:
                return None
            return self.said()
        return None


class MonitoredBarrier:
    """The calls of one group, one at a time.

    Calls match that ranks are in at the same time: a rank that missed some takes part in the next one. Each rank numbers its calls.
    An answer repeats the number, so that no rank mistakes it for the answer to a later call. A rank that gives up sends that to
    rank 0, which then no longer counts it as waiting.
    """

    def __init__(self, communicator: hmc.Communicator) -> None:
        self._communicator = communicator
        self._numbers = itertools.count(_EVERY_CALL + 1)
        self._ended: hmc.HmcError | None = None  # why no later call can succeed

    def wait(self, seconds: float, wait_all_ranks: bool) -> None:
        """Raises the error of rank 0 at every rank that came; HmcTimeoutError where rank 0 did not come."""
        if self._ended is not None:
            raise type(self._ended)(str(self._ended))
        if self._communicator.rank == 0:
            self._wait_for_ranks(seconds, wait_all_ranks)
        else:
            self._wait_for_answer(seconds)

    # ---- the other ranks ----

    def _wait_for_answer(self, seconds: float) -> None:
        number, receive = next(self._numbers), _Receive(self._communicator, 0)
        # Rank 0 waits as long, from when it comes.
        deadline = Deadline(2 * seconds)
        try:
            self._communicator.send(_HEAD.pack(number, _WAITS), 0, TAG, timeout=seconds)
            receive.work.wait(deadline.left())
            while (said := receive.said()).number not in (number, _EVERY_CALL):
                receive = _Receive(self._communicator, 0)
                receive.work.wait(deadline.left())
        except BaseException as error:
            late = receive.withdraw()
            if late is None or late.number not in (number, _EVERY_CALL):
                self._send([0], _HEAD.pack(number, _LEFT))
                if isinstance(error, hmc.HmcTimeoutError):
                    raise hmc.HmcTimeoutError(
                        f"monitored_barrier: no answer from rank 0 within {2 * seconds:g} s; it did not come in time"
                    ) from error
                raise
            if not isinstance(error, hmc.HmcError):
                raise
            said = late
        if said.code != _PASSED:
            failure = BY_CODE.get(said.code, hmc.HmcError)(f"monitored_barrier: rank 0 reports: {said.text}")
            if said.number == _EVERY_CALL:
                self._ended = failure
            raise failure

    # ---- rank 0 ----

    def _wait_for_ranks(self, seconds: float, wait_all_ranks: bool) -> None:
        deadline = Deadline(seconds)
        ranks = range(1, self._communicator.size)
        waiting: dict[int, int] = {}  # ranks, and the numbers of their calls
        failure: BaseException | None = None
        while failure is None and len(waiting) < len(ranks):
            receives: dict[int, _Receive] = {}
            try:
                for rank in ranks:
                    receives[rank] = _Receive(self._communicator, rank)
                self._collect(receives, waiting, deadline)
            except BaseException as error:
                failure = error
            for rank, receive in receives.items():
                if (said := receive.withdraw()) is not None:
                    _note(waiting, rank, said)
            missing = [rank for rank in ranks if rank not in waiting]
            if isinstance(failure, hmc.HmcTimeoutError):
                named = missing if wait_all_ranks else missing[:1]
                text = ("rank " if len(named) == 1 else "ranks ") + ", ".join(map(str, named))
                failure = hmc.HmcTimeoutError(f"{text} did not come within {seconds:g} s") if missing else None
        if failure is not None:
            raise self._reported(failure, waiting)
        for rank, number in waiting.items():
            self._send([rank], _HEAD.pack(number, _PASSED))

    def _collect(self, receives: dict[int, _Receive], waiting: dict[int, int], deadline: Deadline) -> None:
        """Returns when all ranks wait, as far as their messages have come."""
        while len(waiting) < len(receives):
            hmc.wait_any([receive.work for receive in receives.values()], deadline.left())
            for rank in receives:
                while receives[rank].work.done:
                    try:
                        said = receives[rank].said()
                    except hmc.HmcError as error:
                        raise type(error)(f"no message from rank {rank}: {error}") from error
                    _note(waiting, rank, said)
                    receives[rank] = _Receive(self._communicator, rank)

    def _reported(self, failure: BaseException, waiting: dict[int, int]) -> BaseException:
        """Sends an error to the ranks that wait for an answer. Returns the error for this rank."""
        if not isinstance(failure, hmc.HmcError):
            text = f"it was interrupted by {type(failure).__name__}".encode()
            for rank, number in waiting.items():
                self._send([rank], _HEAD.pack(number, _CODES[hmc.HmcCancelledError]) + text)
            return failure
        code, text = _CODES.get(type(failure), 0xFF), str(failure).encode()[:_LONGEST_TEXT]
        own = type(failure)(f"monitored_barrier: {failure}")
        own.__cause__ = failure.__cause__
        if isinstance(failure, hmc.PeerLostError | hmc.ClosedError):
            # The rank never comes: ranks that are not here yet are not to wait for it.
            self._ended = own
            self._send(range(1, self._communicator.size), _HEAD.pack(_EVERY_CALL, code) + text)
        else:
            for rank, number in waiting.items():
                self._send([rank], _HEAD.pack(number, code) + text)
        return own

    def _send(self, ranks: Iterable[int], message: bytes) -> None:
        """To the ranks that can be reached."""
        for rank in ranks:
            with contextlib.suppress(hmc.HmcError):
                self._communicator.isend(message, rank, TAG)


def _note(waiting: dict[int, int], rank: int, said: _Said) -> None:
    """What a rank has sent to rank 0."""
    if said.code == _WAITS:
        waiting[rank] = said.number
    elif waiting.get(rank) == said.number:
        del waiting[rank]
