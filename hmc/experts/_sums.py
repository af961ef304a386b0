"""Where a rank adds up the results of its tokens: on its device where HMC has a kernel for that, else on the CPU."""

from __future__ import annotations

import contextlib

import numpy as np
from numpy.typing import NDArray

from hmc import _core
from hmc.errors import UnsupportedError
from hmc.experts._memory import Counts


class Sums:
    """Weighted sums of rows of ``dtype``, which lie or are gathered in memory that ``device`` reaches. One thread at a time.

    ``device``: that of the Buffer, or "cpu" where its vendor has no kernel. A kernel that is still being compiled is waited for by
    no call: until then the CPU sums copies of the rows.
    """

    def __init__(self, device: str, dtype: str, counts: Counts) -> None:
        self._dtype = dtype
        self._counts = counts
        self._home = device
        self.device = device
        try:
            self._ready = _core.prepare_weighted_sum(device, dtype)
        except UnsupportedError:
            self.device, self._ready = "cpu", True

    def ready(self) -> bool:
        """Whether ``device`` sums now: add_up(). Else add_up_copies()."""
        if not self._ready:
            with contextlib.suppress(UnsupportedError):  # the kernel could not be made: the CPU goes on summing copies
                self._ready = _core.prepare_weighted_sum(self.device, self._dtype)
        return self._ready

    def add_up(self, out: _core.Memory, steps: _core.ExpertCombine, missing: list[int], row_bytes: int) -> None:
        """``out``, of any device: the sums of what ``steps`` found, without the results of ``missing`` ranks. Blocks.

        ``row_bytes``: of a result.
        """
        if out.nbytes == 0:
            return
        near = out if out.device == self.device else _core.Memory(out.nbytes, self.device)
        terms = steps.add_up(near, self._dtype, missing)
        if self._home != self.device:
            self._counts.add("bytes_staged", terms * row_bytes)
        self._deliver(out, near)

    def add_up_copies(
        self, out: _core.Memory, rows: _core.Memory, weights: NDArray[np.float32], used: NDArray[np.bool_] | None
    ) -> None:
        """The same on the CPU of ``rows`` in memory of ``device``: row (t, k) times weights[t, k], where that is used.

        ``used`` None: all are.
        """
        if out.nbytes == 0:
            return
        copy = _core.Memory(rows.nbytes)
        self._counts.copy(copy, rows)
        near = out if out.device == "cpu" else _core.Memory(out.nbytes)
        _core.weighted_sum(near, copy, weights, self._dtype, used)
        self._deliver(out, near)

    def _deliver(self, out: _core.Memory, near: _core.Memory) -> None:
        self._counts.add("sums_on_cpu" if near.device == "cpu" else "sums_on_device")
        if near is not out:
            self._counts.copy(out, near)
