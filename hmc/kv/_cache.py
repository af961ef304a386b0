"""A pool's arrays, and what is computed of them: digests, and conversions to and from chunks.

A device computes in its memory where HMC has a kernel for it. Else the CPU reads and writes copies, in pieces of about CHUNK bytes,
which ``bytes_staged`` counts. The next piece is copied while one is digested. Short runs are gathered and scattered on the device,
so that one copy crosses to the CPU.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hmc import layout as layouts
from hmc._arguments import text
from hmc._core import BufferHold, ConnBuffer, Context, Memory, RemoteBuffer, StreamMark
from hmc._deadline import Deadline
from hmc._process import start_thread
from hmc._scratch import Scratch
from hmc._streams import queued
from hmc.errors import InvalidArgumentError, OutOfMemoryError, UnsupportedError
from hmc.kv import _moves
from hmc.kv._counters import Counters
from hmc.kv._images import Images, gather, scatter
from hmc.kv._moves import Chunk, Piece, Side, pieces
from hmc.layout import Layout
from hmc.tensors import Tensor
from hmc.tensors._register import is_dense

__all__ = ["Cache", "layout_of"]

_PAUSE = 1.0  # seconds until a device without a kernel is asked again: it may be compiling one
_MASK = (1 << 64) - 1


def layout_of(layout: Any, given: dict[str, Any]) -> Layout:
    """A pool's layout: complete, or its text with keywords."""
    if isinstance(layout, Layout):
        if given:
            raise InvalidArgumentError(f"{', '.join(given)}: a Layout is complete; these go with a text")
        return layout
    return Layout(text("layout", layout), **given)


class _Copy(NamedTuple):
    """Some tokens in CPU memory."""

    layout: Layout
    bytes: ConnBuffer
    blocks: Any  # their numbers in the copy


def _copy_bytes(to: Memory, source: Memory, nbytes: int) -> None:
    to.copy_blocks_from(source, [0], [0], nbytes)


def _read(chunk: Chunk, near: tuple[Layout, Any, Any], into: Any, digest: bool) -> int:
    """Converts a chunk from a cache (layout, arrays, blocks) into packed memory. Returns the digest of what was written, or 0."""
    where: dict[str, Any] = {"source_first": chunk.near.first, "target_first": chunk.far.first, "position": chunk.token}
    wanted: Any = "target" if digest else None
    return layouts.convert(*near, chunk.packed, into, chunk.packed_blocks, chunk.tokens, **where, digest=wanted)


def _write(chunk: Chunk, source: Any, near: tuple[Layout, Any, Any], position: int, digest: bool) -> int:
    """Converts a chunk from packed memory into a cache (layout, arrays, blocks). Returns the digest of what was read, or 0."""
    packed = chunk.packed_blocks
    where: dict[str, Any] = {"source_first": chunk.far.first, "target_first": chunk.near.first, "position": position}
    wanted: Any = "source" if digest else None
    return layouts.convert(chunk.packed, source, packed, *near, chunk.tokens, **where, digest=wanted)


def _where(chunk: Chunk, source_first: int, target_first: int, position: int) -> dict[str, Any]:
    """Which layers, heads and tokens of two whole caches a chunk is."""
    first = {"source_first": source_first, "target_first": target_first, "position": position}
    return {"layers": chunk.packed.layers, "heads": chunk.packed.heads, **first}


def _memory_of(tensor: Tensor) -> Memory:
    if not is_dense(tensor):
        raise InvalidArgumentError(f"a Tensor of shape {tensor.shape} with strides of {tensor.strides} bytes; pass one in C order")
    return tensor.memory()


