"""The exceptions of HMC: one per code of the core, each also the builtin that fits."""

from __future__ import annotations

__all__ = [
    "AuthenticationError",
    "ClosedError",
    "CorruptError",
    "DeviceError",
    "EpochChangedError",
    "HmcCancelledError",
    "HmcError",
    "HmcTimeoutError",
    "InvalidArgumentError",
    "LeaseExpiredError",
    "OutOfMemoryError",
    "PeerLostError",
    "ProtocolError",
    "RankFailedError",
    "StaleBufferError",
    "TransportError",
    "UnsupportedError",
]


class HmcError(Exception):
    """Any error of HMC. ``code`` names it ("peer_lost"), ``native`` is errno or a vendor's code, 0 if there is none."""

    code: str = "unknown"

    def __init__(self, message: str = "", native: int = 0) -> None:
        super().__init__(message)
        self.native = native


class InvalidArgumentError(HmcError, ValueError):
    """The caller asked for what cannot be: a size, rank, tag, device, dtype or slice."""

    code = "invalid_argument"


class HmcTimeoutError(HmcError, TimeoutError):
    """The deadline passed. The operation goes on unless the message says otherwise."""

    code = "timeout"


class HmcCancelledError(HmcError):
    """``cancel()`` took effect; the message says whether the target may have been written. Or a rank called ``abort()``."""

    code = "cancelled"


class PeerLostError(HmcError, ConnectionError):
    """The peer's process or host is gone."""

    code = "peer_lost"


class OutOfMemoryError(HmcError, MemoryError):
    """Host or device memory, descriptors or locked memory were refused; the message names the limit."""

    code = "out_of_memory"


class UnsupportedError(HmcError, NotImplementedError):
    """This build, device or path cannot do it."""

    code = "unsupported"


class AuthenticationError(HmcError, PermissionError):
    """A wrong or missing key, a foreign user, a forged descriptor."""

    code = "authentication"


class DeviceError(HmcError):
    """A vendor's runtime failed; ``native`` is its code."""

    code = "device"


class TransportError(HmcError):
    """A network or operating-system call failed; ``native`` is errno."""

    code = "transport"


class ClosedError(HmcError):
    """This process or the other side closed the object, it belongs to the parent of a fork, or an earlier collective failed.

    The message says which.
    """

    code = "closed"


class StaleBufferError(HmcError):
    """The remote buffer was closed or registered anew since its descriptor was made."""

    code = "stale"


class ProtocolError(HmcError):
    """The peer sent what breaks the wire contract, or speaks another version."""

    code = "protocol"


class LeaseExpiredError(HmcError):
    """The pages of a KV cache are no longer those of the lease: it expired, was released, or its session was freed."""

    code = "lease_expired"


class CorruptError(HmcError):
    """The elements that arrived are not those that were leased or pushed: their digests differ. The target pages hold garbage."""

    code = "corrupt"


class EpochChangedError(HmcError):
    """A source of weights began another epoch during a pull. The target is unchanged."""

    code = "epoch_changed"


class RankFailedError(HmcError):
    """A rank that :func:`hmc.spawn` started has failed. The message ends with the traceback of that rank.

    ``rank`` is its number and ``exit_code`` the exit status of its process, -n where signal n killed it. ``__cause__`` is the
    exception that the function raised, where it can be sent between processes.
    """

    code = "rank_failed"

    def __init__(self, message: str = "", native: int = 0, *, rank: int = -1, exit_code: int = 0) -> None:
        super().__init__(message, native)
        self.rank = rank
        self.exit_code = exit_code


BY_CODE: dict[int, type[HmcError]] = {
    1: InvalidArgumentError,
    2: HmcTimeoutError,
    3: HmcCancelledError,
    4: PeerLostError,
    5: OutOfMemoryError,
    6: UnsupportedError,
    7: AuthenticationError,
    8: DeviceError,
    9: TransportError,
    10: ClosedError,
    11: StaleBufferError,
    13: ProtocolError,
}
