"""What the calls of a process group and those of its backend have in common."""

from __future__ import annotations

from dataclasses import dataclass

import hmc


@dataclass
class Shared:
    """The state of one process group. The group, its backend and the library's share of it read and write the same object."""

    communicator: hmc.Communicator
    seconds: float  # the group's timeout
