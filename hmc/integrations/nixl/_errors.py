"""The exceptions of NIXL's Python interface, and what HMC's errors become there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hmc import errors
from hmc.integrations._shared.errors import NotRegisteredError

__all__ = [
    "nixlBackendError",
    "nixlCancelledError",
    "nixlInvalidParamError",
    "nixlMismatchError",
    "nixlNoTelemetryError",
    "nixlNotAllowedError",
    "nixlNotFoundError",
    "nixlNotPostedError",
    "nixlNotSupportedError",
    "nixlRemoteDisconnectError",
    "nixlRepostActiveError",
    "nixlUnknownError",
    "translate",
    "translated",
]


class nixlBackendError(Exception):
    """A network, device or operating-system call failed, or a deadline passed."""


class nixlCancelledError(Exception):
    """The transfer was cancelled."""


class nixlInvalidParamError(Exception):
    """An argument is out of range, or two arguments do not fit each other."""


class nixlMismatchError(Exception):
    """Metadata or a descriptor list is damaged, or of another program."""


class nixlNoTelemetryError(Exception):
    """The agent was made without ``capture_telemetry``."""


class nixlNotAllowedError(Exception):
    """A wrong or missing job key, or a forged descriptor."""


class nixlNotFoundError(Exception):
    """No such agent, or memory that is not registered."""


class nixlNotPostedError(Exception):
    """The transfer has not been posted yet."""


class nixlNotSupportedError(Exception):
    """HMC does not have it, such as files, objects or etcd."""


class nixlRemoteDisconnectError(Exception):
    """The remote agent has ended, or its host is lost."""


class nixlRepostActiveError(Exception):
    """The transfer is in flight."""


class nixlUnknownError(Exception):
    """An error without a better name."""


# Earlier rows win.
_ROWS: tuple[tuple[type[errors.HmcError], type[Exception]], ...] = (
    (errors.PeerLostError, nixlRemoteDisconnectError),
    (errors.ClosedError, nixlRemoteDisconnectError),
    (errors.StaleBufferError, nixlNotFoundError),
    (NotRegisteredError, nixlNotFoundError),
    (errors.AuthenticationError, nixlNotAllowedError),
    (errors.ProtocolError, nixlMismatchError),
    (errors.InvalidArgumentError, nixlInvalidParamError),
    (errors.UnsupportedError, nixlNotSupportedError),
    (errors.HmcCancelledError, nixlCancelledError),
    (errors.HmcTimeoutError, nixlBackendError),
    (errors.TransportError, nixlBackendError),
    (errors.DeviceError, nixlBackendError),
    (errors.OutOfMemoryError, nixlBackendError),
)


def translate(error: BaseException) -> Exception:
    """NIXL's exception for an error of HMC, with the same text."""
    for ours, theirs in _ROWS:
        if isinstance(error, ours):
            return theirs(str(error))
    return nixlUnknownError(str(error))


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raises NIXL's exceptions in place of HMC's."""
    try:
        yield
    except errors.HmcError as error:
        raise translate(error) from error
