"""Clients of the proxy that leave: one thread watches all their connections."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Departures"]


class Departures:
    """Calls a function once a client closes its connection, or its side of it. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: dict[int, Callable[[], None]] = {}  # by the connection's number
        self._closed = False
        self._epoll = select.epoll()
        self._wake, self._woken = socket.socketpair()
        self._epoll.register(self._woken, select.EPOLLIN)
        threading.Thread(target=self._watch, name="hmc.vllm departures", daemon=True).start()

    @contextmanager
    def watched(self, connection: socket.socket, left: Callable[[], None]) -> Iterator[None]:
        """Calls ``left`` at most once, on another thread, where the client leaves during the block. ``left`` must not wait."""
        number = connection.fileno()
        with self._lock:
            if not self._closed:
                self._epoll.register(number, select.EPOLLRDHUP)
                self._left[number] = left
        try:
            yield
        finally:
            with self._lock:
                if self._left.pop(number, None) is not None:
                    self._epoll.unregister(number)

    def close(self) -> None:
        """Watches no more. Idempotent."""
        with self._lock:
            self._closed = True
            self._left.clear()
        self._wake.close()

    def _watch(self) -> None:
        while True:
            self._epoll.poll()
            with self._lock:
                if self._closed:
                    self._epoll.close()
                    self._woken.close()
                    return
                # Polls again under the lock: a number of the first poll may be that of another connection by now.
                for number, _ in self._epoll.poll(0):
                    left = self._left.pop(number, None)
                    if left is not None:
                        self._epoll.unregister(number)
                        left()