class Cache:
    """The arrays of a pool, registered, and their layout. Any thread.

    ``on_cpu``: all arrays are CPU memory, which the CPU reads and writes in place.
    """

    def __init__(self, ctx: Context, caches: Any, layout: Layout, access: str, scratch: Scratch, counts: Counters) -> None:
        self.layout = layout
        self._scratch = scratch
        self._counts = counts
        self._again = 0.0  # when the device is asked whether it computes
        given = caches if isinstance(caches, list | tuple) else [caches]
        self._arrays: list[Any] = [_memory_of(one) if isinstance(one, Tensor) else one for one in given]
        if len(self._arrays) != layout.buffers:
            raise InvalidArgumentError(f"{len(self._arrays)} arrays; the layout {layout} has {layout.buffers}")
        self.buffers: list[ConnBuffer] = []
        self._memories: list[Memory] = []
        self._images: Images | None = None
        try:
            for array in self._arrays:
                self.buffers.append(array if isinstance(array, ConnBuffer) else ctx.register(array, access=access))
                if self.buffers[-1].nbytes < layout.buffer_bytes:
                    raise InvalidArgumentError(
                        f"an array has {self.buffers[-1].nbytes} bytes; the layout {layout} requires {layout.buffer_bytes}"
                    )
        except BaseException:
            self.close(Deadline(5))
            raise
        devices = {buffer.device for buffer in self.buffers}
        self.on_cpu = devices == {"cpu"}
        self.devices = sorted(devices)
        self._memories.extend(buffer.memory for buffer in self.buffers)
        if len(devices) == 1 and not self.on_cpu:
            self._images = Images(self.devices[0])

    def close(self, deadline: Deadline) -> None:
        """Ends the registrations that the pool has made. Then it has no array: a closed pool may live on."""
        for array, buffer in zip(self._arrays, self.buffers, strict=False):
            if buffer is not array:
                buffer.close(deadline.left())
        for kept in (self._arrays, self._memories, self.buffers):
            kept.clear()
        if self._images is not None:
            self._images.close()

    # ---- streams ----

    def marks(self, stream: Any) -> list[StreamMark]:
        """What is to be over before the arrays are used: the work queued on ``stream``; None: on those the arrays come from."""
        if stream is not None:
            return [StreamMark(stream, self.devices[0] if self._images is not None else None)]
        return [] if self.on_cpu else queued(self._arrays)

    # ---- digests and conversions ----

    @property
    def _computes(self) -> bool:
        """Whether the device that has the arrays computes in its memory, as far as is known."""
        return self._images is not None and time.monotonic() >= self._again

    @contextmanager
    def _tried(self) -> Iterator[None]:
        """Leaves the body where the device has no kernel, or not yet, or no memory: the CPU is to compute."""
        try:
            yield
        except (UnsupportedError, OutOfMemoryError):
            self._again = time.monotonic() + _PAUSE

    @property
    def chunk_bytes(self) -> int:
        """Of what is converted or digested at a time, about."""
        return _moves.DEVICE_CHUNK if self._computes else _moves.CHUNK

    def take_chunk(self, nbytes: int, far: Sequence[Any]) -> Any:
        """Scratch for a chunk from or to these remote buffers: in the device's memory where they are of a device too."""
        if self._computes and all(buffer.device != "cpu" for buffer in far):
            with self._tried():
                return self._scratch.take(nbytes, self.devices[0])
        return self._scratch.take(nbytes)

    def digest(
        self,
        side: Side,
        tokens: int,
        *,
        session: str = "",
        position: int = 0,
        layers: tuple[int, int],
        heads: tuple[int, int],
    ) -> int:
        """As hmc.layout.digest. ``session``: whose counters count."""
        where: dict[str, Any] = {"first": side.first, "position": position, "layers": layers, "heads": heads}
        if self.on_cpu:
            return layouts.digest(self.layout, self.buffers, side.blocks, tokens, **where)
        if self._computes:
            with self._tried():
                return layouts.digest(self.layout, self.buffers, side.blocks, tokens, **where)
        total = 0
        with closing(self._copies(side, tokens, layers, heads, session)) as copies:
            for piece, copy in copies:
                total += layouts.digest(
                    copy.layout, copy.bytes, copy.blocks, piece.tokens, first=piece.side.first, position=position + piece.token
                )
        return total & _MASK

    def digests(self, blocks: NDArray[np.uint64], tokens: int, first: int, *, session: str = "") -> Any:
        """As hmc.layout.digests, of all layers and heads."""
        whole = self.layout
        if self.on_cpu:
            return layouts.digests(whole, self.buffers, blocks, tokens, first=first)
        if self._computes:
            with self._tried():
                return layouts.digests(whole, self.buffers, blocks, tokens, first=first)
        table = np.zeros((whole.layers[1], whole.heads[1], len(blocks)), np.uint64)
        side = Side(whole, blocks, first)
        with closing(self._copies(side, tokens, whole.layers, whole.heads, session)) as copies:
            for piece, copy in copies:
                layer, block = piece.layers[0] - whole.layers[0], (first + piece.token) // whole.block
                table[layer : layer + piece.layers[1], :, block : block + len(copy.blocks)] = layouts.digests(
                    copy.layout, copy.bytes, copy.blocks, piece.tokens, first=piece.side.first, position=piece.token
                )
        return table

    def read(self, chunk: Chunk, into: ConnBuffer, session: str, *, digest: bool) -> int:
        """Converts the tokens of a chunk from the arrays into ``into``, where they lie packed, of the CPU or the device.

        Returns the digest of what was written, or 0.
        """
        with BufferHold(self.buffers, []):
            return self._read_chunk(chunk, into, session, digest)

    def _read_chunk(self, chunk: Chunk, into: ConnBuffer, session: str, digest: bool) -> int:
        near, nbytes = chunk.near, chunk.packed.buffer_bytes
        if self.on_cpu:
            return _read(chunk, (self.layout, self.buffers, near.blocks), into, digest)
        if self._computes:
            with self._tried(), self._on_device(into, nbytes) as image:
                found = _read(chunk, (self.layout, self.buffers, near.blocks), image, digest)
                if image is not into:
                    _copy_bytes(into.memory, image, nbytes)
                return found
        with self._on_cpu(into, nbytes) as here:
            copy = self._copy(near, chunk.tokens, chunk.packed.layers, chunk.packed.heads, session)
            try:
                found = _read(chunk, (copy.layout, copy.bytes, copy.blocks), here, digest)
            finally:
                self._scratch.give(copy.bytes)
            if here is not into:
                _copy_bytes(into.memory, here.memory, nbytes)
        return found

    def write(self, chunk: Chunk, source: ConnBuffer, session: str, position: int, digest: bool) -> int:
        """Converts the tokens of a chunk from ``source``, of the CPU or the device, into the arrays.

        Returns the digest of what was read, or 0.
        """
        with BufferHold(self.buffers, []):
            return self._write_chunk(chunk, source, session, position, digest)

    def _write_chunk(self, chunk: Chunk, source: ConnBuffer, session: str, position: int, digest: bool) -> int:
        near, nbytes = chunk.near, chunk.packed.buffer_bytes
        if self.on_cpu:
            return _write(chunk, source, (self.layout, self.buffers, near.blocks), position, digest)
        if self._computes:
            with self._tried(), self._on_device(source, nbytes) as image:
                if image is not source:
                    _copy_bytes(image, source.memory, nbytes)
                return _write(chunk, image, (self.layout, self.buffers, near.blocks), position, digest)
        described, blocks = self._packed(near, chunk.packed.layers, chunk.packed.heads)
        copy = self._scratch.take(described.buffer_bytes)
        try:
            with self._on_cpu(source, nbytes) as here:
                if here is not source:
                    _copy_bytes(here.memory, source.memory, nbytes)
                found = _write(chunk, here, (described, copy, blocks), position, digest)
            runs = layouts.runs(
                described, blocks, self.layout, near.blocks, chunk.tokens, source_first=near.first, target_first=near.first
            )
            scatter(self._images, runs, self._memories, copy.memory[: described.buffer_bytes])
            self._counts.add(session, bytes_staged=described.buffer_bytes)
        finally:
            self._scratch.give(copy)
        return found

    @property
    def loads_on(self) -> str | None:
        """The device, or the CPU, that has all arrays and computes."""
        return "cpu" if self.on_cpu else self.devices[0] if self._computes else None

    def load(self, chunk: Chunk, there: Sequence[Any], far: list[RemoteBuffer], position: int, digest: bool) -> int | None:
        """Converts the tokens of a chunk into the arrays, from arrays of the other cache that ``loads_on`` can read.

        ``far``: the remote buffers that ``there`` are of. Returns the digest of what was read, or 0. None: nothing was written, as
        the device does not compute, or not yet. Raises what has ended a buffer.
        """
        source, near = chunk.far, chunk.near
        where = _where(chunk, source.first, near.first, position)
        wanted: Any = "source" if digest else None
        with self._tried(), BufferHold(self.buffers, far):
            return layouts.convert(
                source.layout, there, source.blocks, self.layout, self.buffers, near.blocks, chunk.tokens, **where, digest=wanted
            )
        return None

    def store(self, chunk: Chunk, there: Sequence[Any], far: list[RemoteBuffer], digest: bool) -> int:
        """Converts the tokens of a chunk from the arrays, of the CPU, into arrays of the other cache that it can write.

        ``far``: the remote buffers that ``there`` are of. Returns the digest of what was written, or 0. Raises what has ended a
        buffer: nothing was written then.
        """
        near, target = chunk.near, chunk.far
        where = _where(chunk, near.first, target.first, chunk.token)
        wanted: Any = "target" if digest else None
        with BufferHold(self.buffers, far):
            return layouts.convert(
                self.layout, self.buffers, near.blocks, target.layout, there, target.blocks, chunk.tokens, **where, digest=wanted
            )

    @contextmanager
    def _on_device(self, buffer: ConnBuffer, nbytes: int) -> Iterator[Any]:
        """``buffer``, or memory of the device in its place."""
        if buffer.device != "cpu":
            yield buffer
            return
        assert self._images is not None
        with self._images.taken(nbytes) as image:
            yield image

    @contextmanager
    def _on_cpu(self, buffer: ConnBuffer, nbytes: int) -> Iterator[ConnBuffer]:
        """``buffer``, or memory of the CPU in its place."""
        if buffer.device == "cpu":
            yield buffer
            return
        here = self._scratch.take(nbytes)
        try:
            yield here
        finally:
            self._scratch.give(here)

    # ---- copies of device memory ----

    def _packed(self, side: Side, layers: tuple[int, int], heads: tuple[int, int]) -> tuple[Layout, Any]:
        """How a copy of some blocks lies in CPU memory, and their numbers there."""
        return self.layout.packed(layers, heads, len(side.blocks)), np.arange(len(side.blocks), dtype=np.uint64)

    def _copy(self, side: Side, tokens: int, layers: tuple[int, int], heads: tuple[int, int], session: str) -> _Copy:
        """A copy of some tokens. Its user gives its bytes back."""
        packed, blocks = self._packed(side, layers, heads)
        copy = self._scratch.take(packed.buffer_bytes)
        try:
            runs = layouts.runs(self.layout, side.blocks, packed, blocks, tokens, source_first=side.first, target_first=side.first)
            gather(self._images, runs, self._memories, copy.memory[: packed.buffer_bytes])
            self._counts.add(session, bytes_staged=packed.buffer_bytes)
        except BaseException:
            self._scratch.give(copy)
            raise
        return _Copy(packed, copy, blocks)

    def _copies(
        self, side: Side, tokens: int, layers: tuple[int, int], heads: tuple[int, int], session: str
    ) -> Generator[tuple[Piece, _Copy], None, None]:
        """Copies of some tokens, piece by piece. Another thread copies the next one while the caller uses one. To be closed."""
        todo = list(pieces(side, tokens, layers, heads))
        made: queue.SimpleQueue[_Copy | BaseException] = queue.SimpleQueue()
        room, stopped = threading.Semaphore(2), threading.Event()

        def run() -> None:
            try:
                for piece in todo:
                    room.acquire()
                    if stopped.is_set():
                        return
                    made.put(self._copy(piece.side, piece.tokens, piece.layers, heads, session))
            except BaseException as error:
                made.put(error)

        thread: threading.Thread | None = None
        try:
            if len(todo) > 1:
                thread = start_thread(run, "hmc.kv copies")
            else:
                run()
            for piece in todo:
                found = made.get()
                if isinstance(found, BaseException):
                    raise found
                try:
                    yield piece, found
                finally:
                    self._scratch.give(found.bytes)
                    room.release()
        finally:
            stopped.set()
            room.release()
            if thread is not None:
                thread.join()
            while not made.empty():
                left = made.get()
                if isinstance(left, _Copy):
                    self._scratch.give(left.bytes)
