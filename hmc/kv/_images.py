"""Images: memory of a device that runs pass between its caches and the CPU, so that many short ones cross as one copy."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from hmc._core import Memory
from hmc._scratch import fitting
from hmc.errors import OutOfMemoryError
from hmc.layout import Runs

__all__ = ["Images", "gather", "scatter"]

_ALONE = 256 << 10  # bytes; runs from this length on are copied between device and CPU one by one
_LEAST = 256 << 10  # bytes of an image that is worth its copies
_MOST_SPARE = 4


class Images:
    """Images of a device, used in turn. Any thread."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._spare: list[Memory] = []

    def close(self) -> None:
        """Frees the spare ones."""
        with self._lock:
            self._spare.clear()

    @contextlib.contextmanager
    def taken(self, nbytes: int, least: int | None = None) -> Iterator[Memory]:
        """An image of ``nbytes`` or more, or where the device has no room for it, of ``least`` or more. OutOfMemoryError."""
        with self._lock:
            found = next((one for one in self._spare if one.nbytes >= nbytes), None)
            if found is not None:
                self._spare.remove(found)
        image = self._made(nbytes, nbytes if least is None else min(nbytes, least)) if found is None else found
        yield image  # after an error it is freed
        with self._lock:
            if len(self._spare) < _MOST_SPARE:
                self._spare.append(image)

    def _made(self, nbytes: int, least: int) -> Memory:
        size = 1 << (nbytes - 1).bit_length()
        try:
            return Memory(size, self._device)
        except OutOfMemoryError:
            self.close()  # the spare ones are too small
        return fitting(lambda fewer: Memory(fewer, self._device), size, least)


def gather(images: Images | None, runs: Sequence[Runs], caches: Sequence[Memory], into: Memory) -> None:
    """Copies runs of a device's caches into CPU memory, whose other bytes may change too. ``images``: of the device."""
    with _image(images, runs, into.nbytes) as image:
        for first, count, some in _parts(runs, [run.target_offsets for run in runs], into.nbytes, image):
            to = image if image is not None and count else into
            for run, chosen in some:
                offsets = run.target_offsets[chosen] - first
                to.copy_blocks_from(caches[run.source_buffer], run.source_offsets[chosen], offsets, run.nbytes)
            if to is not into:
                into[first : first + count].copy_blocks_from(to, [0], [0], count)


def scatter(images: Images | None, runs: Sequence[Runs], caches: Sequence[Memory], source: Memory) -> None:
    """Copies runs of CPU memory into a device's caches. ``images``: of the device."""
    with _image(images, runs, source.nbytes) as image:
        for first, count, some in _parts(runs, [run.source_offsets for run in runs], source.nbytes, image):
            of = image if image is not None and count else source
            if of is not source:
                of.copy_blocks_from(source[first : first + count], [0], [0], count)
            for run, chosen in some:
                offsets = run.source_offsets[chosen] - first
                caches[run.target_buffer].copy_blocks_from(of, offsets, run.target_offsets[chosen], run.nbytes)


@contextlib.contextmanager
def _image(images: Images | None, runs: Sequence[Runs], nbytes: int) -> Iterator[Memory | None]:
    """An image for ``nbytes``, or a smaller one. None where the runs are to be copied one by one: long, or there is no room."""
    with contextlib.ExitStack() as stack:
        image = None
        if images is not None and min(run.nbytes for run in runs) < _ALONE:
            with contextlib.suppress(OutOfMemoryError):
                image = stack.enter_context(images.taken(nbytes, _LEAST))
        yield image


def _parts(
    runs: Sequence[Runs], offsets: Sequence[Any], nbytes: int, image: Memory | None
) -> Iterator[tuple[int, int, list[tuple[Runs, Any]]]]:
    """(first byte, bytes, runs within these and which of their offsets), by parts of ``nbytes`` of CPU memory that an image holds.

    The last one is (0, 0, runs that no part holds whole): these are copied without the image.
    """
    size = 0 if image is None else min(image.nbytes, nbytes)
    if size in (0, nbytes):
        yield 0, size, [(run, slice(None)) for run in runs]
        return
    pairs = list(zip(runs, offsets, strict=True))
    for first in range(0, nbytes, size):
        count = min(size, nbytes - first)
        within = [(run, (at >= first) & (at + run.nbytes <= first + count)) for run, at in pairs]
        yield first, count, [(run, chosen) for run, chosen in within if chosen.any()]
    across = [(run, at // size != (at + (run.nbytes - 1)) // size) for run, at in pairs]
    yield 0, 0, [(run, chosen) for run, chosen in across if chosen.any()]
