"""Processes that publish weights, for the tests of hmc.weights. As a script: one such process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from typing import Any

import numpy as np

import hmc
from hmc import weights

# name: (shape, element type, axis that tensor parallel ranks split). Odd sizes; a scalar; no elements.
MODEL: dict[str, tuple[tuple[int, ...], str, int | None]] = {
    "embed": ((515, 260), "uint16", 0),
    "0.qkv": ((384, 256), "float32", 0),
    "0.out": ((130, 2051), "uint16", 1),
    "1.experts": ((6, 37, 1030), "uint8", 1),
    "1.down": ((6, 41, 777), "float16", 2),
    "1.norm": ((1001,), "float32", None),
    "1.bias": ((4099,), "uint16", 0),
    "2.conv": ((16, 9, 3, 3), "float32", 1),
    "3.scale": ((), "float64", None),
    "3.none": ((0, 5), "int32", None),
}


def value(name: str, epoch: int) -> Any:
    """A whole tensor of an epoch: every byte random, and another one in every epoch."""
    shape, dtype, _ = MODEL[name]
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.random.default_rng([zlib.crc32(name.encode()), epoch]).integers(0, 256, count, np.uint8).view(dtype).reshape(shape)


def place(name: str, rank: int, size: int, axis: int | None = -1) -> tuple[slice, ...]:
    """What rank ``rank`` of ``size`` holds: uneven where the extent is odd."""
    shape, _, split = MODEL[name]
    axis = split if axis == -1 else axis
    cuts = [slice(0, extent) for extent in shape]
    if axis is not None and axis < len(shape):
        cuts[axis] = slice(shape[axis] * rank // size, shape[axis] * (rank + 1) // size)
    return tuple(cuts)


def shard(name: str, epoch: int, rank: int, size: int, axis: int | None = -1) -> weights.Part:
    """A copy of what a rank holds of a tensor, as a Part."""
    cuts = place(name, rank, size, axis)
    return weights.part(np.array(value(name, epoch)[cuts]), MODEL[name][0], [cut.start for cut in cuts])


def empty(names: list[str], rank: int = 0, size: int = 1, axis: int | None = -1) -> dict[str, weights.Part]:
    """A target that holds epoch 0."""
    return {name: shard(name, 0, rank, size, axis) for name in names}


def holds(target: dict[str, weights.Part], epoch: int) -> bool:
    """Every byte of a target is of an epoch."""
    for name, one in target.items():
        cuts = tuple(slice(a, a + e) for a, e in zip(one.at, one.extents, strict=True))
        if one.array.tobytes() != value(name, epoch)[cuts].tobytes():
            return False
    return True


class Source:
    """A process that publishes a rank's shards of some tensors."""

    def __init__(self, rank: int = 0, size: int = 1, names: list[str] | None = None, **more: Any) -> None:
        described = {"rank": rank, "size": size, "names": names or list(MODEL), **more}
        self.process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(described)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
        )
        self.address = self.read()

    def read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, "the source ended"
        return line

    def tell(self, *words: Any) -> None:
        assert self.process.stdin is not None
        print(*words, file=self.process.stdin, flush=True)
        assert self.read() == "done"

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Sends a signal. After SIGSTOP no thread of it runs any more."""
        os.kill(self.process.pid, number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)
        if number == signal.SIGKILL:
            self.process.wait(20)

    def look_up(self, ctx: hmc.Context) -> weights.Source:
        return weights.lookup(ctx, ctx.connect(self.address, timeout=20), timeout=20)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(20)


def spin(source: weights.Publication, tensors: dict[str, weights.Part], rank: int, size: int) -> None:
    """A new epoch each half second, the same on every rank."""
    while True:
        epoch = int(2 * time.monotonic())
        new = {name: value(name, epoch)[place(name, rank, size)] for name in tensors}
        with source.update(epoch):
            for name, one in tensors.items():
                one.array[...] = new[name]
        while int(2 * time.monotonic()) == epoch:
            time.sleep(0.005)


def serve(described: dict[str, Any]) -> None:
    rank, size, names = described["rank"], described["size"], described["names"]
    epoch = described.get("epoch", 1)
    with hmc.Context(listen="tcp://127.0.0.1:0", transports=described.get("transports", "shm,tcp"), heartbeat=60) as ctx:
        tensors = {name: shard(name, epoch, rank, size) for name in names}
        if "upstream" in described:  # a receiver, which publishes what it pulled
            sources = [weights.lookup(ctx, ctx.connect(address, timeout=20), timeout=20) for address in described["upstream"]]
            tensors = empty(names, rank, size)
            with weights.plan(sources, tensors) as plan:
                plan.pull(epoch=described["epoch"], timeout=30).wait()
                assert plan.commit() == epoch
            assert holds(tensors, epoch)
        if described.get("mapped"):
            for name, one in tensors.items():
                if one.nbytes:
                    array = ctx.buffer(one.nbytes).numpy(one.array.dtype, one.extents)
                    array[...] = one.array
                    tensors[name] = weights.part(array, one.shape, one.at)
        with weights.publish(ctx, tensors, epoch=epoch, digest=described.get("digest", True)) as source:
            print(ctx.addresses[0], flush=True)
            for line in sys.stdin:
                what, *words = line.split()
                if what == "update":
                    with source.update(int(words[0])):
                        for name, one in tensors.items():
                            one.array[...] = value(name, int(words[0]))[place(name, rank, size)]
                elif what == "spin":
                    threading.Thread(target=spin, args=(source, tensors, rank, size), daemon=True).start()
                elif what == "begin":  # an update that does not end
                    unfinished = source.update(int(words[0]))
                    unfinished.__enter__()
                elif what == "corrupt":
                    tensors[words[0]].array.reshape(-1).view(np.uint8)[int(words[1])] ^= 1
                elif what == "close":
                    source.close()
                print("done", flush=True)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
