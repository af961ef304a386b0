"""hmc.weights from torch modules: FSDP2 and tensor parallel states to a module that is not sharded, and back."""

from __future__ import annotations

from collections.abc import Callable

RESHARD = """
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from hmc import weights

rank, size = start()

def model():
    torch.manual_seed(1)
    made = nn.Sequential(nn.Linear(301, 33), nn.BatchNorm1d(33), nn.Linear(33, 7, bias=False), nn.Embedding(2, 5))
    return made.to(torch.bfloat16)

def sharded(kind):
    whole = model()
    mesh = init_device_mesh("cpu", (size,))
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard
        for layer in whole:
            fully_shard(layer, mesh=mesh)
        return whole, whole.state_dict()
    place = [Shard(1)] if kind == "tp" else [Replicate()]
    state = whole.state_dict()
    return whole, {name: distribute_tensor(t, mesh, place) if t.ndim == 2 else t for name, t in state.items()}

def gathered(state):
    return {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in state.items()}

ctx = hmc.Context()
for kind in ("fsdp", "tp", "replicated"):
    held, state = sharded(kind)
    with torch.no_grad():
        for t in state.values():
            (t.to_local() if isinstance(t, DTensor) else t).add_(3)
    wanted = gathered(state)
    source = weights.publish(ctx, weights.from_state(state), epoch=5, name=kind)
    addresses = [None] * size
    dist.all_gather_object(addresses, ctx.addresses[0])
    receiver = hmc.Context()
    sources = [weights.lookup(receiver, receiver.connect(a, timeout=30), kind, timeout=30) for a in addresses]

    plain = model()
    with weights.plan(sources, weights.from_module(plain)) as plan:
        plan.pull(timeout=30).wait()
        assert plan.commit() == 5
    for name, t in plain.state_dict().items():
        assert torch.equal(t.view(torch.uint8) if t.ndim else t, wanted[name].view(torch.uint8) if t.ndim else wanted[name]), name

    for other in ("fsdp", "tp"):  # one sharding to the other
        kept, target = sharded(other)
        with weights.plan(sources, weights.from_state(target)) as plan:
            plan.pull(timeout=30).wait()
            plan.commit()
        for name, t in gathered(target).items():
            assert torch.equal(t, wanted[name]), (kind, other, name)
    dist.barrier()
    source.close(timeout=20)
    receiver.close()

mesh = init_device_mesh("cpu", (size,))
try:
    weights.from_state({"p": DTensor.from_local(torch.zeros(3, 3), mesh, [Partial()])})
    raise AssertionError
except hmc.UnsupportedError as error:
    assert "tensor p" in str(error)
print("done", rank)
"""


def test_states_of_torch_reshard(run_torch: Callable[..., list[str]]) -> None:
    assert all("done" in text for text in run_torch(RESHARD, ranks=3))
