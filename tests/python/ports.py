"""TCP ports for servers that a test starts."""

from __future__ import annotations

import itertools
import os
import random
import socket

_SPAN = 1496
# Each pytest worker (at most 8) has a range of its own, below the ports that the kernel gives to outgoing connections: a port stays
# free until the test's server listens on it.
_FIRST = 20_000 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8 * _SPAN
_STEP = 8  # the most neighbours
_numbers = itertools.count(random.randrange(0, _SPAN, _STEP), _STEP)


def free_port(count: int = 1) -> int:
    """The first of ``count`` neighbouring ports, at most 8, that nobody listens at. Another one at each call."""
    for _ in range(_SPAN // _STEP):
        port = _FIRST + next(_numbers) % _SPAN
        if all(_is_free(port + extra) for extra in range(count)):
            return port
    raise RuntimeError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
