"""Registrations of another process, which are imported when a transfer first names them."""

from __future__ import annotations

from hmc._core import Descriptor, Peer, RemoteBuffer
from hmc.errors import HmcTimeoutError, StaleBufferError
from hmc.integrations._shared.ranges import Range

__all__ = ["Importable", "imported"]

_IMPORT_SECONDS = 10.0


class Importable:
    """A registration of another process."""

    def __init__(self, descriptor: bytes) -> None:
        self.descriptor = descriptor
        self.buffer: RemoteBuffer | None = None
        self._refused = False

    @property
    def ended(self) -> bool:
        """True once it is known that its owner has ended it: an import or a transfer was refused."""
        return self._refused or (self.buffer is not None and not self.buffer.alive)

    def refuse(self) -> None:
        """Records that its owner refused the import."""
        self._refused = True


def imported(peer: Peer, ranges: list[Range[Importable]]) -> list[RemoteBuffer]:
    """The buffers of some registrations; those that are missing are imported. Waits at most 10 s. Raises HmcError."""
    missing = [one.holder for one in ranges if one.holder.buffer is None]
    if missing:
        works = [peer._iimport(Descriptor.parse(one.descriptor), _IMPORT_SECONDS) for one in missing]
        for one, work in zip(missing, works, strict=True):
            try:
                work.wait()  # until its own deadline, whose error says why
            except StaleBufferError:
                one.refuse()
                raise
            except HmcTimeoutError as error:
                raise HmcTimeoutError(f"import from {peer.name}: {error}") from error
            one.buffer = work._take()
    return [one.holder.buffer for one in ranges if one.holder.buffer is not None]
