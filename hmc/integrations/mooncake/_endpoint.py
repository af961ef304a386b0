"""An engine's Context: where others reach it, the sessions with them, and what they send.

Mooncake names an engine by "host:port". With HMC_JOB_KEY the engine listens on that TCP port of all networks. Without a key it
listens on its private Unix socket only, and the port is a number that stands for the socket on this host: a link beside it says so.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
import struct
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from hmc._core import ConnBuffer, Context, Peer
from hmc.errors import HmcError, InvalidArgumentError, PeerLostError, ProtocolError, TransportError
from hmc.integrations._shared import frames as wire
from hmc.integrations._shared.hosts import host_addresses
from hmc.integrations._shared.inbox import Answers, Receiver
from hmc.integrations._shared.ranges import Ranges
from hmc.integrations.mooncake import _arguments as arguments
from hmc.integrations.mooncake import _catalogue
from hmc.integrations.mooncake._registrations import Registrations
from hmc.integrations.mooncake._session import REQUEST, Session
from hmc.integrations.mooncake._types import INVALID_ARGUMENT, UNREACHABLE, Refused, TransferNotify, logger

__all__ = ["Endpoint", "notification"]

CONNECT_SECONDS = 10.0
_PORTS = (15000, 17000)  # Mooncake's
_TAKEN = (errno.EADDRINUSE, errno.EACCES)  # another port may be free
_NOTIFY = struct.Struct("<I")  # bytes of a notification's name


def _ports() -> Iterator[int]:
    try:
        low = int(os.environ.get("MC_MIN_RPC_PORT", _PORTS[0]))
        high = int(os.environ.get("MC_MAX_RPC_PORT", _PORTS[1]))
    except ValueError as error:
        raise InvalidArgumentError(f"MC_MIN_RPC_PORT and MC_MAX_RPC_PORT are port numbers: {error}") from error
    if not 0 < low <= high < 65536:
        raise InvalidArgumentError(f"MC_MIN_RPC_PORT={low} and MC_MAX_RPC_PORT={high} are no range of ports")
    yield from random.sample(range(low, high + 1), high - low + 1)
    raise TransportError(f"no port from {low} to {high} is free; MC_MIN_RPC_PORT and MC_MAX_RPC_PORT set the range")


def _reserved() -> socket.socket:
    """A bound socket, whose port no other process of this network namespace can have."""
    for port in _ports():
        made = socket.socket()
        try:
            made.bind(("127.0.0.1", port))
        except OSError:
            made.close()
            continue
        return made
    raise AssertionError


def _link(port: int) -> str:
    """How the link of a port ends. Network namespaces may share the folder."""
    return f"-mc{os.stat('/proc/self/ns/net').st_ino:x}-{port}.sock"


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    """Errors of the system as TransportError."""
    try:
        yield
    except HmcError:  # some are OSErrors too
        raise
    except OSError as error:
        raise TransportError(f"{what}: {error}", error.errno or 0) from error


def _split(name: str) -> tuple[str, int]:
    host, _, port = name.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidArgumentError(f"{name!r} is no name of an engine: host:port, the port from get_rpc_port()")
    return host.strip("[]"), int(port)


def _is_here(host: str) -> bool:
    try:
        found = {str(one[4][0]) for one in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError) as error:  # UnicodeError: it is no name of a host
        raise PeerLostError(f"host {host!r} has no address: {error}") from error
    own = {one.strip("[]") for one in host_addresses()}
    return all(one in own or one.startswith("127.") or one in ("::1", "0.0.0.0", "::") for one in found)


def _remove(link: Path, process: int) -> None:
    if os.getpid() == process:  # not a forked child
        link.unlink(missing_ok=True)


def notification(notify: TransferNotify) -> bytes:
    """A notification as bytes for notify(). Raises Refused where it cannot be sent, TypeError."""
    try:
        name = arguments.text("the name of a TransferNotify", notify.name).encode()
        text = arguments.text("the message of a TransferNotify", notify.msg).encode()
    except UnicodeError as error:
        raise Refused(INVALID_ARGUMENT, f"a notification is text of Unicode: {error}") from error
    message = _NOTIFY.pack(len(name)) + name + text
    if len(message) > wire.MAX_MESSAGE:
        raise Refused(INVALID_ARGUMENT, f"a notification of {len(message)} bytes; at most {wire.MAX_MESSAGE} can be sent")
    return message


class Endpoint:
    """The Context of an engine, and its sessions. Any thread."""

    def __init__(self) -> None:
        """Raises HmcError."""
        self._receiver = Receiver()
        self._receiver.control = weakref.WeakMethod(self._control)
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        # Known before the first engine asks.
        self._registered: Ranges[ConnBuffer] = Ranges(lambda: "this engine")
        registered = self._registered
        self._answers = Answers(lambda request: request + _catalogue.encode(registered.all()), logger)
        self._label = f"mooncake-{os.urandom(8).hex()}"
        self._keyed = bool(os.environ.get("HMC_JOB_KEY"))
        if self._keyed:
            self.ctx, self.port = self._listening()
        else:
            with _translated("the engine cannot be made reachable on this host"):
                reservation = _reserved()
                weakref.finalize(self, reservation.close)
                self.port = int(reservation.getsockname()[1])
                self.ctx = self._context()
                try:
                    self._make_link()
                except BaseException:
                    self.ctx.close(timeout=0)
                    raise
        self.memory = Registrations(self.ctx, self._registered)
        self._receiver.start()

    def _make_link(self) -> None:
        """Names this engine's socket by its port."""
        link = Path(self._folder(), f"{os.getpid()}{_link(self.port)}")
        link.unlink(missing_ok=True)
        link.hardlink_to(self._own_socket())  # a socket too, so that HMC removes it once the process is dead
        weakref.finalize(self, _remove, link, os.getpid())

    def session(self, name: str) -> Session:
        """The connected engine of that name, "host:port". Connects, in at most 10 s. Raises HmcError, Refused."""
        with self._lock:
            found = self._sessions.get(name)
        if found is not None and found.peer.alive:
            return found
        made = Session(name, self._connect(name))
        with self._lock:
            known = self._sessions.get(name)
            if known is not None and known.peer.alive:  # another thread was faster
                return known
            self._sessions = {key: one for key, one in self._sessions.items() if one.peer.alive}
            self._sessions[name] = made
        return made

    def notifies(self) -> list[TransferNotify]:
        """The notifications since the last call, in order of arrival."""
        found = []
        for _, message in self._receiver.take():
            if len(message) < _NOTIFY.size:
                continue
            end = _NOTIFY.size + _NOTIFY.unpack_from(message)[0]
            name, text = message[_NOTIFY.size : end], message[end:]
            found.append(TransferNotify(name.decode(errors="replace"), text.decode(errors="replace")))
        return found

    def _context(self, **options: str) -> Context:
        return Context(name=self._label, on_joined=self._receiver.watch, **options)

    def _listening(self) -> tuple[Context, int]:
        for port in _ports():
            try:
                return self._context(listen=f"tcp://[::]:{port}"), port
            except HmcError as error:
                if error.native not in _TAKEN:
                    raise
                logger.debug("port %d is not free: %s", port, error)
        raise AssertionError

    def _own_socket(self) -> str:
        return self.ctx.addresses[0].removeprefix("unix:")

    def _folder(self) -> Path:
        return Path(self._own_socket()).parent

    def _connect(self, name: str) -> Peer:
        host, port = _split(name)
        if self._keyed:
            peer = self.ctx.connect(f"tcp://{f'[{host}]' if ':' in host else host}:{port}", timeout=CONNECT_SECONDS)
        elif _is_here(host):
            peer = self._connect_here(name, port)
        else:
            raise Refused(
                UNREACHABLE, f"engine {name} is on another host: set HMC_JOB_KEY to the same key (`hmc keygen`) for both engines"
            )
        if peer.name == self._label:  # this engine itself, whatever names it is called by: no peer joins then
            self._receiver.watch(peer)
        return peer

    def _connect_here(self, name: str, port: int) -> Peer:
        reasons = []
        with _translated(f"engine {name} cannot be looked up"):
            links = sorted(self._folder().glob(f"*{_link(port)}"))
        for link in links:  # more than one where a process was killed, whose link is still there
            try:
                return self.ctx.connect(f"unix:{link}", timeout=CONNECT_SECONDS)
            except HmcError as error:
                reasons.append(str(error))
        raise PeerLostError(f"engine {name} cannot be reached: {'; '.join(reasons) or 'no engine of this user has the port'}")

    def _control(self, peer: Peer, kind: int, message: bytes) -> None:
        try:
            if kind == wire.FETCH and len(message) == REQUEST.size:
                self._answers.ask(peer, message)
            elif kind == wire.METADATA:
                with self._lock:
                    asked = [one for one in self._sessions.values() if one.peer == peer]
                for one in asked:
                    one.answered(message)
            else:
                raise ProtocolError(f"a message of kind {kind} and {len(message)} bytes")
        except Exception as error:  # the sender is not to end this thread
            logger.error("a message of %s was ignored: %s", peer.name, error)
