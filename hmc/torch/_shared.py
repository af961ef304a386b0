"""What the calls of a process group and those of its backend have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import hmc
from hmc.torch._barrier import MonitoredBarrier

# Longer timeouts overflow in torch's stores and in threading.
LONGEST = timedelta(days=10_000)


def bounded(timeout: timedelta) -> timedelta:
    """The timeout, at most LONGEST. torch counts microseconds in 64 bits: timedelta.max arrives as a negative time."""
    return LONGEST if timeout < timedelta(0) else min(timeout, LONGEST)


@dataclass
class Shared:
    """The state of one process group. The group, its backend and the library's share of it read and write the same object."""

    communicator: hmc.Communicator
    seconds: float  # the group's timeout
    monitored_barrier: MonitoredBarrier = field(init=False)

    def __post_init__(self) -> None:
        self.monitored_barrier = MonitoredBarrier(self.communicator)
