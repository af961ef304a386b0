"""The registrations of this process's agent."""

from __future__ import annotations

import threading
from typing import Any

from hmc._core import ConnBuffer, Context
from hmc.errors import HmcTimeoutError
from hmc.integrations._shared.memory import close_buffers, cpu_bytes, device_bytes
from hmc.integrations._shared.ranges import Range, Ranges
from hmc.integrations.nixl._errors import nixlBackendError, nixlNotSupportedError, translated
from hmc.integrations.nixl._types import nixl_mem_t

__all__ = ["LocalMemory", "check_kind"]


def check_kind(kind: nixl_mem_t) -> None:
    """Raises nixlNotSupportedError for storage."""
    if kind not in (nixl_mem_t.DRAM_SEG, nixl_mem_t.VRAM_SEG):
        raise nixlNotSupportedError(
            f"{kind.name}: HMC moves DRAM and VRAM, not files, blocks of disks or objects. Use NIXL's storage backends for these"
        )


def _in_place(kind: nixl_mem_t, address: int, nbytes: int) -> Any:
    return device_bytes(address, nbytes) if kind == nixl_mem_t.VRAM_SEG else cpu_bytes(address, nbytes)


class LocalMemory:
    """The registrations of this process's agent. Any thread.

    The caller keeps the memory until it has deregistered it, as with NIXL: an address keeps nothing alive.
    """

    def __init__(self, ctx: Context, name: str) -> None:
        self._ctx = ctx
        self.ranges: Ranges[ConnBuffer | None] = Ranges(lambda: f"agent {name}")
        self._lock = threading.Lock()
        self._ending: list[Range[ConnBuffer | None]] = []  # deregistered, and possibly still accessed

    def register(self, kind: nixl_mem_t, rows: Any) -> None:
        """Registers every row, or none. Raises NIXL's exceptions."""
        check_kind(kind)
        made: list[Range[ConnBuffer | None]] = []
        try:
            with translated():
                for address, nbytes, device in rows.tolist():
                    buffer = self._ctx.register(_in_place(kind, address, nbytes)) if nbytes else None
                    made.append(Range(kind, address, nbytes, device, buffer))
        except BaseException:
            self._close(made)
            raise
        self.ranges.replace(made)

    def deregister(self, kind: nixl_mem_t, rows: Any) -> None:
        """Ends the registrations of these rows. Afterwards nothing is read from them or written to them through HMC.

        Raises nixlNotFoundError if a row is not registered, and then leaves all; nixlBackendError where a process that is stopped
        may still write the memory: keep it. Another call for these rows waits on.
        """
        ended: list[Range[ConnBuffer | None]] = []
        with translated():
            try:
                self._take(kind, rows, ended)
                self._close(ended)
            except BaseException as error:  # an interrupt too
                with self._lock:
                    self._ending += ended
                if not isinstance(error, HmcTimeoutError):
                    raise
                raise nixlBackendError(
                    f"deregister_memory of {len(rows)} descriptors: a stopped process may still access the memory. "
                    f"Keep it, and call deregister_memory again to wait on ({error})"
                ) from error

    def _take(self, kind: nixl_mem_t, rows: Any, ended: list[Range[ConnBuffer | None]]) -> None:
        """Moves the registrations of these rows to ``ended``, also those of an earlier call that have not ended yet.

        Raises NotRegisteredError.
        """
        with self._lock:
            keys = [(int(kind), *row) for row in rows.tolist()]
            earlier = [one for one in self._ending if one.key in keys]
            known = {one.key for one in (self.ranges.all() if earlier else ())}
            waited = {one.key for one in earlier} - known
            self.ranges.take(kind, rows[[key not in waited for key in keys]], ended)
            ended += earlier
            self._ending = [one for one in self._ending if not any(one is other for other in earlier)]

    def _close(self, ranges: list[Range[ConnBuffer | None]]) -> None:
        close_buffers(one.holder for one in ranges if one.holder is not None)
