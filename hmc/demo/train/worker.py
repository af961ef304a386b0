"""One rank of the training demo. Reports to its parent as JSON lines on standard output."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

import hmc
from hmc.cli.ranks import run_worker
from hmc.demo.train.model import Card, Model, proportional_shares

TIMEOUT = 300  # seconds


def tell(kind: str, **fields: Any) -> None:
    """One line to the parent."""
    print(json.dumps({"hmc-demo": kind, **fields}), flush=True)


def reduce_on_device(comm: hmc.Communicator, memory: Any, sums: Any) -> None:
    """Adds up ``sums`` of all ranks, in device memory."""
    memory.copy_from(sums)
    comm.all_reduce(memory, dtype="float32", timeout=TIMEOUT)
    memory.copy_to(sums)


class Trainer:
    """Data-parallel training on one rank. ``rank`` is that of the whole job, by which the parent files messages."""

    def __init__(self, rank: int, card: Card, device: str, steps: int) -> None:
        self.rank = rank
        self.card = card
        self.device = device
        self.steps = steps

    def measure(self, comm: hmc.Communicator) -> list[float]:
        """Samples per second of every rank of ``comm``, by rank, as measured now."""
        speeds = np.zeros(comm.size)
        comm.all_gather(speeds, np.array([self.card.measure()]), timeout=TIMEOUT)
        return [float(speed) for speed in speeds]

    def train(self, run: str, comm: hmc.Communicator, speeds: list[float]) -> None:
        """One run from the first weights, by the ranks of ``comm``, each with a share of the batch by its speed."""
        shares = proportional_shares(speeds)
        begin = sum(shares[: comm.rank])
        end = begin + shares[comm.rank]
        model = Model()
        memory = hmc.Memory(4 * (model.weights.size + 1), device=self.device)
        losses, seconds, reducing = [], [], []
        reduce_on_device(comm, memory, np.zeros(model.weights.size + 1, np.float32))  # the first call makes connections
        before = self._counted(comm)
        late = self.card.late
        for step in range(self.steps):
            start = time.perf_counter()
            sums = self.card.gradient(model, step, begin, end)
            computed = time.perf_counter()
            reduce_on_device(comm, memory, sums)
            reduced = time.perf_counter()
            losses.append(model.update(sums))
            seconds.append(time.perf_counter() - start)
            reducing.append(reduced - computed)
            if comm.rank == 0:
                tell("step", run=run, step=step)
        tell(
            "trained", run=run, rank=self.rank, losses=losses, seconds=seconds, reducing=min(reducing), late=self.card.late - late,
            digest=model.digest(), share=end - begin, speed=speeds[comm.rank],
            counted=self._counted(comm) - before,
        )  # fmt: skip

    @staticmethod
    def _counted(comm: hmc.Communicator) -> int:
        """Bytes that this process has sent to and received from other processes."""
        counters = comm.context.counters().items()
        return sum(
            value for name, value in counters if name.startswith(("put.bytes.", "get.bytes.")) and not name.endswith(".local")
        )


def tell_links(comm: hmc.Communicator, devices: list[str], size: int) -> None:
    """What an all_reduce of ``size`` bytes sends from each rank to each other, and by which path this rank sends."""
    plan = comm.plan("all_reduce", size)
    tell("plan", algorithm=plan.algorithm, links=[[link.source, link.target, link.bytes] for link in plan.links])
    for target in range(comm.size):
        if target != comm.rank:
            path = comm.path(target, devices[comm.rank], devices[target])
            tell("path", src=comm.rank, dst=target, transport=path.messages or path.transport)


def main() -> None:
    """Trains on both islands twice, then on each alone. Whether the results agree is the parent's to find out."""
    steps, transports, devices = int(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")
    dilations = [float(seconds) for seconds in sys.argv[4].split(",")]
    rank = int(os.environ["HMC_RANK"])
    vendors = list(dict.fromkeys(device.partition(":")[0] for device in devices))
    mine = vendors.index(devices[rank].partition(":")[0])
    with hmc.init(devices=[devices[rank]], transports=transports or None) as comm:
        trainer = Trainer(rank, Card(dilations[mine]), devices[rank], steps)
        island = comm.split(mine, timeout=TIMEOUT)
        assert island is not None
        speeds = trainer.measure(comm)
        trainer.train("both", comm, speeds)
        trainer.train("both again", comm, speeds)
        for number, vendor in enumerate(vendors):
            comm.barrier(timeout=TIMEOUT)
            if number == mine:
                trainer.train(vendor, island, trainer.measure(island))
        comm.barrier(timeout=TIMEOUT)
        tell_links(comm, devices, 4 * (Model().weights.size + 1))
        comm.barrier(timeout=TIMEOUT)


if __name__ == "__main__":
    run_worker(main)
