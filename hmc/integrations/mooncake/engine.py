"""``mooncake.engine``: TransferEngine over an HMC Context. See docs/howto/mooncake.md for what differs from Mooncake."""

from __future__ import annotations

import json
from typing import Any

from hmc.errors import HmcError
from hmc.integrations.mooncake import _arguments as arguments
from hmc.integrations.mooncake._memory_calls import MemoryCalls
from hmc.integrations.mooncake._transfer_calls import AsyncCalls
from hmc.integrations.mooncake._types import UNREACHABLE, Refused, TransferNotify, TransferOpcode, failing_with, logger

__all__ = [
    "SUPPORT_CUDA",
    "SUPPORT_EFA",
    "SUPPORT_HIP",
    "SUPPORT_INTRA_NVLINK",
    "SUPPORT_MNNVL",
    "SUPPORT_MUSA",
    "Read",
    "TransferEngine",
    "TransferNotify",
    "TransferOpcode",
    "Write",
]

Read, Write = TransferOpcode
# What Mooncake was compiled with. HMC finds the vendors while it runs; EFA and these kinds of NVLink it does not name.
SUPPORT_CUDA = SUPPORT_HIP = SUPPORT_MUSA = True
SUPPORT_EFA = SUPPORT_INTRA_NVLINK = SUPPORT_MNNVL = False


class TransferEngine(MemoryCalls, AsyncCalls):
    """Mooncake's TransferEngine on HMC. Any thread.

    Calls return 0 or a negative code, and log the reason to Python's logger ``mooncake.engine``. In a forked child calls that
    return a code return -1, those that return an address or the number of a transfer 0, and the others raise ClosedError.
    Arguments of a wrong type raise TypeError.
    """

    @failing_with(0)
    def get_first_buffer_address(self, segment_name: str) -> int:
        """The address of the oldest registration of an engine; 0 where it has none or cannot be reached."""
        session = self._ready().session(arguments.text("segment_name", segment_name))
        session.refresh()
        return next((one.address for one in session.ranges.all()), 0)

    def get_notifies(self) -> list[TransferNotify]:
        """The notifications that arrived since the last call, in order for each sender."""
        return self._ready().notifies()

    @failing_with()
    def send_probe(self, peer_server_name: str) -> int:
        """Asks an engine for an answer. Returns 0, or -102 where none comes within 10 s."""
        endpoint = self._ready()
        try:
            endpoint.session(arguments.text("peer_server_name", peer_server_name)).refresh()
        except (HmcError, Refused) as error:
            logger.warning("send_probe: %s", error)
            return UNREACHABLE
        return 0

    def warmup_efa_segment(self, segment_name: str) -> int:
        """Connects to an engine. Returns 0, or -102."""
        return self.send_probe(segment_name)

    def get_local_topology(self, device_name: str | None = None) -> str:
        """Mooncake's JSON without cards: HMC chooses them for each pair of memories (``hmc topo`` shows them)."""
        return json.dumps({"cpu:0": [[], []]})

    def get_engine(self) -> Any:
        """Raises NotImplementedError: there is no C++ engine of Mooncake below."""
        raise NotImplementedError(
            "get_engine: HMC has no C++ TransferEngine of Mooncake; mooncake.pg and mooncake.store require it"
        )

    def get_engine_ptr(self) -> int:
        """Raises NotImplementedError."""
        raise NotImplementedError("get_engine_ptr: HMC has no C++ TransferEngine of Mooncake")
