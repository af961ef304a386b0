"""An agent's Context: its addresses, the remote agents that it knows, and the messages that arrive."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import socket
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hmc._core import Context, Peer, Work
from hmc.errors import HmcError
from hmc.integrations.nixl import _frames as wire
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

__all__ = ["Links", "Receiver", "host_identity"]

logger = get_logger(__name__)
CONNECT_SECONDS = 10.0


def host_identity() -> str:
    """Equal in processes of one host that may meet on a Unix socket."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def host_addresses() -> list[str]:
    """This host's addresses but loopback and link-local ones, IPv4 first. The first is that of the default route."""
    found: list[str] = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; the kernel chooses the route
        found.append(probe.getsockname()[0])
    last = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/fib_trie").read_text().splitlines():
            if "|--" in line:
                last = line.split()[-1]
            elif "/32 host LOCAL" in line and last not in found:
                found.append(last)
    found = [address for address in found if not address.startswith("127.")]
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            number, _, _, scope, *_ = line.split()
            if scope == "00":  # global
                found.append(f"[{ipaddress.IPv6Address(int(number, 16))}]")
    return found


class _Inlet:
    """What a peer sends. The thread that finds it first takes it: the dispatcher thread, or one that asks for notifications."""

    def __init__(self, peer: Peer, deliver: Callable[[Peer, int, bytes], None], ended: Callable[[_Inlet], None]) -> None:
        self.peer = peer
        self._deliver = deliver
        self._ended = ended
        self._assembler = wire.Assembler()
        self._lock = threading.Lock()
        self._waiting: Any = None  # the Work of the next notifications; None once the peer has ended

    def open(self) -> None:
        """Waits for the first notifications."""
        with self._lock:
            self._arm()
        self.drain()

    def drain(self) -> None:
        """Delivers what has arrived."""
        with self._lock:
            while self._waiting is not None and self._waiting.done:
                work, self._waiting = self._waiting, None
                if work.error() is not None:
                    self._ended(self)
                    return
                for _, frame in work._take():
                    message = self._assembler.add(frame)
                    if message is not None:
                        self._deliver(self.peer, *message)
                self._arm()

    def _arm(self) -> None:
        try:
            self._waiting = self.peer._inotifications(None)
            self._waiting.add_done_callback(lambda _: self.drain())
        except HmcError:  # the peer has ended
            self._ended(self)


class Receiver:
    """Takes the messages of every peer as they arrive, so that no sender waits for the program. Any thread.

    Refers to no Context but by its peers, until they end: a Context refers to it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inlets: list[_Inlet] = []
        self._notifs: dict[str, list[bytes]] = {}
        self.control: weakref.WeakMethod[Callable[[Peer, int, bytes], None]] | None = None  # gets the other messages

    def watch(self, peer: Peer) -> None:
        """Receives from a peer until it ends."""
        inlet = _Inlet(peer, self._deliver, self._forget)
        with self._lock:
            self._inlets.append(inlet)
        inlet.open()

    def take(self) -> dict[str, list[bytes]]:
        """The notifications since the last call, by agent."""
        with self._lock:
            inlets = list(self._inlets)
        for inlet in inlets:
            inlet.drain()
        with self._lock:
            taken, self._notifs = self._notifs, {}
        return taken

    def _forget(self, inlet: _Inlet) -> None:
        with self._lock:
            self._inlets = [one for one in self._inlets if one is not inlet]

    def _deliver(self, peer: Peer, kind: int, message: bytes) -> None:
        if kind == wire.NOTIFY:
            with self._lock:
                self._notifs.setdefault(peer.name, []).append(message)
            return
        control = self.control() if self.control is not None else None
        if control is not None:
            control(peer, kind, message)


class Links:
    """The Context of an agent and the remote agents. Any thread."""

    def __init__(self, name: str, listen: str | None, describe: Callable[[], bytes]) -> None:
        """``listen``: an address besides the private Unix socket. ``describe``: this agent's metadata, on any thread."""
        self.receiver = Receiver()
        options: dict[str, Any] = {} if listen is None else {"listen": listen}
        with translated():
            self.ctx = Context(name=name, on_joined=self.receiver.watch, **options)
        self.receiver.control = weakref.WeakMethod(self._control)
        self._name = name
        self._describe = describe
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
                    self._self = self.ctx.connect(self.ctx.addresses[0], timeout=CONNECT_SECONDS)
                self.receiver.watch(self._self)
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
            if peer.name == metadata.name:
                return peer
            failures.append(f"{address} is agent {peer.name} now")
        text = f"agent {metadata.name} cannot be reached: {'; '.join(failures) or 'it is on another host'}"
        if not any(address.startswith("tcp") for address in metadata.addresses):
            text += ". It listens on its own host only: set HMC_JOB_KEY for both agents (`hmc keygen`) if they are on two hosts"
        raise nixlRemoteDisconnectError(text)

    def _control(self, peer: Peer, kind: int, message: bytes) -> None:
        try:
            if kind == wire.METADATA:
                self.load(Metadata.decode(message), peer)
            elif kind == wire.FETCH:
                send_later(peer, wire.METADATA, self._describe())
            elif kind == wire.INVALIDATE and self.peer_of(peer.name) == peer:
                self.remove(peer.name)
        except Exception as error:  # the sender is not to end this thread
            logger.error("a message of agent %s was ignored: %s", peer.name, error)


_numbers = itertools.count(1)


def send_later(peer: Peer, kind: int, message: bytes) -> list[Work]:
    """Sends a message without waiting. Raises HmcError."""
    return [peer._inotify(frame, None) for frame in wire.frames(kind, message, next(_numbers))]


def send(peer: Peer, kind: int, message: bytes) -> None:
    """Sends a message. Waits while the peer does not take thousands before it. Raises NIXL's exceptions."""
    with translated():
        for frame in wire.frames(kind, message, next(_numbers)):
            peer.notify(frame, timeout=CONNECT_SECONDS)
