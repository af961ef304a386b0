"""What this host is called, and its addresses."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from pathlib import Path

__all__ = ["host_addresses", "host_identity"]


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
