"""The registered memory of this process's engine, and the buffers that the engine allocates."""

from __future__ import annotations

import bisect
import threading

import numpy as np

from hmc._core import ConnBuffer, Context, Memory
from hmc.errors import InvalidArgumentError
from hmc.integrations._shared.memory import close_buffers, cpu_bytes, device_bytes
from hmc.integrations._shared.ranges import Range, Ranges
from hmc.integrations.mooncake import _arguments as arguments
from hmc.integrations.mooncake._types import ADDRESS_NOT_REGISTERED, ADDRESS_OVERLAPPED, INVALID_ARGUMENT, Refused, Space

__all__ = ["Registrations"]


def _is_of_device(address: int) -> bool:
    try:
        Memory.from_array(device_bytes(address, 1))
    except InvalidArgumentError:  # no vendor knows it
        return False
    return True


class Registrations:
    """Registrations by their first address; they do not overlap. Any thread.

    The caller keeps the memory until it has unregistered it, as with Mooncake: an address keeps nothing alive.
    """

    def __init__(self, ctx: Context, ranges: Ranges[ConnBuffer]) -> None:
        """``ranges``: empty; holds them as others ask for them."""
        self._ctx = ctx
        self._lock = threading.Lock()
        self._known: list[Range[ConnBuffer]] = []  # by address
        self._managed: dict[int, ConnBuffer] = {}
        self._ending: dict[int, list[ConnBuffer]] = {}  # by address: unregistered, and possibly still accessed
        self.ranges = ranges

    def register(self, pairs: list[tuple[int, int]]) -> None:
        """Registers (address, bytes) pairs, all or none. Raises Refused, HmcError."""
        made: list[Range[ConnBuffer]] = []
        try:
            for address, nbytes in pairs:
                if nbytes == 0 or address + nbytes >= 1 << 64:
                    raise Refused(INVALID_ARGUMENT, f"a registration of {nbytes} bytes at {address:#x}: 1 byte is the least")
                with self._lock:
                    self._check_free(address, nbytes)
                made.append(Range(Space.memory, address, nbytes, 0, self._buffer(address, nbytes)))
            self._add(made)
        except BaseException:  # an interrupt too
            with self._lock:
                self._remove(made)
            close_buffers(one.holder for one in made)
            raise

    def unregister(self, addresses: list[int]) -> None:
        """Ends registrations, all or none. Afterwards no engine reads or writes the memory. Raises Refused, HmcError.

        HmcTimeoutError: a stopped process may still access it. Another call for the address waits on.
        """
        ending: list[tuple[int, ConnBuffer]] = []
        try:
            with self._lock:
                if len(set(addresses)) < len(addresses):
                    raise Refused(INVALID_ARGUMENT, f"one of {len(addresses)} addresses occurs twice")
                known = {one.address for one in self._known}
                found = [self._at(address) for address in addresses if address in known or address not in self._ending]
                for one in found:
                    if one.address in self._managed:
                        raise Refused(
                            INVALID_ARGUMENT, f"{one.address:#x} was allocated by the engine: free_managed_buffer frees it"
                        )
                ending += [(address, one) for address in addresses for one in self._ending.get(address, [])]
                ending += [(one.address, one.holder) for one in found]
                self._remove(found)
                for address in addresses:
                    self._ending.pop(address, None)
            close_buffers(buffer for _, buffer in ending)
        except BaseException:  # an interrupt too: another call waits on
            with self._lock:
                for address, buffer in ending:
                    self._ending.setdefault(address, []).append(buffer)
            raise

    def allocate(self, nbytes: int) -> int:
        """The address of ``nbytes`` of registered, zeroed CPU memory. Raises HmcError."""
        buffer = self._ctx.buffer(max(nbytes, 1))
        address = int(buffer.numpy().ctypes.data)
        made = [Range(Space.memory, address, buffer.nbytes, 0, buffer)]
        try:
            self._add(made)
            with self._lock:
                self._managed[address] = buffer
        except BaseException:
            with self._lock:
                self._remove(made)
            raise
        return address

    def free(self, address: int) -> None:
        """Frees what allocate() returned. Raises Refused, HmcError; after HmcTimeoutError another call waits on."""
        with self._lock:
            buffer = self._managed.get(address)
            if buffer is None:
                raise Refused(ADDRESS_NOT_REGISTERED, f"{address:#x} is no address that allocate_managed_buffer returned")
            self._remove([one for one in self._known if one.holder is buffer])
        close_buffers([buffer])
        with self._lock:
            if self._managed.get(address) is buffer:  # the next allocation may already have the address
                del self._managed[address]

    def read(self, address: int, nbytes: int) -> bytes:
        """A copy of registered memory, of the CPU or a device. Raises NotRegisteredError, DeviceError."""
        if not nbytes:
            return b""
        source = self._slice(address, nbytes)  # before memory is taken for the copy: memory that is not registered may be any size
        target = np.empty(nbytes, np.uint8)
        source.memory.copy_to(target)
        return target.tobytes()

    def write(self, address: int, data: bytes) -> None:
        """Copies into registered memory. Raises NotRegisteredError, DeviceError."""
        if data:
            self._slice(address, len(data)).memory.copy_from(np.frombuffer(data, np.uint8))

    def _slice(self, address: int, nbytes: int) -> ConnBuffer:
        found = self.ranges.find(Space.memory, arguments.rows([address], [nbytes]))
        start = int(found.offsets[0])
        return found.ranges[int(found.which[0])].holder[start : start + nbytes]

    def _buffer(self, address: int, nbytes: int) -> ConnBuffer:
        return self._ctx.register(device_bytes(address, nbytes) if _is_of_device(address) else cpu_bytes(address, nbytes))

    def _check_free(self, address: int, nbytes: int) -> None:
        at = bisect.bisect_right(self._known, address, key=lambda one: one.address)
        near = self._known[max(at - 1, 0) : at + 1]
        for one in near:
            if address < one.address + one.nbytes and one.address < address + nbytes:
                raise Refused(
                    ADDRESS_OVERLAPPED,
                    f"{nbytes} bytes at {address:#x} overlap the registration of {one.nbytes} bytes at {one.address:#x}",
                )

    def _add(self, made: list[Range[ConnBuffer]]) -> None:
        with self._lock:
            try:
                for one in made:
                    self._check_free(one.address, one.nbytes)  # another thread, or this call, may have registered it meanwhile
                    bisect.insort(self._known, one, key=lambda known: known.address)
                self.ranges.replace(made)
            except BaseException:
                self._remove(made)
                raise

    def _at(self, address: int) -> Range[ConnBuffer]:
        at = bisect.bisect_left(self._known, address, key=lambda one: one.address)
        if at == len(self._known) or self._known[at].address != address:
            raise Refused(ADDRESS_NOT_REGISTERED, f"no registration begins at {address:#x}")
        return self._known[at]

    def _remove(self, found: list[Range[ConnBuffer]]) -> None:
        gone = {id(one) for one in found}
        self.ranges.replace([], found)
        self._known = [one for one in self._known if id(one) not in gone]  # last, so that an interrupted call may be repeated
