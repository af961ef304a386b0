"""Process groups: how they are found and made, of every shape, in torch's debug mode, and their backends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


@pytest.mark.skipif(VERSION < (2, 14), reason="torch finds a backend by itself from 2.14 on")
def test_no_import_is_needed(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        assert "hmc.torch" not in sys.modules
        rank, size = start()
        dist.all_reduce(tensor := torch.ones(3))
        assert tensor.tolist() == [size] * 3
        dist.destroy_process_group()
        """,
        imports="",
    )


DETAIL = """
rank, size = start()
everybody = [None] * size
dist.all_gather_object(everybody, {"rank": rank})
assert everybody == [{"rank": r} for r in range(size)]
got = torch.empty(3)
ops = [dist.P2POp(dist.isend, torch.full((3,), float(rank)), rank ^ 1), dist.P2POp(dist.irecv, got, rank ^ 1)]
for work in dist.batch_isend_irecv(ops):
    work.wait()
assert got.tolist() == [rank ^ 1] * 3
with dist._coalescing_manager():
    tensors = [torch.ones(2), torch.ones(3)]
    for tensor in tensors:
        dist.all_reduce(tensor)
assert [tensor.tolist() for tensor in tensors] == [[size] * 2, [size] * 3]
pair = dist.new_group([0, 1])
dist.all_reduce(tensors[0], group=pair)
assert tensors[0].tolist() == [2 * size] * 2
dist.group.WORLD.monitored_barrier()
for asynchronous in (False, True):
    work = dist.all_reduce(tensor := torch.ones(3), async_op=asynchronous)
    if asynchronous:
        assert work.get_future().then(lambda future: future.value()[0].sum().item()).wait() == 3 * size
    assert tensor.tolist() == [size] * 3
dist.destroy_process_group()
"""


