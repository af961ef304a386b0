"""Actors of Ray as the ranks of a job: Ray starts them without numbers, so they are told."""

import numpy as np
import ray

import hmc

SIZE = 4


@ray.remote(num_cpus=0)
class Worker:
    def address(self) -> str:
        return ray.util.get_node_ip_address()

    def join(self, rank: int, rendezvous: str, key: str) -> None:
        self.comm = hmc.init(rank, SIZE, rendezvous=rendezvous, key=key, timeout=60)

    def work(self) -> str:
        rank = self.comm.rank
        parts = np.arange(SIZE, dtype=np.int64) + 10 * rank
        gathered = np.empty_like(parts)
        self.comm.all_to_all(gathered, parts, timeout=60)
        assert np.array_equal(gathered, 10 * np.arange(SIZE) + rank)
        return f"rank {rank}: done"


ray.init()
workers = [Worker.options(scheduling_strategy="SPREAD").remote() for _ in range(SIZE)]
rendezvous, key = f"tcp://{ray.get(workers[0].address.remote())}:7000", hmc.keygen()
ray.get([worker.join.remote(rank, rendezvous, key) for rank, worker in enumerate(workers)])
print("\n".join(ray.get([worker.work.remote() for worker in workers])))
