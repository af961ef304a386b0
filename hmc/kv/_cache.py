"""A pool's arrays, and what the CPU computes of them: digests, and conversions to and from chunks.

Of arrays in device memory the CPU reads and writes copies, in pieces of about CHUNK bytes. The next piece is copied while one is
digested. Short runs are gathered and scattered on the device, so that one copy crosses to the CPU.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import numpy as np

from hmc import layout as layouts
from hmc._arguments import text
from hmc._core import ConnBuffer, Context, Memory, StreamMark
from hmc._deadline import Deadline
from hmc._process import start_thread
from hmc._streams import queued
from hmc.errors import InvalidArgumentError
from hmc.kv._moves import Chunk, Piece, Side, pieces
from hmc.kv._remote import Scratch
from hmc.layout import Layout
from hmc.tensors import Tensor

__all__ = ["Cache", "layout_of"]

_ALONE = 256 << 10  # bytes; runs from this length on are copied between device and CPU one by one
_MOST_SPARE = 4
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


class _Images:
    """Memory of a device that pieces pass through, used in turn. Any thread."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._spare: list[Memory] = []

    @contextmanager
    def taken(self, nbytes: int) -> Iterator[Memory]:
        with self._lock:
            found = next((one for one in self._spare if one.nbytes >= nbytes), None)
            if found is not None:
                self._spare.remove(found)
        image = Memory(1 << (nbytes - 1).bit_length(), self._device) if found is None else found
        yield image  # after an error it is freed
        with self._lock:
            if len(self._spare) < _MOST_SPARE:
                self._spare.append(image)