def test_the_same_in_debug_detail(run_torch: Callable[..., list[str]]) -> None:
    run_torch(DETAIL, environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TORCH_CPP_LOG_LEVEL": "ERROR"})


SHAPES = """
import itertools
from datetime import timedelta
rank, size = start()
seen = []
# Every set of ranks, in turn and all at once; each has its own order of calls.
sets = [list(ranks) for n in range(1, size + 1) for ranks in itertools.combinations(range(size), n)]
groups = [(ranks, dist.new_group(ranks)) for ranks in sets]
for ranks, group in [*groups, *reversed(groups)]:
    if rank not in ranks:
        assert group == dist.GroupMember.NON_GROUP_MEMBER
        continue
    assert dist.get_world_size(group) == len(ranks) and dist.get_rank(group) == ranks.index(rank)
    assert dist.get_process_group_ranks(group) == ranks
    dist.all_reduce(tensor := torch.full((3,), float(rank)), group=group)
    assert tensor.tolist() == [sum(ranks)] * 3, (ranks, tensor)
    dist.broadcast(tensor := torch.full((3,), float(rank)), ranks[-1], group=group)
    assert tensor.tolist() == [ranks[-1]] * 3
    everybody = [None] * len(ranks)
    dist.all_gather_object(everybody, rank, group=group)
    assert everybody == ranks
    # Messages of one group are not those of another with the same ranks.
    if len(ranks) > 1:
        at = ranks.index(rank)
        got = torch.empty(2)
        works = [dist.isend(torch.full((2,), float(rank)), ranks[(at + 1) % len(ranks)], group=group)]
        works.append(dist.irecv(got, ranks[at - 1], group=group))
        for work in works:
            work.wait()
        assert got.tolist() == [ranks[at - 1]] * 2
# Two groups of the same ranks, used against each other's order by different ranks.
one, other = dist.new_group(), dist.new_group()
first, second = (one, other) if rank % 2 else (other, one)
tensors = torch.ones(3), torch.full((3,), 2.0)
works = [dist.all_reduce(tensors[group is other], group=group, async_op=True) for group in (first, second)]
for work in works:
    work.wait()
assert tensors[0].tolist() == [size] * 3 and tensors[1].tolist() == [2 * size] * 3
# Ranks of one host pass memory through what they share.
counters = lambda: one.communicator.context.counters().get("fused.count", 0)
before = counters()
for count in (1, 1000, 200_001):
    dist.all_reduce(tensor := torch.arange(count, dtype=torch.float64) * (rank + 1), group=one)
    assert torch.equal(tensor, torch.arange(count, dtype=torch.float64) * sum(range(1, size + 1)))
assert counters() >= before + 3, (before, counters())
mine, _ = dist.new_subgroups(2)
dist.all_reduce(tensor := torch.full((1,), float(rank)), group=mine)
assert tensor.item() == rank // 2 * 4 + 1
# Groups go in any order while others work on.
for ranks, group in groups[::3]:
    if rank in ranks:
        dist.destroy_process_group(group)
dist.all_reduce(tensor := torch.ones(1))
assert tensor.item() == size
dist.all_reduce(tensor := torch.ones(1), group=mine)
assert tensor.item() == 2
dist.destroy_process_group()
# And again from the start, at another store.
dist.init_process_group("hmc", init_method=f"tcp://127.0.0.1:{int(os.environ['MASTER_PORT']) + 1}", rank=rank, world_size=size)
dist.all_reduce(tensor := torch.ones(1))
assert tensor.item() == size
dist.destroy_process_group()
"""


def test_groups_of_every_shape(run_torch: Callable[..., list[str]]) -> None:
    run_torch(SHAPES, ranks=4)


@pytest.mark.skipif(VERSION < (2, 14), reason="groups of torch have backends from 2.14 on")
def test_the_backend_of_a_group(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        rank, size = start()
        group = dist.group.WORLD
        backend = group._get_backend(torch.device("cpu"))
        for name in dir(backend):
            # Each answers or refuses; none calls itself for ever.
            try:
                getattr(backend, name)
            except (NotImplementedError, RuntimeError) as error:
                assert not isinstance(error, RecursionError), name
        assert backend.options.backend == "hmc" and backend.rank() == rank and backend.size() == size
        assert torch.device("cpu") in group._device_types
        # torch's own class goes to the backend, by torch's operators.
        for _ in range(3):
            assert dist.ProcessGroup.allreduce(group, [tensor := torch.ones(3)]).wait()
            assert tensor.tolist() == [size] * 3
        work = dist.ProcessGroup.allgather(group, [[torch.empty(2) for _ in range(size)]], [torch.full((2,), float(rank))])
        assert [out.tolist() for out in work.get_future().wait()] == [[0, 0], [1, 1]]
        dist.destroy_process_group()
        """
    )


@pytest.mark.skipif(VERSION < (2, 14), reason="groups of torch have backends from 2.14 on")
def test_the_timeout_of_a_group_is_that_of_its_backend(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        import time
        from datetime import timedelta
        import torch.distributed._functional_collectives as functional
        rank, size = start()
        group, store = dist.group.WORLD, dist.distributed_c10d._get_default_store()
        backend = group._get_backend(torch.device("cpu"))
        group.set_timeout(timedelta(seconds=2))
        assert backend.options._timeout == timedelta(seconds=2), backend.options._timeout
        if rank == 0:
            for call in (
                lambda: functional.all_reduce(torch.ones(3), "sum", group).tolist(),
                lambda: dist.ProcessGroup.allreduce(group, [torch.ones(3)]).wait(),
            ):
                began = time.monotonic()
                try:
                    call()
                except (hmc.HmcTimeoutError, RuntimeError):
                    assert 1.5 < time.monotonic() - began < 30
                else:
                    raise SystemExit("it came back")
            store.set("timed out", "yes")
        backend.set_timeout(timedelta(seconds=60))
        assert backend.options._timeout == timedelta(seconds=60) and group._seconds == 60
        if rank == 1:
            store.wait(["timed out"], timedelta(seconds=60))
            for _ in range(2):
                dist.all_reduce(torch.ones(3))
        dist.barrier()
        dist.all_reduce(tensor := torch.ones(3))
        assert tensor.tolist() == [size] * 3
        dist.destroy_process_group()
        """
    )
