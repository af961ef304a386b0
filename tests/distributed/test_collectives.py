"""Every collective of torch.distributed over HMC gives what gloo gives, or what its definition says where gloo has none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import hmc

TYPES = {
    "floats": ["float32", "float64", "float16", "bfloat16"],
    "integers": ["int8", "uint8", "int32", "int64"],
    "truth values": ["bool"],
}

# Values are small integers: every order of a sum gives the same bits in every type.
COMMON = """
rank, size = start()
gloo = dist.new_group(backend="gloo")

def values(count, seed, dtype):
    random = torch.Generator().manual_seed(1000 * seed + rank)
    numbers = torch.randint(0, 4, (count,), generator=random)
    return (numbers % 2).bool() if dtype == torch.bool else numbers.to(dtype)

def same(mine, theirs, what):
    assert mine.dtype == theirs.dtype and torch.equal(mine, theirs), (what, mine, theirs)

counts = [0, 1, 7, 1024, 4097, 100_003]
"""

REDUCTIONS = """
for dtype in [getattr(torch, name) for name in TYPES]:
    ops = {
        name: getattr(dist.ReduceOp, name)
        for name in ["SUM", "PRODUCT", "MIN", "MAX"] + ([] if dtype.is_floating_point else ["BAND", "BOR", "BXOR"])
    }
    seed = 0
    for count in counts:
        for name, op in ops.items():
            seed += 1
            what = (name, count, dtype)
            mine = values(count, seed, dtype)
            everybody = [torch.empty_like(mine) for _ in range(size)]
            dist.all_gather(everybody, mine, group=gloo)
            stacked = torch.stack(everybody)
            if dtype == torch.bool:
                expected = {
                    "SUM": stacked.any(0), "MAX": stacked.any(0), "BOR": stacked.any(0),
                    "PRODUCT": stacked.all(0), "MIN": stacked.all(0), "BAND": stacked.all(0), "BXOR": stacked.sum(0) % 2 == 1,
                }[name]
            else:
                function = {
                    "SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum,
                    "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
                }[name]
                expected = everybody[0].clone()
                for other in everybody[1:]:
                    expected = function(expected, other)
            reduced = mine.clone()
            dist.all_reduce(reduced, op)
            same(reduced, expected, what)
            later = mine.clone()
            work = dist.all_reduce(later, op, async_op=True)
            same(work.get_future().wait()[0], expected, what)
            assert work.is_completed() and work.is_success()
            rooted = mine.clone()
            root = seed % size
            dist.reduce(rooted, root, op)
            same(rooted, expected if rank == root else rooted, what)
            blocks = torch.cat([mine] * size)
            out = torch.empty_like(mine)
            dist.reduce_scatter_tensor(out, blocks, op)
            same(out, expected, what)
            dist.reduce_scatter(out.zero_(), [mine] * size, op)
            same(out, expected, what)
    if dtype.is_floating_point:
        tensor = torch.full((5,), float(rank), dtype=dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        same(tensor, torch.full((5,), (size - 1) / 2, dtype=dtype), "AVG")
        tensor = torch.full((5,), float(rank), dtype=dtype)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(2.0))
        same(tensor, torch.full((5,), size * (size - 1.0), dtype=dtype), "PREMUL_SUM")
    with dist._coalescing_manager():
        several = [torch.full((3,), rank + 1).to(dtype), torch.zeros(2).to(dtype)]
        for tensor in several:
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
    same(several[0], torch.full((3,), size).to(dtype), "coalesced")
