"""One model in two stages on two ranks, with micro-batches in flight. Run: hmc run -n 2 examples/torch/pipeline.py"""

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import hmc.torch  # makes "hmc" known to torch.distributed

dist.init_process_group("hmc")
rank, size = dist.get_rank(), dist.get_world_size()
device = torch.device(f"cuda:{rank}" if torch.cuda.device_count() >= size else "cpu")

torch.manual_seed(0)
stages = [torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()) for _ in range(size)]
inputs, targets = torch.randn(32, 16), torch.randn(32, 16)
module = stages[rank].to(device)
stage = PipelineStage(module, rank, size, device)
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

for step in range(10):
    losses: list[torch.Tensor] = []
    optimizer.zero_grad()
    if rank == 0:
        schedule.step(inputs.to(device))
    else:
        schedule.step(target=targets.to(device), losses=losses)
    optimizer.step()
    if losses and step in (0, 9):
        print(f"step {step}: loss {torch.stack(losses).mean().item():.4f}")
dist.destroy_process_group()
