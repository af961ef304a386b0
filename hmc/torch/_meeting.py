"""How the ranks of a process group meet: in the default group, or by torch's store."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import hmc
from hmc._ports import reserved_port

# That of torch's default group, while it is open. Other groups are parts of it: they share its connections, memory and threads.
_home: hmc.Communicator | None = None

# Addresses of documentation, which no host has.
_ELSEWHERE = (socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")

_FAILED = "failed"  # what rank 0 hands out, before the reason, in place of a place to meet


def meet(store: Any, rank: int, size: int, timeout: float, ranks: Sequence[int]) -> hmc.Communicator:
    """The group's Communicator. ``ranks``: the members' in the default group; none for the default group itself.

    Its members make a group alone: nobody else needs to come. Ranks of one host meet at a Unix socket, others at a port of rank
    0's host. The key of the job's connections is ``HMC_JOB_KEY``; where that is not set and ranks are on several hosts, rank 0
    makes one up and hands it out by the store, which is then as secret as the store is.
    """
    global _home
    if not ranks:
        _home = _meet_by_store(store, rank, size, timeout)
        return _home
    part = _part_of_home(store, rank, size, timeout, ranks)
    return _meet_by_store(store, rank, size, timeout) if part is None else part


def leave(communicator: hmc.Communicator) -> None:
    """To be called before it is closed: groups made from now on are no parts of it."""
    global _home
    if communicator is _home:
        _home = None


def _part_of_home(store: Any, rank: int, size: int, timeout: float, ranks: Sequence[int]) -> hmc.Communicator | None:
    """None, at every member, where the default group is of another backend, or is closed at one of them."""
    limit = timedelta(seconds=timeout)
    meeting = f"hmc/part/{store.add(f'hmc/parts/{rank}', 1)}"
    if rank == 0:
        store.set(meeting, str(secrets.randbelow((1 << 31) - 2) + 2 if _home is not None else 0))
    store.wait([meeting], limit)
    number = int(store.get(meeting))
    if number == 0:
        return None
    with contextlib.ExitStack() as unless_made:
        part = None
        with contextlib.suppress(hmc.HmcError):
            if _home is not None:
                part = _home.subgroup(ranks, number)
                unless_made.callback(part.close)
        if part is None:
            store.add(f"{meeting}/without", 1)
        # Nobody uses it before everybody has made it.
        if store.add(f"{meeting}/came", 1) == size:
            store.set(f"{meeting}/all", "yes" if store.add(f"{meeting}/without", 0) == 0 else "no")
        try:
            store.wait([f"{meeting}/all"], limit)
        except Exception:
            store.add(f"{meeting}/came", -1)  # who comes now does not meet this one
            raise
        if store.get(f"{meeting}/all") == b"yes":
            assert part is not None
            part.share_memory(timeout=timeout)
            unless_made.pop_all()
            return part
    return None


def _meet_by_store(store: Any, rank: int, size: int, timeout: float) -> hmc.Communicator:
    if size == 1:
        return hmc.init(0, 1)
    # The store may be of an earlier process group with the same name, as torchrun's is after destroy_process_group().
    meeting = f"hmc/meeting/{store.add(f'hmc/meetings/{rank}', 1)}"
    store.set(f"{meeting}/{rank}", _host())
    if rank != 0:
        store.wait([meeting], timedelta(seconds=timeout))
        place, _, rest = store.get(meeting).decode().partition("\n")
        if place == _FAILED:
            raise hmc.ClosedError(f"rank {rank} of {size} cannot meet the others: rank 0 failed: {rest}")
        return hmc.init(rank, size, place, timeout=timeout, **_options(rest))
    others = [f"{meeting}/{other}" for other in range(size)]
    store.wait(others, timedelta(seconds=timeout))
    hosts = {store.get(other) for other in others}
    try:
        return _meet_by_socket(store, meeting, size, timeout) if len(hosts) == 1 else _meet_by_port(store, meeting, size, timeout)
    except Exception as error:
        # For ranks that have not read the place.
        with contextlib.suppress(Exception):
            store.set(meeting, f"{_FAILED}\n{error}")
        raise


def _meet_by_socket(store: Any, meeting: str, size: int, timeout: float) -> hmc.Communicator:
    directory = tempfile.mkdtemp(prefix="hmc-torch-")
    try:
        place = f"unix:{directory}/meeting"
        store.set(meeting, f"{place}\n")
        return hmc.init(0, size, place, timeout=timeout)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _meet_by_port(store: Any, meeting: str, size: int, timeout: float) -> hmc.Communicator:
    key = "" if os.environ.get("HMC_JOB_KEY") else hmc.keygen()
    with reserved_port() as reserved:
        place = f"tcp://{_own_address()}:{reserved.getsockname()[1]}"
        store.set(meeting, f"{place}\n{key}")
        return hmc.init(0, size, place, timeout=timeout, **_options(key))


def _options(key: str) -> dict[str, Any]:
    return {"key": key} if key else {}


def _host() -> str:
    """The same for two processes that see the same files in the directory for temporary ones, on one kernel."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    kernel = boot.read_text().strip() if boot.exists() else socket.gethostname()
    place = os.stat(tempfile.gettempdir())
    return f"{kernel}/{place.st_dev}/{place.st_ino}"


def _own_address() -> str:
    """Of this host, as hosts see it that reach the one at MASTER_ADDR."""
    master = os.environ.get("MASTER_ADDR", socket.gethostname())
    family, _, _, _, target = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
    address = _address_towards(family, target)
    if ipaddress.ip_address(address).is_loopback and not _means_loopback(master):
        # Debian and Ubuntu map a host's own name to 127.0.1.1. Other hosts find it by the address of its default route.
        for family, elsewhere in _ELSEWHERE:
            with contextlib.suppress(OSError):  # no such route
                address = _address_towards(family, (elsewhere, 9))
                break
    return f"[{address}]" if ":" in address else address


def _means_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.partition(".")[0] == "localhost"


def _address_towards(family: int, target: Any) -> str:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # sends nothing
        return str(probe.getsockname()[0])
