"""What calls do to tensors, and how tensors of unusual types and shapes go through them: as with gloo."""

from __future__ import annotations

from collections.abc import Callable


def test_storages_can_be_resized_after_calls(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        rank, size = start()
        other = 1 - rank
        for kind in (torch.float32, torch.bfloat16, torch.bool, torch.uint16, torch.complex64, torch.float8_e5m2):
            one, many = torch.ones(4).to(kind), torch.ones(8).to(kind)
            blocks = [torch.zeros(4).to(kind) for _ in range(size)]
            dist.all_gather_into_tensor(many, one)
            dist.all_gather(blocks, one)
            dist.broadcast(one, 0)
            for work in (dist.isend(one, other), dist.irecv(blocks[0], other)):
                work.wait()
            dist.all_reduce(one)
            dist.reduce_scatter_tensor(one, many)
            for tensor in (one, many, *blocks):
                assert tensor.untyped_storage().resizable(), kind
                tensor.resize_(1000)
        dist.destroy_process_group()
        """
    )


def test_a_tensor_may_get_other_memory_while_a_call_is_in_flight(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        rank, size = start()
        if rank == 0:
            into = torch.zeros(100_000)
            before = into.detach()
            work = dist.irecv(into, 1)
            into.data = torch.zeros(100_000)
            dist.barrier()
            work.wait()
            assert before.unique().tolist() == [7] and into.unique().tolist() == [0]
        else:
            dist.barrier()
            dist.send(torch.full((100_000,), 7.0), 0)
        dist.destroy_process_group()
        """
    )


def test_fsdp_of_flat_parameters_trains(run_torch: Callable[..., list[str]]) -> None:
    """It frees and resizes what it has gathered."""
    said = run_torch(
        """
        from torch.distributed.fsdp import FullyShardedDataParallel
        rank, size = start()
        torch.manual_seed(3)
        model = FullyShardedDataParallel(torch.nn.Linear(10, 10), device_id=torch.device("cpu"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            loss = model(torch.ones(2, 10)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print("loss", loss.item())
        dist.destroy_process_group()
        """
    )
    lines = [[line for line in text.splitlines() if line.startswith("loss")] for text in said]
    assert len(lines[0]) == 1
    assert lines[0] == lines[1]


