"""Parameters, gradients and optimizer state sharded over the ranks (FSDP2). Run: hmc run -n 2 examples/torch/fsdp2.py"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import hmc.torch  # makes "hmc" known to torch.distributed

dist.init_process_group("hmc")
rank, size = dist.get_rank(), dist.get_world_size()
kind = "cuda" if torch.cuda.device_count() >= size else "cpu"
if kind == "cuda":
    torch.cuda.set_device(rank)
mesh = init_device_mesh(kind, (size,))

torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(4))).to(kind)
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
inputs, targets = torch.randn(64, 32, device=kind), torch.randn(64, 32, device=kind)

for _ in range(10):
    part = slice(rank * 64 // size, (rank + 1) * 64 // size)
    loss = (model(inputs[part]) - targets[part]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

dist.all_reduce(loss, dist.ReduceOp.AVG)
if rank == 0:
    held = sum(parameter.to_local().numel() for parameter in model.parameters())
    print(f"loss {loss.item():.4f}; this rank holds {held} of {sum(p.numel() for p in model.parameters())} parameters")
dist.destroy_process_group()
