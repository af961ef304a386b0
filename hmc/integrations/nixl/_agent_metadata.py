"""Metadata of agents: as bytes that the program carries, or by the listener of another agent."""

from __future__ import annotations

from typing import Any

from hmc._core import ConnBuffer
from hmc.errors import ClosedError, HmcError
from hmc.integrations._shared import frames as wire
from hmc.integrations._shared.errors import NotRegisteredError
from hmc.integrations._shared.hosts import host_identity
from hmc.integrations._shared.inbox import send
from hmc.integrations._shared.ranges import Range
from hmc.integrations.nixl._agent_base import ALL, AgentBase, agent_name
from hmc.integrations.nixl._descs import descriptor_list
from hmc.integrations.nixl._errors import nixlNotFoundError, nixlNotSupportedError, translate, translated
from hmc.integrations.nixl._metadata import Entry, Metadata
from hmc.integrations.nixl._types import nixl_mem_t
from hmc.integrations.nixl.logging import get_logger

__all__ = ["MetadataCalls"]

logger = get_logger("api")
_PORT = 8888


def _entry(one: Range[ConnBuffer | None]) -> Entry:
    descriptor = b"" if one.holder is None else bytes(one.holder.descriptor())
    return Entry(nixl_mem_t(one.kind), one.address, one.nbytes, one.device, descriptor)


def _require_address(call: str, ip_addr: str) -> None:
    if not ip_addr:
        raise nixlNotSupportedError(
            f"{call} without ip_addr uses etcd, which HMC does not have: pass the address of an agent that listens"
        )


class MetadataCalls(AgentBase):
    """How agents get to know each other."""

    def get_agent_metadata(self) -> bytes:
        """Addresses and registrations of this agent."""
        return self._metadata(self._entries(self._memory.ranges.all()), True)

    def get_partial_agent_metadata(self, descs: Any, inc_conn_info: bool = False, backends: list[str] = ALL) -> bytes:
        """Some registrations of this agent, and its addresses if asked for. Raises nixlNotFoundError for what is not registered."""
        self._check_backends(backends)
        descs = descriptor_list(descs)
        while True:
            with translated():
                ranges = self._memory.ranges.exact(descs.getType(), descs.rows)
            entries = self._entries(ranges)
            if len(entries) == len(ranges):
                return self._metadata(entries, inc_conn_info)

    def _entries(self, ranges: list[Range[ConnBuffer | None]]) -> list[Entry]:
        """Without those that another thread has deregistered meanwhile."""
        entries = []
        for one in ranges:
            try:
                entries.append(_entry(one))
            except ClosedError as error:
                if any(one is other for other in self._memory.ranges.all()):
                    raise translate(error) from error  # the agent has ended
        return entries

    def _metadata(self, entries: list[Entry], reachable: bool) -> bytes:
        with translated():
            addresses = self._links.addresses() if reachable else []
            context = self._links.ctx.id
        return Metadata(self.name, context, host_identity(), addresses, entries).encode()

    def add_remote_agent(self, metadata: bytes) -> bytes:
        """Connects to an agent by its metadata, or adds registrations to a connected one. Returns its name, as bytes like NIXL.

        Raises nixlMismatchError for damaged or foreign metadata, nixlNotAllowedError for another job key, nixlInvalidParamError for
        this agent's own, nixlNotFoundError for partial metadata without addresses of an agent that is not connected,
        nixlRemoteDisconnectError where the agent cannot be reached.
        """
        return self._links.load(Metadata.decode(metadata)).name.encode()

    def remove_remote_agent(self, agent: str) -> None:
        """Starts no transfer and sends no notification to the agent any more. Transfers in flight end. Idempotent."""
        self._links.remove(agent_name(agent))

    def check_remote_metadata(self, agent: str, descs: Any = None) -> bool:
        """True where the agent was added and is connected, and its metadata has registrations that hold ``descs``."""
        name = agent_name(agent)
        if not self._links.knows(name):
            return False
        if descs is None or descriptor_list(descs).isEmpty():
            return True
        try:
            self._links.remote(name).ranges.find(descs.getType(), descs.rows)
        except (NotRegisteredError, nixlNotFoundError):
            return False
        return True

    def send_local_metadata(self, ip_addr: str = "", port: int = _PORT) -> None:
        """Sends the metadata of this agent to the one that listens there. Logs an error if none does. etcd is refused."""
        _require_address("send_local_metadata", ip_addr)
        self._tell(ip_addr, port, wire.METADATA, self.get_agent_metadata())

    def send_partial_agent_metadata(
        self,
        descs: Any,
        inc_conn_info: bool = False,
        backends: list[str] = ALL,
        ip_addr: str = "",
        port: int = _PORT,
        label: str = "",
    ) -> None:
        """As send_local_metadata(), of some registrations. ``label`` is for etcd and has no effect."""
        _require_address("send_partial_agent_metadata", ip_addr)
        self._tell(ip_addr, port, wire.METADATA, self.get_partial_agent_metadata(descs, inc_conn_info, backends))

    def fetch_remote_metadata(self, remote_agent: str, ip_addr: str = "", port: int = _PORT, label: str = "") -> None:
        """Asks the agent that listens there for its metadata; check_remote_metadata() is True once it has come. Logs errors."""
        _require_address("fetch_remote_metadata", ip_addr)
        self._tell(ip_addr, port, wire.FETCH, agent_name(remote_agent).encode())

    def invalidate_local_metadata(self, ip_addr: str = "", port: int = _PORT) -> None:
        """Makes the agent that listens there remove this one. Logs an error if none does."""
        _require_address("invalidate_local_metadata", ip_addr)
        self._tell(ip_addr, port, wire.INVALIDATE, b"")

    def _tell(self, address: str, port: int, kind: int, message: bytes) -> None:
        try:
            peer = self._links.meet(address, port)
        except HmcError as error:
            logger.error("no metadata was exchanged with %s port %s: %s", address, port, error)
            return
        with translated():
            send(peer, kind, message)
