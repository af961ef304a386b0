"""What torch's callers do besides plain collectives: coalescing, futures, uneven tensors."""

from __future__ import annotations

from collections.abc import Callable


def test_a_receive_of_another_size_names_both(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        rank, size = start()

        def fails(call, *parts):
            try:
                call()
            except Exception as error:
                assert all(part in str(error) for part in parts), error
            else:
                raise SystemExit("passed")

        if rank == 0:
            for _ in range(6):
                dist.send(torch.arange(3.0), 1, tag=4)
        else:
            out = torch.zeros(5)
            short = ("12 bytes", "20", "5 elements of torch.float32", "rank 0", "tag 4")
            fails(lambda: dist.recv(out, 0, tag=4), *short)
            assert out.tolist() == [0, 1, 2, 0, 0]
            fails(lambda: dist.recv(out, tag=4), *short)
            work = dist.irecv(out, 0, tag=4)
            fails(work.wait, *short)
            assert work.is_completed() and not work.is_success() and "12 bytes" in str(work.exception())
            fails(dist.irecv(out, 0, tag=4).get_future().wait, *short)
            fails(lambda: dist.recv(torch.zeros(2), 0, tag=4), "12 bytes", "8")
            whole = torch.zeros(3)
            assert dist.recv(whole, tag=4) == 0 and whole.tolist() == [0, 1, 2]
        dist.barrier()
        """
    )


def test_calls_between_different_types_are_refused(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        rank, size = start()
        floats, integers = torch.ones(4), torch.ones(2, dtype=torch.int32)
        calls = [
            lambda: dist.all_gather_into_tensor(floats, integers),
            lambda: dist.all_gather([torch.ones(2)] * 2, integers),
            lambda: dist.reduce_scatter_tensor(integers, floats),
            lambda: dist.all_to_all_single(torch.ones(2), integers),
            lambda: dist.all_to_all([torch.ones(1)] * 2, [torch.ones(1, dtype=torch.int32)] * 2),
        ]
        for at, call in enumerate(calls):
            try:
                call()
            except ValueError as error:
                assert "torch.float32" in str(error) and "torch.int32" in str(error), error
            else:
                raise SystemExit(f"call {at} passed")
        try:
            dist.all_reduce(torch.ones(3, dtype=torch.bool), dist.ReduceOp.AVG)
        except hmc.UnsupportedError as error:
            assert str(error) == "no reduction AVG of torch.bool", error
        else:
            raise SystemExit("an average of truth values")
        dist.destroy_process_group()
        """
    )


