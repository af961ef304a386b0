"""A pull: workers of each source take tasks from a common list; tasks of a lost source go to the others."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from hmc._core import ConnBuffer, Work
from hmc._scratch import Scratch
from hmc._waits import SLICE
from hmc._workers import run_on_thread
from hmc.errors import EpochChangedError, HmcTimeoutError, OutOfMemoryError
from hmc.weights._cells import Cell, Task
from hmc.weights._excerpt import Digests, Excerpt
from hmc.weights._limits import Limits, drain
from hmc.weights._manifest import STATE_BYTES
from hmc.weights._moves import Move
from hmc.weights._remote import LOST, Source, release
from hmc.weights._stages import Stages

__all__ = ["run"]

# Tasks in flight: of a source at another host; of a worker here, whose own thread copies into memory of the CPU; into a device's.
_FAR, _HERE, _ON_DEVICE = 4, 1, 2


class Planned(Protocol):
    """What a pull takes from a plan."""

    sources: list[Source]
    tasks: list[Task]
    scratch: Scratch

    def leave_shadow(self) -> None: ...

    @property
    def shadow(self) -> ConnBuffer: ...

    def move(self, cell: Cell, number: int, verify: bool) -> Move: ...

    def excerpt(self, number: int) -> Excerpt: ...


class Board:
    """The tasks that are left, and who may take them. Any thread."""

    def __init__(self, tasks: list[Task], sources: set[int], limits: Limits) -> None:
        self._limits = limits
        self._change = threading.Condition()
        self._left = len(tasks)
        self._free = [True] * len(tasks)
        self._tasks = tasks
        self._queues: dict[int, deque[int]] = {source: deque() for source in sources}
        self._alive = set(sources)
        for number, task in enumerate(tasks):
            for source in task.sources & self._alive:
                self._queues[source].append(number)
        self.error: BaseException | None = None

    def take(self, source: int, wait: bool) -> int | None:
        """A task for a source. None: there is none now, or with ``wait``, there will be none."""
        queue = self._queues[source]
        with self._change:
            while True:
                while queue:
                    number = queue.popleft()
                    if self._free[number]:
                        self._free[number] = False
                        return number
                if not wait or self._left == 0 or self._limits.failed.is_set():
                    return None
                self._change.wait(SLICE)
                self._limits.check()

    def done(self) -> None:
        with self._change:
            self._left -= 1
            if self._left == 0:
                self._change.notify_all()

    def fail(self, error: BaseException) -> None:
        """Ends the pull with the first error."""
        with self._change:
            if self.error is None:
                self.error = error
            self._limits.failed.set()
            self._change.notify_all()

    def lose(self, source: int, numbers: list[int], error: BaseException) -> None:
        """A source is lost: its tasks go to the others, or the pull ends."""
        with self._change:
            self._alive.discard(source)
            for number in numbers:
                self._free[number] = True
                for other in self._tasks[number].sources & self._alive:
                    self._queues[other].appendleft(number)
            orphaned = any(
                self._free[number] and not self._tasks[number].sources & self._alive for number in range(len(self._tasks))
            )
            self._change.notify_all()
        if orphaned:
            self.fail(error)


class Flight:
    """A task on its way from a source: all of its moves at a time, or as many as its stage holds."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.begun = False  # it has the stage that it requires
        self.stage: ConnBuffer | None = None
        self.staged_bytes = 0
        self._left: deque[Move] = deque()  # not read yet
        self.moves: list[Move] = []
        self.places: list[int] = []  # of the moves in the stage
        self.works: list[Work] = []

    def prepare(self, moves: list[Move]) -> None:
        self.staged_bytes = sum(move.staged_bytes for move in moves)
        self._left.extend(moves)

    def begin(self, stage: ConnBuffer | None) -> None:
        self.begun, self.stage = True, stage
        if stage is not None and stage.nbytes < self.staged_bytes:
            self._left = deque(piece for move in self._left for piece in move.fitted(stage.nbytes))
        self.post()

    def post(self) -> bool:
        """Begins to read the next moves. False: there is none left."""
        self.moves, self.places, self.works = [], [], []
        at, room = 0, 0 if self.stage is None else self.stage.nbytes
        while self._left and (at == 0 or at + self._left[0].staged_bytes <= room):
            move = self._left.popleft()
            if (work := move.post(self.stage, at)) is not None:
                self.works.append(work)
            self.moves.append(move)
            self.places.append(at)
            at += move.staged_bytes
        return bool(self.moves)


