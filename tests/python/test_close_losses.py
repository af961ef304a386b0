"""A close that was to deliver everything says what is lost where a connection breaks first, though both processes live."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest

import hmc


def cut_data_connections() -> None:
    """Shuts down every TCP connection of this process: Contexts of one host meet on Unix sockets."""
    for name in os.listdir("/proc/self/fd"):
        try:
            one = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with one:
            if one.family == socket.AF_INET:
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # it listens


@pytest.mark.parametrize("how", ["context", "peer"])
def test_notifications_that_wait_for_credit(how: str) -> None:
    a, b = hmc.Context(transports="tcp", name="a"), hmc.Context(transports="tcp", name="b")
    ab = a.connect(b.addresses[0], timeout=30)
    ba = b.accept(timeout=30)
    for _ in range(2000):
        ab.notify(bytes(1024), timeout=30)
    errors: list[Exception] = []

    def close() -> None:
        try:
            a.close(timeout=60)
        except hmc.HmcError as error:
            errors.append(error)

    closing = threading.Thread(target=close)
    if how == "peer":
        ab.close()
    else:
        closing.start()
    while ab.alive:
        time.sleep(0.001)
    cut_data_connections()
    while ba.alive:
        time.sleep(0.001)
    if how == "peer":
        closing.start()
    closing.join(timeout=60)
    b.close(timeout=30)
    assert len(errors) == 1
    assert isinstance(errors[0], hmc.HmcTimeoutError)
    assert "what was posted to peer b" in str(errors[0])
    assert "is lost" in str(errors[0])