def test_lists_of_a_wrong_length_are_refused(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        rank, size = start()
        group, tensor = dist.group.WORLD, torch.ones(3)
        for number in (0, 1, 3):
            blocks = [torch.ones(3) for _ in range(number)]
            gather, scatter = dist.GatherOptions(), dist.ScatterOptions()
            gather.rootRank = scatter.rootRank = rank
            calls = {
                "gather": lambda: group.gather([blocks], [tensor], gather),
                "scatter": lambda: group.scatter([tensor], [blocks], scatter),
                "all_gather": lambda: group.allgather([blocks], [tensor]),
                "reduce_scatter": lambda: group.reduce_scatter([tensor], [blocks]),
                "all_to_all": lambda: group.alltoall(blocks, [tensor] * size),
            }
            for name, call in calls.items():
                try:
                    call()
                except hmc.InvalidArgumentError as error:
                    assert str(error) == f"{name}: a list of {number} tensors for {size} ranks", error
                else:
                    raise SystemExit(f"{name} of {number} tensors passed")
        dist.destroy_process_group()
        """
    )


def test_tensors_beyond_their_storage_are_refused(run_torch: Callable[..., list[str]]) -> None:
    """As FSDP leaves parameters that it has freed."""
    run_torch(
        """
        rank, size = start()
        whole = torch.ones(6)
        part, parts = whole[2:4], whole[:4].view(2, 2)
        whole.untyped_storage().resize_(8)
        for refused in (whole, part, parts):
            for call in (dist.all_reduce, lambda one: dist.broadcast(one, 0), lambda one: dist.isend(one, 1 - rank)):
                try:
                    call(refused)
                except hmc.InvalidArgumentError as error:
                    assert "of its storage of 8 bytes, which was resized" in str(error), error
                else:
                    raise SystemExit(f"{call} of {refused.shape} passed")
        fine = torch.ones(2)
        for call in (
            lambda: dist.all_gather([part, fine], fine),
            lambda: dist.all_gather([fine, part], fine),
            lambda: dist.reduce_scatter(fine, [part, fine]),
            lambda: dist.all_to_all([fine, part], [fine, fine]),
        ):
            try:
                call()
            except hmc.InvalidArgumentError as error:
                assert "of its storage of 8 bytes, which was resized" in str(error), error
            else:
                raise SystemExit("a list with a tensor beyond its storage passed")
        whole.untyped_storage().resize_(24)
        whole.fill_(rank + 1)
        dist.all_reduce(whole)
        assert whole.tolist() == [3.0] * 6
        dist.destroy_process_group()
        """
    )


UNEVEN = """
rank, size = start()
for counts in ([0, 3, 5], [4, 0, 0], [0, 0, 0], [7, 7, 1]):
    mine = torch.arange(counts[rank], dtype=torch.float32) + 10 * rank
    outs = [torch.full((count,), -1.0) for count in counts]
    dist.all_gather(outs, mine)
    for r, out in enumerate(outs):
        assert out.tolist() == [10 * r + i for i in range(counts[r])], (counts, outs)
    for contiguous in (False, True):
        whole = torch.arange(sum(counts), dtype=torch.float32) * (rank + 1)
        blocks = list(whole.split(counts)) if contiguous else [block.clone() for block in whole.split(counts)]
        out = torch.empty(counts[rank])
        dist.reduce_scatter(out, blocks)
        expected = (torch.arange(sum(counts), dtype=torch.float32) * 6).split(counts)[rank]
        assert torch.equal(out, expected), (counts, out)
    # Rank r sends counts[d] elements to rank d.
    ins = [torch.full((count,), float(rank)) for count in counts]
    outs = [torch.empty(counts[rank]) for _ in range(size)]
    dist.all_to_all(outs, ins)
    assert [out.tolist() for out in outs] == [[r] * counts[rank] for r in range(size)]
    flat = torch.empty(size * counts[rank])
    dist.all_to_all_single(flat, torch.cat(ins), [counts[rank]] * size, counts)
    assert torch.equal(flat, torch.cat(outs))
for shape in ((0,), (0, 4), (4, 0)):
    tensor = torch.ones(shape)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 1)
    dist.reduce(tensor, 2)
    dist.all_gather([torch.ones(shape) for _ in range(size)], tensor)
    dist.gather(tensor, [torch.ones(shape) for _ in range(size)] if rank == 1 else None, 1)
    dist.scatter(tensor, [torch.ones(shape) for _ in range(size)] if rank == 1 else None, 1)
    dist.all_gather_into_tensor(torch.ones(size * shape[0], *shape[1:]), tensor)
    dist.reduce_scatter_tensor(tensor, torch.ones(size * shape[0], *shape[1:]))
    other = rank ^ 1
    if other < size:
        ops = [dist.P2POp(dist.isend, tensor, other), dist.P2POp(dist.irecv, torch.ones(shape), other)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
    assert tensor.shape == shape
dist.destroy_process_group()
"""


def test_uneven_and_empty_tensors(run_torch: Callable[..., list[str]]) -> None:
    run_torch(UNEVEN, ranks=3)


def test_every_kind_of_element_moves_and_floats_of_8_and_16_bits_are_reduced(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        rank, size = start()
        names = "uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 bool complex64 complex128"
        kinds = [getattr(torch, name) for name in [*names.split(), "float8_e4m3fn", "float8_e5m2"]]
        for kind in kinds:
            for shape in ((), (1,), (3, 5)):
                tensor = torch.full(shape, rank + 1).to(kind)
                dist.broadcast(tensor, 1)
                assert tensor.dtype == kind and tensor.shape == shape
                assert torch.equal(tensor.to(torch.complex128), torch.full(shape, 2).to(kind).to(torch.complex128)), kind
                outs = [torch.zeros(shape).to(kind) for _ in range(size)]
                dist.all_gather(outs, torch.full(shape, rank + 1).to(kind))
                for r, out in enumerate(outs):
                    assert torch.equal(out.to(torch.complex128), torch.full(shape, r + 1).to(kind).to(torch.complex128)), kind
        for kind in [getattr(torch, name) for name in "bfloat16 float16 float8_e4m3fn float8_e5m2 uint16 uint32 uint64".split()]:
            for shape in ((), (1,), (257,)):
                for asynchronous in (False, True):
                    tensor = torch.full(shape, rank + 1).to(kind)
                    work = dist.all_reduce(tensor, async_op=asynchronous)
                    if asynchronous:
                        work.wait()
                    assert torch.equal(tensor.double(), torch.full(shape, 3.0).double()), (kind, tensor)
            out = torch.zeros(4).to(kind)
            dist.reduce_scatter_tensor(out, torch.full((8,), rank + 1).to(kind))
            assert out.double().tolist() == [3.0] * 4, kind
        dist.destroy_process_group()
        """
    )


