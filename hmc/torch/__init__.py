"""torch.distributed over HMC: ``import hmc.torch``, then ``init_process_group("hmc")``.

DDP, FSDP, pipeline and tensor parallel code runs as with any backend, on the CPU and on devices of any vendor that torch has. Each
process group has an :class:`hmc.Communicator` of its own, :attr:`HmcProcessGroup.communicator`, for what torch has no call for.

Runs on torch 2.12 to 2.15. From 2.14 on torch finds the backend without the import.
"""

from __future__ import annotations

from hmc.torch._group import HmcProcessGroup
from hmc.torch._registration import register

__all__ = ["HmcProcessGroup", "register"]

register()
