"""Dispatch and combine as calls that a timeout interrupts and resume() continues."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmc import _core
from hmc._deadline import Deadline
from hmc.errors import HmcError, HmcTimeoutError, ProtocolError, TransportError
from hmc.experts._arrays import Fresh, Rows
from hmc.experts._fabric import CLOSED, MASKED, READ, SLOTS, Fabric, Kind, masked_by, notification
from hmc.experts._handle import Handle, Routes, State
from hmc.experts._headers import Results, Words, read_combine, read_dispatch, write_combine, write_dispatch
from hmc.experts._interrupts import record
from hmc.experts._memory import Area, Growing, offsets
from hmc.experts._peers import Outcome, names
from hmc.experts._routing import Ints, Received, Sent, by_rank, pack_facts, rows_of, unpack_facts

_NO_FACTS = np.zeros((0, 0), np.int64)


class Call(ABC):
    """Sends headers, waits for those of the other ranks, gets rows, and finishes. Every step is done once per rank."""

    kind: Kind

    def __init__(self, fabric: Fabric, number: int, ranks: list[int]) -> None:
        self.fabric = fabric
        self.number = number
        self._unsent = list(ranks)
        self._waiting = list(ranks)
        self._came: list[int] = []
        self._getting: dict[int, list[_core.Work]] = {}
        # By rank: what was done, and is not done again after an interrupt.
        self._sent: dict[int, list[Any]] = {}
        self._taken: dict[int, list[Any]] = {}
        self._read: dict[int, list[Any]] = {}
        self._got: set[int] = set()
        self._prepared = False
        self.disturbed = False

    @property
    def name(self) -> str:
        return self.kind.name.lower()

    @abstractmethod
    def write(self, rank: int) -> int:
        """Writes the header for a rank: its words."""

    @abstractmethod
    def read(self, rank: int, words: Words) -> None:
        """Takes the header of a rank, from a copy."""

    @abstractmethod
    def prepare(self) -> None:
        """Called once all headers are there."""

    @abstractmethod
    def blocks(self, rank: int, deadline: Deadline) -> list[_core.BlockBatch]:
        """What to get from a rank: its rows."""

    @abstractmethod
    def targets(self) -> list[Growing]:
        """Where rows are written."""

    @abstractmethod
    def finish(self, ranks: list[int]) -> Any:
        """The result. ``ranks``: those whose rows are there."""

    def run(self, deadline: Deadline) -> Any:
        """HmcTimeoutError names the ranks that are late; another run() waits on."""
        self._send(deadline)
        self._collect(deadline)
        if not self._prepared:
            self.prepare()
            self._prepared = True
        self._get(deadline)
        self._await(deadline)
        ranks = [rank for rank in self._came if self.fabric.peers.is_alive(rank)]
        self.fabric.check_not_masked(ranks)
        return self.finish(ranks)

    def _send(self, deadline: Deadline) -> None:
        while self._unsent:
            rank = self._unsent[0]
            sent = self._sent.setdefault(rank, [])
            if self.fabric.peers.is_alive(rank) and not sent:
                self.fabric.send_header(self.kind, self.number, rank, self.write(rank), sent)
            self._unsent.remove(rank)

    def _collect(self, deadline: Deadline) -> None:
        peers, late = self.fabric.peers, []
        for rank in list(self._waiting):
            taken = self._taken.setdefault(rank, [])
            outcome = Outcome.LOST
            if peers.is_alive(rank):
                outcome = peers.wait(rank, notification(self.kind, self.number), deadline, taken)
            if outcome is Outcome.LATE:
                late.append(rank)
                continue
            if outcome is Outcome.ARRIVED:
                words = self.fabric.header_from(self.kind, self.number, rank).copy()  # say() of the rank may overwrite it
                if self._takes_part(rank, int(words[0])):
                    self.read(rank, words)
                    if rank not in self._came:
                        self._came.append(rank)
            self._waiting.remove(rank)
        self._check(late, deadline)

    def _takes_part(self, rank: int, first: int) -> bool:
        if first in (CLOSED, MASKED):
            self.fabric.peers.lose(rank)
        if first == MASKED:
            raise masked_by(rank)
        return first != CLOSED

    def _get(self, deadline: Deadline) -> None:
        for rank in self._came:
            if rank not in self._got and self.fabric.peers.is_alive(rank):
                works = self._getting.setdefault(rank, [])
                try:
                    for blocks in self.blocks(rank, deadline)[len(works) :]:
                        record(works, self.fabric.comm.get_blocks, blocks)
                    self._got.add(rank)
                except HmcTimeoutError:
                    self._check([rank], deadline)
                except HmcError as error:
                    self.fabric.peers.lose_if_gone(rank, error)

    def _await(self, deadline: Deadline) -> None:
        late = []
        for rank, works in self._getting.items():
            if not self.fabric.peers.is_alive(rank):
                continue
            try:
                for work in works:
                    work.wait(timeout=deadline.left())
            except HmcTimeoutError:
                late.append(rank)
            except TransportError:  # the connection failed while the rank lives
                self.fabric.drop(rank)
            except HmcError as error:
                self.fabric.peers.lose_if_gone(rank, error)
        self._check(late, deadline)

    def _check(self, late: list[int], deadline: Deadline) -> None:
        if late:
            raise HmcTimeoutError(
                f"{self.name}: {names(late)} did not answer within {deadline.timeout} s: "
                "resume() waits on, mask(rank) goes on without a rank"
            )

    def forget(self, rank: int) -> None:
        """The rank was masked. A transfer from it that cannot be cancelled may still write: its target is not used again."""
        for work in self._getting.get(rank, []):
            if not work.done:
                with contextlib.suppress(HmcError):
                    work.cancel()
                    continue
                self.disturbed = True
        if self.disturbed:
            for growing in self.targets():
                growing.retire()


class Dispatch(Call):
    """Result: (x2, handle); x2 with scales: ((x2, scales), handle)."""

    kind = Kind.DISPATCH

    def __init__(self, fabric: Fabric, handle: Handle, ranks: list[int]) -> None:
        super().__init__(fabric, handle._number, ranks)
        self.handle = handle
        experts = fabric.shape.experts_of(fabric.peers.rank)
        self._counts = np.zeros((fabric.shape.ranks, len(experts)), np.int64)
        self._facts: dict[int, Any] = {}
        self._rows: Area | None = None
        self._scales: Area | None = None
        self._into: list[_core.ConnBuffer] = []
        self._copies: list[tuple[Ints, Ints]] = []

    def write(self, rank: int) -> int:
        routes = self.handle._routes
        out = self.fabric.header_to(self.kind, self.number, rank)
        self.fabric.peers.owed[rank].add(self.number)
        tokens, facts = routes.sent.tokens_to(rank), _NO_FACTS
        if self.fabric.shape.facts:
            experts = self.fabric.agreed.experts_of(rank)
            facts = pack_facts(routes.ids[tokens], routes.weights[tokens], experts, self.fabric.shape.facts)
        return write_dispatch(out, self.number, routes.sent.counts_to(rank), tokens, facts)

    def read(self, rank: int, words: Words) -> None:
        counts, tokens, facts = read_dispatch(words, self.number, self._counts.shape[1], self.fabric.shape, rank)
        self._counts[rank] = counts
        self.handle._tokens[rank] = tokens
        self._facts[rank] = facts

    def prepare(self) -> None:
        shape, slot = self.fabric.shape, self.number % SLOTS
        self.handle._received = Received.of(self._counts)
        rows = self.handle._received.rows
        self._rows = self.fabric.rows[slot].rows(rows, shape.row_bytes)
        self._scales = self.fabric.scales[slot].rows(rows, shape.scale_bytes) if shape.scaled else None
        self._into = [growing.buffer for growing in self.targets()]
        if self.fabric.agreed.once:
            self._take_facts(rows)

    def _take_facts(self, rows: int) -> None:
        handle = self.handle
        packed = np.empty((rows, self.fabric.agreed.topk), np.int64)
        for rank, facts in self._facts.items():
            packed[handle._received.rows_of(rank)] = facts
        handle._experts, handle._weights = unpack_facts(packed, handle._local)

    def blocks(self, rank: int, deadline: Deadline) -> list[_core.BlockBatch]:
        tokens, rows = self.handle._tokens[rank], self.handle._received.rows_of(rank)
        if len(tokens) == 0:
            return []
        if not self.fabric.mapped[rank]:  # every token by the network once
            once, first, which = np.unique(tokens, return_index=True, return_inverse=True)
            repeated = np.delete(np.arange(len(tokens)), first)
            self._copies.append((rows[first[which[repeated]]], rows[repeated]))
            tokens, rows = once, rows[first]
        shape, base = self.fabric.shape, self.fabric.staging_base(self.number)
        found = [self._blocks(rank, self._into[0], rows, tokens, shape.row_bytes, base)]
        if shape.scaled:
            base += shape.tokens * shape.row_bytes
            found.append(self._blocks(rank, self._into[1], rows, tokens, shape.scale_bytes, base))
        return found

    def _blocks(self, rank: int, into: _core.ConnBuffer, rows: Any, tokens: Any, row_bytes: int, base: int) -> _core.BlockBatch:
        pair = (into, offsets(rows, row_bytes), self.fabric.stagings[rank], offsets(tokens, row_bytes, base))
        return self.fabric.comm.prepare_blocks([pair], row_bytes)

    def targets(self) -> list[Growing]:
        return [self.fabric.rows[self.number % SLOTS], self.fabric.scales[self.number % SLOTS]]

    def finish(self, ranks: list[int]) -> Any:
        assert self._rows is not None
        parts = [self._rows] if self._scales is None else [self._rows, self._scales]
        for part in parts:
            for sources, targets in self._copies:
                part.repeat(sources, targets)
        for rank in set(self._came) - set(ranks):
            rows = self.handle._received.rows_of(rank)
            self._rows.clear(rows)
            if self.fabric.agreed.once:
                self.handle._experts[rows] = -1
        self.handle._partners = ranks
        self.handle._missing = set(range(self.fabric.shape.ranks)) - set(ranks)
        shape, like = self.fabric.shape, self.handle._like
        x2 = like.view(self._rows, shape.dtype, shape.hidden)
        if self._scales is None:
            return x2, self.handle
        return (x2, like.view(self._scales, "float32", shape.scale_bytes // 4)), self.handle


class Combine(Call):
    """Result: y."""

    kind = Kind.COMBINE

    def __init__(self, fabric: Fabric, handle: Handle, results: Rows | None) -> None:
        super().__init__(fabric, handle._number, [rank for rank in handle._partners if fabric.peers.is_alive(rank)])
        self.handle = handle
        self._results = results
        self._y: Fresh | None = None
        if results is not None:
            self._y = results.like.empty(len(handle._routes.sent_ids), fabric.shape.combine_dtype, fabric.shape.hidden)
        self._headers: dict[int, Results] = {}
        self._staged = False
        self._rows: Area | None = None
        self._into: _core.ConnBuffer | None = None

    def _send(self, deadline: Deadline) -> None:
        if not self._staged and self._results is not None and self._y is not None:
            into = self.fabric.results[self.number % SLOTS]
            self._results.copy_to(into.rows(self._results.count, self._results.row_bytes), deadline, "resume() waits on")
            self._y.wait(deadline, "resume() waits on")
            self._staged = True
        super()._send(deadline)

    def write(self, rank: int) -> int:
        descriptor = b"" if self._results is None else bytes(self.fabric.results[self.number % SLOTS].buffer.descriptor())
        found = Results(descriptor, self.handle._received.starts[rank])
        self.fabric.peers.serve(rank, self.number)
        return write_combine(self.fabric.header_to(self.kind, self.number, rank), self.number, found)

    def read(self, rank: int, words: Words) -> None:
        experts = len(self.fabric.shape.experts_of(rank))
        self._headers[rank] = read_combine(words, self.number, experts, rank)

    def prepare(self) -> None:
        self._rows = self.fabric.gathered.rows(self.handle._routes.sent_ids.size, self.fabric.shape.result_bytes)
        self._into = self.fabric.gathered.buffer

    def blocks(self, rank: int, deadline: Deadline) -> list[_core.BlockBatch]:
        header, pairs = self._headers[rank], self.handle._routes.sent.to(rank)
        if self._results is None or not header.descriptor or len(pairs) == 0:
            return []
        remote = self.fabric.result_buffer(rank, header.descriptor, deadline)
        row_bytes = self.fabric.shape.result_bytes
        rows = rows_of(self.handle._routes.sent.counts_to(rank), header.starts)
        if int(rows.max()) >= remote.nbytes // row_bytes:
            raise ProtocolError(f"combine: rank {rank} names a row beyond its {remote.nbytes // row_bytes}")
        pair = (self._into, offsets(pairs, row_bytes), remote, offsets(rows, row_bytes))
        return [self.fabric.comm.prepare_blocks([pair], row_bytes)]

    def targets(self) -> list[Growing]:
        return [self.fabric.gathered]

    def finish(self, ranks: list[int]) -> Any:
        handle, shape = self.handle, self.fabric.shape
        handle._state = State.COMBINED
        for rank in ranks:
            self.fabric.peers.notify(rank, READ, self._read.setdefault(rank, []))
            self.fabric.peers.owed[rank].discard(self.number)
        there = [rank for rank in ranks if self._headers[rank].descriptor]
        handle._missing = set(range(shape.ranks)) - set(there)
        if self._y is None:
            return None
        routes = handle._routes
        assert self._rows is not None
        used = routes.sent_ids >= 0
        for rank in handle._missing:
            used.reshape(-1)[routes.sent.to(rank)] = False
        self.fabric.sums.add_up(self._y.memory, self._rows.memory, routes.sent_weights, used)
        return self._y.array


def routes_of(ids: Ints, weights: NDArray[np.float32], fabric: Fabric) -> Routes:
    """Where tokens go."""
    agreed, shape = fabric.agreed, fabric.shape
    owners = np.append(fabric.owners, -1)[ids]
    if not agreed.once:
        return Routes(ids, weights, owners, ids, weights, Sent(ids, shape))
    ranks = by_rank(owners, shape.ranks, shape.topk)
    return Routes(ids, weights, owners, ranks, np.ones(ranks.shape, np.float32), Sent(ranks, shape))
