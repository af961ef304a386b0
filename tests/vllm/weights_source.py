"""A rank of a trainer in a process of its own: weights_source.py [MODEL, RANK, SIZE, TENSORS], as JSON. Prints its address.

Publishes as epoch 1 its shards of a model's weights, or of the first TENSORS of them: shards of SIZE equal ones, along the longest
axis. "spoil" on stdin changes an element without an update. The end of stdin ends it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def shards(folder: str, rank: int, size: int, tensors: int | None) -> dict[str, Any]:
    """The tensors of a model as a rank has them."""
    from safetensors.torch import load_file

    from hmc import weights

    found = {}
    for name, tensor in list(load_file(f"{folder}/model.safetensors").items())[:tensors]:
        axis = max(range(tensor.ndim), key=lambda axis: tensor.shape[axis])
        found[name] = weights.shard(tensor.chunk(size, axis)[rank].contiguous(), axis, rank, size)
    return found


class Source:
    """The process, as a test has it."""

    def __init__(self, model: Path, rank: int = 0, size: int = 1, tensors: int | None = None) -> None:
        command = [sys.executable, __file__, json.dumps([str(model), rank, size, tensors])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")

    def address(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, "the source has ended"
        return line

    def spoil(self) -> None:
        assert self.process.stdin is not None
        print("spoil", file=self.process.stdin, flush=True)
        assert self.address() == "spoilt"

    def close(self) -> None:
        self.process.kill()
        self.process.wait(20)


def main() -> None:
    import hmc
    from hmc import weights

    tensors = shards(*json.loads(sys.argv[1]))
    with hmc.Context() as ctx, weights.publish(ctx, tensors, epoch=1):
        print(ctx.addresses[0], flush=True)
        for _ in sys.stdin:
            next(reversed(tensors.values())).array.view(-1)[-1] += 1
            print("spoilt", flush=True)


if __name__ == "__main__":
    main()
