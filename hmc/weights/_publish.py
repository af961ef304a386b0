"""Publish: arrays in place, what they are, their digests, and a generation that says which epoch they hold."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hmc._arguments import flag, whole
from hmc._core import ConnBuffer, Context
from hmc._deadline import Deadline
from hmc._interrupts import take
from hmc._process import Owned
from hmc._streams import queued, wait_for
from hmc.errors import ClosedError, HmcError, HmcTimeoutError, InvalidArgumentError
from hmc.tensors._register import is_dense
from hmc.weights._cells import TASK_BYTES
from hmc.weights._compute import table_of
from hmc.weights._digest import Grid
from hmc.weights._manifest import MAX_AXES, MAX_EPOCH, MAX_EXTENT, STATE_BYTES, Manifest, Shard, published_as
from hmc.weights._parts import Part, memory_of, parts_of, plain
from hmc.weights._remote import Source, lookup
from hmc.weights._sinks import Quantised

__all__ = ["Publication", "publish"]


def _registered(ctx: Context, name: str, one: Part) -> ConnBuffer:
    if isinstance(one, Quantised):
        raise InvalidArgumentError(f"tensor {name} is a target's quantised(): publish the array and its scales as two tensors")
    if not is_dense(one.array):
        raise InvalidArgumentError(f"tensor {name} of shape {one.extents} has gaps or permuted axes: pass a contiguous array")
    return ctx.register(plain(one.array), access="r")


def _table(grid: Grid, buffer: ConnBuffer) -> Any:
    """The digests of a shard; of device memory band by band."""
    if buffer.device == "cpu":
        return grid.table(buffer.numpy())
    found, memory = np.zeros((grid.chunks, grid.rows), np.uint64), buffer.memory
    for band in grid.bands(TASK_BYTES):
        numbers = table_of(grid, band, memory[band.at : band.at + band.nbytes])
        found[band.first : band.last, band.row : band.row + band.rows] = numbers
    return found


class Publication(Owned):
    """Weights of this process that peers may pull. Made by publish(). Any thread; one update() at a time."""

    def __init__(self, ctx: Context, tensors: Any, epoch: int, name: str, digest: bool) -> None:
        super().__init__()
        if not isinstance(ctx, Context):
            raise TypeError(f"ctx must be a hmc.Context, not a {type(ctx).__name__}")
        self.ctx = ctx
        self.name = name
        self._published = published_as(name)
        self._lock = threading.Lock()  # of an update
        self._mutex = threading.RLock()  # of the state's words, and of _closed; a signal's handler may close()
        self._closing = threading.RLock()
        self._closed = False
        self.loopback = Loopback()  # for plans in this process
        self._buffers: list[ConnBuffer] = []
        self._shards: list[Shard] = []
        self._places: list[tuple[str, Any, tuple[int, int] | None]] = []
        epoch = whole("epoch", epoch, 0, MAX_EPOCH)
        try:
            self._register(parts_of(tensors), flag("digest", digest))
            self._describe(epoch)
        except BaseException:
            self._close_buffers(Deadline(5))
            raise

    def _register(self, parts: list[tuple[str, Part]], digest: bool) -> None:
        entries = 0
        for name, one in parts:
            number = -1
            self._places.append((name, one.array, memory_of(one.array)))
            if one.nbytes:
                number = len(self._buffers)
                self._buffers.append(_registered(self.ctx, name, one))
            try:
                shard = Shard.of(
                    name, one.dtype, one.shape or (1,), one.at or (0,), one.extents or (1,), number, entries if digest else -1
                )
            except ValueError:
                raise InvalidArgumentError(
                    f"tensor {name} of shape {one.shape}: pass at most {MAX_AXES} axes and {MAX_EXTENT} elements"
                ) from None
            entries += shard.grid.entries if digest else 0
            self._shards.append(shard)
        self._table = self.ctx.buffer(max(8, 8 * entries), access="r")
        self._state = self.ctx.buffer(STATE_BYTES, access="r")
        self._words = self._state.numpy(np.uint64, STATE_BYTES // 8)
        self._words[0] = secrets.randbits(62) | 1  # odd: not to be read yet

    def _describe(self, epoch: int) -> None:
        self._arrays = tuple(self._buffers)  # close() on another thread shortens the list
        self._digest()
        arrays = [bytes(buffer.descriptor()) for buffer in self._arrays]
        manifest = Manifest(self._shards, bytes(self._state.descriptor()), bytes(self._table.descriptor()), arrays)
        data = manifest.encode()
        described = self.ctx.buffer(len(data), access="r")
        self._buffers += [self._table, self._state, described]
        described.numpy()[:] = np.frombuffer(data, np.uint8)
        self._words[1] = epoch
        self._words[0] += np.uint64(1)
        self.ctx.publish(self._published, described)

    def _digest(self) -> None:
        wait_for(queued(plain(array) for _, array, _ in self._places), self.check_open)
        numbers = self._table.numpy(np.uint64)
        for shard in self._shards:
            if shard.table >= 0 and shard.nbytes:
                found = _table(shard.grid, self._arrays[shard.buffer])
                numbers[shard.table : shard.table + found.size] = found.reshape(-1)

    @property
    def epoch(self) -> int:
        """The epoch that the arrays hold."""
        return int(self._words[1])

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(shard.nbytes for shard in self._shards)

    @contextlib.contextmanager
    def update(self, epoch: int) -> Iterator[None]:
        """Change the arrays inside ``with src.update(epoch=step):``; they are digested at its end and are then that epoch.

        Its end waits for the device's work as publish() does, until close().

        A pull that is under way when the block begins ends with EpochChangedError. A pull that starts meanwhile waits. After an
        exception in the block the arrays belong to no epoch, until the next update().
        Raises InvalidArgumentError for an update within an update, and at its end for an array that was resized or moved;
        ClosedError.
        """
        self._check_process()
        epoch = whole("epoch", epoch, 0, MAX_EPOCH)
        taken: list[bool] = []
        try:
            if not take(self._lock, 0, taken):
                raise InvalidArgumentError(f"update of weights {self.name!r} to epoch {epoch}: another update has not ended yet")
            with self._mutex:
                self.check_open()
                self._words[0] |= np.uint64(1)
            yield
            self.check_open()
            self._check_memory()
            self._digest()
            with self._mutex:
                self.check_open()
                self._words[1] = epoch
                self._words[0] += np.uint64(1)
        finally:
            if taken == [True]:
                self._lock.release()

    def _check_memory(self) -> None:
        for name, array, memory in self._places:
            if memory_of(array) != memory:
                raise InvalidArgumentError(
                    f"tensor {name}: its array was resized or moved since publish(); close the publication and publish again"
                )

    def check_open(self) -> None:
        self._check_process()
        if self._closed:
            raise ClosedError(f"weights {self.name!r} are no longer published")

    def close(self, timeout: float | None = 5.0) -> None:
        """Ends the publication: returns when every reader has acknowledged or died. Pulls from it end or take another source.

        HmcTimeoutError: a reader has not acknowledged within ``timeout`` seconds; call it again. Idempotent.
        """
        self._check_process()  # the words lie in memory that the parent of a fork() has too
        deadline = Deadline(timeout)
        with self._mutex:
            first = not self._closed
            if first:
                self._closed = True
                self._words[0] = 0
        if first:
            with contextlib.suppress(HmcError):  # the Context is closed
                self.ctx.unpublish(self._published)
        self._close_buffers(deadline)

    def _close_buffers(self, deadline: Deadline) -> None:
        taken: list[bool] = []
        try:
            if not take(self._closing, deadline.left(), taken):
                raise HmcTimeoutError(
                    f"weights {self.name!r}: another close() has not ended within {deadline.timeout} s; call it again"
                )
            while self._buffers:
                buffer = self._buffers[-1]
                with contextlib.suppress(ClosedError):
                    buffer.close(timeout=deadline.left())
                if self._buffers and self._buffers[-1] is buffer:
                    self._buffers.pop()
        finally:
            if taken == [True]:
                self._closing.release()

    def __enter__(self) -> Publication:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Loopback:
    """A publication as a source for plans of its process, by one connection of its Context to itself. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may plan, too
        self._found: Source | None = None

    def source(self, publication: Publication) -> Source:
        """Connects where there is no living connection. Raises ClosedError for a publication that is closed."""
        publication.check_open()
        with self._lock:
            if self._found is None or not self._found.peer.alive:
                ctx = publication.ctx
                self._found = lookup(ctx, ctx.connect(ctx.addresses[0], timeout=30), publication.name, timeout=30)
            return self._found


def publish(ctx: Context, tensors: Mapping[str, Any], epoch: int = 0, name: str = "weights", digest: bool = True) -> Publication:
    """Publishes arrays in place for peers of ``ctx`` to pull.

    ``tensors``: by name, contiguous arrays in CPU or device memory, or a Part where an array holds a part of a tensor (part(),
    shard(), fused()), or a list of Parts. The arrays are kept alive, and change only inside update(). ``epoch``: a number that
    tells versions of the weights apart, such as the training step. ``digest``: computes what ``pull(verify=True)`` checks. That
    reads every byte once: by the device where HMC has a kernel for it (NVIDIA, AMD), else by the CPU, of device memory a copy.
    ``name``: what peers look up; one publication of each name per Context.

    Waits for what is queued on the current streams of torch and CuPy arrays; device arrays of others must be ready.

    Raises InvalidArgumentError for arrays with gaps and a name that is taken.
    """
    return Publication(ctx, tensors, epoch, name, digest)