class Cache:
    """The arrays of a pool, registered, and their layout. Any thread.

    ``on_cpu``: all arrays are CPU memory, which the CPU reads and writes in place.
    """

    def __init__(self, ctx: Context, caches: Any, layout: Layout, access: str, scratch: Scratch) -> None:
        self.layout = layout
        self._scratch = scratch
        given = caches if isinstance(caches, list | tuple) else [caches]
        self._arrays: list[Any] = [one.memory() if isinstance(one, Tensor) else one for one in given]
        if len(self._arrays) != layout.buffers:
            raise InvalidArgumentError(f"{len(self._arrays)} arrays; the layout {layout} has {layout.buffers}")
        self.buffers: list[ConnBuffer] = []
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
        self._memories = [buffer.memory for buffer in self.buffers]
        self._images = _Images(self.devices[0]) if len(devices) == 1 and not self.on_cpu else None

    def close(self, deadline: Deadline) -> None:
        """Ends the registrations that the pool has made."""
        for array, buffer in zip(self._arrays, self.buffers, strict=False):
            if buffer is not array:
                buffer.close(deadline.left())

    # ---- streams ----

    def marks(self, stream: Any) -> list[StreamMark]:
        """What is to be over before the arrays are used: the work queued on ``stream``; None: on those the arrays come from."""
        if stream is not None:
            return [StreamMark(stream, self.devices[0] if self._images is not None else None)]
        return [] if self.on_cpu else queued(self._arrays)

    # ---- digests and conversions ----

    def digest(self, side: Side, tokens: int, *, position: int = 0, layers: tuple[int, int], heads: tuple[int, int]) -> int:
        """As hmc.layout.digest."""
        if self.on_cpu:
            return layouts.digest(
                self.layout, self.buffers, side.blocks, tokens, first=side.first, position=position, layers=layers, heads=heads
            )
        total = 0
        with closing(self._copies(side, tokens, layers, heads)) as copies:
            for piece, copy in copies:
                total += layouts.digest(
                    copy.layout, copy.bytes, copy.blocks, piece.tokens, first=piece.side.first, position=position + piece.token
                )
        return total & _MASK

    def digests(self, blocks: Sequence[int], tokens: int, first: int) -> Any:
        """As hmc.layout.digests, of all layers and heads."""
        whole = self.layout
        if self.on_cpu:
            return layouts.digests(whole, self.buffers, blocks, tokens, first=first)
        table = np.zeros((whole.layers[1], whole.heads[1], len(blocks)), np.uint64)
        side = Side(whole, np.array(blocks, np.uint64), first)
        with closing(self._copies(side, tokens, whole.layers, whole.heads)) as copies:
            for piece, copy in copies:
                layer, block = piece.layers[0] - whole.layers[0], (first + piece.token) // whole.block
                table[layer : layer + piece.layers[1], :, block : block + len(copy.blocks)] = layouts.digests(
                    copy.layout, copy.bytes, copy.blocks, piece.tokens, first=piece.side.first, position=piece.token
                )
        return table

    def read(self, chunk: Chunk, into: ConnBuffer) -> None:
        """Converts the tokens of a chunk from the arrays into ``into``, where they lie packed."""
        packed = np.arange(len(chunk.far.blocks), dtype=np.uint64)
        near = chunk.near
        where: dict[str, Any] = {"source_first": near.first, "target_first": chunk.far.first}
        if self.on_cpu:
            layouts.convert(self.layout, self.buffers, near.blocks, chunk.packed, into, packed, chunk.tokens, **where)
            return
        copy = self._copy(near, chunk.tokens, chunk.packed.layers, chunk.packed.heads)
        try:
            layouts.convert(copy.layout, copy.bytes, copy.blocks, chunk.packed, into, packed, chunk.tokens, **where)
        finally:
            self._scratch.give(copy.bytes)

    def write(self, chunk: Chunk, source: ConnBuffer, position: int, digest: bool) -> int:
        """Converts the tokens of a chunk from ``source`` into the arrays. Returns the digest of what was read, or 0."""
        packed = np.arange(len(chunk.far.blocks), dtype=np.uint64)
        near = chunk.near
        where: dict[str, Any] = {"source_first": chunk.far.first, "target_first": near.first, "position": position}
        if self.on_cpu:
            return layouts.convert(
                chunk.packed, source, packed, self.layout, self.buffers, near.blocks, chunk.tokens, **where, digest=digest
            )
        described, blocks = self._packed(near, chunk.packed.layers, chunk.packed.heads)
        copy = self._scratch.take(described.buffer_bytes)
        try:
            found = layouts.convert(chunk.packed, source, packed, described, copy, blocks, chunk.tokens, **where, digest=digest)
            runs = layouts.runs(
                described, blocks, self.layout, near.blocks, chunk.tokens, source_first=near.first, target_first=near.first
            )
            self._scatter(runs, copy.memory[: described.buffer_bytes])
        finally:
            self._scratch.give(copy)
        return found

    # ---- copies of device memory ----

    def _packed(self, side: Side, layers: tuple[int, int], heads: tuple[int, int]) -> tuple[Layout, Any]:
        """How a copy of some blocks lies in CPU memory, and their numbers there."""
        return self.layout.packed(layers, heads, len(side.blocks)), np.arange(len(side.blocks), dtype=np.uint64)

    def _copy(self, side: Side, tokens: int, layers: tuple[int, int], heads: tuple[int, int]) -> _Copy:
        """A copy of some tokens. Its user gives its bytes back."""
        packed, blocks = self._packed(side, layers, heads)
        copy = self._scratch.take(packed.buffer_bytes)
        try:
            runs = layouts.runs(self.layout, side.blocks, packed, blocks, tokens, source_first=side.first, target_first=side.first)
            self._gather(runs, copy.memory[: packed.buffer_bytes])
        except BaseException:
            self._scratch.give(copy)
            raise
        return _Copy(packed, copy, blocks)

    def _copies(
        self, side: Side, tokens: int, layers: tuple[int, int], heads: tuple[int, int]
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
                    made.put(self._copy(piece.side, piece.tokens, piece.layers, heads))
            except BaseException as error:
                made.put(error)

        thread = start_thread(run, "hmc.kv copies") if len(todo) > 1 else None
        if thread is None:
            run()
        try:
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

    def _gather(self, runs: list[layouts.Runs], into: Memory) -> None:
        if self._images is None or min(run.nbytes for run in runs) >= _ALONE:
            for run in runs:
                into.copy_blocks_from(self._memories[run.source_buffer], run.source_offsets, run.target_offsets, run.nbytes)
            return
        with self._images.taken(into.nbytes) as image:
            for run in runs:
                image.copy_blocks_from(self._memories[run.source_buffer], run.source_offsets, run.target_offsets, run.nbytes)
            into.copy_blocks_from(image, [0], [0], into.nbytes)

    def _scatter(self, runs: list[layouts.Runs], source: Memory) -> None:
        if self._images is None or min(run.nbytes for run in runs) >= _ALONE:
            for run in runs:
                self._memories[run.target_buffer].copy_blocks_from(source, run.source_offsets, run.target_offsets, run.nbytes)
            return
        with self._images.taken(source.nbytes) as image:
            image.copy_blocks_from(source, [0], [0], source.nbytes)
            for run in runs:
                self._memories[run.target_buffer].copy_blocks_from(image, run.source_offsets, run.target_offsets, run.nbytes)
