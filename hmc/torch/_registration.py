"""Makes "hmc" known to torch.distributed."""

from __future__ import annotations

import contextlib
from typing import Any

import torch.distributed as dist

import hmc
from hmc.torch._group import HmcProcessGroup
from hmc.torch._meeting import leave, meet
from hmc.torch._shared import bounded
from hmc.torch._tensors import device_types

NAME = "hmc"


def register() -> None:
    """Registers the backend for every type of device. Idempotent. Done by the import, and by torch 2.14 and later when it is asked
    for a backend "hmc" (entry point group ``torch.distributed.backends``)."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=device_types())


def _create(options: Any, _: Any) -> HmcProcessGroup:
    timeout = bounded(options.timeout)
    place = options.group_rank, options.group_size
    communicator = meet(options.store, *place, timeout.total_seconds(), options.global_ranks_in_group)
    try:
        return HmcProcessGroup(communicator, timeout, options.store)
    except BaseException:
        leave(communicator)
        with contextlib.suppress(hmc.HmcError):
            communicator.close(timeout=0)
        raise
