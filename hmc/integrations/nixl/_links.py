"""An agent's Context: its addresses, the remote agents that it knows, and the messages that arrive."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from hmc._core import Context, Descriptor, Peer
from hmc.errors import HmcError, InvalidArgumentError
from hmc.integrations._shared import frames as wire
from hmc.integrations._shared.hosts import host_addresses, host_identity
from hmc.integrations._shared.inbox import Answers, Receiver
from hmc.integrations.nixl._errors import (
    nixlInvalidParamError,
    nixlMismatchError,
    nixlNotFoundError,
    nixlRemoteDisconnectError,
    translated,
)
from hmc.integrations.nixl._metadata import Metadata
from hmc.integrations.nixl._remote import Remote
from hmc.integrations.nixl.logging import get_logger

__all__ = ["Links"]

logger = get_logger(__name__)
CONNECT_SECONDS = 10.0


def _made_by(peer: Peer, metadata: Metadata) -> bool:
    """False where a peer is not the process that made the metadata, as far as its registrations tell. Does not wait."""
    described = next((one.descriptor for one in metadata.entries if one.descriptor), None)
    if described is None:
        return True
    try:
        peer._iimport(Descriptor.parse(described), CONNECT_SECONDS)
    except InvalidArgumentError:  # of another Context
        return False
    except HmcError:  # what is wrong with the registration is for the transfer that uses it to say
        pass
    return True


class Links:
    """The Context of an agent and the remote agents. Any thread."""

    def __init__(self, name: str, listen: str | None, describe: Callable[[], bytes]) -> None:
        """``listen``: an address besides the private Unix socket. ``describe``: this agent's metadata, on any thread.

        Messages are taken from receiver.start() on.
        """
        self.receiver = Receiver()
        options: dict[str, Any] = {} if listen is None else {"listen": listen}
        with translated():
            self.ctx = Context(name=name, on_joined=self.receiver.watch, **options)
        self.receiver.control = weakref.WeakMethod(self._control)
        self._name = name
        self._answers = Answers(lambda _: describe(), logger, most=1)  # all are answered alike
        self._lock = threading.RLock()
        self._own_lock = threading.Lock()  # never taken where messages are handled: own() waits for their thread
        self._remotes: dict[str, Remote] = {}
        self._self: Peer | None = None

    def addresses(self) -> list[str]:
        """What other agents connect to, the nearest first."""
        found = []
        for address in self.ctx.addresses:
            scheme, _, port = address.rpartition(":")
            if scheme in ("tcp://0.0.0.0", "tcp://[::]"):
                both = "[" in scheme  # IPv6 as well
                found += [f"tcp://{one}:{port}" for one in host_addresses() if both or not one.startswith("[")]
            else:
                found.append(address)
        return found

    def load(self, metadata: Metadata, peer: Peer | None = None) -> Remote:
        """Adds a remote agent, or what its metadata has more. ``peer``: the connection that the metadata came by."""
        if metadata.name == self._name:
            raise nixlInvalidParamError(f"the metadata is of this agent, {self._name}: it needs none to reach itself")
        if peer is not None and peer.name != metadata.name:
            raise nixlMismatchError(f"agent {peer.name} sent metadata of agent {metadata.name}")
        known = self._current(metadata)
        if peer is not None and not (_made_by(peer, metadata) and (known is None or known.peer == peer)):
            raise nixlMismatchError(f"a process that is called {metadata.name} sent metadata of another one of that name")
        if known is None:
            made = Remote(metadata, peer or self._connect(metadata))
            made.add(metadata.entries)  # before any thread finds the agent
            with self._lock:
                known = self._current(metadata)  # another thread may have connected meanwhile
                if known is None:
                    self._remotes[metadata.name] = made
                    return made
        known.add(metadata.entries)
        return known

    def _current(self, metadata: Metadata) -> Remote | None:
        """The agent of this metadata, where it is connected."""
        with self._lock:
            found = self._remotes.get(metadata.name)
        return found if found is not None and found.context == metadata.context and found.alive else None

    def remote(self, name: str) -> Remote:
        """Raises nixlNotFoundError for an unknown agent, nixlRemoteDisconnectError for one that has ended."""
        with self._lock:
            found = self._remotes.get(name)
        if found is None:
            raise nixlNotFoundError(f"agent {name} is unknown: pass its metadata to add_remote_agent")
        if not found.alive:
            raise nixlRemoteDisconnectError(f"agent {name} has ended or its connection is lost; add_remote_agent connects again")
        return found

    def knows(self, name: str) -> bool:
        """True where the agent was added and is connected."""
        with self._lock:
            found = self._remotes.get(name)
        return found is not None and found.alive

    def peer_of(self, name: str) -> Peer | None:
        """The connection of an agent that was added."""
        with self._lock:
            found = self._remotes.get(name)
        return None if found is None else found.peer

    def remove(self, name: str) -> None:
        """Posts nothing to the agent any more. The connection stays while that agent lives, because it may use it."""
        with self._lock:
            found = self._remotes.pop(name, None)
        if found is not None:
            found.removed = True

    def own(self) -> Peer:
        """This agent as its own peer."""
        with self._own_lock:
            if self._self is None:
                with translated():
                    peer = self.ctx.connect(self.ctx.addresses[0], timeout=CONNECT_SECONDS)
                self.receiver.watch(peer)
                self._self = peer
            return self._self

    def meet(self, address: str, port: int) -> Peer:
        """Connects to the listener of an agent whose metadata is not here. Raises HmcError."""
        host = f"[{address}]" if ":" in address else address
        return self.ctx.connect(f"tcp://{host}:{port}", timeout=CONNECT_SECONDS)

    def _connect(self, metadata: Metadata) -> Peer:
        if not metadata.addresses:
            raise nixlNotFoundError(f"the metadata of agent {metadata.name} has no connection info, and the agent is not connected")
        here = metadata.host == host_identity()
        failures = []
        for address in metadata.addresses:
            if address.startswith("unix") and not here:
                continue
            try:
                peer = self.ctx.connect(address, timeout=CONNECT_SECONDS)
            except HmcError as error:
                failures.append(str(error))
                continue
            if peer.name != metadata.name:
                failures.append(f"{address} is agent {peer.name} now")
            elif not _made_by(peer, metadata):
                failures.append(f"the agent at {address} has restarted since: pass the metadata that it has now")
            else:
                return peer
        text = f"agent {metadata.name} cannot be reached: {'; '.join(failures) or 'it is on another host'}"
        if not any(address.startswith("tcp") for address in metadata.addresses):
            text += ". It listens on its own host only: set HMC_JOB_KEY for both agents (`hmc keygen`) if they are on two hosts"
        raise nixlRemoteDisconnectError(text)

    def _control(self, peer: Peer, kind: int, message: bytes) -> None:
        try:
            if kind == wire.METADATA:
                self.load(Metadata.decode(message), peer)
            elif kind == wire.FETCH:
                self._answers.ask(peer, b"")
            elif kind == wire.INVALIDATE and self.peer_of(peer.name) == peer:
                self.remove(peer.name)
        except Exception as error:  # the sender is not to end this thread
            logger.error("a message of agent %s was ignored: %s", peer.name, error)
