"""Where a rank adds up the results of its tokens: on its device where HMC has a kernel for that, else on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmc import _core
from hmc.errors import UnsupportedError
from hmc.experts._memory import Counts


class Sums:
    """Weighted sums of rows of ``dtype``, gathered in memory of ``device``. One thread at a time.

    ``device``: that of the Buffer, or "cpu" where its vendor has no kernel. A kernel that is still being compiled is waited for by
    no call: until then the CPU sums copies of the rows.
    """

    def __init__(self, device: str, dtype: str, counts: Counts) -> None:
        self._dtype = dtype
        self._counts = counts
        self._home = device
        self.device = device
        try:
            _core.prepare_weighted_sum(device, dtype)
        except UnsupportedError:
            self.device = "cpu"

    def add_up(self, out: _core.Memory, rows: _core.Memory, weights: NDArray[np.float32], used: NDArray[np.bool_] | None) -> None:
        """``out``, of any device: row t becomes the sum over k of weights[t, k] times row (t, k), where that is used.

        Blocks. ``used`` None: all are. ``rows``: of ``device``; rows of unused terms are not read, and may be written meanwhile.
        """
        if out.nbytes == 0:
            return
        try:
            self._add_up(out, rows, weights, used)
        except UnsupportedError:
            copy = _core.Memory(rows.nbytes)
            self._counts.copy(copy, rows)
            self._add_up(out, copy, weights, used)

    def _add_up(self, out: _core.Memory, rows: _core.Memory, weights: Any, used: Any) -> None:
        near = out if out.device == rows.device else _core.Memory(out.nbytes, rows.device)
        _core.weighted_sum(near, rows, weights, self._dtype, used)
        self._deliver(out, near)

    def add_up_on_cpu(self, out: _core.Memory, steps: _core.ExpertCombine, missing: list[int], row_bytes: int) -> None:
        """The same of what ``steps`` got in CPU memory, without the results of ``missing`` ranks. ``row_bytes``: of a result."""
        if out.nbytes == 0:
            return
        near = out if out.device == "cpu" else _core.Memory(out.nbytes)
        terms = steps.add_up(near, self._dtype, missing)
        if self._home != "cpu":
            self._counts.add("bytes_staged", terms * row_bytes)
        self._deliver(out, near)

    def _deliver(self, out: _core.Memory, near: _core.Memory) -> None:
        self._counts.add("sums_on_cpu" if near.device == "cpu" else "sums_on_device")
        if near is not out:
            self._counts.copy(out, near)