@contextlib.contextmanager
def _borrowed(memory: Scratch, nbytes: int) -> Iterator[ConnBuffer]:
    """Memory for short reads. After an error a peer may still write into it, so that it is not given back."""
    buffer = memory.take(nbytes)
    try:
        yield buffer
    except BaseException:
        release(buffer)
        raise
    memory.give(buffer)


class Worker:
    """Reads from one source. ``digests``: what it verifies; None: nothing."""

    def __init__(
        self,
        plan: Planned,
        number: int,
        generation: int,
        board: Board,
        limits: Limits,
        stages: Stages,
        digests: Digests | None,
    ) -> None:
        self.plan = plan
        self.number = number
        self.source: Source = plan.sources[number]
        self.generation = generation
        self.board = board
        self.limits = limits
        self.stages = stages
        self.digests = digests
        self.ended = threading.Event()  # it writes no more
        self.flights: deque[Flight] = deque()
        self.in_flight = (_HERE if plan.shadow.device == "cpu" else _ON_DEVICE) if self.source.peer.same_host else _FAR

    def main(self) -> None:
        try:
            with _borrowed(self.plan.scratch, STATE_BYTES) as words:
                self._run(words)
        except (*LOST, EpochChangedError) as error:
            if self._drain():
                self.board.lose(self.number, [flight.number for flight in self.flights], error)
            else:
                self.board.fail(error)
        except BaseException as error:
            self.board.fail(error)
            self._drain()
        finally:
            self._leave_stages()
            self.flights.clear()
            self.ended.set()

    def _run(self, words: ConnBuffer) -> None:
        if self.digests is not None:
            self.digests.read(self.limits)
            self._same_epoch(words)
        self._read(words)

    def _leave_stages(self) -> None:
        """To other workers where nothing writes into a stage any more."""
        for flight in self.flights:
            if flight.stage is not None:
                give = self.stages.give if all(work.done for work in flight.works) else self.stages.discard
                give(flight.stage)

    def _drain(self) -> bool:
        """False: the pull has ended, and what is still in flight may write into the shadow."""
        ended = drain([work for flight in self.flights for work in flight.works], self.limits)
        if not ended:
            self.plan.leave_shadow()
        return ended

    def _same_epoch(self, words: ConnBuffer) -> None:
        """What was read so far is of the generation that the pull began with."""
        generation, epoch = self.source.state(words, self.limits.finish)
        if generation != self.generation:
            raise EpochChangedError(
                f"peer {self.source.peer.name} began to change weights {self.source.name!r} during the pull (now epoch {epoch}); "
                "the target is unchanged: pull again"
            )

    def _read(self, words: ConnBuffer) -> None:
        while True:
            self.limits.check()
            while len(self.flights) < self.in_flight and (not self.flights or self.flights[-1].begun):
                number = self.board.take(self.number, wait=not self.flights)
                if number is None:
                    break
                self._post(number)
            if not self.flights:
                return
            self._land(self.flights[0], words)
            self.flights.popleft()
            self.board.done()

    def _post(self, number: int) -> None:
        flight = Flight(number)
        self.flights.append(flight)  # before what may fail: a lost source gives back what it took
        verify = self.digests is not None
        flight.prepare([self.plan.move(cell, self.number, verify) for cell in self.plan.tasks[number].cells])
        self._begin(flight, wait=len(self.flights) == 1)

    def _begin(self, flight: Flight, wait: bool) -> None:
        """Begins to read, or not yet, where there is no room for a stage and the worker is not to wait for it."""
        stage = self.stages.take(flight.staged_bytes, self.limits, wait) if flight.staged_bytes else None
        if stage is not None or not flight.staged_bytes:
            flight.begin(stage)

    def _land(self, flight: Flight, words: ConnBuffer) -> None:
        if not flight.begun:
            self._begin(flight, wait=True)  # it is the only one: no other of this worker has a stage
        while True:
            for work in flight.works:
                self.limits.finish(work)
            self._same_epoch(words)
            for move, at in zip(flight.moves, flight.places, strict=True):
                if self.digests is not None:
                    move.check(self.digests, flight.stage, at)
                if not move.direct:
                    assert flight.stage is not None
                    move.place_staged(flight.stage, at)
            if not flight.post():
                break
            self.limits.check()
        if flight.stage is not None:
            self.stages.give(flight.stage)
            flight.stage = None


