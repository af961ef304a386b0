"""HMC moves bytes between any two memories of a cluster, and says by which path and why.

Start with :func:`init` (ranks) or :class:`Context` (serving). Sizes are bytes, times are seconds, ``timeout=None`` means for ever.
Errors are in :mod:`hmc.errors`. Every object may be used from any thread; none survives a ``fork()``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    from hmc import _core
except ImportError as _error:
    from pathlib import Path as _File

    if (_File(__file__).parents[1] / "CMakeLists.txt").exists():
        raise ImportError(
            f"this is the source tree of hmc ({_File(__file__).parent}), which has no built extension. Python found it before the "
            "installed package because it looks into the working directory first: start Python from another folder"
        ) from _error
    raise
from hmc import testing
from hmc._aio import install as _install_awaitables
from hmc._core import (
    ANY_SOURCE,
    ANY_TAG,
    BlockBatch,
    Communicator,
    CompletionQueue,
    ConnBuffer,
    Context,
    Descriptor,
    Member,
    Memory,
    MessageInfo,
    NativeConnection,
    Path,
    Peer,
    RemoteBuffer,
    Topology,
    TopologyCard,
    TopologyLink,
    TopologyNic,
    Work,
    wait_all,
    wait_any,
)
from hmc._ucx import suggest as _suggest_ucx
from hmc.errors import (
    AuthenticationError,
    ClosedError,
    DeviceError,
    HmcCancelledError,
    HmcError,
    HmcTimeoutError,
    InvalidArgumentError,
    OutOfMemoryError,
    PeerLostError,
    ProtocolError,
    StaleBufferError,
    TransportError,
    UnsupportedError,
)

__version__: str = _core.version

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "AuthenticationError",
    "BlockBatch",
    "ClosedError",
    "Communicator",
    "CompletionQueue",
    "ConnBuffer",
    "Context",
    "Descriptor",
    "DeviceError",
    "HmcCancelledError",
    "HmcError",
    "HmcTimeoutError",
    "InvalidArgumentError",
    "Member",
    "Memory",
    "MessageInfo",
    "NativeConnection",
    "OutOfMemoryError",
    "Path",
    "Peer",
    "PeerLostError",
    "ProtocolError",
    "RemoteBuffer",
    "StaleBufferError",
    "Topology",
    "TopologyCard",
    "TopologyLink",
    "TopologyNic",
    "TransportError",
    "UnsupportedError",
    "Work",
    "__version__",
    "devices",
    "info",
    "init",
    "keygen",
    "testing",
    "wait_all",
    "wait_any",
]

_install_awaitables()
_suggest_ucx()


def init(
    rank: int | None = None,
    size: int | None = None,
    rendezvous: str = "",
    *,
    devices: Sequence[str] | None = None,
    topology: Topology | None = None,
    timeout: float = 60.0,
    **context: Any,
) -> Communicator:
    """Forms the job's world: every process calls it once.

    ``rank``, ``size`` and ``rendezvous`` ("unix:/path" or "tcp://host:port", where process 0 listens) come from the launcher's
    environment when left out (``hmc run``, torchrun, Open MPI, MPICH, Slurm); without a launcher the world is this process alone.
    ``devices`` are the Members that this process brings, default one CPU Member; instead of them, ``topology`` says what every
    process brings, and is the same everywhere. ``timeout`` is for everybody to arrive, in
    seconds. Further keywords are those of :class:`Context`.

    Raises HmcTimeoutError naming the ranks that did not come, AuthenticationError, InvalidArgumentError.
    """
    return _core.init(
        rank=-1 if rank is None else rank,
        size=-1 if size is None else size,
        rendezvous=rendezvous,
        devices=devices,
        topology=topology,
        timeout=timeout,
        **context,
    )


def devices() -> list[str]:
    """Names of the devices usable in this process; the CPU is first. Opens vendor libraries at the first call."""
    return [device["device"] for runtime in _core.runtimes() for device in runtime["devices"]]


def info() -> dict[str, Any]:
    """What ``hmc info`` shows, as plain data: version, launch, runtimes, transports, settings.

    ``launch`` holds an ``error`` alone where the launcher's environment is half-set.
    """
    launch: dict[str, Any]
    try:
        launch = _core.detect_launch()
    except InvalidArgumentError as error:
        launch = {"error": str(error)}
    return {
        "version": __version__,
        "wire_version": _core.wire_version,
        "launch": launch,
        "runtimes": _core.runtimes(),
        "transports": _core.transports(),
        "settings": _core.settings(),
    }


def keygen() -> str:
    """A fresh job key: 256 random bits as text, for ``key=`` or HMC_JOB_KEY on every host of a job. Keep it secret."""
    return _core.keygen()
