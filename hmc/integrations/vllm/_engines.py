"""The engines behind the proxy: who has the next request, and one request to one of them."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import urlsplit

__all__ = ["Call", "Engine", "Engines", "Prefill", "address_of"]

_CONNECT = 5.0  # seconds that a connection may take
_APART = 10.0  # seconds that an engine which was not reached comes last


@dataclass(frozen=True)
class Engine:
    """An engine: ``at`` is HOST:PORT of its HTTP server."""

    at: str


@dataclass(frozen=True)
class Prefill(Engine):
    """A prefill engine: the others are those of its KV workers."""

    host: str = "127.0.0.1"
    port: int = 14579
    tp_size: int = 1
    pp_size: int = 1

    @staticmethod
    def of(text: str) -> Prefill:
        """From "URL", or "URL,KV_HOST:KV_PORT", or with ",TP,PP" behind it. Raises ValueError."""
        url, *more = text.split(",")
        if len(more) > 3:
            raise ValueError(f"{text!r}: URL,KV_HOST:KV_PORT,TP,PP is expected")
        host, _, text_of_port = (more[0] if more else "127.0.0.1:14579").rpartition(":")
        port, tp_size, pp_size = (int(one) for one in (text_of_port, *more[1:], *("1", "1")[len(more[1:]) :]))
        if not 0 < port < 65536 or tp_size < 1 or pp_size < 1 or port + tp_size * pp_size > 65536:
            raise ValueError(f"{text!r}: KV port {port}, TP {tp_size}, PP {pp_size} is out of range")
        return Prefill(address_of(url), host.strip("[]"), port, tp_size, pp_size)


def address_of(url: str) -> str:
    """HOST:PORT of a URL with a port. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or not parts.port or parts.path.strip("/"):
        raise ValueError(f"{url!r}: http://HOST:PORT is expected")
    return parts.netloc


class Call:
    """A request to an engine, which another thread may end.

    ``timeout``: seconds that it may take to send anything; None: any time.
    """

    def __init__(self, at: str, timeout: float | None) -> None:
        self._timeout = timeout
        self._connection = http.client.HTTPConnection(at, timeout=_CONNECT if timeout is None else min(_CONNECT, timeout))
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._ended = False

    def connect(self) -> None:
        """First. Raises OSError."""
        self._connection.connect()
        self._connection.sock.settimeout(self._timeout)
        with self._lock:
            self._socket = self._connection.sock
            ended = self._ended
        if ended:
            self.end()

    def start(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> http.client.HTTPResponse:
        """Sends it, and waits for the head of the answer. Raises OSError, HTTPException."""
        self._connection.request(method, path, body, headers)
        return self._connection.getresponse()

    def end(self) -> None:
        """Ends it: the engine aborts the request. Any thread; idempotent."""
        with self._lock:
            self._ended = True
            connected = self._socket
        if connected is not None:
            with contextlib.suppress(OSError):  # it has ended
                connected.shutdown(socket.SHUT_RDWR)


_Engine = TypeVar("_Engine", bound=Engine)


class Engines(Generic[_Engine]):
    """Engines of one kind, which have requests in turn. Any thread."""

    def __init__(self, engines: Sequence[_Engine]) -> None:
        self._engines = list(engines)
        self._lock = threading.Lock()
        self._turns = {True: 0, False: 0}
        self._back: dict[_Engine, float] = {}  # until when one that was not reached comes last

    def in_turn(self, generates: bool = True) -> list[_Engine]:
        """In which order they are tried for a request. Others than generations have turns of their own."""
        now = time.monotonic()
        with self._lock:
            turn = self._turns[generates] % max(1, len(self._engines))
            self._turns[generates] += 1
            order = self._engines[turn:] + self._engines[:turn]
            return sorted(order, key=lambda engine: self._back.get(engine, now) > now)

    def not_reached(self, engine: _Engine) -> None:
        """For a while it comes last."""
        with self._lock:
            self._back[engine] = time.monotonic() + _APART
