"""Plan: what a target requires from which source, computed once, pulled and committed as often as wanted."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hmc._arguments import flag, whole
from hmc._core import ConnBuffer
from hmc._deadline import Deadline
from hmc._interrupts import take
from hmc._process import Owned
from hmc._scratch import Scratch
from hmc._streams import queued, wait_for
from hmc._threaded import Cancel
from hmc.errors import (
    ClosedError,
    HmcError,
    HmcTimeoutError,
    InvalidArgumentError,
    OutOfMemoryError,
    UnsupportedError,
)
from hmc.tensors import Tensor, view
from hmc.weights import _cells
from hmc.weights._casts import check_cast
from hmc.weights._cells import Box, Cell, cells_of, tasks_of
from hmc.weights._excerpt import Excerpt
from hmc.weights._limits import Limits
from hmc.weights._manifest import MAX_EPOCH, Shard
from hmc.weights._moves import Move, Place
from hmc.weights._parts import Part, parts_of
from hmc.weights._publish import Publication
from hmc.weights._pull import run
from hmc.weights._remote import Source, release
from hmc.weights._sinks import Quantised, Sink, sink_of
from hmc.weights._transfer import Pull

__all__ = ["Plan", "plan"]

_ALIGNMENT = 64
_REPEATS = 100  # of copies that a commit() makes after an exception


class Plan(Owned):
    """How a target is filled from some sources. Made by plan(). Any thread; one pull at a time.

    Pulled weights lie in a shadow, which is as large as the target, until commit() copies them to the target.
    """

    def __init__(self, sources: Sequence[Source], target: Any, shadow: str) -> None:
        super().__init__()
        self.sources = list(sources)
        if len({id(source.ctx) for source in self.sources}) != 1:
            raise InvalidArgumentError(f"{len(self.sources)} sources: pass one or more that were looked up with one Context")
        self.scratch = Scratch(self.sources[0].ctx)
        self._lock = threading.Lock()
        self._holder: int | None = None  # the thread in `_alone`
        self._pull: Pull | None = None
        self._pulled: int | None = None
        self._epoch: int | None = None
        self._closed = False
        self._left = False  # the shadow: something may still write into it
        self._moves: dict[tuple[int, int, bool], Move] = {}
        self._excerpts: dict[int, Excerpt] = {}
        self._sinks: list[Sink] = []
        self.places: list[Place] = []
        parts, on_cpu = parts_of(target), shadow.partition(":")[0] == "cpu"  # also "cpu:0"
        for name, one in parts:
            if isinstance(one, Quantised) and not on_cpu:
                raise UnsupportedError(f"tensor {name} is quantised() by the CPU: plan it with shadow='cpu'")
        most = _cells.TASK_BYTES if on_cpu else _cells.DEVICE_TASK_BYTES
        self.tasks = tasks_of(self._cells(parts, most), most)
        nbytes = self.places[-1].offset + self.places[-1].part.nbytes if self.places else 0
        self._shadow: ConnBuffer | None = self._new_shadow(max(1, nbytes), shadow)

    def _cells(self, parts: list[tuple[str, Part]], most: int) -> list[Cell]:
        known: dict[str, list[tuple[int, Shard]]] = {}
        for number, source in enumerate(self.sources):
            for shard in source.shards:
                known.setdefault(shard.name, []).append((number, shard))
        cells: list[Cell] = []
        offset = 0
        for name, one in parts:
            if name not in known:
                raise InvalidArgumentError(f"tensor {name}: no source publishes it; they publish {len(known)} others")
            shards = known[name]
            shape = one.shape or (1,)
            for number, shard in shards:
                if shard.shape != shape:
                    at = self.sources[number].peer.name
                    raise InvalidArgumentError(f"tensor {name} has shape {shard.shape} at {at}, and {shape} in the target")
                check_cast(name, shard.dtype, one.dtype)
            if len({shard.dtype for _, shard in shards}) != 1:
                raise InvalidArgumentError(f"tensor {name} has another element type at each source")
            self._sinks.append(sink_of(self.sources[0].ctx, name, one))
            place = Place(name, one, offset, one.at or (0,), one.extents or (1,))
            if one.nbytes:
                box = Box(place.at, place.extents)
                cells += cells_of(name, len(self.places), box, shards[0][1].grid.itemsize, shards, most)
            self.places.append(place)
            offset += -(-one.nbytes // _ALIGNMENT) * _ALIGNMENT
        return cells

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the plan is closed")

    @contextlib.contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        """The lock. Raises InvalidArgumentError for a call of a signal's handler within another one of its thread."""
        if self._within():
            raise InvalidArgumentError(f"{what} by a signal's handler within another call of the plan: call it after that one")
        with self._lock:
            try:
                self._holder = threading.get_ident()
                yield
            finally:
                self._holder = None

    def _within(self) -> bool:
        """Whether this thread has the lock, which a signal's handler then would wait for without end."""
        return self._lock.locked() and self._holder == threading.get_ident()

    @property
    def nbytes(self) -> int:
        """Bytes of the target."""
        return sum(place.part.nbytes for place in self.places)

    @property
    def epoch(self) -> int | None:
        """The epoch that was committed last; None before the first commit()."""
        return self._epoch

    @property
    def shadow(self) -> ConnBuffer:
        """Where a pull reads to."""
        if self._shadow is None:
            raise ClosedError("the plan is closed")
        return self._shadow

    def _new_shadow(self, nbytes: int, device: str) -> ConnBuffer:
        try:
            return self.sources[0].ctx.buffer(nbytes, device=device)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"the shadow of the plan has {nbytes} bytes, which {device} does not have free: free memory of it, or plan() with "
                f"another shadow= ({error})",
                error.native,
            ) from None

    def leave_shadow(self) -> None:
        """For the pull: a read that cannot be withdrawn may still write into the shadow. The next pull takes another."""
        self._left = True

    def _renew_shadow(self) -> None:
        """OutOfMemoryError. HMC keeps the old one's memory for as long as it may be written."""
        before = self.shadow
        self._shadow = self._new_shadow(before.nbytes, before.device)
        self._moves.clear()
        self._left = False
        release(before)

    def move(self, cell: Cell, number: int, verify: bool) -> Move:
        """How a cell comes from source ``number``. For the pull."""
        key = (id(cell), number, verify)
        found = self._moves.get(key)
        if found is None:
            place, source = self.places[cell.part], self.sources[number]
            found = self._moves[key] = Move(cell, place, source, cell.shards[number], self.shadow, verify)
        return found

    def excerpt(self, number: int) -> Excerpt:
        """The digests of source ``number`` that cells are compared with. For the pull."""
        if number not in self._excerpts:
            cells = [cell for task in self.tasks for cell in task.cells]
            self._excerpts[number] = Excerpt(self.sources[number], number, cells)
        return self._excerpts[number]

    def pull(self, verify: bool = True, epoch: int | None = None, timeout: float | None = None) -> Pull:
        """Begins to read the weights into the shadow: wait for the result, or await it. The target does not change.

        Waits until sources of one epoch have everything together: of ``epoch``, or by default of the newest. Other sources are
        left out. ``verify``: compares everything with the digests of its source. ``timeout``: seconds, for all of it. Sources of
        the same regions share the work by speed. Where one is lost or begins another epoch, the others read what is left.

        Where a region has no source left, the pull raises what ended the last one: PeerLostError, EpochChangedError, or
        StaleBufferError for a publication that was closed. It raises CorruptError for bytes that are not those that were
        published, HmcTimeoutError, HmcCancelledError, OutOfMemoryError, and UnsupportedError where no transport of the Context
        moves a source's memory into the shadow. It may be repeated after each of them.
        This call raises InvalidArgumentError while another pull is under way, OutOfMemoryError where no thread can be started, and
        where a read of an earlier pull may still write into the shadow and there is no memory for another.
        """
        self._check_process()
        deadline = Deadline(timeout)
        if epoch is not None:
            epoch = whole("epoch", epoch, 0, MAX_EPOCH)
        verify = flag("verify", verify)
        with self._alone("pull()"):
            self._check_open()
            if self._pull is not None and not self._pull.done:
                raise InvalidArgumentError("another pull of this plan is under way: wait for it, or cancel it")
            if verify and not all(source.digested for source in self.sources):
                raise InvalidArgumentError("a source was published with digest=False: pass verify=False, or publish with digests")
            self._pulled = None
            if self._left:
                self._renew_shadow()
            before, self._pull = self._pull, Pull()
            try:
                self._pull._begin(functools.partial(self._fill, verify, epoch, deadline))
            except BaseException:
                if self._pull._withdraw():
                    self._pull = before
                else:  # a signal's handler has raised; the thread writes into the shadow until it has ended
                    self._pull.cancel()
                raise
            return self._pull

    def _fill(self, verify: bool, epoch: int | None, deadline: Deadline, cancel: Cancel) -> None:
        """The pull, on its thread."""
        limits = Limits(cancel, deadline)
        found = run(self, verify, epoch, limits)
        for place, sink in zip(self.places, self._sinks, strict=True):
            if place.part.nbytes:
                sink.prepare(place.elements(self.shadow), limits.check)
        self._pulled = found

    def pulled(self) -> tuple[int, list[tuple[str, Tensor]]]:
        """What the last pull has read: its epoch, and the name and elements of each part of the target, in the target's order.

        For a program that puts the elements in place itself: the target does not change. They lie in the shadow: the next pull()
        overwrites them, and close() ends them. Of a quantised() part they are float32.

        InvalidArgumentError where no pull has succeeded since the last commit().
        """
        self._check_process()
        with self._alone("pulled()"):
            self._check_open()
            epoch = self._check_pulled("pulled()")
            return epoch, [
                (place.name, view(self.shadow, place.part.dtype, place.part.extents, offset=place.offset)) for place in self.places
            ]

    def _check_pulled(self, what: str) -> int:
        """The epoch in the shadow. Under the lock."""
        if self._pull is None:
            raise InvalidArgumentError(f"{what} of a plan without a pull: pull() first")
        if not self._pull.done:
            raise InvalidArgumentError(f"{what} while the pull is under way: wait for it first")
        if self._pulled is None:
            raise InvalidArgumentError(f"{what}: the last pull has failed or was committed before; pull() again")
        return self._pulled

    def commit(self) -> int:
        """Copies what was pulled to the target, all of it, and returns its epoch. The target is not to be used meanwhile.

        InvalidArgumentError where no pull has succeeded since the last commit(), and for an array that was resized or moved since
        plan(): the target is then unchanged. It waits for what is queued on the current streams of torch and CuPy arrays;
        close() ends that wait with ClosedError.

        Another HmcError, such as DeviceError or OutOfMemoryError, leaves elements of two epochs in the target: it is not to be used
        until commit(), which may be called again, has copied everything. An exception of a signal's handler is raised once it has.
        """
        self._check_process()
        with self._alone("commit()"):
            self._check_open()
            epoch = self._check_pulled("commit")
            for sink in self._sinks:
                sink.check()
            wait_for(queued(array for sink in self._sinks for array in sink.arrays()), self._check_open)
            self._copy()
            self._epoch, self._pulled = epoch, None
            return epoch

    def _copy(self) -> None:
        interrupted: BaseException | None = None
        repeats = 0
        copies = list(zip(self.places, self._sinks, strict=True))
        while copies:
            try:
                while copies:
                    place, sink = copies[-1]
                    if place.part.nbytes:
                        sink.commit(place.elements(self.shadow))
                    copies.pop()
            except HmcError as error:
                try:
                    if interrupted is not None:
                        raise interrupted from self._mixed(place.name, len(copies), error)
                    raise self._mixed(place.name, len(copies), error) from error
                finally:
                    interrupted = None
            except BaseException as error:  # of a signal's handler: the other tensors would keep the old epoch
                interrupted = error
                repeats += 1
                if repeats > _REPEATS:  # the copy itself fails
                    raise
        try:
            if interrupted is not None:
                raise interrupted
        finally:
            interrupted = None  # else it and this frame refer to each other, and keep the plan

    def _mixed(self, name: str, left: int, error: HmcError) -> HmcError:
        """What commit() raises for an error of a copy: of the same type, and says what the target holds."""
        said = (
            f"commit: tensor {name} was not copied: {error}. The target is mixed: {left} of {len(self.places)} tensors do not hold "
            "the pulled epoch, or in part. Do not use it before another commit(), which copies everything, has returned"
        )
        return type(error)(said, error.native)

    def close(self, timeout: float | None = 5.0) -> None:
        """Cancels a pull that is under way, waits for its end and frees the shadow. HmcTimeoutError: call it again. Idempotent."""
        self._check_process()
        deadline = Deadline(timeout)
        self._closed = True  # before the lock, which a commit() behind a stream holds
        taken: list[bool] = []
        try:
            if self._within() or not take(self._lock, deadline.left(), taken):
                raise HmcTimeoutError(f"close of a plan: a commit() has not ended within {timeout} s; call close() again")
            under_way = self._pull if self._pull is not None and not self._pull.done else None
        finally:
            if taken == [True]:
                self._lock.release()
        if under_way is not None:
            under_way.cancel()
            under_way.drained(deadline.left())
        self._pull = None  # the traceback of its error refers to this plan
        if (shadow := self._shadow) is not None:
            with contextlib.suppress(ClosedError):
                if self._left:
                    release(shadow)
                else:
                    shadow.close(timeout=deadline.left())
        with contextlib.suppress(ClosedError):
            self.scratch.close(deadline)
        self._moves.clear()
        self._excerpts.clear()
        self._sinks.clear()
        self._shadow = None  # the memory is freed with the last reference to it

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def plan(sources: Source | Publication | Sequence[Source | Publication], target: Mapping[str, Any], *, shadow: Any = "cpu") -> Plan:
    """Plans how ``target`` is filled from one or more sources, whatever the shardings of both.

    ``sources``: what lookup() returned, or publications of this process. Together they have every region of the target; where
    several have the same one, they share the work. ``target``: by name, writable arrays in CPU or device memory, or Parts of
    tensors, as in publish(). NumPy arrays may have gaps. Where element types differ, elements are cast, rounded to nearest even;
    above the largest number and for infinities, 8-bit types take their largest number.

    A pull reads into memory of the plan, the shadow, as large as the target, where digests are checked and elements are cast.
    commit() copies from there, to arrays of devices too. ``shadow``: where that memory is, such as "cuda:0": from one device to
    another of its vendor nothing then passes the CPU. Default: the CPU.

    Raises InvalidArgumentError for a tensor that no source has, another shape, a region that no source has, and a text that is no
    device's; UnsupportedError for a device that is not there, a cast that is not among floating-point types of at most 32 bits, and
    quantised() parts in a shadow of a device; OutOfMemoryError; ClosedError for a publication that was closed.
    """
    given = list(sources) if isinstance(sources, list | tuple) else [sources]
    found = []
    for one in given:
        if isinstance(one, Publication):
            one = one.loopback.source(one)
        if not isinstance(one, Source):
            raise InvalidArgumentError(f"a {type(one).__name__} is no source: pass what lookup() or publish() returned")
        found.append(one)
    return Plan(found, target, str(shadow))
