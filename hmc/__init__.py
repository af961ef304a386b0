"""HMC moves bytes between any two memories of a cluster, and says by which path and why.

Start with :func:`init` (ranks), :func:`join` (ranks of a job that runs) or :class:`Context` (serving). Sizes are bytes, times are
seconds, ``timeout=None`` means for ever. Errors are in :mod:`hmc.errors`. Every object may be used from any thread; none survives a
``fork()``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

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
from hmc import _arguments as _check
from hmc import testing
from hmc._aio import install as _install_awaitables
from hmc._core import (
    ANY_SOURCE,
    ANY_TAG,
    Batch,
    BlockBatch,
    BufferHold,
    CollectivePlan,
    Communicator,
    CompletionQueue,
    ConnBuffer,
    Context,
    Descriptor,
    IslandCards,
    IslandLoad,
    IslandPlan,
    MeasuredLink,
    Measurement,
    Member,
    Memory,
    MessageInfo,
    NativeConnection,
    Path,
    Peer,
    PlannedLink,
    PlannedStep,
    RemoteBuffer,
    Topology,
    TopologyCard,
    TopologyLink,
    TopologyNic,
    Work,
    plan_collective,
    plan_islands,
    wait_all,
    wait_any,
)
from hmc._ucx import suggest as _suggest_ucx
from hmc.errors import (
    AuthenticationError,
    ClosedError,
    CorruptError,
    DeviceError,
    EpochChangedError,
    HmcCancelledError,
    HmcError,
    HmcTimeoutError,
    InvalidArgumentError,
    LeaseExpiredError,
    OutOfMemoryError,
    PeerLostError,
    ProtocolError,
    RankFailedError,
    StaleBufferError,
    TransportError,
    UnsupportedError,
)

_T = TypeVar("_T")
_MOST_RANKS = (1 << 31) - 1

__version__: str = _core.version

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "AuthenticationError",
    "Batch",
    "BlockBatch",
    "BufferHold",
    "ClosedError",
    "CollectivePlan",
    "Communicator",
    "CompletionQueue",
    "ConnBuffer",
    "Context",
    "CorruptError",
    "Descriptor",
    "DeviceError",
    "EpochChangedError",
    "HmcCancelledError",
    "HmcError",
    "HmcTimeoutError",
    "InvalidArgumentError",
    "IslandCards",
    "IslandLoad",
    "IslandPlan",
    "LeaseExpiredError",
    "MeasuredLink",
    "Measurement",
    "Member",
    "Memory",
    "MessageInfo",
    "NativeConnection",
    "OutOfMemoryError",
    "Path",
    "Peer",
    "PeerLostError",
    "PlannedLink",
    "PlannedStep",
    "ProtocolError",
    "RankFailedError",
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
    "join",
    "keygen",
    "plan_collective",
    "plan_islands",
    "spawn",
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
    if topology is not None and not isinstance(topology, Topology):
        raise TypeError(f"topology must be a hmc.Topology or None, not a {type(topology).__name__}")
    return _core.init(
        rank=-1 if rank is None else _check.whole("rank", rank, -1, _MOST_RANKS),
        size=-1 if size is None else _check.whole("size", size, -1, _MOST_RANKS),
        rendezvous=_check.text("rendezvous", rendezvous),
        devices=_check.texts("devices", devices),
        topology=topology,
        timeout=_check.seconds("timeout", timeout),
        **context,
    )


def join(
    invitation: str,
    *,
    devices: Sequence[str] | None = None,
    timeout: float = 60.0,
    **context: Any,
) -> Communicator:
    """Joins a Communicator that grows, with the text that :meth:`Communicator.invite` returned on its rank 0.

    The processes of the Communicator call ``grow()``. Returns their new Communicator, in which this process has the last ranks.
    ``devices`` are the Members that this process brings, default one CPU Member. ``timeout`` is for everybody to arrive, in
    seconds. Further keywords are those of :class:`Context`; the job key, if the job has one, is not in the invitation.

    Raises AuthenticationError (the invitation was used, replaced or forged; another job key), HmcTimeoutError, PeerLostError (a
    process of the Communicator died), InvalidArgumentError (not an invitation).
    """
    return _core.join(
        _check.text("invitation", invitation),
        devices=_check.texts("devices", devices),
        timeout=_check.seconds("timeout", timeout),
        **context,
    )


def spawn(
    fn: Callable[..., _T],
    n: int,
    *args: Any,
    timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[_T]:
    """Runs ``fn(*args)`` in ``n`` new processes of this host, which are a job of ``n`` ranks, and returns the results by rank.

    Works from a script, a test and a notebook; a script requires no ``if __name__ == "__main__"``. Every process has a Python of
    its own and the environment that ``hmc run`` gives its ranks, so ``hmc.init()`` in ``fn`` forms the job. ``environment`` adds to
    it. What the ranks print appears here, each line behind its rank's number.

    ``fn``, ``args`` and the results travel as pickles. A function that cannot be imported (of a notebook or a script, a lambda, a
    nested function) travels as its code, with the globals that it names. Classes and other functions are imported.

    When a rank raises or dies, the others are killed within a second; up to five seconds later where all that failed were left by
    one that still runs, whose error is to be known. ``timeout``, in seconds, is for the whole job, which is then killed. The job
    also ends with this process, by Ctrl-C as by SIGKILL. Any thread may call this.

    Raises RankFailedError naming the first rank that failed, with its traceback; HmcTimeoutError naming the ranks that were still
    running; InvalidArgumentError for ``n`` below 1 and for what cannot be sent to another process; OSError where a process cannot
    be started; and what ``sys.stdout`` raises when a rank's line is written, which ends the job.
    """
    from hmc._spawn import spawn  # what it imports serves only processes that spawn others

    return spawn(fn, n, *args, timeout=timeout, environment=environment)


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
