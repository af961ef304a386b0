"""One process of the demo: a card of a small serving cluster. Reports to its parent as JSON lines on standard output.

Everything that it moves lives on its device. Checksums are computed on the CPU, of a copy of what arrived.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

import hmc
from hmc.demo.workload import (
    HIDDEN_BYTES,
    LAYERS,
    PAGE_BYTES,
    Bytes,
    Shape,
    checksum,
    expert_counts,
    page_table,
    random_bytes,
)

KV_READY = 1


def tell(kind: str, **fields: Any) -> None:
    """One line to the parent."""
    print(json.dumps({"hmc-demo": kind, **fields}), flush=True)


class Worker:
    """The demo's phases on one rank. ``shape`` fixes every size; the other ranks compute the same. ``devices``: every rank's."""

    def __init__(self, comm: hmc.Communicator, shape: Shape, rounds: int, devices: list[str]) -> None:
        self.comm = comm
        self.devices = devices
        self.device = devices[comm.rank]
        self.shape = shape
        self.rounds = rounds
        self.failures = 0

    def report(self, phase: str, dst: int, size: int, seconds: float, *, message: bool) -> None:
        """A transfer that this rank sent, for the table and the picture."""
        path = self.comm.path(dst, self.device, self.devices[dst])
        way = {"transport": path.transport, "detail": path.detail, "reason": path.reason, "direct": path.direct}
        if message and path.messages:
            way = {"transport": path.messages, "detail": "", "reason": f"{path.transport} takes no messages", "direct": False}
        tell("moved", phase=phase, src=self.comm.rank, dst=dst, bytes=size, seconds=seconds, **way)

    def check(self, phase: str, src: int, got: int, expected: int, size: int) -> None:
        """Compares checksums of what arrived and of what the source must have sent."""
        good = got == expected
        self.failures += not good
        tell("checked", phase=phase, src=src, dst=self.comm.rank, bytes=size, good=good)

    def place(self, data: Bytes) -> Any:
        """``data`` in memory of this rank's device; on the CPU the array itself."""
        if self.device == "cpu":
            return data
        memory = hmc.Memory(data.nbytes, device=self.device)
        memory.copy_from(data)
        return memory

    @staticmethod
    def fetch(memory: Any) -> Bytes:
        """What the memory of a device holds, in an array of its own."""
        array = np.empty(memory.nbytes, np.uint8)
        if isinstance(memory, np.ndarray):
            array[:] = memory
        else:
            memory.copy_to(array)
        return array

    def memcpy_speed(self) -> None:
        """One thread's NumPy copy of memory like the demo's, as the yardstick of CPU memory. Bytes per second."""
        if self.device != "cpu":
            return
        size = min(64 << 20, max(8 << 20, LAYERS * self.shape.pages * PAGE_BYTES))
        source, target = random_bytes(size, 1), np.empty(size, np.uint8)
        target[:] = source
        best = min(self._timed(lambda: np.copyto(target, source)) for _ in range(3))
        tell("memcpy", rank=self.comm.rank, speed=size / best)

    @staticmethod
    def _timed(action: Any) -> float:
        start = time.perf_counter()
        action()
        return time.perf_counter() - start

    def kv_cache(self) -> None:
        """Prefill cards ship their prompt's KV pages into their decode card's pools: one batched put, one notification."""
        comm, shape = self.comm, self.shape
        half = comm.size // 2
        prefill = comm.rank < half
        partner = comm.rank + half if prefill else comm.rank - half
        takes_part = partner < comm.size and comm.rank < 2 * half
        pools = [comm.buffer(shape.pool_pages * PAGE_BYTES, device=self.device) for _ in range(LAYERS)]
        remotes = [comm.exchange(pool) for pool in pools]
        source_rank = comm.rank if prefill else partner
        here, there = page_table(shape, 11, source_rank), page_table(shape, 13, source_rank)
        size = LAYERS * shape.pages * PAGE_BYTES
        if takes_part and prefill:
            for layer, pool in enumerate(pools):
                pages = np.zeros(pool.nbytes, np.uint8)
                for index, offset in enumerate(here):
                    pages[offset : offset + PAGE_BYTES] = random_bytes(PAGE_BYTES, 17, comm.rank, layer, index)
                pool.memory.copy_from(pages)
        comm.barrier()
        if takes_part and prefill:
            batch = comm.prepare_blocks(
                [(pool, here, remotes[layer][partner], there) for layer, pool in enumerate(pools)], block=PAGE_BYTES
            )
            for round_number in range(self.rounds):
                seconds = self._timed(lambda: comm.put_blocks(batch, notify=KV_READY).wait())
                self.report("KV cache", partner, size, seconds, message=False)
                tell("progress", phase="KV cache", done=round_number + 1, total=self.rounds)
        elif takes_part:
            comm.wait_notify(partner, KV_READY, count=self.rounds, timeout=300)
            got = expected = 0
            for layer, pool in enumerate(pools):
                pages = self.fetch(pool.memory)
                for index, offset in enumerate(there):
                    got = checksum(pages[offset : offset + PAGE_BYTES], got)
                    expected = checksum(random_bytes(PAGE_BYTES, 17, partner, layer, index), expected)
            self.check("KV cache", partner, got, expected, size)
        comm.barrier()

    def activations(self) -> None:
        """Every card passes activations to the next by send and recv, as pipeline stages do."""
        comm = self.comm
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        out = self.place(random_bytes(self.shape.activation_bytes, 19, comm.rank))
        into = self.place(np.empty(self.shape.activation_bytes, np.uint8))
        comm.barrier()
        for round_number in range(self.rounds):
            into.fill(0)
            start = time.perf_counter()
            receiving = comm.irecv(into, src=before, tag=round_number)
            comm.isend(out, dst=after, tag=round_number).wait(timeout=300)
            self.report("activations", after, out.nbytes, time.perf_counter() - start, message=True)
            receiving.wait(timeout=300)
            expected = checksum(random_bytes(self.shape.activation_bytes, 19, before))
            self.check("activations", before, checksum(self.fetch(into)), expected, into.nbytes)
            tell("progress", phase="activations", done=round_number + 1, total=self.rounds)
        comm.barrier()

    def experts(self) -> None:
        """Tokens to experts and back: an uneven all-to-all, its result returned by the transposed one."""
        comm, tokens = self.comm, self.shape.tokens
        counts = [expert_counts(tokens, comm.size, source) for source in range(comm.size)]
        out_counts = [count * HIDDEN_BYTES for count in counts[comm.rank]]
        in_counts = [counts[source][comm.rank] * HIDDEN_BYTES for source in range(comm.size)]
        tokens_sent = random_bytes(sum(out_counts), 23, comm.rank)
        sent = self.place(tokens_sent)
        routed, returned = (self.place(np.empty(sum(counts), np.uint8)) for counts in (in_counts, out_counts))
        comm.barrier()
        for round_number in range(self.rounds):
            start = time.perf_counter()
            comm.all_to_all_v(routed, in_counts, sent, out_counts, timeout=300)
            seconds = time.perf_counter() - start
            for dst, size in enumerate(out_counts):
                if size and dst != comm.rank:
                    self.report("experts", dst, size, seconds, message=True)
            tell("progress", phase="experts", done=round_number + 1, total=self.rounds)
        arrived, offset = self.fetch(routed), 0
        for source, size in enumerate(in_counts):
            start_of_mine = sum(counts[source][: comm.rank]) * HIDDEN_BYTES
            theirs = random_bytes(sum(counts[source]) * HIDDEN_BYTES, 23, source)[start_of_mine : start_of_mine + size]
            self.check("experts", source, checksum(arrived[offset : offset + size]), checksum(theirs), size)
            offset += size
        comm.all_to_all_v(returned, out_counts, routed, in_counts, timeout=300)
        self.check("experts back", comm.rank, checksum(self.fetch(returned)), checksum(tokens_sent), sent.nbytes)
        comm.barrier()


def main() -> int:
    """Runs every phase; exit status 1 if a check failed."""
    tokens, rounds, transports, devices = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4].split(",")
    with hmc.init(devices=[devices[int(os.environ["HMC_RANK"])]], transports=transports or None) as comm:
        worker = Worker(comm, Shape(tokens), rounds, devices)
        worker.memcpy_speed()
        worker.kv_cache()
        worker.activations()
        worker.experts()
        tell("finished", rank=comm.rank, failures=worker.failures, counters=dict(comm.context.counters()))
    return int(worker.failures > 0)


if __name__ == "__main__":
    sys.exit(main())
