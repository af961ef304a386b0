"""torch's Work over Works of HMC."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import hmc
from hmc.torch._callbacks import deadlines, run_soon

# Reentrant: the handler of a signal may make a future while its thread makes one.
_making_futures = threading.RLock()


def _start_anew() -> None:
    """In a forked child: the lock may have been held at the fork."""
    global _making_futures
    _making_futures = threading.RLock()


os.register_at_fork(after_in_child=_start_anew)


class DoneWork(dist.Work):  # type: ignore[misc]
    """A call that had its result when it returned, as torch's synchronous calls have."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = tensors

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def is_completed(self) -> bool:
        return True

    is_success = is_completed

    def exception(self) -> Exception | None:
        return None

    def result(self) -> list[torch.Tensor]:
        return list(self._tensors)

    def get_future(self) -> torch.futures.Future[Any]:
        devices = {tensor.device for tensor in self._tensors if not tensor.is_cpu}
        future: torch.futures.Future[Any] = torch.futures.Future(devices=sorted(devices, key=str))
        future.set_result(list(self._tensors))
        return future


class HmcWork(dist.Work):  # type: ignore[misc]
    """One call of a process group: some Works of HMC, and what is left to do here once they are complete.

    ``wait()`` returns when the result is in the tensors, device memory included, and raises HMC's own errors (:mod:`hmc.errors`).
    """

    def __init__(
        self,
        works: Sequence[hmc.Work],
        tensors: Sequence[torch.Tensor],
        seconds: float,
        finish: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._works = works
        self._tensors = list(tensors)
        self._seconds = seconds
        self._finish = finish
        self._finishing = threading.RLock() if finish is not None else None
        self._future: torch.futures.Future[Any] | None = None
        self.block: Block | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        try:
            self._wait_for_works(timeout.total_seconds() if timeout else self._seconds)
        except hmc.HmcTimeoutError:
            if timeout:  # its caller may wait again
                raise
            if not self._all_done():
                if self._error() is not None:
                    raise
                if self._withdraw():
                    raise hmc.HmcTimeoutError(self._withdrawn()) from None
                if not self._all_done():
                    raise
            self._wait_for_works(self._seconds)  # complete just now
        error = self._own_error()
        if error is not None:
            raise error
        self._finish_once()
        block, self.block = self.block, None
        if block is not None:
            block.pop(self, None)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not self._all_done():
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
        with _making_futures:
            if self._future is None:
                self._future = self._make_future()
            return self._future

    def _own_error(self) -> Exception | None:
        """What is wrong with a call whose Works are complete without an error."""
        return None

    def _error(self) -> Exception | None:
        for work in self._works:
            error = work.error()
            if error is not None:
                return error
        return self._own_error() if self._all_done() else None

    def _all_done(self) -> bool:
        return all(work.done for work in self._works)

    def _wait_for_works(self, seconds: float) -> None:
        hmc.wait_all(self._works, seconds) if len(self._works) != 1 else self._works[0].wait(seconds)

    def _withdraw(self) -> bool:
        """Cancel receives, at the group's timeout. False where none was cancelled: the call stays in flight, or has ended."""
        return False

    def _withdrawn(self) -> str:
        """The error of a call that was withdrawn."""
        raise NotImplementedError

    def _finish_once(self) -> None:
        if self._finishing is None:
            return
        with self._finishing:
            if self._finish is not None:
                self._finish()
                self._finish = None

    def _make_future(self) -> torch.futures.Future[Any]:
        devices = sorted({tensor.device for tensor in self._tensors if not tensor.is_cpu}, key=str)
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

        def give_up() -> None:
            # Complete just now: a message that has arrived is not lost.
            in_time = not self._withdraw() and self._all_done()
            over.set_result(None if in_time else hmc.HmcTimeoutError(f"not complete after {self._seconds:g} s"))

        def too_late() -> None:
            run_soon(give_up)

        # What this raises is the error of the future for C++ too; that of set_exception() is a value there.
        def outcome(ended: torch.futures.Future[Any]) -> list[torch.Tensor]:
            error = ended.value() or self._error()
            if error is not None:
                raise error
            self._finish_once()
            return self._tensors

        future = over.then(outcome)
        deadline = deadlines.add(self._seconds, too_late)
        for work in self._works:
            work.add_done_callback(one_done)
        if not self._works and deadline.stop():
            over.set_result(None)
        return future


# The parts of a coalesced block, in order. A part leaves it when its caller has waited for it: torch does not report that an
# exception ended a block, and the calls after it would be kept until the next block.
Block = dict[HmcWork, None]


class ReceiveWork(HmcWork):
    """A receive. One of a message that does not fill its tensor fails; the tensor then begins with the message.

    At the group's timeout ``wait()`` and the future cancel it, so that a message that comes later goes to the next receive.
    """

    asked: tuple[int, int]  # rank and tag

    def _withdraw(self) -> bool:
        try:
            self._works[0].cancel()
        except hmc.HmcError:
            return False
        return True

    def _withdrawn(self) -> str:
        source, tag = self.asked
        rank = "any rank" if source == hmc.ANY_SOURCE else f"rank {source}"
        return f"recv: no message from {rank} with tag {tag} came within {self._seconds:g} s; the receive was withdrawn"

    def _own_error(self) -> Exception | None:
        tensor, info = self._tensors[0], self._works[0].info
        size = tensor.numel() * tensor.element_size()
        if info.bytes == size:
            return None
        return hmc.InvalidArgumentError(
            f"recv: the message from rank {info.source} with tag {info.tag} has {info.bytes} bytes, "
            f"and the tensor {size} ({tensor.numel()} elements of {tensor.dtype})"
        )


class JoinedWork(HmcWork):
    """Several calls as one."""

    def __init__(self, parts: Sequence[HmcWork], seconds: float) -> None:
        works = [work for part in parts for work in part._works]
        tensors = [tensor for part in parts for tensor in part._tensors]
        super().__init__(works, tensors, seconds)
        self._parts = parts

    def _withdraw(self) -> bool:
        return sum(part._withdraw() for part in self._parts) > 0

    def _withdrawn(self) -> str:
        return f"coalesced calls: not complete within {self._seconds:g} s; receives without a message were withdrawn"

    def _finish_once(self) -> None:
        for part in self._parts:
            part._finish_once()

    def _own_error(self) -> Exception | None:
        return next((error for error in (part._own_error() for part in self._parts) if error is not None), None)
