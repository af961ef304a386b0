"""Collectives of device memory, made and used on torch's streams just before and after. Ranks share the devices that there are;
where each has its own, the vendor's library carries them out unless it is told not to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

needs_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no device on this machine")

START = """
rank, size = start()
device = torch.device("cuda", rank % torch.cuda.device_count())
torch.cuda.set_device(device)

def mine(count, seed, dtype):
    # Made by kernels that are still running when the collective is called.
    noise = torch.ones(2048, 2048, device=device)
    for _ in range(5):
        noise = noise @ noise / 2048
    numbers = (torch.arange(count, device=device) * (seed + 3) + rank * 7 + noise[0, 0].long() - 1) % 5
    return numbers.to(dtype)

def whole(count, seed, dtype):
    numbers = torch.arange(count) * (seed + 3)
    return [((numbers + r * 7) % 5).to(dtype) for r in range(size)]
"""


@pytest.fixture(params=["1", "0"], ids=["by the library", "by HMC"])
def native(request: pytest.FixtureRequest) -> dict[str, str]:
    return {"HMC_TORCH_NATIVE": request.param}


@needs_device
def test_collectives(run_torch: Callable[..., list[str]], native: dict[str, str]) -> None:
    run_torch(
        START
        + """
seed = 0
for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8):
    for count in (0, 1, 1023, 300_007):
        seed += 1
        everybody = whole(count, seed, dtype)
        total = sum(everybody[1:], everybody[0])
        tensor = mine(count, seed, dtype)
        dist.all_reduce(tensor)
        assert torch.equal((tensor + 0).cpu(), total), ("all_reduce", dtype, count)
        work = dist.all_reduce(tensor := mine(count, seed, dtype), async_op=True)
        assert torch.equal(work.get_future().wait()[0].cpu(), total), ("future", dtype, count)
        outs = [torch.empty(count, dtype=dtype, device=device) for _ in range(size)]
        dist.all_gather(outs, mine(count, seed, dtype))
        for r in range(size):
            assert torch.equal((outs[r] + 0).cpu(), everybody[r]), ("all_gather", dtype, count)
        out = torch.empty(count, dtype=dtype, device=device)
        dist.reduce_scatter_tensor(out, torch.cat([mine(count, seed, dtype)] * size))
        assert torch.equal((out + 0).cpu(), total), ("reduce_scatter", dtype, count)
        tensor = mine(count, seed, dtype)
        dist.broadcast(tensor, seed % size)
        assert torch.equal((tensor + 0).cpu(), everybody[seed % size]), ("broadcast", dtype, count)
        matrix = torch.cat([mine(count, seed, dtype)] * size)
        out = torch.empty_like(matrix)
        dist.all_to_all_single(out, matrix)
        assert torch.equal((out + 0).cpu(), torch.cat(everybody)), ("all_to_all", dtype, count)
        if rank < 2:
            got = torch.empty(count, dtype=dtype, device=device)
            other = 1 - rank
            works = dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, mine(count, seed, dtype), other), dist.P2POp(dist.irecv, got, other)]
            )
            for work in works:
                work.wait()
            assert torch.equal((got + 0).cpu(), everybody[other]), ("send, recv", dtype, count)
dist.barrier()
used = dist.group.WORLD._native._backend is not None
assert used == (os.environ["HMC_TORCH_NATIVE"] == "1" and torch.cuda.device_count() >= size > 1), used
dist.destroy_process_group()
""",
        environment=native,
    )


@needs_device
def test_a_killed_rank_is_named(run_torch: Callable[..., list[str]], native: dict[str, str]) -> None:
    said = run_torch(
        START
        + """
import signal, time
tensor = mine(300_007, 1, torch.float32)
dist.all_reduce(tensor)
torch.cuda.synchronize()
if rank == 1:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
began = time.monotonic()
try:
    for _ in range(1000):
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
except Exception as error:
    while not isinstance(error, hmc.PeerLostError):
        assert time.monotonic() - began < 20, error
        try:
            dist.all_reduce(tensor)
        except Exception as next_error:
            error = next_error
    assert "rank 1" in str(error), error
    print("lost after", time.monotonic() - began, flush=True)
os._exit(0)
""",
        expect={1: -9},
        environment=native,
    )
    assert "lost" in said[0]


@needs_device
def test_training(run_torch: Callable[..., list[str]], native: dict[str, str]) -> None:
    said = run_torch(
        START
        + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

def train(wrap):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)).to(device)
    inputs, targets = torch.randn(64, 32).to(device), torch.randn(64, 32).to(device)
    wrapped = wrap(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    part = slice(rank * 64 // size, (rank + 1) * 64 // size)
    for _ in range(10):
        loss = (wrapped(inputs[part]) - targets[part]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.all_reduce(loss, dist.ReduceOp.AVG)
    return loss.item()

def shard(model):
    mesh = init_device_mesh("cuda", (size,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model

print(f"{train(DistributedDataParallel):.5f} {train(shard):.5f}")
dist.destroy_process_group()
""",
        environment=native,
    )
    for text in said:
        ddp, fsdp = text.split()
        assert abs(float(ddp) - float(fsdp)) < 1e-3
