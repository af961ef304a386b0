"""The registered memory of a Buffer, and how its ranks reach each other's.

Every rank has a *window*, into which the others write headers, and *staging* with the rows that it dispatches, which the others
read. Results lie in memory that grows; headers name it. The receiver reads rows: a rank that is stopped and continues later
writes nothing into the rows of others. Everything exists twice, for calls with even and with odd numbers.

When is the memory of call n free for call n + 2? A rank dispatches n + 2 after its combine of n. That has waited for the
combine headers of n, which the other ranks send after they have read this rank's rows of n. Their dispatch headers of n + 2
say that they have read this rank's results of n.
"""

from __future__ import annotations

import contextlib
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np

from hmc import _core
from hmc._deadline import Deadline
from hmc.errors import AuthenticationError, HmcError, InvalidArgumentError, PeerLostError, ProtocolError
from hmc.experts._headers import Words, combine_words, dispatch_words
from hmc.experts._interrupts import record
from hmc.experts._memory import Area, Counts, Growing
from hmc.experts._peers import Peers
from hmc.experts._shape import Shape
from hmc.experts._sums import Sums

SLOTS = 2
#: In place of a call's number: the sender has closed its Buffer, or goes on without the receiver.
CLOSED, MASKED = -1, -2
#: Raised by a rank that has read another one's results.
READ = 9


class Kind(IntEnum):
    DISPATCH = 0
    COMBINE = 1


def notification(kind: Kind, number: int) -> int:
    """Puts are unordered among themselves: each slot has its own id, and has at most one header in flight from a rank."""
    return 1 + SLOTS * kind + number % SLOTS


def masked_by(rank: int) -> PeerLostError:
    return PeerLostError(f"rank {rank} has masked this rank and goes on without it: close this experts.Buffer")


