"""Registrations and buffers of an engine."""

from __future__ import annotations

from collections.abc import Sequence

from hmc.integrations.mooncake import _arguments as arguments
from hmc.integrations.mooncake._engine_base import EngineBase
from hmc.integrations.mooncake._types import INVALID_ARGUMENT, Refused, failing_with

__all__ = ["MemoryCalls"]


class MemoryCalls(EngineBase):
    """Registrations and buffers."""

    @failing_with()
    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """Registers memory in place, of the CPU or a device. Returns 0, -7 where it overlaps a registration, else -1.

        The memory is the caller's to keep until it is unregistered. ``location`` has no effect: the vendor is found by the address.
        """
        return self._register([buffer_addr], [capacity], location)

    @failing_with()
    def batch_register_memory(self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = "*") -> int:
        """Registers several, all or none."""
        return self._register(buffer_addresses, capacities, location)

    def _register(self, addresses: Sequence[int], capacities: Sequence[int], location: str) -> int:
        arguments.text("location", location)
        here, sizes = arguments.numbers("buffer_addresses", addresses), arguments.numbers("capacities", capacities)
        if len(here) != len(sizes):
            raise Refused(INVALID_ARGUMENT, f"{len(here)} addresses and {len(sizes)} capacities; they must be equally many")
        self._ready().memory.register(list(zip(here.tolist(), sizes.tolist(), strict=True)))
        return 0

    @failing_with()
    def unregister_memory(self, buffer_addr: int) -> int:
        """Ends the registration that begins there. Returns 0, or -3 if none does.

        Afterwards no engine reads or writes the memory. -1 after 5 s beside a stopped process that may still access it: keep the
        memory, and call again to wait on.
        """
        self._ready().memory.unregister([arguments.number("buffer_addr", buffer_addr)])
        return 0

    @failing_with()
    def batch_unregister_memory(self, buffer_addresses: Sequence[int]) -> int:
        """Ends several registrations, all or none."""
        self._ready().memory.unregister(arguments.numbers("buffer_addresses", buffer_addresses).tolist())
        return 0

    @failing_with(0)
    def allocate_managed_buffer(self, length: int) -> int:
        """The address of ``length`` bytes of registered, zeroed CPU memory; 0 where there is none left."""
        return self._ready().memory.allocate(arguments.number("length", length))

    @failing_with()
    def free_managed_buffer(self, buffer_addr: int, length: int) -> int:
        """Frees what allocate_managed_buffer() returned. Returns 0, or -3 for another address."""
        arguments.number("length", length)
        self._ready().memory.free(arguments.number("buffer_addr", buffer_addr))
        return 0

    @failing_with()
    def write_bytes_to_buffer(self, dest_address: int, src: str | bytes, length: int) -> int:
        """Copies the first ``length`` bytes of ``src`` into registered memory. Returns 0, or -1 where either is too short."""
        data = src.encode() if isinstance(src, str) else bytes(memoryview(src))
        if arguments.number("length", length) > len(data):
            raise Refused(INVALID_ARGUMENT, f"{length} bytes of a source that has {len(data)}")
        self._ready().memory.write(arguments.number("dest_address", dest_address), data[:length])
        return 0

    def read_bytes_from_buffer(self, source_address: int, length: int) -> bytes:
        """A copy of registered memory. Raises ValueError for memory that is not registered."""
        return self._ready().memory.read(arguments.number("source_address", source_address), arguments.number("length", length))
