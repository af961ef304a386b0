"""One layer's weights split over the ranks by DTensor. Run: hmc run -n 2 examples/torch/tensor_parallel.py"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import hmc.torch  # makes "hmc" known to torch.distributed

dist.init_process_group("hmc")
rank, size = dist.get_rank(), dist.get_world_size()
kind = "cuda" if torch.cuda.device_count() >= size else "cpu"
if kind == "cuda":
    torch.cuda.set_device(rank)

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16)).to(kind)
inputs = torch.randn(8, 16, device=kind)
whole = model(inputs)
mesh = init_device_mesh(kind, (size,))
parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
split = model(inputs)
split.square().mean().backward()

error = (split - whole).abs().max().item()
assert error < 1e-4, error
if rank == 0:
    print(f"{size} ranks, {model[0].weight.to_local().shape[0]} of 64 rows each; error {error:.1e}")
dist.destroy_process_group()
