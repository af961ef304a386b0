"""Dispatch and combine as calls that a timeout interrupts and resume() continues."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import Any

from hmc import _core
from hmc._deadline import Deadline
from hmc.errors import ClosedError, HmcError, HmcTimeoutError, PeerLostError, TransportError
from hmc.experts._arrays import Fresh, Rows
from hmc.experts._fabric import READ, SLOTS, Fabric, Kind
from hmc.experts._handle import Handle, State
from hmc.experts._memory import Area, Growing
from hmc.experts._peers import names

Failures = list[tuple[int, HmcError]]


class Call(ABC):
    """Sends headers, waits for those of the other ranks, gets rows, and finishes.

    Another run() repeats the steps with all living ranks: ``steps`` knows what was done with which of them.
    """

    kind: Kind

    def __init__(self, fabric: Fabric, handle: Handle, ranks: list[int], steps: _core.ExpertCall) -> None:
        self.fabric = fabric
        self.handle = handle
        self.number = handle._number
        self._ranks = ranks
        self._steps = steps
        self._prepared = False

    @property
    def name(self) -> str:
        return self.kind.name.lower()

    @abstractmethod
    def announce(self, ranks: list[int]) -> None:
        """Called before headers go to ranks."""

    @abstractmethod
    def withdraw(self) -> None:
        """Called where the Buffer closes before the call has ended. Takes back what was announced to ranks without a header."""

    @abstractmethod
    def prepare(self) -> None:
        """Called once all headers are there."""

    @abstractmethod
    def get(self, ranks: list[int], deadline: Deadline) -> Failures:
        """Starts to get rows of ranks."""

    @abstractmethod
    def targets(self) -> list[Growing]:
        """Where rows are written."""

    @abstractmethod
    def finish(self, ranks: list[int], gone: list[int]) -> Any:
        """The result. ``ranks``: whose rows have arrived or can be loaded. ``gone``: that died after sending their headers."""

    def run(self, deadline: Deadline) -> Any:
        """HmcTimeoutError names the ranks that are late; another run() waits on."""
        self._send(deadline)
        self._collect(deadline)
        came = self._steps.came(self._ranks)
        if not self._prepared:
            self.prepare()
            self._prepared = True
        alive_of = self.fabric.peers.alive_of
        self._get(alive_of(came), deadline)
        self._await(alive_of(came), deadline)
        ranks = alive_of(came)
        self._check_not_masked()
        return self.finish(ranks, [rank for rank in came if rank not in ranks])

    def _send(self, deadline: Deadline) -> None:
        ranks = self.fabric.peers.alive_of(self._ranks)
        self.announce(ranks)
        self._steps.write(ranks)
        self._settle(self._put_headers(ranks), deadline)

    def _put_headers(self, ranks: list[int]) -> Failures:
        return self._steps.send(self.fabric.comm, self.fabric.outbox, self.fabric.windows, ranks)

    def _collect(self, deadline: Deadline) -> None:
        peers = self.fabric.peers
        late = self._late_of(self._steps.take(self.fabric.comm, peers.alive_of(self._ranks), deadline.left()))
        ranks = peers.alive_of(self._ranks)
        self._read([rank for rank in ranks if rank not in late] if late else ranks)
        self._check(late, deadline)

    def _read(self, ranks: list[int]) -> None:
        error: HmcError | None = None
        try:
            for rank, error in self._steps.read(ranks):
                if isinstance(error, ClosedError | PeerLostError):
                    self.fabric.peers.lose(rank)
                if not isinstance(error, ClosedError):
                    raise error
        finally:
            error = None  # its traceback references this frame, and the frame the call's rows

    def _get(self, ranks: list[int], deadline: Deadline) -> None:
        self._settle(self.get(ranks, deadline), deadline)

    def _await(self, ranks: list[int], deadline: Deadline) -> None:
        self._settle(self._steps.wait(ranks, deadline.left()), deadline, drops=True)

    def _settle(self, failures: Failures, deadline: Deadline, drops: bool = False) -> None:
        """As _late_of() does. HmcTimeoutError names the late ranks."""
        if failures:
            self._check(self._late_of(failures, drops), deadline)

    def _late_of(self, failures: Failures, drops: bool = False) -> list[int]:
        """Whose step timed out. Loses the ranks that are gone; raises the error of another one.

        ``drops``: also goes on without ranks whose connection failed while they live.
        """
        late = []
        error: HmcError | None = None
        try:
            for rank, error in failures:
                if isinstance(error, HmcTimeoutError):
                    late.append(rank)
                elif drops and isinstance(error, TransportError):
                    self.fabric.drop(rank)
                else:
                    self.fabric.peers.lose_if_gone(rank, error)
        finally:
            error = None  # its traceback references this frame, and the frame the call's rows
            failures.clear()
        return late

    def _check_not_masked(self) -> None:
        """PeerLostError. A rank that masked this one may have ended since, and then looks like one that died."""
        self._steps.check_not_masked(self.fabric.peers.unmasked)

    def _check(self, late: list[int], deadline: Deadline) -> None:
        if not late:
            return
        others = [rank for rank in late if rank != self.fabric.peers.rank]
        if others:
            raise HmcTimeoutError(
                f"{self.name}: {names(others)} did not answer within {deadline.timeout} s: "
                "resume() waits on, mask(rank) goes on without a rank"
            )
        raise HmcTimeoutError(f"{self.name}: this rank's own rows were not there within {deadline.timeout} s: resume() waits on")

    def drain(self, deadline: Deadline) -> None:
        """After :meth:`withdraw`: waits until the device has finished this call's copies. HmcTimeoutError."""
        own = self.fabric.peers.rank
        if self._prepared and any(isinstance(error, HmcTimeoutError) for _, error in self._steps.wait([own], deadline.left())):
            raise HmcTimeoutError(f"close: the rows of a {self.name} are still being copied on the device: close() again waits on")

    def forget(self, rank: int) -> None:
        """The rank was masked or died. A transfer that cannot be cancelled may still write: its target is not used again."""
        disturbed = False
        for work in self._steps.works(rank):
            if not work.done:
                with contextlib.suppress(HmcError):
                    work.cancel()
                    continue
                disturbed = True
        if disturbed:
            for growing in self.targets():
                growing.retire()


