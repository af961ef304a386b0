"""torch's Work over Works of HMC."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import hmc
from hmc.torch._callbacks import deadlines, run_soon


class HmcWork(dist.Work):  # type: ignore[misc]
    """One call of a process group: some Works of HMC, and what is left to do here once they are complete.

    ``wait()`` returns when the result is in the tensors, device memory included, and raises HMC's own errors (:mod:`hmc.errors`).
    """

    def __init__(
        self,
        works: Sequence[hmc.Work],
        tensors: Sequence[torch.Tensor],
        timeout: timedelta,
        finish: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._works = works
        self._tensors = list(tensors)
        self._timeout = timeout
        self._finish = finish
        self._lock = threading.RLock()
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        seconds = (timeout or self._timeout).total_seconds()
        hmc.wait_all(self._works, seconds) if len(self._works) != 1 else self._works[0].wait(seconds)
        self._finish_once()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not all(work.done for work in self._works):
            return False
        if self._error() is None:
            self._finish_once()
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self._error() is None

    def exception(self) -> Exception | None:
        return self._error()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._tensors

    def source_rank(self) -> int:
        self.wait()
        return int(self._works[0].info.source)

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        with self._lock:
            if self._future is None:
                self._future = self._make_future()
            return self._future

    def _error(self) -> Exception | None:
        return next((error for error in (work.error() for work in self._works) if error is not None), None)

    def _finish_once(self) -> None:
        with self._lock:
            if self._finish is not None:
                self._finish()
                self._finish = None

    def _make_future(self) -> torch.futures.Future[Any]:
        devices = sorted({tensor.device for tensor in self._tensors if tensor.device.type != "cpu"}, key=str)
        over: torch.futures.Future[Any] = torch.futures.Future(devices=devices)
        left = len(self._works)
        counting = threading.Lock()

        def one_done(_: hmc.Work) -> None:
            nonlocal left
            with counting:
                left -= 1
                last = left == 0
            if last and deadline.stop():
                # What hangs on the future may wait for others, which the thread that calls this completes.
                run_soon(over.set_result, None)

        def too_late() -> None:
            run_soon(over.set_result, hmc.HmcTimeoutError(f"not complete after {self._timeout.total_seconds():g} s"))

        # What this raises is the error of the future for C++ too; that of set_exception() is a value there.
        def outcome(ended: torch.futures.Future[Any]) -> list[torch.Tensor]:
            error = ended.value() or self._error()
            if error is not None:
                raise error
            self._finish_once()
            return self._tensors

        future = over.then(outcome)
        deadline = deadlines.add(self._timeout.total_seconds(), too_late)
        for work in self._works:
            work.add_done_callback(one_done)
        if not self._works and deadline.stop():
            over.set_result(None)
        return future
