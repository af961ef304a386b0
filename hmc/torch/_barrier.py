"""monitored_barrier(): a barrier that says which ranks did not come."""

from __future__ import annotations

import contextlib
import itertools
import struct
from collections.abc import Callable, Iterable
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
    """A receive of one rank's message."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._into = bytearray(_HEAD.size + _LONGEST_TEXT)
        self._posted: list[hmc.Work] = []  # none or one

    def post(self, communicator: hmc.Communicator) -> None:
        # In one call that no Python code is part of: a signal's handler that raised in between would leave a receive that takes a
        # message of a later call, and that nobody knows.
        self._posted.extend(map(communicator.irecv, (self._into,), (self.rank,), (TAG,)))

    @property
    def work(self) -> hmc.Work:
        return self._posted[0]

    @property
    def over(self) -> bool:
        return all(work.done for work in self._posted)

    def said(self) -> _Said:
        """Once it is complete. Raises its error."""
        error = self.work.error()
        if error is not None:
            raise error
        text = bytes(self._into[_HEAD.size : self.work.info.bytes])
        number, code = _HEAD.unpack_from(self._into)
        return _Said(number, code, text.decode(errors="replace"))

    def withdraw(self) -> _Said | None:
        """None: it was withdrawn, and its message is left to the next receive, or it failed. May be called again."""
        if not self._posted:
            return None
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
        # What an interrupt of a call leaves to the next one: receives that may take a message, and, at rank 0, ranks that wait for
        # an answer, with the numbers of their calls.
        self._receives: list[_Receive] = []
        self._waiting: dict[int, int] = {}

    def wait(self, seconds: float, wait_all_ranks: bool) -> None:
        """Raises the error of rank 0 at every rank that came; HmcTimeoutError where rank 0 did not come."""
        if self._ended is not None:
            raise type(self._ended)(str(self._ended))
        if self._communicator.rank == 0:
            self._wait_for_ranks(seconds, wait_all_ranks)
        else:
            self._wait_for_answer(seconds)

    def _receive(self, rank: int) -> _Receive:
        receive = _Receive(rank)
        self._receives.append(receive)
        receive.post(self._communicator)
        return receive

    def _end_receives(self, note: Callable[[int, _Said], object]) -> None:
        """Withdraws all. Calls ``note`` with a rank and its message for those that have one, perhaps again after an interrupt."""
        for receive in tuple(self._receives):
            if (said := receive.withdraw()) is not None:
                note(receive.rank, said)
            if receive.over:
                self._receives.remove(receive)

    # ---- the other ranks ----

    def _wait_for_answer(self, seconds: float) -> None:
        answers: list[_Said] = []
        self._end_receives(lambda _, said: answers.append(said))
        number = next(self._numbers)
        # Rank 0 waits as long, from when it comes.
        deadline = Deadline(2 * seconds)
        try:
            receive = self._receive(0)
            self._communicator.send(_HEAD.pack(number, _WAITS), 0, TAG, timeout=seconds)
            while self._answer_among(answers, number) is None:
                receive.work.wait(deadline.left())
                answers.append(receive.said())
                self._receives.remove(receive)
                if self._answer_among(answers, number) is None:
                    receive = self._receive(0)
        except BaseException as error:
            self._end_receives(lambda _, said: answers.append(said))
            if self._answer_among(answers, number) is None:
                self._send([0], _HEAD.pack(number, _LEFT))
                if isinstance(error, hmc.HmcTimeoutError):
                    raise hmc.HmcTimeoutError(
                        f"monitored_barrier: no answer from rank 0 within {2 * seconds:g} s; it did not come in time"
                    ) from error
                raise
            if not isinstance(error, hmc.HmcError):
                raise
        said = self._answer_among(answers, number)
        if said is not None and said.code != _PASSED:
            failure = BY_CODE.get(said.code, hmc.HmcError)(f"monitored_barrier: rank 0 reports: {said.text}")
            if said.number == _EVERY_CALL:
                self._ended = failure
            raise failure

    @staticmethod
    def _answer_among(answers: list[_Said], number: int) -> _Said | None:
        """The answer to that call; others are to earlier ones, which gave up."""
        return next((said for said in answers if said.number in (number, _EVERY_CALL)), None)

    # ---- rank 0 ----

    def _wait_for_ranks(self, seconds: float, wait_all_ranks: bool) -> None:
        deadline = Deadline(seconds)
        ranks = range(1, self._communicator.size)
        failure: BaseException | None = None
        self._end_receives(self._note)
        while failure is None:
            try:
                self._collect({rank: self._receive(rank) for rank in ranks}, deadline)
            except BaseException as error:
                failure = error
            self._end_receives(self._note)
            missing = [rank for rank in ranks if rank not in self._waiting]
            if isinstance(failure, hmc.HmcTimeoutError):
                named = missing if wait_all_ranks else missing[:1]
                text = ("rank " if len(named) == 1 else "ranks ") + ", ".join(map(str, named))
                failure = hmc.HmcTimeoutError(f"{text} did not come within {seconds:g} s") if missing else None
            if not missing:
                break
        if failure is not None:
            raise self._reported(failure)
        self._answer(_PASSED)

    def _collect(self, receives: dict[int, _Receive], deadline: Deadline) -> None:
        """Returns when all ranks wait, as far as their messages have come."""
        while len(self._waiting) < len(receives):
            hmc.wait_any([receive.work for receive in receives.values()], deadline.left())
            for rank in receives:
                while receives[rank].work.done:
                    try:
                        said = receives[rank].said()
                    except hmc.HmcError as error:
                        raise type(error)(f"no message from rank {rank}: {error}") from error
                    self._note(rank, said)
                    self._receives.remove(receives[rank])
                    receives[rank] = self._receive(rank)

    def _note(self, rank: int, said: _Said) -> None:
        """What a rank has sent to rank 0."""
        if said.code == _WAITS:
            self._waiting[rank] = said.number
        elif self._waiting.get(rank) == said.number:
            del self._waiting[rank]

    def _reported(self, failure: BaseException) -> BaseException:
        """Sends an error to the ranks that wait for an answer. Returns the error for this rank."""
        if not isinstance(failure, hmc.HmcError):
            self._answer(_CODES[hmc.HmcCancelledError], f"it was interrupted by {type(failure).__name__}".encode())
            return failure
        code, text = _CODES.get(type(failure), 0xFF), str(failure).encode()[:_LONGEST_TEXT]
        own = type(failure)(f"monitored_barrier: {failure}")
        own.__cause__ = failure.__cause__
        if isinstance(failure, hmc.PeerLostError | hmc.ClosedError):
            # The rank never comes: ranks that are not here yet are not to wait for it.
            self._ended = own
            self._send(range(1, self._communicator.size), _HEAD.pack(_EVERY_CALL, code) + text)
        else:
            self._answer(code, text)
        return own

    def _answer(self, code: int, text: bytes = b"") -> None:
        """To the ranks that wait, perhaps again after an interrupt."""
        for rank, number in tuple(self._waiting.items()):
            self._send([rank], _HEAD.pack(number, code) + text)
            del self._waiting[rank]

    def _send(self, ranks: Iterable[int], message: bytes) -> None:
        """To the ranks that can be reached."""
        for rank in ranks:
            with contextlib.suppress(hmc.HmcError):
                self._communicator.isend(message, rank, TAG)