class Dispatch(Call):
    """Result: (x2, handle); x2 with scales: ((x2, scales), handle)."""

    kind = Kind.DISPATCH
    _steps: _core.ExpertDispatch

    def __init__(self, fabric: Fabric, handle: Handle, ranks: list[int]) -> None:
        steps = _core.ExpertDispatch(handle._routes, handle._received, handle._number, fabric.outbox, fabric.window)
        super().__init__(fabric, handle, ranks, steps)
        self._areas: list[Area] = []
        self._parts: list[tuple[_core.ConnBuffer, int, int]] = []
        self._x2: list[Any] = []

    def announce(self, ranks: list[int]) -> None:
        for rank in ranks:
            self.fabric.peers.owed[rank].add(self.number)

    def withdraw(self) -> None:
        """Every living rank is released."""

    def prepare(self) -> None:
        shape, base = self.fabric.shape, self.fabric.staging_base(self.number)
        self.handle._received.arrange()
        parts = [(shape.row_bytes, base)]
        if shape.scaled:
            parts.append((shape.scale_bytes, base + shape.tokens * shape.row_bytes))
        self._areas, self._parts = [], []
        for growing, (row_bytes, first) in zip(self.targets(), parts, strict=False):
            self._areas.append(growing.rows(self.handle._received.rows, row_bytes))
            self._parts.append((growing.buffer, row_bytes, first))

    def get(self, ranks: list[int], deadline: Deadline) -> Failures:
        fabric = self.fabric
        if fabric.device != "cpu":
            ranks = self._steps.load(fabric.device, self._parts, fabric.stagings, ranks)
            self._x2 = self._views()  # while the device copies
        if not ranks:
            return []
        return self._steps.get(fabric.comm, self._parts, fabric.stagings, fabric.mapped, ranks)

    def _views(self) -> list[Any]:
        """x2 and its scales. Where rows lie on the CPU and x on a device, these are copies: the rows must have arrived."""
        shape, view = self.fabric.shape, self.handle._like.view
        x2 = view(self._areas[0], shape.dtype, shape.hidden)
        return [x2, view(self._areas[1], "float32", shape.scale_bytes // 4)] if shape.scaled else [x2]

    def targets(self) -> list[Growing]:
        return [self.fabric.rows[self.number % SLOTS], self.fabric.scales[self.number % SLOTS]]

    def finish(self, ranks: list[int], gone: list[int]) -> Any:
        handle, shape = self.handle, self.fabric.shape
        sources, targets = self._steps.copies()
        if len(sources):
            for area in self._areas:
                area.repeat(sources, targets)
        for rank in gone:
            for area in self._areas:
                area.clear(handle._received.rows_of(rank))
            handle._received.lose(rank)
        handle._partners = ranks
        handle._missing = set(range(shape.ranks)) - set(ranks)
        x2 = self._x2 or self._views()
        return (tuple(x2) if shape.scaled else x2[0]), handle


class Combine(Call):
    """Result: y."""

    kind = Kind.COMBINE
    _steps: _core.ExpertCombine

    def __init__(self, fabric: Fabric, handle: Handle, results: Rows | None) -> None:
        steps = _core.ExpertCombine(handle._routes, handle._received, handle._number, fabric.outbox, fabric.window)
        super().__init__(fabric, handle, fabric.peers.alive_of(handle._partners), steps)
        self._results = results
        self._y: Fresh | None = None
        if results is not None:
            self._y = results.like.empty(handle._routes.tokens, fabric.shape.combine_dtype, fabric.shape.hidden)
            results.look(self._y)
        self._staged = False
        self._in_place = fabric.sums.ready()
        self._rows: Area | None = None
        self._into = fabric.gathered.buffer  # of _rows

    def _send(self, deadline: Deadline) -> None:
        if not self._staged and self._results is not None and self._y is not None:
            into = self.fabric.results[self.number % SLOTS]
            self._results.copy_to(into.rows(self._results.count, self._results.row_bytes), deadline, "resume() waits on")
            self._y.wait(deadline, "resume() waits on")
            self._steps.offer(into.descriptor)
            self._staged = True
        super()._send(deadline)

    def announce(self, ranks: list[int]) -> None:
        for rank in ranks:
            self.fabric.peers.serve(rank, self.number)

    def withdraw(self) -> None:
        for rank in set(self._ranks).difference(self._steps.sent(self._ranks)):
            self.fabric.peers.unserve(rank, self.number)

    def prepare(self) -> None:
        """Memory is taken once there are results that must be transferred."""

    def _gathered(self) -> Area:
        if self._rows is None:
            routes, gathered = self.handle._routes, self.fabric.gathered
            rows = gathered.rows(routes.tokens * routes.width, self.fabric.shape.result_bytes)
            self._into = gathered.buffer
            self._rows = rows  # the last step: after an interrupt both are taken again
        return self._rows

    def get(self, ranks: list[int], deadline: Deadline) -> Failures:
        if self._results is None:
            return []
        failures: Failures = []
        sources = []
        for rank in ranks:
            descriptor = self._steps.descriptor(rank)
            if descriptor and self.handle._routes.pairs_to(rank):
                try:
                    sources.append((rank, self.fabric.result_buffer(rank, descriptor, deadline)))
                except HmcError as error:
                    failures.append((rank, error.with_traceback(None)))  # which would reference this frame and the list
        fabric, row_bytes = self.fabric, self.fabric.shape.result_bytes
        if self._in_place:
            others = self._steps.load(fabric.sums.device, row_bytes, sources)
            sources = [source for source in sources if source[0] in others]
        if not sources:
            return failures
        self._gathered()
        return failures + self._steps.get(fabric.comm, self._into, row_bytes, sources)

    def targets(self) -> list[Growing]:
        return [self.fabric.gathered]

    def finish(self, ranks: list[int], gone: list[int]) -> Any:
        handle, fabric = self.handle, self.fabric
        handle._state = State.COMBINED
        there = [rank for rank in ranks if self._steps.descriptor(rank)]
        handle._missing = set(range(fabric.shape.ranks)) - set(there)
        if self._y is not None:
            self._add_up(self._y.memory, list(handle._missing))
            self._check_not_masked()  # a rank that goes on without this one may have changed what was loaded
        self._steps.acknowledge(fabric.comm, ranks, READ)
        for rank in ranks:
            fabric.peers.owed[rank].discard(self.number)
        return None if self._y is None else self._y.array

    def _add_up(self, y: _core.Memory, missing: list[int]) -> None:
        sums, routes = self.fabric.sums, self.handle._routes
        if self._in_place:
            sums.add_up(y, self._steps, missing, self.fabric.shape.result_bytes)
        else:
            sums.add_up_copies(y, self._gathered().memory, routes.factors(), routes.used(missing))
