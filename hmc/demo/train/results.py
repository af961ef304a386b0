"""What the ranks of a training demo reported, and whether it agrees."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from hmc.cli.devices import Place
from hmc.demo.train.model import BATCH

__all__ = ["CLAIM", "TOLERANCE", "Run", "Training"]

#: Greatest difference between the losses of two runs at the same step, relative. Within a run the order of the sum is fixed; runs
#: on other ranks group the samples otherwise, which rounds f32 sums differently (6e-8 each), and training amplifies that.
TOLERANCE = 1e-4

#: Throughput of mixed training relative to the sum of the single-vendor throughputs: the best that the field reports.
CLAIM = 0.97


@dataclass
class Run:
    """One training on some of the ranks, from the same weights with the same batches as every other."""

    name: str
    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)  # what each rank reported

    @property
    def losses(self) -> list[float]:
        """The loss before each step."""
        losses: list[float] = self.ranks[min(self.ranks)]["losses"]
        return losses

    @property
    def step_seconds(self) -> float:
        """Median over the steps of the slowest rank's time."""
        by_rank: list[list[float]] = [rank["seconds"] for rank in self.ranks.values()]
        return float(statistics.median(max(each) for each in zip(*by_rank, strict=True)))

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return BATCH / self.step_seconds

    @property
    def late(self) -> int:
        """How often NumPy took longer than the emulated card may."""
        return sum(rank["late"] for rank in self.ranks.values())


@dataclass
class Training:
    """Collected messages of all ranks. Runs are "both", "both again" and one per vendor."""

    places: list[Place]
    steps: int
    runs: dict[str, Run] = field(default_factory=dict)
    algorithm: str = ""
    links: dict[tuple[int, int], int] = field(default_factory=dict)  # bytes of one all_reduce on both islands
    paths: dict[tuple[int, int], str] = field(default_factory=dict)

    def add(self, message: dict[str, Any]) -> None:
        """Files one message by its kind."""
        kind = message["hmc-demo"]
        if kind == "trained":
            self.runs.setdefault(message["run"], Run(message["run"])).ranks[message["rank"]] = message
        elif kind == "plan":
            self.algorithm = message["algorithm"]
            self.links = {(source, target): size for source, target, size in message["links"]}
        elif kind == "path":
            self.paths[message["src"], message["dst"]] = message["transport"]

    @property
    def vendors(self) -> list[str]:
        """The two islands, by vendor."""
        return list(dict.fromkeys(place.name.partition(":")[0] for place in self.places))

    def island(self, vendor: str) -> list[int]:
        """Ranks whose device is of ``vendor``."""
        return [rank for rank, place in enumerate(self.places) if place.name.partition(":")[0] == vendor]

    @property
    def simulated(self) -> bool:
        """True if a rank's memory is not that of hardware."""
        return any(place.provenance != "hardware" for place in self.places)

    def complete(self) -> bool:
        """True if every rank has reported every run that it takes part in."""
        expected = {"both": len(self.places), "both again": len(self.places)}
        expected |= {vendor: len(self.island(vendor)) for vendor in self.vendors}
        return expected == {name: len(run.ranks) for name, run in self.runs.items()} and bool(self.links)

    @property
    def ratio(self) -> float:
        """Throughput on both islands relative to the sum of the islands' own."""
        return self.runs["both"].throughput / sum(self.runs[vendor].throughput for vendor in self.vendors)

    def difference(self, vendor: str) -> float:
        """Greatest relative difference between the losses on both islands and on that of ``vendor``."""
        pairs = zip(self.runs["both"].losses, self.runs[vendor].losses, strict=True)
        return max(abs(both - alone) / alone for both, alone in pairs)

    def checks(self) -> list[tuple[str, bool]]:
        """What must hold, as sentences, and whether it does. No speed is among it."""
        first = self.runs["both"].losses
        found = []
        for name, run in self.runs.items():
            digests = {rank["digest"] for rank in run.ranks.values()}
            losses = {tuple(rank["losses"]) for rank in run.ranks.values()}
            found.append((f"{name}: every rank has the same weights and losses, bit by bit", len(digests) == len(losses) == 1))
        digests = {rank["digest"] for name in ("both", "both again") for rank in self.runs[name].ranks.values()}
        found.append(("both again, with the same shares: the same bits as the first time", len(digests) == 1))
        for vendor in self.vendors:
            worst = self.difference(vendor)
            found.append(
                (f"{vendor} alone: losses within {worst:.1e} of those on both ({TOLERANCE:g} allowed)", worst <= TOLERANCE)
            )
        found.append((f"the loss fell: {first[0]:.3f} to {first[-1]:.3f}", first[-1] < first[0]))
        if all(":" in place.name for place in self.places):  # small messages between CPU memories are not counted
            found.append(("bytes per link: each rank's counters have what the plan says", self._counters_agree()))
        return found

    def _counters_agree(self) -> bool:
        for rank, report in self.runs["both"].ranks.items():
            planned = sum(size for pair, size in self.links.items() if rank in pair)
            if report["counted"] != planned * self.steps:
                return False
        return True

    def data(self) -> dict[str, Any]:
        """Everything, for ``--json``."""
        return {
            "places": [{"name": place.name, "provenance": place.provenance} for place in self.places],
            "steps": self.steps,
            "batch": BATCH,
            "runs": {
                name: {
                    "losses": run.losses,
                    "shares": {rank: report["share"] for rank, report in sorted(run.ranks.items())},
                    "measured_samples_per_second": {rank: report["speed"] for rank, report in sorted(run.ranks.items())},
                    "step_seconds": run.step_seconds,
                    "samples_per_second": run.throughput,
                    "late": run.late,
                }
                for name, run in self.runs.items()
            },
            "ratio": self.ratio,
            "claim": CLAIM,
            "algorithm": self.algorithm,
            "links": [
                {"source": source, "target": target, "bytes": size * self.steps, "transport": self.paths[source, target]}
                for (source, target), size in sorted(self.links.items())
            ],
            "checks": [{"check": text, "good": good} for text, good in self.checks()],
        }
