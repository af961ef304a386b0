"""Constants of NIXL's Python interface, by its names and with its values."""

from __future__ import annotations

import enum

__all__ = ["nixl_cost_t", "nixl_mem_t", "nixl_status_t", "nixl_thread_sync_t", "nixl_xfer_op_t"]


class nixl_mem_t(enum.IntEnum):
    """Kinds of memory. HMC moves DRAM and VRAM; the others are storage, which it refuses."""

    DRAM_SEG = 0
    VRAM_SEG = 1
    BLK_SEG = 2
    OBJ_SEG = 3
    FILE_SEG = 4


class nixl_xfer_op_t(enum.IntEnum):
    """Directions of a transfer, as its initiator sees it."""

    NIXL_READ = 0
    NIXL_WRITE = 1


class nixl_status_t(enum.IntEnum):
    """Outcomes of the calls of NIXL's core."""

    NIXL_IN_PROG = 1
    NIXL_SUCCESS = 0
    NIXL_ERR_NOT_POSTED = -1
    NIXL_ERR_INVALID_PARAM = -2
    NIXL_ERR_BACKEND = -3
    NIXL_ERR_NOT_FOUND = -4
    NIXL_ERR_MISMATCH = -5
    NIXL_ERR_NOT_ALLOWED = -6
    NIXL_ERR_REPOST_ACTIVE = -7
    NIXL_ERR_UNKNOWN = -8
    NIXL_ERR_NOT_SUPPORTED = -9


class nixl_cost_t(enum.IntEnum):
    """How a cost was estimated."""

    NIXL_COST_ANALYTICAL_BACKEND = 0


class nixl_thread_sync_t(enum.IntEnum):
    """Locking of an agent. Accepted and without effect: any thread may use an agent of the drop-in."""

    NIXL_THREAD_SYNC_NONE = 0
    NIXL_THREAD_SYNC_STRICT = 1
    NIXL_THREAD_SYNC_RW = 2
    NIXL_THREAD_SYNC_DEFAULT = 0
