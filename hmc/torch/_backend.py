"""The backend behind a process group, for torch 2.14 and later."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch

from hmc.torch._delegation import DelegatingCalls
from hmc.torch._native import Native


class HmcBackend(DelegatingCalls, torch._C._distributed_c10d.Backend):  # type: ignore[misc]
    """The calls of :class:`HmcProcessGroup` for those who ask a group for its backend.

    torch's Python calls the group itself: torch hands on no more of a Work that a Python backend returns than ``wait()`` and
    ``get_future()``.
    """

    # torch's own class answers each of these by asking the Python class, without end where that has none.
    supports_splitting = False
    supports_coalescing = False
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False
    supports_time_estimate = False
    _supports_time_estimate = False

    def __init__(self, native: Native) -> None:
        super().__init__(native.communicator.rank, native.communicator.size)
        self._start_with(native)

    @property
    def options(self) -> Any:
        return torch._C._distributed_c10d.Backend.Options("hmc", timedelta(seconds=self._seconds))