class Fabric:
    """One thread at a time."""

    def __init__(self, comm: _core.Communicator, agreed: Shape, device: str, deadline: Deadline) -> None:
        self.comm = comm
        self.peers = Peers(comm)
        self._agree(agreed, deadline)
        self.agreed = agreed
        self.shape = shape = agreed.routed()
        #: By expert: its rank.
        self.owners = np.repeat(np.arange(comm.size), [len(agreed.experts_of(rank)) for rank in range(comm.size)])
        self._words = {Kind.DISPATCH: dispatch_words(shape), Kind.COMBINE: combine_words(shape)}
        total = 8 * SLOTS * shape.ranks * sum(self._words.values())
        self._outbox, self._window = comm.buffer(total), comm.buffer(total)
        self._out_words: Words = self._outbox.numpy(np.int64)
        self._in_words: Words = self._window.numpy(np.int64)
        #: By rank: the first words of its headers in the window.
        self._firsts = np.array(
            [[self._place(kind, slot, rank) for kind in Kind for slot in range(SLOTS)] for rank in range(comm.size)]
        )
        self._windows = comm.exchange(self._window, timeout=deadline.left())
        self.staging = comm.buffer(SLOTS * shape.tokens * (shape.row_bytes + shape.scale_bytes), device=device)
        self.stagings = comm.exchange(self.staging, timeout=deadline.left())
        self.rows = [Growing(comm, device) for _ in range(SLOTS)]
        self.scales = [Growing(comm, device) for _ in range(SLOTS)]
        self.results = [Growing(comm, device) for _ in range(SLOTS)]
        self.counts = Counts()
        self.sums = Sums(device, shape.combine_dtype, self.counts)
        self.gathered = Growing(comm, self.sums.device)
        paths = [comm.path(rank, device, there.device, deadline.left()) for rank, there in enumerate(self.stagings)]
        self.mapped = [path.transport in ("shm", "local", "ipc") for path in paths]
        self._imported: dict[tuple[int, bytes], _core.RemoteBuffer] = {}
        comm.barrier(timeout=deadline.left())  # a rank may close its Buffer at once: by then all have imported its memory

    def _agree(self, shape: Shape, deadline: Deadline) -> None:
        mine = repr(shape).encode()
        for rank, other in enumerate(self.comm.exchange_bytes(mine, timeout=deadline.left())):
            if other != mine:
                raise InvalidArgumentError(
                    f"experts.Buffer: {shape} here, {other.decode(errors='replace')} at rank {rank}: pass the same everywhere"
                )

    # ---- headers ----

    def _place(self, kind: Kind, number: int, rank: int) -> int:
        """First word of a header: of the sender ``rank`` in a window, of the receiver in the outbox."""
        before = 0 if kind is Kind.DISPATCH else SLOTS * self.shape.ranks * self._words[Kind.DISPATCH]
        return before + (number % SLOTS * self.shape.ranks + rank) * self._words[kind]

    def header_to(self, kind: Kind, number: int, rank: int) -> Words:
        """Where to write a header before send_header(). The receiver has answered the last one there."""
        at = self._place(kind, number, rank)
        return self._out_words[at : at + self._words[kind]]

    def send_header(self, kind: Kind, number: int, rank: int, size: int, sent: list[Any]) -> None:
        """Sends the first ``size`` words. A rank that died or left is lost from now on, or when it is next waited for.

        ``sent``: not empty once they were sent.
        """
        source, target = 8 * self._place(kind, number, rank), 8 * self._place(kind, number, self.peers.rank)
        try:
            to = self._windows[rank][target : target + 8 * size]
            put = partial(self.comm.put, target=to, notify=notification(kind, number))
            record(sent, put, self._outbox[source : source + 8 * size])
        except HmcError as error:
            self.peers.lose_if_gone(rank, error)

    def header_from(self, kind: Kind, number: int, rank: int) -> Words:
        """What wait() of the notification has announced. Copied by the reader before it is checked."""
        at = self._place(kind, number, rank)
        return self._in_words[at : at + self._words[kind]]

    def say(self, rank: int, why: int) -> None:
        """Ends every wait of a rank for this one: CLOSED or MASKED. Does not wait for a rank that is stopped."""
        for kind in Kind:
            for slot in range(SLOTS):
                with contextlib.suppress(HmcError):
                    self._out_words[self._place(kind, slot, rank)] = why
                    self.send_header(kind, slot, rank, 1, [])

    def drop(self, rank: int) -> None:
        """Goes on without a rank that lives."""
        self.peers.release(rank, READ)
        self.say(rank, MASKED)
        self.peers.lose(rank)

    def check_not_masked(self, ranks: list[int]) -> None:
        """Call it after rows were read. PeerLostError: an owner has masked this rank, and may have overwritten them."""
        masked = self._in_words[self._firsts[np.asarray(ranks, np.intp)]] == MASKED
        if masked.any():
            raise masked_by(ranks[int(np.argmax(masked.any(axis=1)))])

    # ---- rows ----

    def stage(self, number: int, tokens: int) -> tuple[Area, Area]:
        """(rows, scales) of so many tokens of this rank."""
        shape, first = self.shape, self.staging_base(number)
        middle, memory = first + shape.tokens * shape.row_bytes, self.staging.memory
        return Area(memory[first:], tokens, shape.row_bytes), Area(memory[middle:], tokens, shape.scale_bytes)

    def staging_base(self, number: int) -> int:
        return number % SLOTS * self.shape.tokens * (self.shape.row_bytes + self.shape.scale_bytes)

    def result_buffer(self, rank: int, descriptor: bytes, deadline: Deadline) -> _core.RemoteBuffer:
        """A rank's results by descriptor, imported once. HmcTimeoutError, PeerLostError; ProtocolError names the rank."""
        key = (rank, descriptor)
        if key not in self._imported:
            try:
                parsed = _core.Descriptor.parse(descriptor)
                peer = self.comm.peer(rank, timeout=deadline.left())
                self._imported[key] = peer.import_buffer(parsed, timeout=deadline.left())
            except (AuthenticationError, InvalidArgumentError, ProtocolError) as error:
                raise ProtocolError(f"combine: the header of rank {rank} names no results: {error}") from error
        return self._imported[key]

    def close(self, deadline: Deadline) -> None:
        """HmcTimeoutError where a rank may still access the memory. Another call goes on waiting."""
        self._imported.clear()
        for growing in [*self.rows, *self.scales, *self.results, self.gathered]:
            growing.close(deadline)
        for buffer in (self.staging, self._window, self._outbox):
            buffer.close(deadline.left())
        self.comm.close(deadline.left())
