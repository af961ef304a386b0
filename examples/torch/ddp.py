"""Data parallel training, its gradients averaged by HMC. Run: hmc run -n 2 examples/torch/ddp.py"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hmc.torch  # makes "hmc" known to torch.distributed

dist.init_process_group("hmc")
rank, size = dist.get_rank(), dist.get_world_size()
device = f"cuda:{rank}" if torch.cuda.device_count() >= size else "cpu"

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(device)
parallel = DistributedDataParallel(model)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05)
inputs, targets = torch.randn(64, 20, device=device), torch.randn(64, 1, device=device)

for _ in range(20):
    # Each rank takes its part of the batch; DDP averages the gradients while the backward pass goes on.
    part = slice(rank * 64 // size, (rank + 1) * 64 // size)
    loss = (parallel(inputs[part]) - targets[part]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with torch.no_grad():
    loss = (model(inputs) - targets).square().mean()
if rank == 0:
    print(f"loss {loss.item():.4f} on {size} x {device}")
dist.destroy_process_group()