class Start(NamedTuple):
    """What a pull begins with."""

    epoch: int
    generations: dict[int, int]  # by number of the source, of those that have the epoch


def _start(plan: Planned, epoch: int | None, limits: Limits) -> Start:
    """Waits until sources of one epoch, the asked one or the newest, have everything together."""
    lost: dict[int, BaseException] = {}
    states: dict[int, tuple[int, int]] = {}
    pause = 0.001
    with _borrowed(plan.scratch, STATE_BYTES) as words:
        try:
            while True:
                _look(plan, words, limits, states, lost)
                wanted = epoch if epoch is not None else max((at for generation, at in states.values() if generation), default=None)
                chosen = {number: generation for number, (generation, at) in states.items() if generation and at == wanted}
                if wanted is not None and chosen and all(not task.sources.isdisjoint(chosen) for task in plan.tasks):
                    return Start(wanted, chosen)
                limits.check()
                time.sleep(limits.left(pause))
                pause = min(0.02, pause * 2)
        except HmcTimeoutError:
            found = {f"{plan.sources[number].peer.name}/{plan.sources[number].name}": at for number, (_, at) in states.items()}
            raise HmcTimeoutError(
                f"pull of {'any epoch' if epoch is None else f'epoch {epoch}'}: by the deadline no sources of one epoch have "
                f"everything; their epochs are {found}. The target is unchanged"
            ) from None
        finally:
            lost.clear()  # their tracebacks refer to it, and to the plan


def _look(
    plan: Planned, words: ConnBuffer, limits: Limits, states: dict[int, tuple[int, int]], lost: dict[int, BaseException]
) -> None:
    """Reads the state of every source that is not lost. Raises the loss that leaves a region without a source."""
    for number, source in enumerate(plan.sources):
        if number not in lost:
            try:
                states[number] = _stable(source, words, limits)
            except LOST as error:
                lost[number] = error
                states.pop(number, None)
    for task in plan.tasks:
        if task.sources <= lost.keys():
            raise lost[min(task.sources)]
    if len(lost) == len(plan.sources):
        raise lost[0]


def _stable(source: Source, words: ConnBuffer, limits: Limits) -> tuple[int, int]:
    """(generation, epoch); generation 0 during an update."""
    first = source.state(words, limits.finish)
    again = source.state(words, limits.finish)
    return again if first == again and first[0] % 2 == 0 else (0, again[1])


def _takes_two(source: Source, count: int) -> bool:
    """Whether this one of ``count`` sources has two workers: one checks bytes while those of the other are copied."""
    return source.peer.same_host and len(os.sched_getaffinity(0)) >= 2 * count


def run(plan: Planned, verify: bool, epoch: int | None, limits: Limits) -> int:
    """Reads everything into the shadow; returns the epoch that it is of."""
    start = _start(plan, epoch, limits)
    board = Board(plan.tasks, set(start.generations), limits)
    required = list(start.generations)
    doubled = [number for number in required if _takes_two(plan.sources[number], len(required))]
    digests = {number: Digests(plan.excerpt(number), plan.scratch) for number in required} if verify else {}
    stages = Stages(plan.sources[0].ctx, plan.shadow.device)
    workers = [
        Worker(plan, number, start.generations[number], board, limits, stages, digests.get(number)) for number in required + doubled
    ]
    started = []
    try:
        for worker in workers[1:]:
            run_on_thread(worker.main, "hmc.weights source")
            started.append(worker)
    except OutOfMemoryError as lack:  # those that have started still write into the shadow
        if len(started) < len(required) - 1:
            board.fail(OutOfMemoryError(f"the pull requires {len(required) - 1} more threads, {len(started)} have started: {lack}"))
    workers[0].main()
    for worker in started:
        worker.ended.wait()
    stages.close()
    for read in digests.values():
        read.end()
    error, board.error = board.error, None
    try:
        if error is not None:
            raise error
    finally:
        error = None  # else the error and this frame keep each other, and the memory of the pull
    return start.epoch
