"""NIXL's Python interface over HMC: programs written for NIXL run on every vendor.

``python -m hmc.integrations.nixl PROGRAM ARGUMENTS...`` runs a program whose ``import nixl`` (``nixl_cu12``, ``nixl_cu13``,
``nixl_rocm``) finds this package. docs/howto/nixl.md lists what differs from NIXL.
"""

from __future__ import annotations

from hmc.integrations.nixl import _bindings
from hmc.integrations.nixl._api import (
    DEFAULT_COMM_PORT,
    nixl_agent,
    nixl_agent_config,
    nixl_backend_handle,
    nixl_prepped_dlist_handle,
    nixl_thread_sync_t,
    nixl_xfer_handle,
)

__all__ = [
    "DEFAULT_COMM_PORT",
    "_bindings",
    "nixl_agent",
    "nixl_agent_config",
    "nixl_backend_handle",
    "nixl_prepped_dlist_handle",
    "nixl_thread_sync_t",
    "nixl_xfer_handle",
]
