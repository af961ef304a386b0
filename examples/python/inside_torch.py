"""HMC inside a torch.distributed program: one HMC rank per rank of any process group.

Run: torchrun --nproc-per-node 4 inside_torch.py
"""

import socket
import tempfile

import torch
import torch.distributed as dist

import hmc


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def init_from_torch(group: dist.ProcessGroup) -> hmc.Communicator:
    """Collective over ``group``, whose rank 0 tells the others where to meet, and on several hosts the key."""
    hosts = [""] * dist.get_world_size(group)
    dist.all_gather_object(hosts, socket.gethostname(), group=group)
    one_host = len(set(hosts)) == 1
    with tempfile.TemporaryDirectory() as folder:
        answer = [(f"unix:{folder}/hmc", None) if one_host else (f"tcp://{socket.getfqdn()}:{free_port()}", hmc.keygen())]
        dist.broadcast_object_list(answer, src=dist.get_global_rank(group, 0), group=group)
        rendezvous, key = answer[0]
        return hmc.init(dist.get_rank(group), len(hosts), rendezvous, key=key)


dist.init_process_group("gloo")
rank = dist.get_rank()
pairs = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size(), 2)]  # every rank makes every group

with init_from_torch(pairs[rank // 2]) as comm:
    mine = torch.full((comm.size, 1000), rank, dtype=torch.int32)
    theirs = torch.empty_like(mine)
    comm.all_to_all(theirs, mine, timeout=30)
    first = rank - rank % 2
    assert torch.equal(theirs, torch.tensor([[first], [first + 1]], dtype=torch.int32).expand(2, 1000))
    print(f"torch rank {rank} is HMC rank {comm.rank} of {comm.size}: done")
dist.destroy_process_group()
