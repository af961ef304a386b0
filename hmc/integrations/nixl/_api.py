"""``nixl_agent``: NIXL's Python interface over an HMC Context. See docs/howto/nixl.md for what differs."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmc.integrations._shared import frames as wire
from hmc.integrations._shared.errors import NotRegisteredError
from hmc.integrations._shared.inbox import send
from hmc.integrations.nixl import _bindings as nixlBind
from hmc.integrations.nixl._agent_base import ALL, AgentBase, agent_name, message_bytes
from hmc.integrations.nixl._agent_metadata import MetadataCalls
from hmc.integrations.nixl._descs import descriptor_list
from hmc.integrations.nixl._errors import nixlNoTelemetryError, nixlNotSupportedError, translated
from hmc.integrations.nixl._handles import (
    nixl_agent_config,
    nixl_backend_handle,
    nixl_prepped_dlist_handle,
    nixl_thread_sync_t,
    nixl_xfer_handle,
)
from hmc.integrations.nixl._request import Request, nixlXferTelemetry
from hmc.integrations.nixl._sides import Far, Own, Side, strided

__all__ = [
    "DEFAULT_COMM_PORT",
    "nixlBind",
    "nixl_agent",
    "nixl_agent_config",
    "nixl_backend_handle",
    "nixl_prepped_dlist_handle",
    "nixl_thread_sync_t",
    "nixl_xfer_handle",
]

DEFAULT_COMM_PORT = nixlBind.DEFAULT_COMM_PORT
_INITIATOR = ("NIXL_INIT_AGENT", "")


class _MemoryCalls(AgentBase):
    """Registrations."""

    def register_memory(self, reg_list: Any, mem_type: str | None = None, backends: list[str] = ALL) -> Any:
        """Registers memory in place; returns the nixlRegDList for deregister_memory(). Registrations may overlap.

        Memory by its address is the caller's to keep until it is deregistered. Raises nixlNotSupportedError for storage,
        nixlBackendError for memory that is not mapped, TypeError for what get_reg_descs() does not take.
        """
        descs = self._registrable(reg_list, mem_type)
        self._check_backends(backends)
        self._memory.register(descs.getType(), descs.rows)
        return descs

    def deregister_memory(self, dereg_list: Any, backends: list[str] = ALL) -> None:
        """Ends registrations. Afterwards no transfer of any agent reads or writes the memory through them.

        ``dereg_list``: what register_memory() returned. Raises nixlNotFoundError for what is not registered, nixlBackendError where
        a stopped process may still write the memory: keep it, and call again to wait on.
        """
        self._check_backends(backends)
        descs = descriptor_list(dereg_list)
        self._memory.deregister(descs.getType(), descs.rows)

    def query_memory(self, reg_list: Any, backend: str, mem_type: str | None = None) -> list[dict[str, str] | None]:
        """For each descriptor {"device": HMC's name} where a registration holds it, else None. ValueError: unknown backend."""
        if backend not in self.backends:
            raise ValueError(f"Backend '{backend}' not found. Available backends: {list(self.backends)}")
        descs = self._registrable(reg_list, mem_type)
        told: list[dict[str, str] | None] = []
        for at in range(descs.descCount()):
            try:
                found = self._memory.ranges.find(descs.getType(), descs.rows[at : at + 1])
            except NotRegisteredError:
                told.append(None)
                continue
            buffer = found.ranges[int(found.which[0])].holder
            told.append({"device": buffer.device if buffer is not None else ""})
        return told

    def _registrable(self, reg_list: Any, mem_type: str | None) -> Any:
        descs = self.get_reg_descs(reg_list, mem_type)
        if descs is None:
            raise TypeError("no registration descriptors: the log says why")
        return descs


class _TransferCalls(AgentBase):
    """Prepared descriptor lists and transfers."""

    def make_connection(self, remote_agent: str, backends: list[str] = ALL) -> None:
        """Checks that the agent is connected. Raises nixlNotFoundError, nixlRemoteDisconnectError."""
        self._check_backends(backends)
        self._links.remote(agent_name(remote_agent))

    def prep_xfer_dlist(
        self, agent_name: str, xfer_list: Any, mem_type: str | None = None, backends: list[str] = ALL
    ) -> nixl_prepped_dlist_handle:
        """Checks descriptors once, for any number of transfers.

        ``agent_name``: "NIXL_INIT_AGENT" or "" for the initiator's side, a remote agent's name, or this agent's for a transfer to
        itself. ``xfer_list``: what get_xfer_descs() takes, or an (n, 5) array of runs (address, bytes, device, stride, count).
        Raises nixlNotFoundError for an unknown agent and for memory that no single registration holds.
        """
        self._check_backends(backends)
        if isinstance(xfer_list, np.ndarray) and xfer_list.ndim == 2 and xfer_list.shape[1] == 5:
            if mem_type is None:
                raise ValueError("Please specify a mem type for strided descriptors")
            kind, rows = self.nixl_mems[mem_type], strided(xfer_list)
        else:
            descs = self.get_xfer_descs(xfer_list, mem_type)
            if descs is None:
                raise TypeError("no transfer descriptors: the log says why")
            kind, rows = descs.getType(), descs.rows.copy()
        return nixl_prepped_dlist_handle(self, self._side(agent_name, kind, rows))

    def _side(self, name: str | bytes, kind: Any, rows: Any) -> Side:
        name = agent_name(name)
        if name in _INITIATOR:
            return Side(kind, rows, self._memory.ranges, None)
        far: Far = self._own() if name == self.name else self._links.remote(name)
        return Side(kind, rows, far.ranges, far)

    def _own(self) -> Own:
        if self._own_side is None:
            self._own_side = Own(self.name, self._links.own(), self._memory.ranges)
        return self._own_side

    _own_side: Own | None = None

    def make_prepped_xfer(
        self,
        operation: str,
        local_xfer_side: nixl_prepped_dlist_handle,
        local_indices: Any,
        remote_xfer_side: nixl_prepped_dlist_handle,
        remote_indices: Any,
        notif_msg: bytes = b"",
        backends: list[str] = ALL,
        skip_desc_merge: bool = False,
    ) -> nixl_xfer_handle:
        """A transfer between descriptors, chosen by index, of two prepared lists. Nothing moves before transfer().

        ``operation``: "WRITE" or "READ". ``notif_msg``: raised at the remote agent after the last byte is in place; empty: none.
        Raises nixlInvalidParamError where the descriptors do not pair off with equal lengths.
        """
        way = self.nixl_ops[operation]
        self._check_backends(backends)
        near, far = local_xfer_side.side(), remote_xfer_side.side()
        request = Request(way, near, near.chosen(local_indices), far, far.chosen(remote_indices), message_bytes(notif_msg))
        return nixl_xfer_handle(self, request)

    def initialize_xfer(
        self,
        operation: str,
        local_descs: Any,
        remote_descs: Any,
        remote_agent: str,
        notif_msg: bytes = b"",
        backends: list[str] = ALL,
    ) -> nixl_xfer_handle:
        """prep_xfer_dlist() of both sides and make_prepped_xfer() of all their descriptors, in order."""
        way = self.nixl_ops[operation]
        self._check_backends(backends)
        here, there = descriptor_list(local_descs), descriptor_list(remote_descs)
        near = self._side("", here.getType(), here.rows.copy())
        far = self._side(remote_agent, there.getType(), there.rows.copy())
        request = Request(way, near, np.arange(len(near.rows)), far, np.arange(len(far.rows)), message_bytes(notif_msg))
        return nixl_xfer_handle(self, request)

    def transfer(self, handle: nixl_xfer_handle, notif_msg: bytes = b"") -> str:
        """Starts a transfer, or starts it again. Returns "DONE", "PROC" or "ERR".

        ``notif_msg`` replaces the notification unless it is empty. Raises nixlRepostActiveError while the transfer is in flight,
        nixlNotFoundError for memory or an agent that is gone, nixlRemoteDisconnectError.
        """
        return handle.request().post(message_bytes(notif_msg))

    def check_xfer_state(self, handle: nixl_xfer_handle) -> str:
        """ "DONE", "PROC" or "ERR"; the log says why. Raises nixlNotPostedError before transfer()."""
        return handle.request().state()

    def estimate_xfer_cost(self, req_handle: nixl_xfer_handle) -> tuple[int, int, str]:
        """(0, 0, "UNKNOWN"), as NIXL's UCX backend answers."""
        req_handle.request()
        return 0, 0, "UNKNOWN"

    def get_xfer_telemetry(self, handle: nixl_xfer_handle) -> nixlXferTelemetry:
        """Times, bytes and descriptors. Raises nixlNoTelemetryError without ``capture_telemetry``, nixlNotPostedError."""
        if not self._telemetry:
            raise nixlNoTelemetryError("the agent was made without capture_telemetry=True")
        return handle.request().telemetry()

    def query_xfer_backend(self, handle: nixl_xfer_handle) -> str:
        """The first backend that was created, or "UCX": each of them is HMC."""
        handle.request()
        return next(iter(self.backends), "UCX")

    def release_xfer_handle(self, handle: nixl_xfer_handle) -> None:
        """Releases a transfer, cancelled if need be. Raises nixlRepostActiveError where it cannot be stopped: release it later."""
        handle.release()

    def release_dlist_handle(self, handle: nixl_prepped_dlist_handle) -> None:
        """Releases a prepared list."""
        handle.release()

    def prep_mem_view(self, dlist: Any, *, backends: list[str] | None = None) -> int:
        """Raises nixlNotSupportedError: transfers that device code starts are NIXL's own."""
        raise nixlNotSupportedError("prep_mem_view: HMC has no device-side API; start transfers from the host")

    def release_mem_view(self, mvh: int) -> None:
        """Raises nixlNotSupportedError."""
        raise nixlNotSupportedError("release_mem_view: HMC has no device-side API")


class _NotificationCalls(AgentBase):
    """Notifications."""

    def get_new_notifs(self, backends: list[str] = ALL) -> dict[str, list[bytes]]:
        """The notifications that arrived since the last call, by agent, in order. nixlRemoteDisconnectError in a forked child."""
        self._check_backends(backends)
        taken: dict[str, list[bytes]] = {}
        with translated():
            arrived = self._links.receiver.take()
        for name, message in arrived:
            taken.setdefault(name, []).append(message)
        return taken

    def update_notifs(self, backends: list[str] = ALL) -> dict[str, list[bytes]]:
        """Adds new notifications to ``notifs`` and returns all of them."""
        with self._notifs_lock:
            for name, messages in self.get_new_notifs(backends).items():
                self.notifs.setdefault(name, []).extend(messages)
            return self.notifs

    def check_remote_xfer_done(
        self,
        remote_agent_name: str,
        lookup_tag: bytes,
        backends: list[str] = ALL,
        tag_is_prefix: bool = True,
    ) -> bool:
        """True where a notification of the agent begins with the tag (or has it anywhere); that one is consumed."""
        tag = message_bytes(lookup_tag)
        with self._notifs_lock:
            known = self.update_notifs(backends).get(agent_name(remote_agent_name), [])
            for at, message in enumerate(known):
                if message.startswith(tag) if tag_is_prefix else tag in message:
                    del known[at]
                    return True
        return False

    def send_notif(self, remote_agent_name: str, notif_msg: bytes, backend: str | None = None) -> None:
        """Sends a notification of 0 bytes to 64 MiB. Raises nixlNotFoundError, nixlRemoteDisconnectError.

        Returns once it is queued. Waits while the agent's process is stopped and thousands are queued: nixlBackendError after 10 s.
        """
        self._check_backends([] if backend is None else [backend])
        name = agent_name(remote_agent_name)
        peer = self._links.own() if name == self.name else self._links.remote(name).peer
        with translated():
            send(peer, wire.NOTIFY, message_bytes(notif_msg))


class nixl_agent(_MemoryCalls, _TransferCalls, _NotificationCalls, MetadataCalls):
    """An agent of NIXL's Python interface that runs on HMC. Any thread; dead in a forked child.

    ``agent_name``: 1 to 255 bytes, unique. ``nixl_conf``: a nixl_agent_config. ``instantiate_all``: without a configuration, create
    every backend of get_plugin_list(). With HMC_JOB_KEY set the agent also listens on the host's networks, else on this host only.
    """
