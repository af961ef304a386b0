"""Makes "hmc" known to torch.distributed."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from hmc.errors import UnsupportedError
from hmc.torch._group import HmcProcessGroup
from hmc.torch._meeting import meet
from hmc.torch._tensors import device_types

NAME = "hmc"
# The last torch whose process groups may be Python classes by themselves; from the next on they are backends of one.
NEWEST = (2, 13)


def register() -> None:
    """Registers the backend for every type of device; done by the import. Idempotent."""
    if NAME in dist.Backend.backend_list:
        return
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version > NEWEST:
        raise UnsupportedError(
            f"hmc.torch runs on torch up to {NEWEST[0]}.{NEWEST[1]}, and this is {torch.__version__}: "
            f"pip install 'torch<{NEWEST[0]}.{NEWEST[1] + 1}'"
        )
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=device_types())


def _create(options: Any, _: Any) -> HmcProcessGroup:
    timeout = options.timeout
    communicator = meet(options.store, options.group_rank, options.group_size, timeout.total_seconds())
    return HmcProcessGroup(communicator, timeout)
