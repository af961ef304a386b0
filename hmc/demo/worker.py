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
from hmc.cli.ranks import run_worker
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
        size = min(64 << 20, max(8 << 20, self.shape.cache_bytes))
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
        size = shape.cache_bytes
        if takes_part and prefill:
            for layer, pool in enumerate(pools):
                pages = np.zeros(pool.nbytes, np.uint8)
                for index, offset in enumerate(here):
                    pages[offset : offset + PAGE_BYTES] = random_bytes(PAGE_BYTES, 17, comm.rank, layer, index)
                pool.memory.copy_from(pages)
        if takes_part and prefill:
            batch = comm.prepare_blocks(
                [(pool, here, remotes[layer][partner], there) for layer, pool in enumerate(pools)], block=PAGE_BYTES
            )
        elif takes_part:
            expected = 0
            for layer in range(LAYERS):
                for index in range(len(there)):
                    expected = checksum(random_bytes(PAGE_BYTES, 17, partner, layer, index), expected)
        for _ in range(self.rounds):
            comm.barrier()
            if takes_part and prefill:
                seconds = self._timed(lambda: comm.put_blocks(batch, notify=KV_READY).wait(timeout=300))
                self.report("KV cache", partner, size, seconds, message=False)
            elif takes_part:
                comm.wait_notify(partner, KV_READY, timeout=300)
                got = 0
                for pool in pools:
                    pages = self.fetch(pool.memory)
                    for offset in there:
                        got = checksum(pages[offset : offset + PAGE_BYTES], got)
                    pool.memory.fill(0)  # the next round's bytes are not these
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
        comm.barrier()

    def experts(self) -> None:
        """Tokens to experts and back: an uneven all-to-all, its result returned by the transposed one."""
        comm, tokens = self.comm, self.shape.tokens
        counts = [expert_counts(tokens, comm.size, source) for source in range(comm.size)]
        out_counts = [count * HIDDEN_BYTES for count in counts[comm.rank]]
        in_counts = [counts[source][comm.rank] * HIDDEN_BYTES for source in range(comm.size)]
        tokens_sent = random_bytes(sum(out_counts), 23, comm.rank)
        expected = [
            (size, checksum(self._part(random_bytes(sum(counts[source]) * HIDDEN_BYTES, 23, source), counts[source], comm.rank)))
            for source, size in enumerate(in_counts)
        ]
        sent = self.place(tokens_sent)
        routed, returned = (self.place(np.empty(sum(sizes), np.uint8)) for sizes in (in_counts, out_counts))
        for _ in range(self.rounds):
            comm.barrier()
            routed.fill(0)
            returned.fill(0)
            there = self._timed(lambda: comm.all_to_all_v(routed, in_counts, sent, out_counts, timeout=300))
            back = self._timed(lambda: comm.all_to_all_v(returned, out_counts, routed, in_counts, timeout=300))
            arrived, offset = self.fetch(routed), 0
            came_back = self.fetch(returned)
            for other in range(comm.size):
                size, wanted = expected[other]
                got = checksum(arrived[offset : offset + size])
                offset += size
                mine = self._part(came_back, counts[comm.rank], other)
                good = got == wanted and checksum(mine) == checksum(self._part(tokens_sent, counts[comm.rank], other))
                # Its tokens here and the results of mine, of which there are as many; nothing moves between a card and itself.
                if (moved := size + out_counts[other]) and other != comm.rank:
                    tell("checked", phase="experts", src=other, dst=comm.rank, bytes=moved, good=good)
                    # My tokens there and the results of its.
                    self.report("experts", other, moved, there + back, message=True)
        comm.barrier()

    @staticmethod
    def _part(tokens: Bytes, counts: list[int], rank: int) -> Bytes:
        """Those of a card's ``tokens`` that go to the experts of ``rank``."""
        start = sum(counts[:rank]) * HIDDEN_BYTES
        return tokens[start : start + counts[rank] * HIDDEN_BYTES]


def main() -> None:
    """Runs every phase. Whether the checks passed is in the messages."""
    tokens, rounds, transports, devices = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4].split(",")
    with hmc.init(devices=[devices[int(os.environ["HMC_RANK"])]], transports=transports or None) as comm:
        worker = Worker(comm, Shape(tokens), rounds, devices)
        worker.memcpy_speed()
        worker.kv_cache()
        worker.activations()
        worker.experts()
        tell("finished", rank=comm.rank, counters=dict(comm.context.counters()))


if __name__ == "__main__":
    run_worker(main)
