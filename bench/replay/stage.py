"""One card of a stage: real transfers by HMC, compute and links by sleeping."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from links import Links, sleep_until
from modes import Mode, Scenario
from numpy.typing import NDArray

import hmc

__all__ = ["run_card"]

TIMEOUT = 120  # seconds
ALGORITHM = "reduce-scatter + all-gather"  # by messages, so that the bytes of each link are counted


def _payload(kind: int, sender: int, step: int, microbatch: int, size: int) -> NDArray[np.uint8]:
    return np.random.Generator(np.random.SFC64([kind, sender, step, microbatch])).integers(0, 256, size, np.uint8)


class Card:
    """A rank of the replay. Ranks below ``scenario.cards`` are stage 0."""

    def __init__(self, comm: hmc.Communicator, mode: Mode, scenario: Scenario, file: Path, device: str) -> None:
        self.comm, self.mode, self.scenario = comm, mode, scenario
        self.stage, self.number = divmod(comm.rank, scenario.cards)
        self.peer = comm.rank + scenario.cards if self.stage == 0 else comm.rank - scenario.cards
        self.links = Links(file, comm.size)
        self.sent = self.received = 0  # messages
        self.late = 0.0  # seconds by which HMC and this machine took longer than the emulated links
        group = comm.split(self.stage, timeout=TIMEOUT)
        assert group is not None
        self.group = group
        size = scenario.payload
        self.outgoing = [hmc.Memory(size, device=device) for _ in range(scenario.microbatches)]
        self.incoming = [hmc.Memory(size, device=device) for _ in range(scenario.microbatches)]
        self.gradients = hmc.Memory(scenario.reduced, device=device)

    def _compute(self, seconds: float) -> None:
        sleep_until(time.monotonic() + seconds * self.scenario.slowness(self.mode.vendors) * self.scenario.dilation)

    def _send(self, microbatch: int) -> tuple[hmc.Work, float]:
        scenario = self.scenario
        rate = scenario.forwarded if self.mode.forwards else scenario.direct
        seconds = (scenario.latency + scenario.activation / rate) * scenario.dilation
        nic = self.stage * scenario.cards + (0 if self.mode.one_nic else self.number)
        end = self.links.begin(self.comm.rank, nic, self.sent, seconds)
        self.sent += 1
        return self.comm.isend(self.outgoing[microbatch], self.peer, tag=microbatch), end

    def _receive(self, microbatch: int) -> hmc.Work:
        return self.comm.irecv(self.incoming[microbatch], self.peer, tag=microbatch)

    def _exchange(self, send: int | None, receive: int | None) -> None:
        """Sends the result of one microbatch and receives that of another one; returns when both emulated messages are over."""
        receiving = self._receive(receive) if receive is not None else None
        if send is not None:
            sending, end = self._send(send)
            sending.wait(TIMEOUT)  # until the peer has received it, which may be long after its end
            sleep_until(end)
        if receiving is not None:
            waiting = time.monotonic()
            receiving.wait(TIMEOUT)
            self.late += sleep_until(self.links.end(self.peer, self.received), waiting)
            self.received += 1

    def _pipeline(self) -> None:
        """1F1B of two stages."""
        last = self.scenario.microbatches - 1
        forward, backward = self.scenario.forward, self.scenario.backward
        if self.stage == 1:
            self._exchange(None, 0)
            for microbatch in range(last + 1):
                self._compute(forward + backward)
                self._exchange(microbatch, microbatch + 1 if microbatch < last else None)
            return
        self._compute(forward)
        self._exchange(0, None)
        for microbatch in range(last):
            self._compute(forward)
            self._exchange(microbatch + 1, microbatch)
            self._compute(backward)
        self._exchange(None, last)
        self._compute(backward)

    def _reduce(self) -> None:
        scenario, cards = self.scenario, self.scenario.cards
        rate = scenario.forwarded if self.mode.forwards_inside else scenario.native
        seconds = scenario.latency + 2 * (cards - 1) / cards * scenario.gradients / rate
        self.group.barrier(timeout=TIMEOUT)
        end = time.monotonic() + seconds * scenario.dilation
        self.group.all_reduce(self.gradients, dtype="int32", algorithm=ALGORITHM, timeout=TIMEOUT)
        self.late += sleep_until(end)

    def step(self, step: int) -> float:
        """Seconds of the replay, without what prepares and checks it. Raises ValueError if a byte is wrong."""
        scenario, size = self.scenario, self.scenario.payload
        for microbatch, memory in enumerate(self.outgoing):
            memory.copy_from(_payload(self.stage, self.comm.rank, step, microbatch, size))
        own = np.arange(scenario.reduced // 4, dtype=np.int32) * (self.number + 1) + step
        self.gradients.copy_from(own)
        self.comm.barrier(timeout=TIMEOUT)
        start = time.monotonic()
        self._pipeline()
        self._reduce()
        seconds = time.monotonic() - start
        for microbatch, memory in enumerate(self.incoming):
            found = np.empty(size, np.uint8)
            memory.copy_to(found)
            if not np.array_equal(found, _payload(1 - self.stage, self.peer, step, microbatch, size)):
                raise ValueError(f"rank {self.comm.rank}: the data of microbatch {microbatch} are wrong")
        cards = scenario.cards
        summed = np.arange(scenario.reduced // 4, dtype=np.int32) * (cards * (cards + 1) // 2) + cards * step
        self.gradients.copy_to(own)
        if not np.array_equal(own, summed):
            raise ValueError(f"rank {self.comm.rank}: the sums are wrong")
        return seconds


def _devices(mode: Mode, scenario: Scenario) -> list[str]:
    """By rank; no two ranks share one."""
    cards = scenario.cards
    second = cards if mode.vendors[0] == mode.vendors[1] else 0
    return [f"{vendor}:{first + n}" for vendor, first in zip(mode.vendors, (0, second), strict=True) for n in range(cards)]


def run_card(mode: Mode, scenario: Scenario, steps: int, file: str) -> dict[str, Any]:
    """What a rank measured and counted in ``steps`` steps, after a quick one that makes the connections.

    "seconds" of the replay, by step; "late", seconds in all; "sent", bytes to each rank by HMC's counters; "paths" to each rank;
    "staged", bytes that HMC copied through a stage at this end.
    """
    rank = int(hmc.info()["launch"]["rank"])
    devices = _devices(mode, scenario)
    with hmc.init(devices=[devices[rank]], timeout=TIMEOUT) as comm:
        card = Card(comm, mode, scenario, Path(file), devices[rank])

        def paths() -> list[hmc.Path]:
            return [comm.path(other, devices[rank], device) for other, device in enumerate(devices)]

        def staged() -> int:
            return int(comm.context.counters().get("bytes_staged", 0))

        card.scenario = replace(scenario, dilation=scenario.dilation / 100)
        card.step(0)
        card.scenario = scenario
        comm.barrier(timeout=TIMEOUT)
        before, staged_before, late_before = paths(), staged(), card.late
        seconds = [card.step(step) for step in range(1, steps + 1)]
        comm.barrier(timeout=TIMEOUT)
        result = {
            "seconds": seconds,
            "late": card.late - late_before,
            "sent": [after.bytes_put - path.bytes_put for path, after in zip(before, paths(), strict=True)],
            "paths": [f"{path.transport} ({path.detail})" if path.detail else path.transport for path in before],
            "staged": staged() - staged_before,
        }
        comm.barrier(timeout=TIMEOUT)
    return result
