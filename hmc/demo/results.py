"""What the ranks of a demo reported."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from hmc.cli.devices import Place

__all__ = ["Results", "Row"]


@dataclass(frozen=True)
class Row:
    """One line of the table: a phase between one pair of ranks. ``size``: bytes per round; ``speed``: bytes per second, the median.

    ``memcpy`` is the speed relative to memcpy, where both ends are CPU memory.
    """

    phase: str
    src: int
    dst: int
    size: int
    speed: float
    memcpy: float | None
    transport: str
    detail: str
    direct: bool
    reason: str

    @property
    def path(self) -> str:
        """The transport, and whether it copies through a stage."""
        return f"{self.transport}, {'direct' if self.direct else 'staged'}"


@dataclass
class Results:
    """Collected messages of all ranks, and where each rank's memory is."""

    places: list[Place]
    rounds: int = 1
    moved: list[dict[str, Any]] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)
    memcpy: list[float] = field(default_factory=list)
    counters: dict[int, dict[str, int]] = field(default_factory=dict)

    def add(self, message: dict[str, Any]) -> None:
        """Files one message by its kind."""
        kind = message["hmc-demo"]
        if kind == "moved":
            self.moved.append(message)
        elif kind == "checked":
            self.checks.append(message)
        elif kind == "memcpy":
            self.memcpy.append(message["speed"])
        elif kind == "finished":
            self.counters[message["rank"]] = message["counters"]

    def memcpy_speed(self) -> float:
        """Median over the ranks on the CPU, bytes per second; 0 if there are none."""
        return statistics.median(self.memcpy) if self.memcpy else 0.0

    def bytes_moved(self) -> int:
        """Between ranks, in all rounds."""
        return sum(message["bytes"] for message in self.moved)

    def bytes_checked(self) -> int:
        """What was compared, in all rounds: all that moved, where every rank finished."""
        return sum(check["bytes"] for check in self.checks)

    def bytes_staged(self) -> int:
        """What was copied through memory of the host on its way, in all rounds."""
        return sum(message["bytes"] for message in self.moved if not message["direct"])

    def simulated(self) -> bool:
        """True if a rank's memory is not that of hardware."""
        return any(place.provenance != "hardware" for place in self.places)

    def rows(self) -> list[Row]:
        """The table, in the order in which phases and pairs first appeared."""
        groups: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
        for message in self.moved:
            groups.setdefault((message["phase"], message["src"], message["dst"]), []).append(message)
        rows = []
        for (phase, src, dst), messages in sorted(groups.items(), key=lambda item: (self._phase_order(item[0][0]), item[0][1:])):
            speed = statistics.median(message["bytes"] / max(message["seconds"], 1e-9) for message in messages)
            last = messages[-1]
            on_cpu = self.places[src].name == self.places[dst].name == "cpu" and self.memcpy
            rows.append(
                Row(
                    phase, src, dst, last["bytes"], speed,
                    speed / self.memcpy_speed() if on_cpu else None,
                    last["transport"], last["detail"], last["direct"], last["reason"],
                )
            )  # fmt: skip
        return rows

    def _phase_order(self, phase: str) -> int:
        order = list(dict.fromkeys(message["phase"] for message in self.moved))
        return order.index(phase)
