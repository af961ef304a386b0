"""Another process with an agent of the NIXL drop-in, which evaluates what a test asks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from drop_in_process import SIZE, Process, contents

from hmc.integrations.nixl import nixl_agent, nixl_agent_config

PROGRAM = """
    import json, sys
    import numpy as np
    from nixl._api import nixl_agent, nixl_agent_config
    agent = nixl_agent(sys.argv[1], nixl_agent_config(**json.loads(sys.argv[3])))
    memory = np.random.default_rng(7).integers(0, 256, int(sys.argv[2]), dtype=np.uint8)
    registered = agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
    first = [memory.ctypes.data, agent.get_agent_metadata().hex()]
"""


class Other(Process):
    """The other process. Its memory is contents(7, size). Names there are agent, memory, registered, until, np, os, time."""

    def __init__(self, name: str = "other", size: int = SIZE, config: dict[str, Any] | None = None, **environment: str) -> None:
        super().__init__("hmc.integrations.nixl", PROGRAM, [name, str(size), json.dumps(config or {})], environment)
        self.name = name
        self.address, metadata = self.first
        self.metadata = bytes.fromhex(metadata)

    def notifs(self, count: int) -> list[tuple[str, bytes]]:
        """Its next ``count`` notifications, in order of arrival for each sender."""
        got = self.ask(
            "(lambda all: until(lambda: (all.extend((name, one.hex()) for name, some in agent.get_new_notifs().items()"
            f" for one in some), len(all) >= {count})[1], 60) and None or all)([])"
        )
        return [(name, bytes.fromhex(one)) for name, one in got]


class Mine:
    """This process's agent with registered memory, and the other processes."""

    def __init__(self, name: str = "mine", **config: Any) -> None:
        self.agent = nixl_agent(name, nixl_agent_config(**config))
        self.memory = contents(3)
        self.others: list[Other] = []
        self.registered = self.agent.register_memory([(self.address, SIZE, 0, "")], "DRAM")

    @property
    def address(self) -> int:
        return int(self.memory.ctypes.data)

    def start(self, name: str = "other", **more: Any) -> Other:
        """Another process, known to this agent."""
        other = Other(name, **more)
        self.others.append(other)
        assert self.agent.add_remote_agent(other.metadata) == name.encode()
        return other

    def transfer(self, way: str, mine: Any, theirs: Any, name: str = "other", message: bytes = b"") -> Any:
        """A transfer that was made and not started: rows of (address, bytes, device)."""
        agent = self.agent
        return agent.initialize_xfer(
            way, agent.get_xfer_descs(np.array(mine), "DRAM"), agent.get_xfer_descs(np.array(theirs), "DRAM"), name, message
        )

    def finish(self, handle: Any, seconds: float = 20) -> str:
        """Waits for the end of a transfer in flight, and says how it ended."""
        end = time.monotonic() + seconds
        while (state := self.agent.check_xfer_state(handle)) == "PROC":
            assert time.monotonic() < end, "the transfer hangs"
            time.sleep(0.0005)
        return state

    def run(self, handle: Any, message: bytes = b"") -> str:
        self.agent.transfer(handle, message)
        return self.finish(handle)


@contextmanager
def this_process(**config: Any) -> Iterator[Mine]:
    mine = Mine(**config)
    try:
        yield mine
    finally:
        for other in mine.others:
            other.close()
        mine.agent._finalizer()