dist.destroy_process_group()
"""

MOVES = """
for dtype in [getattr(torch, name) for name in TYPES]:
    for seed, count in enumerate(counts):
        for root in range(size):
            mine, theirs = (values(count, seed, dtype) for _ in range(2))
            dist.broadcast(mine, root)
            dist.broadcast(theirs, root, group=gloo)
            same(mine, theirs, ("broadcast", count))
            inputs = [values(count, seed + 100 + other, dtype) for other in range(size)] if rank == root else None
            out, expected = (torch.empty(count, dtype=dtype) for _ in range(2))
            dist.scatter(out, inputs, root)
            dist.scatter(expected, inputs, root, group=gloo)
            same(out, expected, ("scatter", count))
            mine = values(count, seed + 7, dtype)
            outs, expected = ([torch.empty_like(mine) for _ in range(size)] if rank == root else None for _ in range(2))
            dist.gather(mine, outs, root)
            dist.gather(mine, expected, root, group=gloo)
            for one, other in zip(outs or [], expected or []):
                same(one, other, ("gather", count))
        mine = values(count, seed, dtype)
        whole = torch.empty(size * count, dtype=dtype)
        for outs in ([torch.empty_like(mine) for _ in range(size)], list(whole.split(count)) if count else [whole[:0]] * size):
            expected = [torch.empty_like(mine) for _ in range(size)]
            dist.all_gather(outs, mine)
            dist.all_gather(expected, mine, group=gloo)
            for one, other in zip(outs, expected):
                same(one, other, ("all_gather", count))
        dist.all_gather_into_tensor(whole.zero_(), mine)
        same(whole, torch.cat(expected), ("all_gather_into_tensor", count))
        matrix, out, expected = values(size * count, seed, dtype), *(torch.empty(size * count, dtype=dtype) for _ in range(2))
        dist.all_to_all_single(out, matrix)
        dist.all_to_all_single(expected, matrix, group=gloo)
        same(out, expected, ("all_to_all_single", count))
        # Rank r sends r + d + 1 rows of 3 to rank d.
        rows_in, rows_out = [rank + other + 1 for other in range(size)], [rank + other + 1 for other in range(size)]
        rows = values(3 * sum(rows_in), seed, dtype).view(-1, 3)
        out, expected = (torch.empty((sum(rows_out), 3), dtype=dtype) for _ in range(2))
        dist.all_to_all_single(out, rows, rows_out, rows_in)
        dist.all_to_all_single(expected, rows, rows_out, rows_in, group=gloo)
        same(out, expected, ("all_to_all_single of rows", count))
        outs = [torch.empty((r, 3), dtype=dtype) for r in rows_out]
        dist.all_to_all(outs, [part.contiguous() for part in rows.split(rows_in)])
        same(torch.cat(outs), expected, ("all_to_all", count))
        partner = rank ^ 1
        if partner < size:
            got = torch.empty_like(mine)
            ops = [dist.P2POp(dist.isend, mine, partner), dist.P2POp(dist.irecv, got, partner)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            everybody = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(everybody := [torch.empty_like(mine) for _ in range(size)], mine, group=gloo)
        if partner < size:
            same(got, everybody[partner], ("batch_isend_irecv", count))
dist.destroy_process_group()
"""

OBJECTS = """
rank, size = start()
everybody = [None] * size
dist.all_gather_object(everybody, {"rank": rank, "text": "x" * (1000 * rank)})
assert everybody == [{"rank": r, "text": "x" * (1000 * r)} for r in range(size)]
told = [{"from": 0}, [1, 2]] if rank == 0 else [None, None]
dist.broadcast_object_list(told, src=0)
assert told == [{"from": 0}, [1, 2]]
gathered = [None] * size if rank == 1 else None
dist.gather_object((rank, "here"), gathered, dst=1)
assert rank != 1 or gathered == [(r, "here") for r in range(size)]
mine = [None]
dist.scatter_object_list(mine, [f"for {r}" for r in range(size)] if rank == 0 else None, src=0)
assert mine == [f"for {rank}"]
if rank == 0:
    for _ in range(size - 1):
        tensor = torch.zeros(3)
        source = dist.recv(tensor, tag=5)
        assert tensor.tolist() == [source] * 3, (source, tensor)
else:
    dist.send(torch.full((3,), float(rank)), 0, tag=5)
dist.barrier()
dist.barrier(async_op=True).wait()
dist.destroy_process_group()
"""

GROUPS = """
from datetime import timedelta
rank, size = start()
pairs = [dist.new_group([2 * i, 2 * i + 1], timeout=timedelta(seconds=30)) for i in range(size // 2)]
mine = pairs[rank // 2]
for round in range(20):
    tensor = torch.full((1000,), float(rank))
    dist.all_reduce(tensor, group=mine)
    assert tensor.unique().tolist() == [float(rank // 2 * 4 + 1)]
    dist.all_reduce(whole := torch.ones(1))
    assert whole.item() == size
# Only its members make a group. Every rank makes one: torch numbers groups by the calls.
outer = dist.new_group([0, size - 1] if rank in (0, size - 1) else list(range(1, size - 1)), use_local_synchronization=True)
tensor = torch.ones(1)
dist.all_reduce(tensor, group=outer)
assert tensor.item() == 2
assert isinstance(outer.communicator, hmc.Communicator) and outer.communicator.size == 2
alone = dist.new_group([rank], use_local_synchronization=True)
dist.all_reduce(tensor := torch.ones(3), group=alone)
assert tensor.tolist() == [1, 1, 1]
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))
for name, others in (("dp", 2), ("tp", size // 2)):
    dist.all_reduce(tensor := torch.ones(2), group=mesh.get_group(name))
    assert tensor.tolist() == [others] * 2
dist.destroy_process_group(mine)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_reductions(run_torch: Callable[..., list[str]], kind: str, ranks: int) -> None:
    run_torch(COMMON + f"TYPES = {TYPES[kind]}\n" + REDUCTIONS, ranks=ranks)


@pytest.mark.parametrize("ranks", [2, 3])
def test_moves(run_torch: Callable[..., list[str]], ranks: int) -> None:
    run_torch(COMMON + "TYPES = ['float32', 'bool', 'int64']\n" + MOVES, ranks=ranks)


def test_objects_messages_and_barriers(run_torch: Callable[..., list[str]]) -> None:
    run_torch(OBJECTS, ranks=3)


def test_groups(run_torch: Callable[..., list[str]]) -> None:
    run_torch(GROUPS, ranks=4)


@pytest.mark.parametrize("key", [None, "given"])
def test_ranks_of_several_hosts_meet_by_tcp(run_torch: Callable[..., list[str]], key: str | None) -> None:
    run_torch(
        """
        import hmc.torch._meeting
        hmc.torch._meeting._host = lambda: str(os.getpid())
        rank, size = start()
        dist.all_reduce(tensor := torch.ones(1000))
        assert tensor.unique().tolist() == [size]
        pair = dist.new_group([0, 2])
        if rank != 1:
            dist.all_reduce(tensor, group=pair)
            assert tensor.unique().tolist() == [2 * size]
        dist.destroy_process_group()
        """,
        ranks=3,
        environment={"HMC_JOB_KEY": hmc.keygen()} if key else None,
    )


def test_checkpoints_of_sharded_models(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        import tempfile
        import torch.distributed.checkpoint as checkpoint
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        rank, size = start()

        def make(seed):
            torch.manual_seed(seed)
            model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Linear(40, 30))
            fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
            return model

        folder = [tempfile.mkdtemp() if rank == 0 else None]
        dist.broadcast_object_list(folder)
        model, other = make(1), make(2)
        whole = StateDictOptions(full_state_dict=True)
        checkpoint.save(get_model_state_dict(model), checkpoint_id=folder[0] + "/a")
        checkpoint.async_save(get_model_state_dict(model), checkpoint_id=folder[0] + "/b").result()
        for name in "ab":
            state = get_model_state_dict(other)
            checkpoint.load(state, checkpoint_id=f"{folder[0]}/{name}")
            set_model_state_dict(other, state)
            mine, theirs = (get_model_state_dict(each, options=whole) for each in (model, other))
            assert all(torch.equal(mine[key], theirs[key]) for key in mine) and mine.keys() == theirs.keys()
        dist.destroy_process_group()
        """
    )