def test_complex_numbers_are_summed(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        rank, size = start()
        for kind in (torch.complex64, torch.complex128):
            mine, total = torch.full((4,), 1 + 2j * rank, dtype=kind), [2 + 2j] * 4
            for asynchronous in (False, True):
                def call(function, *arguments):
                    work = function(*arguments, async_op=asynchronous)
                    if asynchronous:
                        work.wait()
                call(dist.all_reduce, one := mine.clone())
                assert one.tolist() == total
                call(dist.reduce, one := mine.clone(), 1)
                assert rank != 1 or one.tolist() == total
                call(dist.reduce_scatter_tensor, one := torch.zeros(2, dtype=kind), mine)
                assert one.tolist() == total[:2]
                uneven = [mine[:1].clone(), mine[1:].clone()]
                call(dist.reduce_scatter, one := torch.zeros(1 + 2 * rank, dtype=kind), uneven)
                assert one.tolist() == total[: 1 + 2 * rank]
            dist.reduce_scatter_tensor(one := torch.zeros(2, dtype=kind), mine, dist.ReduceOp.AVG)
            assert one.tolist() == [1 + 1j] * 2
            for op in (dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
                try:
                    dist.reduce(mine, 0, op)
                except hmc.UnsupportedError as error:
                    assert str(kind) in str(error), error
                else:
                    raise SystemExit("complex numbers have no such reduction")
        dist.destroy_process_group()
        """
    )


def test_lists_of_all_gather_coalesced_are_of_ranks(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        rank, size = start()
        group = dist.group.WORLD

        def said(rank, counts):
            return [torch.full((count,), 10.0 * rank + at) for at, count in enumerate(counts)]

        for counts in ([2, 2], [2, 3, 1], [5], []):
            for contiguous in (False, True):
                outs = [[torch.zeros(count) for count in counts] for _ in range(size)]
                if contiguous:
                    outs = [list(torch.zeros(sum(counts)).split(counts)) for _ in range(size)]
                work = group.allgather_coalesced(outs, said(rank, counts))
                work.wait()
                for r in range(size):
                    assert all(map(torch.equal, outs[r], said(r, counts))), (counts, outs)
                assert len(work.result()) == size * len(counts)
        for outs, text in (
            ([[torch.zeros(2)]], "1 lists of tensors for 2 ranks"),
            ([[torch.zeros(2)], []], "the list of rank 1 has 0 tensors, and this rank passes 1"),
            ([[torch.zeros(2)], [torch.zeros(3)]], "tensor 1 of the list has 3 elements"),
        ):
            try:
                group.allgather_coalesced(outs, [torch.zeros(2)])
            except hmc.InvalidArgumentError as error:
                assert text in str(error), error
            else:
                raise SystemExit(f"{text}: passed")
        dist.destroy_process_group()
        """
    )


def test_splits_may_be_arrays(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        import numpy as np
        rank, size = start()
        out = torch.empty(4)
        dist.all_to_all_single(out, torch.arange(4.0) + 10 * rank, np.array([2, 2]), np.array([2, 2]))
        assert out.tolist() == [2 * rank, 2 * rank + 1, 10 + 2 * rank, 11 + 2 * rank]
        dist.destroy_process_group()
        """
    )


def test_a_receive_that_timed_out_takes_no_later_message(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        from datetime import timedelta
        rank, size = start()
        group, store = dist.group.WORLD, dist.distributed_c10d._get_default_store()
        if rank == 0:
            late = torch.zeros(4)
            for source, named in ((1, "rank 1"), (None, "any rank")):
                group.set_timeout(timedelta(seconds=0.2))
                try:
                    dist.recv(late, source, tag=3)
                except hmc.HmcTimeoutError as error:
                    text = f"recv: no message from {named} with tag 3 came within 0.2 s; the receive was withdrawn"
                    assert str(error) == text, error
                else:
                    raise SystemExit("no timeout")
            try:
                dist.irecv(late, 1, tag=3).get_future().wait()
            except RuntimeError as error:
                assert "not complete after 0.2 s" in str(error), error
            else:
                raise SystemExit("no timeout")
            group.set_timeout(timedelta(seconds=60))
            left = dist.irecv(into := torch.zeros(4), 1, tag=4)
            try:
                left.wait(timedelta(seconds=0.2))
            except hmc.HmcTimeoutError:
                pass
            else:
                raise SystemExit("no timeout")
            store.set("timed out", "yes")
            dist.recv(got := torch.zeros(4), 1, tag=3)
            assert got.tolist() == [7] * 4 and late.tolist() == [0] * 4
            left.wait()
            assert into.tolist() == [8] * 4
        else:
            store.wait(["timed out"], timedelta(seconds=60))
            dist.send(torch.full((4,), 7.0), 0, tag=3)
            dist.send(torch.full((4,), 8.0), 0, tag=4)
        dist.barrier()
        dist.destroy_process_group()
        """
    )


def test_lists_take_results_of_functional_collectives(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        import torch.distributed._functional_collectives as functional
        rank, size = start()
        pending = lambda: functional.all_reduce(torch.full((2,), rank + 1.0), "sum", dist.group.WORLD)
        dist.reduce_scatter(out := torch.zeros(2), [pending(), pending()])
        assert out.tolist() == [6, 6], out
        outs = [torch.zeros(2), torch.zeros(2)]
        dist.all_to_all(outs, [pending(), pending()])
        assert [out.tolist() for out in outs] == [[3, 3]] * 2, outs
        outs = [pending(), pending()]
        dist.all_gather(outs, torch.full((2,), float(rank)))
        assert [out.tolist() for out in outs] == [[0, 0], [1, 1]], outs
        ins = [pending(), pending()]
        dist.scatter(out.zero_(), ins if rank == 0 else None, 0)
        assert out.tolist() == [3, 3], out
        dist.destroy_process_group()
        """
    )


def test_lists_take_conjugated_parts_of_one_storage(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        rank, size = start()
        whole = torch.full((4,), 1 + 2j)
        dist.reduce_scatter(out := torch.zeros(2, dtype=torch.complex64), [whole[:2], whole[2:].conj()])
        assert out.tolist() == [[2 + 4j, 2 - 4j][rank]] * 2, out
        ins, outs = [whole[:2].conj().imag, whole[2:].conj().imag], [torch.zeros(2), torch.zeros(2)]
        dist.all_to_all(outs, ins)
        assert [out.tolist() for out in outs] == [[-2, -2]] * 2, outs
        dist.destroy_process_group()
        """
    )


def test_types_without_a_reduction_are_unsupported(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        rank, size = start()
        for kind in (torch.float8_e8m0fnu, torch.bits8):
            try:
                dist.all_reduce(torch.empty(3, dtype=kind))
            except hmc.UnsupportedError as error:
                assert str(error) == f"no reduction SUM of {kind}", error
            else:
                raise SystemExit(f"{kind} was reduced")
        try:
            dist.all_gather([torch.eye(2).to_sparse()] * 2, torch.eye(2))
        except hmc.UnsupportedError as error:
            assert "torch.sparse_coo" in str(error), error
        else:
            raise SystemExit("a sparse tensor passed")
        dist.destroy_process_group()
        """
    )
