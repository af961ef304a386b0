"""Which ranks take part, and waiting for what they send."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from enum import Enum
from functools import partial
from typing import Any

from hmc import _core
from hmc._deadline import Deadline
from hmc._interrupts import record
from hmc.errors import ClosedError, HmcError, HmcTimeoutError, PeerLostError, StaleBufferError


class Outcome(Enum):
    ARRIVED = "arrived"
    LATE = "late"
    LOST = "lost"


class Peers:
    """The ranks of a Buffer's own Communicator, whose notifications meet nobody else's. One thread at a time."""

    def __init__(self, comm: _core.Communicator) -> None:
        self.comm = comm
        self.rank = comm.rank
        self.size = comm.size
        self._from_here = [*range(comm.rank, comm.size), *range(comm.rank)]
        self._lost: set[int] = set()
        #: All ranks but the masked ones.
        self.unmasked = list(range(comm.size))
        #: By rank: number of combine headers sent to it, each of which it acknowledges, and the call of the last one.
        self.served = [(0, -1)] * comm.size
        #: By rank: the calls for which it expects an acknowledgement of this rank.
        self.owed: list[set[int]] = [set() for _ in range(comm.size)]

    def alive(self) -> tuple[bool, ...]:
        """By rank. What the Communicator has found out by itself counts too."""
        self._lost.update(self.comm.lost)
        return tuple(map(self.is_alive, range(self.size)))

    def is_alive(self, rank: int) -> bool:
        return rank not in self._lost

    def alive_of(self, ranks: Iterable[int]) -> list[int]:
        """Those of the ranks that are alive, in a new list."""
        lost = self._lost
        return [rank for rank in ranks if rank not in lost] if lost else [*ranks]

    def living(self) -> list[int]:
        """This rank and those after it first: ranks do not all begin with the same one."""
        return self.alive_of(self._from_here)

    def lose(self, rank: int) -> None:
        """The rank takes no further part."""
        self._lost.add(rank)

    def mask(self, rank: int) -> None:
        """This one goes on without the rank, although it lives. Again: does nothing."""
        self.unmasked = [other for other in self.unmasked if other != rank]

    def serve(self, rank: int, number: int) -> None:
        """A combine header for a call goes to a rank. Again for the same call: does nothing."""
        count, last = self.served[rank]
        if last != number:
            self.served[rank] = count + 1, number

    def unserve(self, rank: int, number: int) -> None:
        """The header for a call did not go to a rank. Again for the same call: does nothing."""
        count, last = self.served[rank]
        if last == number:
            self.served[rank] = count - 1, -1

    def wait(self, rank: int, number: int, deadline: Deadline, taken: list[Any], count: int = 1) -> Outcome:
        """For notifications of a rank. A rank that died is lost from now on. ``taken``: not empty once they were taken."""
        try:
            if not taken:
                record(taken, partial(self.comm.wait_notify, rank, number, timeout=deadline.left()), count)
        except HmcTimeoutError:
            return Outcome.LATE
        except HmcError as error:
            self.lose_if_gone(rank, error)
            return Outcome.LOST
        return Outcome.ARRIVED

    def lose_if_gone(self, rank: int, error: HmcError) -> None:
        """After an error of what was asked of a rank: where it died or has left. Else raises the error."""
        left = isinstance(error, ClosedError) and not self.comm.context.closed
        if not (left or isinstance(error, PeerLostError | StaleBufferError)):
            try:
                raise error
            finally:
                del error  # its traceback references this frame
        self.lose(rank)

    def release(self, rank: int, number: int) -> None:
        """Says that this rank will read no more of what it has not read of a rank's results. ``number``: of the notification."""
        while self.owed[rank]:
            self.notify(rank, number, [])
            self.owed[rank].pop()

    def notify(self, rank: int, number: int, sent: list[Any]) -> None:
        """Without waiting for a rank that is stopped: it then gets none. ``sent``: not empty once it was sent."""
        if rank not in self._lost and not sent:
            with contextlib.suppress(HmcError):
                record(sent, partial(self.comm.notify, rank, timeout=0), number)


def names(ranks: Iterable[int]) -> str:
    """ "rank 2", "ranks 1, 2": for messages."""
    numbers = [str(rank) for rank in sorted(ranks)]
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
