"""The process group."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import hmc
from hmc.torch._delegation import DelegatingCalls
from hmc.torch._forms import accept_every_form
from hmc.torch._native import Native
from hmc.torch._shared import Shared
from hmc.torch._tensors import device_types

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
# From here on torch asks for the backends of a group, and lets Python write them.
FIRST_WITH_BACKENDS = (2, 14)


class HmcProcessGroup(DelegatingCalls, dist.ProcessGroup):  # type: ignore[misc]
    """A torch.distributed process group whose collectives and messages are those of :attr:`communicator`.

    Collectives of one group are issued in the same order on every rank. ``wait()`` of the Works that calls return, and torch's
    synchronous calls, return when the result is in the tensors. Timeouts are those of the group. Errors are HMC's:
    :class:`hmc.PeerLostError` names the rank. Collectives that NCCL or RCCL carries out are different: see DelegatingCalls.
    """

    def __init__(self, communicator: hmc.Communicator, timeout: timedelta, store: Any) -> None:
        # Before, Python could not write a class that is made with the store.
        super().__init__(*([store] if VERSION >= FIRST_WITH_BACKENDS else []), communicator.rank, communicator.size)
        self._start_with(Native(Shared(communicator, timeout.total_seconds()), store))
        self._group_name = self._group_desc = "undefined"
        if VERSION >= FIRST_WITH_BACKENDS:
            self._add_backend()

    def _add_backend(self) -> None:
        """For what torch asks a group's backend, and for calls of torch's operators, which go to it."""
        from hmc.torch._backend import HmcBackend

        custom = dist.ProcessGroup.BackendType.CUSTOM
        backend = HmcBackend(self._native)
        self._set_default_backend(custom)
        for kind in device_types():
            self._register_backend(torch.device(kind), custom, backend)

    # What torch's C++ asks for; its own class answers for backends only.

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupDesc(self, description: str) -> None:
        self._group_desc = description

    def getGroupDesc(self) -> str:
        return self._group_desc

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in device_types()]


accept_every_form(HmcProcessGroup)
