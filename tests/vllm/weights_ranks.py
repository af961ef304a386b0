"""Two ranks of a trainer with torch.distributed: weights_ranks.py KIND RANK ADDRESS FOLDER. KIND: "fsdp" or "gathered".

Rank 0 is its own engine: it pulls every epoch as an engine's worker does, and compares every byte with the gathered module.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from vllm.distributed.weight_transfer.base import ModuleSource

from hmc import weights
from hmc.integrations.vllm._incoming_weights import Incoming
from hmc.integrations.vllm.weights import HMCTrainerInitInfo, HMCTrainerWeightTransferEngine

EPOCHS = 3


def whole(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A collective."""
    return {name: one.full_tensor() if hasattr(one, "full_tensor") else one.clone() for name, one in module.state_dict().items()}


class Worker:
    """vLLM's client, and the engine behind it."""

    def __init__(self) -> None:
        self.wanted: dict[str, torch.Tensor] = {}
        self.incoming: Incoming | None = None
        self.epochs: list[int] = []
        self.sources = 0

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.sources = len(init_info["sources"])
        self.incoming = Incoming(init_info["sources"], init_info["name"], 30)

    def start_weight_update(self) -> None:
        pass

    def update_weights(self, update_info: Any) -> None:
        assert self.incoming is not None
        self.epochs.append(self.incoming.read(update_info["epoch"], 30).epoch)
        found = dict(self.incoming.tensors())
        assert found.keys() == self.wanted.keys()
        for name, one in self.wanted.items():
            assert torch.equal(found[name].view(torch.uint8), one.contiguous().view(torch.uint8)), name

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        pass


def main() -> None:
    kind, rank, address, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    torch.manual_seed(5)
    module = torch.nn.Sequential(torch.nn.Linear(33, 17), torch.nn.Linear(17, 7, bias=False), torch.nn.LayerNorm(7)).to(
        torch.bfloat16
    )
    for part in module:
        fully_shard(part)
    client = Worker()
    source: Any = weights.from_module(module) if kind == "fsdp" else ModuleSource(module)
    trainer = HMCTrainerWeightTransferEngine.trainer_init(HMCTrainerInitInfo(rank=rank), client=client, source=source)
    for _ in range(EPOCHS):
        with torch.no_grad():
            for one in module.parameters():
                one.add_(torch.randn_like(one))
        client.wanted = whole(module)
        trainer.send_weights()
    if client.incoming is not None:
        client.incoming.close()
    trainer.shutdown()
    dist.destroy_process_group()
    (folder / f"{rank}.txt").write_text(f"{client.epochs} {client.sources}")


if __name__ == "__main__":
    main()
