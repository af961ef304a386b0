"""HMC inside an mpi4py program: one HMC rank per rank of any MPI group.

Run: mpirun -n 4 python inside_mpi4py.py
"""

import socket
import tempfile

import numpy as np
from mpi4py import MPI

import hmc


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def init_from_mpi(group: MPI.Comm) -> hmc.Communicator:
    """Collective over ``group``, whose rank 0 tells the others where to meet, and on several hosts the key."""
    one_host = len(set(group.allgather(socket.gethostname()))) == 1
    with tempfile.TemporaryDirectory() as folder:
        here = (f"unix:{folder}/hmc", None) if one_host else (f"tcp://{socket.getfqdn()}:{free_port()}", hmc.keygen())
        rendezvous, key = group.bcast(here, root=0)
        return hmc.init(group.rank, group.size, rendezvous, key=key)


world = MPI.COMM_WORLD
pair = world.Split(color=world.rank // 2, key=-world.rank)  # any group will do; in this one the higher rank comes first

with init_from_mpi(pair) as comm:
    mine = np.full((comm.size, 1000), world.rank, np.int32)
    theirs = np.empty_like(mine)
    comm.all_to_all(theirs, mine, timeout=30)
    expected = pair.allgather(world.rank)
    assert (theirs == np.array(expected)[:, None]).all()
    print(f"MPI rank {world.rank} is HMC rank {comm.rank} of {comm.size}: done")
