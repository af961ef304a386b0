"""torch's Work over Works of HMC."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import hmc


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
        self._lock = threading.Lock()
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        seconds = (timeout or self._timeout).total_seconds()
        hmc.wait_all(self._works, seconds) if len(self._works) != 1 else self._works[0].wait(seconds)
        self._finish_once()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(work.done for work in self._works)

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
        complete: torch.futures.Future[Any] = torch.futures.Future(devices=devices)
        left = len(self._works)
        counting = threading.Lock()

        def one_done(_: hmc.Work | None = None) -> None:
            nonlocal left
            with counting:
                left -= 1
                if left > 0:
                    return
            complete.set_result(None)

        # What this raises is the error of the future for C++ too; that of set_exception() is a value there.
        def outcome(_: torch.futures.Future[Any]) -> list[torch.Tensor]:
            if (error := self._error()) is not None:
                raise error
            self._finish_once()
            return self._tensors

        future = complete.then(outcome)
        for work in self._works:
            work.add_done_callback(one_done)
        if not self._works:
            one_done()
        return future
