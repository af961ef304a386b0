"""How ranks of several hosts meet, and what the others get where rank 0 fails."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

import hmc
import hmc.torch._meeting as meeting
from hmc._ports import reserved_port

TAKE = """
import socket, sys
for family, address in ((socket.AF_INET, ""), (socket.AF_INET, "127.0.0.1")):
    with socket.socket(family) as taker:
        try:
            taker.bind((address, int(sys.argv[1])))
        except OSError:
            continue
        raise SystemExit("taken")
"""


def test_a_reserved_port_is_for_hmc_alone() -> None:
    with reserved_port() as holder:
        port = holder.getsockname()[1]
        subprocess.run([sys.executable, "-c", TAKE, str(port)], check=True, timeout=60)
        for address in ("[::]", "127.0.0.1"):
            with hmc.Context(listen=[f"tcp://{address}:{port}"], insecure=True) as context:
                assert any(one.endswith(f":{port}") for one in context.addresses), context.addresses


class _LateStore:
    """A store that a rank reads only after an event."""

    def __init__(self, store: Any, event: threading.Event) -> None:
        self._store = store
        self._event = event

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def wait(self, keys: list[str], limit: timedelta) -> None:
        assert self._event.wait(60)
        self._store.wait(keys, limit)


def test_other_ranks_end_at_once_where_rank_0_cannot_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    store, failed = dist.HashStore(), threading.Event()
    hosts = iter(range(2))
    errors: list[BaseException] = []

    def visit() -> None:
        try:
            meeting._meet_by_store(_LateStore(store, failed), 1, 2, 20)
        except BaseException as error:
            errors.append(error)

    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setattr(meeting, "reserved_port", other.dup)  # its port is taken
        monkeypatch.setattr(meeting, "_own_address", lambda: "127.0.0.1")
        monkeypatch.setattr(meeting, "_host", lambda: f"{os.getpid()}/{next(hosts)}")
        visitor = threading.Thread(target=visit)
        visitor.start()
        try:
            with pytest.raises(hmc.InvalidArgumentError, match="in use"):
                meeting._meet_by_store(store, 0, 2, 60)
        finally:
            failed.set()
            visitor.join(60)
    assert [type(error) for error in errors] == [hmc.ClosedError]
    assert "rank 0 failed: rank 0: listen on" in str(errors[0])


@pytest.mark.parametrize(
    ("master", "resolved", "found"),
    [
        ("a-host", "10.0.0.7", "10.0.0.7"),
        ("a-host", "127.0.1.1", "10.9.8.7"),
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_rank_0_names_an_address_that_other_hosts_reach(
    monkeypatch: pytest.MonkeyPatch, master: str, resolved: str, found: str
) -> None:
    """Debian maps a host's own name to 127.0.1.1."""
    monkeypatch.setenv("MASTER_ADDR", master)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", (resolved, 9))])

    def own_address_towards(_: int, target: tuple[str, int]) -> str:
        loopback = target[0].startswith("127.")
        return "127.0.0.1" if loopback else "10.0.0.7" if target[0] == "10.0.0.7" else "10.9.8.7"

    monkeypatch.setattr(meeting, "_address_towards", own_address_towards)
    assert meeting._own_address() == found


def test_rank_0_of_a_host_without_a_route_names_its_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "a-host")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", ("127.0.1.1", 9))])

    def own_address_towards(_: int, target: tuple[str, int]) -> str:
        if target[0].startswith("127."):
            return "127.0.0.1"
        raise OSError("Network is unreachable")

    monkeypatch.setattr(meeting, "_address_towards", own_address_towards)
    assert meeting._own_address() == "127.0.0.1"
