"""One of the processes of ``hmc bench``, on a core of its own. Prints measured points as JSON lines."""

from __future__ import annotations

import json
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

import hmc
from hmc import _core
from hmc.cli.ranks import run_worker

IN_FLIGHT = 16


def calls_for(size: int) -> int:
    """Calls per sample, the same on both sides: about 64 MiB moved."""
    return max(1, min(2000, (64 << 20) // max(size, 1)))


class Bench:
    """Every operation between rank 0 and rank 1."""

    def __init__(self, comm: hmc.Communicator, task: dict[str, Any]) -> None:
        self.comm, self.task = comm, task
        self.other = 1 - comm.rank
        devices = task["devices"] or ["cpu"]
        self.device, self.target = (devices[rank % len(devices)] for rank in (comm.rank, self.other))

    def point(self, operation: str, size: int, seconds: float) -> None:
        """Prints one result, from rank 0 only. ``seconds`` per operation, one way."""
        if self.comm.rank == 0:
            path = self.comm.path(1, self.device, self.target)
            messages = path.messages if operation in ("send", "rate", "alltoall") else ""
            print(
                json.dumps(
                    {"hmc-bench": operation, "transport": messages or path.transport, "asked": self.task["transport"], "size": size,
                     "seconds": seconds}
                ),
                flush=True,
            )  # fmt: skip

    def median(self, calls: int, call: Callable[[], object], end: Callable[[], object] = lambda: None) -> float:
        """Seconds per call: the median of the samples, after one to warm up. ``end`` belongs to each sample."""
        samples = []
        for sample in range(self.task["repeat"] + 1):
            self.comm.barrier()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            end()
            if sample:
                samples.append((time.perf_counter() - start) / calls)
        return statistics.median(samples)

    def baselines(self) -> None:
        """A raw shared flag between the two processes, and one thread's memcpy."""
        comm = self.comm
        if comm.size > 2:  # the flag is between two
            return
        with tempfile.NamedTemporaryFile() as file:
            file.truncate(4096)
            name = os.fsdecode(comm.exchange_bytes(os.fsencode(file.name))[0])
            with open(name, "r+b") as shared, mmap.mmap(shared.fileno(), 4096) as page:
                comm.barrier()
                seconds = _core.baseline_flag(page, comm.rank, 200_000)
                comm.barrier()
        self.point("raw flag", 8, seconds)
        comm.barrier()
        if comm.rank == 0:
            for size in self.task["sizes"]:
                source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
                samples = []
                for _ in range(self.task["repeat"] + 1):
                    start = time.perf_counter()
                    for _ in range(calls := calls_for(size)):
                        np.copyto(target, source)
                    samples.append((time.perf_counter() - start) / calls)
                self.point("memcpy", size, statistics.median(samples[1:]))
        comm.barrier()

    def send(self) -> None:
        """Half a round trip of send and recv of plain arrays."""
        comm, other = self.comm, self.other
        for size in self.task["sizes"]:
            array = np.full(size, comm.rank, np.uint8) if self.device == "cpu" else self.buffer(size)

            def first(array: Any = array) -> None:
                comm.send(array, other)
                comm.recv(array, other)

            def second(array: Any = array) -> None:
                comm.recv(array, other)
                comm.send(array, other)

            self.point("send", size, self.median(calls_for(size), second if comm.rank else first) / 2)

    def rate(self) -> None:
        """Messages from rank 0 to rank 1, windows of 16, each window waited for as a whole: seconds per message."""
        comm, other = self.comm, self.other
        for size in self.task["sizes"]:
            arrays: list[Any] = [np.full(size, comm.rank, np.uint8) for _ in range(IN_FLIGHT)]
            if self.device != "cpu":
                arrays = [self.buffer(size) for _ in range(IN_FLIGHT)]
            post = comm.irecv if comm.rank else comm.isend

            def window(arrays: list[Any] = arrays, post: Callable[..., hmc.Work] = post) -> None:
                hmc.wait_all([post(array, other) for array in arrays])

            # With a barrier at the end of each sample: all have arrived.
            self.point("rate", size, self.median(calls_for(IN_FLIGHT * size), window, comm.barrier) / IN_FLIGHT)

    def one_sided(self, name: str) -> None:
        """put or get between ConnBuffers, by rank 0 alone; 8-byte put with its notification as half a round trip."""
        comm = self.comm
        largest = max(8, *self.task["sizes"])  # 8: of the put with a notification
        buf = self.buffer(largest)
        remote = comm.exchange(buf)[self.other]
        operation = comm.put if name == "put" else comm.get
        for size in self.task["sizes"]:
            here, there = buf[:size], remote[:size]

            def transfer(here: Any = here, there: Any = there) -> None:
                operation(here, there).wait()

            if comm.rank == 0:
                self.point(name, size, self.median(calls_for(size), transfer))
            else:
                self.median(1, lambda: None)
        comm.barrier()  # the target's buffer lives until here
        if name == "put":
            self.notified(buf[:8], remote[:8])

    def stream(self) -> None:
        """Puts by rank 0, several under way: what programs measure that wait for no single one."""
        comm = self.comm
        largest = max(self.task["sizes"])
        buf = self.buffer(largest)
        remote = comm.exchange(buf)[self.other]
        for size in self.task["sizes"]:
            here, there = buf[:size], remote[:size]
            calls = max(2 * IN_FLIGHT, calls_for(size))
            works: deque[hmc.Work] = deque()

            def post(here: Any = here, there: Any = there, works: deque[hmc.Work] = works) -> None:
                if len(works) == IN_FLIGHT:
                    works.popleft().wait()
                works.append(comm.put(here, there))

            def drain(works: deque[hmc.Work] = works) -> None:
                while works:
                    works.popleft().wait()

            if comm.rank == 0:
                self.point("stream", size, self.median(calls, post, drain))
            else:
                self.median(1, lambda: None)
        comm.barrier()  # the target's buffer lives until here

    def buffer(self, size: int) -> hmc.ConnBuffer:
        """Memory on this rank's device, filled."""
        buf = self.comm.buffer(size, device=self.device)
        buf.memory.fill(self.comm.rank + 1)
        return buf

    def notified(self, here: Any, there: Any) -> None:
        """Half a round trip of an 8-byte put with a notification."""
        comm, other = self.comm, self.other

        def first() -> None:
            comm.put(here, there, notify=1)
            comm.wait_notify(other, 1)

        def second() -> None:
            comm.wait_notify(other, 1)
            comm.put(here, there, notify=1)

        self.point("put+notify", 8, self.median(2000, second if comm.rank else first) / 2)

    def blocks(self) -> None:
        """Scattered blocks on both sides, preparation included."""
        comm = self.comm
        for count, block in self.task["blocks"]:
            buf = self.buffer(2 * count * block)
            remote = comm.exchange(buf)[self.other]
            order = np.random.default_rng(7)
            here = order.permutation(2 * count)[:count] * block
            there = order.permutation(2 * count)[:count] * block

            def post(b: Any = buf, r: Any = remote, h: Any = here, t: Any = there, size: int = block) -> None:
                comm.put_blocks(comm.prepare_blocks([(b, h, r, t)], block=size)).wait()

            def watch() -> None:
                return None

            # Several in a row: after the barrier before each sample, the first finds the caches cold.
            seconds = self.median(8, watch if comm.rank else post)
            comm.barrier()  # the target's buffer lives until here
            self.point(f"blocks {count}x{block}", count * block, seconds)

    def all_to_all(self) -> None:
        """All ranks, ``size`` bytes to each."""
        comm = self.comm
        for size in self.task["sizes"]:
            inp: Any = np.ones(comm.size * size, np.uint8)
            out: Any = np.zeros(comm.size * size, np.uint8)
            if self.device != "cpu":
                inp, out = self.buffer(comm.size * size), self.buffer(comm.size * size)

            def exchange(out: Any = out, inp: Any = inp) -> None:
                comm.all_to_all(out, inp)

            self.point("alltoall", size, self.median(calls_for(size), exchange))
            del inp, out, exchange  # before the next size takes its memory


def main() -> None:
    """Runs the operations named in the task (JSON, first argument)."""
    task = json.loads(sys.argv[1])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["HMC_LOCAL_RANK"]) % len(cores)]})
    with hmc.init(transports=task["transport"] or None) as comm:
        bench = Bench(comm, task)
        bench.baselines()
        for name in task["operations"]:
            if name in ("put", "get"):
                bench.one_sided(name)
            elif name == "alltoall":
                bench.all_to_all()
            else:
                getattr(bench, name)()
            comm.barrier()


if __name__ == "__main__":
    run_worker(main)
