"""The registered memory of a Buffer, and how its ranks reach each other's.

Every rank has a *window*, into which the others write headers, and *staging* with the rows that it dispatches, which the others
read. Results lie in memory that grows; headers name it. The receiver reads rows: a rank that is stopped and continues later
writes nothing into the rows of others. Rows that its device can load from are copied by one launch, and results that the summing
device can load from are summed where they are; the others are transferred. The first calls transfer, which makes the other ranks'
memory loadable. Everything exists twice, for calls with even and with odd numbers.

When is the memory of call n free for call n + 2? A rank dispatches n + 2 after its combine of n. That has waited for the
combine headers of n, which the other ranks send after they have read this rank's rows of n. Their dispatch headers of n + 2
say that they have read this rank's results of n.
"""

from __future__ import annotations

import contextlib
from enum import IntEnum

import numpy as np

from hmc import _core
from hmc._deadline import Deadline
from hmc.errors import (
    AuthenticationError,
    ClosedError,
    HmcCancelledError,
    HmcError,
    HmcTimeoutError,
    InvalidArgumentError,
    PeerLostError,
    ProtocolError,
    StaleBufferError,
)
from hmc.experts._memory import Area, Counts, Growing
from hmc.experts._peers import Peers
from hmc.experts._shape import Shape
from hmc.experts._sums import Sums

# As in bindings/expert_layout.h.
SLOTS = 2
#: In place of a call's number: the sender has closed its Buffer, or goes on without the receiver.
CLOSED, MASKED = -1, -2
#: Raised by a rank that has read another one's results.
READ = 9
_MOST_SAID = 2000  # characters of an error that other ranks get
# Attributes of a Fabric that hold memory.
_MEMORY = ("outbox", "window", "staging", "_staged", "rows", "scales", "results", "gathered", "windows", "stagings")


class Kind(IntEnum):
    DISPATCH = 0
    COMBINE = 1


