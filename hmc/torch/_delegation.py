"""torch's calls, those of device memory by the vendor's library where the group has one."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hmc.errors import UnsupportedError
from hmc.torch._calls import Calls
from hmc.torch._native import Native
from hmc.torch._shared import bounded

# Collectives by the name before torch 2.14, where that differs.
_COLLECTIVES = {
    "allreduce": "allreduce",
    "allreduce_coalesced": "allreduce_coalesced",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "broadcast": "broadcast",
    "allgather": "allgather",
    "allgather_coalesced": "allgather_coalesced",
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "gather": "gather",
    "scatter": "scatter",
    "alltoall": "alltoall",
    "all_to_all_single": "alltoall_base",
}


class DelegatingCalls(Calls):
    """Calls; a collective whose first tensor is in the library's memory is the library's, and so are its stream order and errors.

    Messages, barriers and what is in CPU memory stay HMC's. A rank's death or abort() ends what waits in the library within a
    second; the next collective raises PeerLostError or HmcCancelledError.
    """

    def _start_with(self, native: Native) -> None:
        self._start(native.shared)
        self._native = native
        self._block: Any = None  # the library's backend, once a collective of a coalesced block went to it

    def _backend_of(self, arguments: tuple[Any, ...]) -> Any:
        backend = self._native.of(arguments)
        if backend is not None and self._coalesced is not None and self._block is None:
            backend._start_coalescing()
            self._block = backend
        return backend

    def start_coalescing(self, device: torch.device | None = None) -> None:
        block, self._block = self._block, None
        super().start_coalescing(device)
        if block is not None:
            # An exception ended the block before it: until the library's end it would hold back what follows.
            block._end_coalescing()

    def end_coalescing(self, device: torch.device | None = None) -> dist.Work:
        block, self._block = self._block, None
        joined = super().end_coalescing(device)
        if block is None:
            return joined
        work: dist.Work = block._end_coalescing()
        if joined._works:
            work.wait()
            joined.wait()
            raise UnsupportedError(
                f"one coalesced block with collectives of {block.name()} and calls of HMC; use a block for each: messages and "
                "tensors of the CPU in one, collectives of device memory in another"
            )
        return work

    _start_coalescing = start_coalescing
    _end_coalescing = end_coalescing

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        self._native.set_timeout(bounded(timeout))

    def shutdown(self) -> None:
        self._native.close(abort=False)
        super().shutdown()

    def abort(self) -> None:
        self._native.close(abort=True)
        super().abort()


def _delegated(name: str, *, of: str) -> Any:
    """``name`` of DelegatingCalls: the library's call of that name, or of the name ``of``."""
    own = getattr(Calls, name)

    @functools.wraps(own)
    def call(self: DelegatingCalls, *arguments: Any) -> dist.Work:
        backend = self._backend_of(arguments)
        if backend is None:
            return own(self, *arguments)
        done: dist.Work = (getattr(backend, name, None) or getattr(backend, of))(*arguments)
        return done

    return call


for _name, _before in _COLLECTIVES.items():
    for _each in {_name, _before}:
        setattr(DelegatingCalls, _each, _delegated(_each, of=_before if _each == _name else _name))
