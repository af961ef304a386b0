"""The configuration of an agent, and the handles that its calls return."""

from __future__ import annotations

import contextlib
import enum
from typing import Any

from hmc.integrations.nixl import _types
from hmc.integrations.nixl._errors import nixlInvalidParamError, nixlRepostActiveError
from hmc.integrations.nixl._request import Request
from hmc.integrations.nixl._sides import Side

__all__ = ["nixl_agent_config", "nixl_backend_handle", "nixl_prepped_dlist_handle", "nixl_thread_sync_t", "nixl_xfer_handle"]

nixl_backend_handle = int
_DEFAULT_BACKENDS = ["UCX"]  # never changed


class nixl_thread_sync_t(enum.Enum):
    """Locking of an agent. Accepted and without effect: any thread may use an agent of the drop-in."""

    NIXL_THREAD_SYNC_NONE = _types.nixl_thread_sync_t.NIXL_THREAD_SYNC_NONE
    NIXL_THREAD_SYNC_STRICT = _types.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
    NIXL_THREAD_SYNC_RW = _types.nixl_thread_sync_t.NIXL_THREAD_SYNC_RW
    NIXL_THREAD_SYNC_DEFAULT = _types.nixl_thread_sync_t.NIXL_THREAD_SYNC_DEFAULT


class nixl_agent_config:
    """How an agent is made.

    ``enable_listen_thread`` with ``listen_port``: other agents may fetch and send metadata there (this host only, unless a job key
    is set). ``capture_telemetry``: get_xfer_telemetry() works. ``backends``: names that other calls then accept. The others are
    accepted and have no effect.
    """

    def __init__(
        self,
        enable_prog_thread: bool = True,
        enable_listen_thread: bool = False,
        listen_port: int = 8888,
        capture_telemetry: bool = False,
        num_threads: int = 0,
        backends: list[str] = _DEFAULT_BACKENDS,
        sync_mode: nixl_thread_sync_t | None = None,
    ) -> None:
        if sync_mode is not None and not isinstance(sync_mode, nixl_thread_sync_t):
            raise TypeError(f"sync_mode must be a nixl_thread_sync_t, not {type(sync_mode).__name__}")
        self.backends = backends
        self.enable_pthread = enable_prog_thread
        self.enable_listen = enable_listen_thread
        self.port = listen_port
        self.capture_telemetry = capture_telemetry
        self.num_threads = num_threads
        self.sync_mode = sync_mode


class nixl_prepped_dlist_handle:
    """A prepared descriptor list. Transfers that were made with it go on after release()."""

    __slots__ = ("_agent", "_handle", "_side")

    def __init__(self, agent: Any, value: Side) -> None:
        self._agent = agent
        self._handle = id(value)
        self._side: Side | None = value

    def __repr__(self) -> str:
        return f"nixl_prepped_dlist_handle({self._handle:#x}, released={self._side is None})"

    def side(self) -> Side:
        """Raises nixlInvalidParamError once released."""
        side = self._side  # another thread may release it now
        if side is None:
            raise nixlInvalidParamError("the descriptor list was released")
        return side

    def release(self) -> None:
        """Idempotent."""
        self._side = None


class nixl_xfer_handle:
    """A transfer."""

    __slots__ = ("_agent", "_handle", "_request")

    def __init__(self, agent: Any, value: Request) -> None:
        self._agent = agent
        self._handle = id(value)
        self._request: Request | None = value

    def __repr__(self) -> str:
        return f"nixl_xfer_handle({self._handle:#x}, released={self._request is None})"

    def request(self) -> Request:
        """Raises nixlInvalidParamError once released."""
        request = self._request  # another thread may release it now
        if request is None:
            raise nixlInvalidParamError("the transfer was released")
        return request

    def release(self) -> None:
        """Cancels the transfer if it is in flight. Raises nixlRepostActiveError where it cannot be stopped. Idempotent."""
        request = self._request
        if request is not None:
            request.withdraw()
            self._request = None

    def __del__(self) -> None:
        # What cannot be stopped ends by itself: HMC keeps the buffers until then.
        with contextlib.suppress(nixlRepostActiveError, AttributeError):
            self.release()