COALESCED = """
import gc, time, weakref
from torch.distributed.distributed_c10d import _coalescing_manager
rank, size = start()
world, cpu = dist.group.WORLD, torch.device("cpu")

def until_complete(work):
    until = time.monotonic() + 60
    while not work.is_completed() and time.monotonic() < until:
        time.sleep(0.001)
    assert work.is_success()

for asynchronous in (False, True):
    tensors = [torch.full((n,), rank + 1.0) for n in (1, 0, 1000)]
    with _coalescing_manager(async_ops=asynchronous) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    if asynchronous:
        manager.wait()
    assert [tensor.unique().tolist() for tensor in tensors] == [[3], [], [3]]
    outs = [torch.empty(4), torch.empty(6)]
    with _coalescing_manager(async_ops=asynchronous) as manager:
        for out in outs:
            dist.all_gather_into_tensor(out, torch.full((out.numel() // 2,), float(rank)))
    if asynchronous:
        manager.wait()
    assert [out.tolist() for out in outs] == [[0, 0, 1, 1], [0, 0, 0, 1, 1, 1]]
    out = torch.empty(2)
    with _coalescing_manager(async_ops=asynchronous) as manager:
        dist.reduce_scatter_tensor(out, torch.arange(4.0))
    if asynchronous:
        manager.wait()
    assert out.tolist() == [4 * rank, 4 * rank + 2]
    got = torch.empty(5)
    with _coalescing_manager(device=cpu, async_ops=asynchronous) as manager:
        dist.isend(torch.full((5,), float(rank)), 1 - rank)
        dist.irecv(got, 1 - rank)
    if asynchronous:
        manager.wait()
    assert got.tolist() == [1 - rank] * 5
# A block that ends by an exception keeps nothing of what is complete, and the next one is as any.
kept = []
try:
    with _coalescing_manager(device=cpu):
        tensor = torch.ones(3)
        kept.append(weakref.ref(tensor))
        world.allreduce([tensor]).wait()
        del tensor
        raise KeyError("of the block")
except KeyError:
    pass
for _ in range(2):
    world.allreduce([torch.ones(3)]).wait()
gc.collect()
assert kept[0]() is None
try:
    with _coalescing_manager(device=cpu):
        tensor = torch.ones(3)
        kept[0] = weakref.ref(tensor)
        left = world.allreduce([tensor])  # not waited for: kept until the next block
        del tensor
        raise KeyError("of the block")
except KeyError:
    pass
until_complete(left)
del left
with _coalescing_manager(device=cpu):
    gc.collect()
    assert kept[0]() is None
    dist.isend(torch.full((5,), float(rank)), 1 - rank)
    dist.irecv(got.zero_(), 1 - rank)
assert got.tolist() == [1 - rank] * 5
short = torch.empty(9)
with _coalescing_manager(device=cpu, async_ops=True) as manager:
    dist.isend(torch.ones(3), 1 - rank)
    dist.irecv(short, 1 - rank)
try:
    manager.wait()
except hmc.InvalidArgumentError as error:
    assert "12 bytes" in str(error), error
else:
    raise SystemExit("a short message filled the tensor")
# What is complete before a later call is added is part of the block too.
tensors = [torch.full((n,), rank + 1.0) for n in (1, 2, 1000)]
world._start_coalescing(cpu)
for tensor in tensors:
    until_complete(world.allreduce([tensor]))
joined = world._end_coalescing(cpu)
for found in (joined.result(), joined.get_future().wait()):
    assert [tensor.unique().tolist() for tensor in found] == [[3], [3], [3]], found
    assert all(one is other for one, other in zip(joined.result(), tensors, strict=True))
dist.destroy_process_group()
"""


