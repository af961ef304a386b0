"""Work that is queued on streams of devices and is to be over before HMC looks at an array."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hmc._core import ConnBuffer, Memory, StreamMark
from hmc.tensors import Tensor

__all__ = ["queued", "wait_for"]

# Seconds. A mark on an idle stream is reached after some microseconds: no time to sleep. Later there are pauses between the looks.
_BUSY, _FIRST_PAUSE, _PAUSE = 0.0002, 0.00005, 0.0005


def queued(arrays: Iterable[Any]) -> list[StreamMark]:
    """What is queued now on the streams that arrays are produced on: torch's and CuPy's current ones, or those they name."""
    marks, seen = [], set()
    for array in arrays:
        if isinstance(array, np.ndarray | Memory | ConnBuffer | Tensor):
            continue
        library = type(array).__module__.partition(".")[0]
        if library in ("torch", "cupy"):  # one current stream for each device
            key = library, str(array.device)
            if key in seen:
                continue
            seen.add(key)
        mark = StreamMark.of(array)
        if mark is not None:
            marks.append(mark)
    return marks


def wait_for(marks: Sequence[StreamMark], check: Callable[[], None]) -> None:
    """Returns when the marked work is over. ``check`` raises what ends the wait early: a stream may be stuck for ever."""
    began, pause = time.monotonic(), _FIRST_PAUSE
    for mark in marks:
        while not mark.reached:
            check()
            if time.monotonic() - began < _BUSY:
                os.sched_yield()  # lets others run; time.sleep(0) takes 55 us from Python 3.11 on
                continue
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE)
