"""TCP ports that this process reserves for a listener of another library, or of another process."""

from __future__ import annotations

import contextlib
import socket

__all__ = ["reserved_port"]


def reserved_port() -> socket.socket:
    """A socket at a free port of all addresses of the host. Until it is closed other processes do not get the port by chance.

    A listener with SO_REUSEADDR, as HMC's and torch's are, can use the port meanwhile: Linux lets two sockets with SO_REUSEADDR
    share it while one of them does not listen. A process that asks for this very number with SO_REUSEADDR gets it too.
    """
    try:
        return _bound(socket.AF_INET6)
    except OSError:  # no IPv6
        return _bound(socket.AF_INET)


def _bound(family: int) -> socket.socket:
    with contextlib.ExitStack() as unless_bound:
        holder = unless_bound.enter_context(socket.socket(family))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.bind(("", 0))
        unless_bound.pop_all()
        return holder