class Fabric:
    """One thread at a time."""

    def __init__(self, comm: _core.Communicator, shape: Shape, device: str, deadline: Deadline) -> None:
        self.comm = comm
        self.peers = Peers(comm)
        self.shape = shape
        self._imported: dict[tuple[int, bytes], _core.RemoteBuffer] = {}
        self._importing: dict[tuple[int, bytes], _core._RemoteBufferWork] = {}
        failure: Exception | None = None
        try:
            self._allocate(device)
        except Exception as error:
            failure = error
        try:
            self._agree(failure, deadline)
        finally:
            failure = None  # its traceback keeps this frame: the memory would stay until the garbage collection
        try:
            self._import(device, deadline)
        except (ClosedError, HmcCancelledError, PeerLostError):
            raise  # the failure of another rank, which all get
        except StaleBufferError:  # a rank has failed and freed its memory; its reason follows
            comm.barrier(timeout=deadline.left())
            raise
        except BaseException as error:  # of this rank alone: the others would wait for it until their deadlines
            comm.abort(f"experts.Buffer: {type(error).__name__}: {error}")
            raise

    def _allocate(self, device: str) -> None:
        """Allocates this rank's memory."""
        comm, shape = self.comm, self.shape
        self.layout = _core.ExpertLayout(comm.size, comm.rank, shape.experts, shape.tokens, shape.topk, shape.once)
        self.outbox, self.window = comm.buffer(8 * self.layout.words), comm.buffer(8 * self.layout.words)
        self.staging = comm.buffer(SLOTS * shape.tokens * (shape.row_bytes + shape.scale_bytes), device=device)
        memory, scales = self.staging.memory, shape.tokens * shape.row_bytes
        self.device = device = memory.device  # "cuda:0" for "cuda"; memories are compared by these names
        self._staged = [(memory[base:], memory[base + scales :]) for base in map(self.staging_base, range(SLOTS))]
        self.rows = [Growing(comm, device) for _ in range(SLOTS)]
        self.scales = [Growing(comm, device) for _ in range(SLOTS)]
        self.results = [Growing(comm, device) for _ in range(SLOTS)]
        self.counts = Counts()
        self.sums = Sums(device, shape.combine_dtype, self.counts)
        self.gathered = Growing(comm, self.sums.device)

    def _agree(self, failure: Exception | None, deadline: Deadline) -> None:
        """Every rank learns what the others ask for, and whether they could allocate it. Collective.

        A rank that failed raises its own error, whatever the others did.
        """
        mine, said = repr(self.shape), f"{type(failure).__name__}: {failure}"[:_MOST_SAID] if failure is not None else ""
        try:
            found = self.comm.exchange_bytes(f"{mine}\n{said}".encode(errors="replace"), timeout=deadline.left())
        except HmcError:
            if failure is None:
                raise
        try:
            if failure is not None:
                raise failure
        finally:
            failure = None  # as in __init__
        others = [other.decode(errors="replace").partition("\n") for other in found]
        for rank, (_, _, why) in enumerate(others):
            if why:
                raise HmcCancelledError(f"experts.Buffer: rank {rank} could not make its Buffer: {why}")
        for rank, (other, _, _) in enumerate(others):
            if other != mine:
                raise InvalidArgumentError(f"experts.Buffer: {mine} here, {other} at rank {rank}: pass the same everywhere")

    def _import(self, device: str, deadline: Deadline) -> None:
        """Imports the other ranks' memory. Collective."""
        comm = self.comm
        self.windows = comm.exchange(self.window, timeout=deadline.left())
        self.stagings = comm.exchange(self.staging, timeout=deadline.left())
        paths = [comm.path(rank, device, there.device, deadline.left()) for rank, there in enumerate(self.stagings)]
        self.mapped = [path.transport in ("shm", "local", "ipc") for path in paths]
        comm.barrier(timeout=deadline.left())  # a rank may close its Buffer at once: by then all have imported its memory

    def say(self, rank: int, why: int) -> None:
        """Ends every wait of a rank for this one: CLOSED or MASKED. Does not wait for a rank that is stopped."""
        words = self.outbox.numpy(np.int64)
        for kind in Kind:
            for slot in range(SLOTS):
                source, target = self.layout.place(kind, slot, rank), self.layout.place(kind, slot, self.peers.rank)
                words[source] = why
                with contextlib.suppress(HmcError):
                    word = self.windows[rank][8 * target : 8 * target + 8]
                    self.comm.put(self.outbox[8 * source : 8 * source + 8], word, notify=self.layout.notification(kind, slot))

    def drop(self, rank: int) -> None:
        """Goes on without a rank that lives."""
        self.peers.release(rank, READ)
        self.say(rank, MASKED)
        self.peers.mask(rank)
        self.peers.lose(rank)

    # ---- rows ----

    def stage(self, number: int, tokens: int) -> list[Area]:
        """Memory for so many tokens of this rank: of their rows, and of their scales where there are any."""
        shape, (rows, scales) = self.shape, self._staged[number % SLOTS]
        areas = [Area(rows, tokens, shape.row_bytes)]
        if shape.scaled:
            areas.append(Area(scales, tokens, shape.scale_bytes))
        return areas

    def staging_base(self, number: int) -> int:
        return number % SLOTS * self.shape.tokens * (self.shape.row_bytes + self.shape.scale_bytes)

    def result_buffer(self, rank: int, descriptor: bytes, deadline: Deadline) -> _core.RemoteBuffer:
        """A rank's results by descriptor, imported once. HmcTimeoutError, PeerLostError; ProtocolError names the rank.

        After HmcTimeoutError the import goes on, and the next call waits for the same one.
        """
        key = (rank, descriptor)
        if key not in self._imported:
            try:
                if key not in self._importing:
                    parsed = _core.Descriptor.parse(descriptor)
                    peer = self.comm.peer(rank, timeout=deadline.left())
                    self._importing[key] = peer._iimport(parsed, None)
                self._importing[key].wait(deadline.left())
                self._imported[key] = self._importing.pop(key)._take()
            except HmcTimeoutError:
                raise
            except (AuthenticationError, InvalidArgumentError, ProtocolError) as error:
                self._importing.pop(key, None)
                raise ProtocolError(f"combine: the header of rank {rank} names no results: {error}") from error
            except HmcError:
                self._importing.pop(key, None)
                raise
        return self._imported[key]

    def close(self, deadline: Deadline) -> None:
        """HmcTimeoutError where a rank may still access the memory. Another call goes on waiting."""
        self._imported.clear()
        self._importing.clear()
        for growing in [*self.rows, *self.scales, *self.results, self.gathered]:
            growing.close(deadline)
        for buffer in (self.staging, self.window, self.outbox):
            buffer.close(deadline.left())
        self.comm.close(deadline.left())

    def free(self) -> None:
        """After close(): releases the memory, however long the program keeps the Buffer or a Handle. Idempotent."""
        for name in _MEMORY:
            self.__dict__.pop(name, None)