def test_coalesced_calls(run_torch: Callable[..., list[str]]) -> None:
    run_torch(COALESCED)


def test_many_callbacks_may_wait_inside_each_other(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        rank, size = start()
        depth = 50
        def again(left):
            def then(future):
                if left == 0:
                    return future.value()[0]
                return dist.all_reduce(torch.ones(3), async_op=True).get_future().then(again(left - 1)).wait()
            return then
        assert dist.all_reduce(torch.ones(3), async_op=True).get_future().then(again(depth)).wait().tolist() == [size] * 3
        # Of synchronous calls too.
        future = dist.group.WORLD.allreduce([tensor := torch.ones(3)]).get_future()
        assert future.wait()[0] is tensor or future.wait()[0].tolist() == [size] * 3
        dist.destroy_process_group()
        """
    )


def test_functional_collectives(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        import torch.distributed._functional_collectives as functional
        rank, size = start()
        group = dist.group.WORLD
        assert functional.all_reduce(torch.ones(3), "sum", group).tolist() == [size] * 3
        assert functional.all_gather_tensor(torch.full((2,), float(rank)), 0, group).tolist() == [0, 0, 1, 1]
        assert functional.reduce_scatter_tensor(torch.arange(4.0), "sum", 0, group).tolist() == [4 * rank, 4 * rank + 2]
        assert functional.all_to_all_single(torch.arange(2.0) + 10 * rank, None, None, group).tolist() == [rank, 10 + rank]
        several = functional.all_reduce_coalesced([torch.ones(3), torch.ones(2)], "sum", group)
        assert [one.tolist() for one in several] == [[2, 2, 2], [2, 2]]
        assert functional.broadcast(torch.full((3,), float(rank)), 1, group).tolist() == [1, 1, 1]
        dist.destroy_process_group()
        """
    )


def test_coalesced_receives_are_withdrawn_at_the_groups_timeout(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        from datetime import timedelta
        rank, size = start()
        group, store, cpu = dist.group.WORLD, dist.distributed_c10d._get_default_store(), torch.device("cpu")
        if rank == 0:
            group.set_timeout(timedelta(seconds=0.2))
            with dist._coalescing_manager(device=cpu, async_ops=True) as manager:
                dist.irecv(late := torch.zeros(2), 1, tag=3)
            try:
                manager.wait()
            except hmc.HmcTimeoutError as error:
                assert "not complete within 0.2 s; receives without a message were withdrawn" in str(error), error
            else:
                raise SystemExit("no timeout")
            group.set_timeout(timedelta(seconds=60))
            store.set("timed out", "yes")
            dist.recv(got := torch.zeros(2), 1, tag=3)
            assert got.tolist() == [7, 7] and late.tolist() == [0, 0], (got, late)
        else:
            store.wait(["timed out"], timedelta(seconds=60))
            dist.send(torch.full((2,), 7.0), 0, tag=3)
        dist.barrier()
        dist.destroy_process_group()
        """
    )
