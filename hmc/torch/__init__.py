"""torch.distributed over HMC: ``import hmc.torch``, then ``init_process_group("hmc")``.

DDP, FSDP2, pipeline and tensor parallel code runs as with any backend, on the CPU and on devices of any vendor that torch has. Each
process group has an :class:`hmc.Communicator` of its own, :attr:`HmcProcessGroup.communicator`, for what torch has no call for.

Runs on torch up to 2.13, whose process groups may be written in Python. A newer one is refused with :class:`hmc.UnsupportedError`.
"""

from __future__ import annotations

from hmc.torch._group import HmcProcessGroup
from hmc.torch._registration import register

__all__ = ["HmcProcessGroup", "register"]

register()
