"""Makes "hmc" known to torch.distributed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hmc.torch._group import HmcProcessGroup
from hmc.torch._meeting import meet
from hmc.torch._tensors import device_types

NAME = "hmc"
# Longer timeouts overflow in torch's stores and in threading.
LONGEST = timedelta(days=10_000)


def register() -> None:
    """Registers the backend for every type of device. Idempotent. Done by the import, and by torch 2.14 and later when it is asked
    for a backend "hmc" (entry point group ``torch.distributed.backends``)."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=device_types())


def _create(options: Any, _: Any) -> HmcProcessGroup:
    timeout = options.timeout
    # torch counts microseconds in 64 bits: timedelta.max arrives as a negative time.
    timeout = LONGEST if timeout < timedelta(0) else min(timeout, LONGEST)
    place = options.group_rank, options.group_size
    communicator = meet(options.store, *place, timeout.total_seconds(), options.global_ranks_in_group)
    return HmcProcessGroup(communicator, timeout, options.store)
