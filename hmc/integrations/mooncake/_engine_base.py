"""The state of an engine, and how it starts."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import weakref

from hmc._core import Context
from hmc.errors import ClosedError, HmcError
from hmc.integrations.mooncake import _arguments as arguments
from hmc.integrations.mooncake._endpoint import Endpoint
from hmc.integrations.mooncake._transfer import Transfer
from hmc.integrations.mooncake._types import INVALID_ARGUMENT, Refused, TransferOpcode, failing_with

__all__ = ["EngineBase"]

_HANDSHAKE = "P2PHANDSHAKE"
_CLOSE_SECONDS = 2.0
_MOST_SECONDS = 1e9


def _transfer_seconds() -> float:
    text = os.environ.get("MC_TRANSFER_TIMEOUT", "30")
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(text)) < _MOST_SECONDS:
            return seconds
    raise Refused(INVALID_ARGUMENT, f"MC_TRANSFER_TIMEOUT={text}: a number of seconds is expected, such as 30")


def _end(ctx: Context) -> None:
    with contextlib.suppress(HmcError):
        ctx.close(timeout=_CLOSE_SECONDS)


class EngineBase:
    """The state of an engine."""

    TransferOpcode = TransferOpcode

    def __init__(self) -> None:
        self._endpoint: Endpoint | None = None
        self._process = 0
        self._lock = threading.Lock()
        self._transfers: dict[int, Transfer] = {}
        self._numbers = itertools.count(1)
        self._seconds = 0.0

    @failing_with()
    def initialize(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str) -> int:
        """Makes the engine reachable as "local_hostname:get_rpc_port()". Returns 0; -1 where it cannot, and the log says why.

        ``metadata_server``: "P2PHANDSHAKE"; servers (http, etcd, redis) are refused. ``protocol`` and ``device_name`` have no
        effect: HMC chooses a transport for each pair of memories. Without HMC_JOB_KEY the engine is reachable on this host only.
        """
        for name, value in (("local_hostname", local_hostname), ("protocol", protocol), ("device_name", device_name)):
            arguments.text(name, value)
        if arguments.text("metadata_server", metadata_server) != _HANDSHAKE:
            raise Refused(
                INVALID_ARGUMENT,
                f"metadata server {metadata_server!r}: HMC uses none. Pass {_HANDSHAKE!r} in every engine of the job",
            )
        with self._lock:
            if self._endpoint is not None:
                raise Refused(INVALID_ARGUMENT, "the engine is initialized already: make another TransferEngine")
            self._seconds = _transfer_seconds()
            endpoint = Endpoint()
            weakref.finalize(self, _end, endpoint.ctx)
            self._process = os.getpid()
            self._endpoint = endpoint  # last: an interrupted call may be repeated
        return 0

    def initialize_ext(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, metadata_type: str) -> int:
        """As initialize(); ``metadata_type`` has no effect."""
        arguments.text("metadata_type", metadata_type)
        return self.initialize(local_hostname, metadata_server, protocol, device_name)

    def get_rpc_port(self) -> int:
        """The port that names this engine to others. Raises RuntimeError before initialize()."""
        return self._ready().port

    def _ready(self) -> Endpoint:
        if self._endpoint is None:
            raise RuntimeError("the TransferEngine is not initialized: call initialize() first")
        if self._process != os.getpid():
            raise ClosedError("the TransferEngine belongs to the parent of a fork: make one in this process")
        return self._endpoint
