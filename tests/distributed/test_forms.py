"""The forms in which torch's own process groups take their calls."""

from __future__ import annotations

from collections.abc import Callable


def test_calls_of_a_group_take_single_tensors_and_plain_arguments(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        from datetime import timedelta
        rank, size = start()
        group, MAX, minute = dist.group.WORLD, dist.ReduceOp.MAX, timedelta(minutes=1)

        def mine():
            return torch.full((3,), float(rank))

        for call in (
            lambda one: group.allreduce(one, MAX),
            lambda one: group.allreduce([one], MAX),
            lambda one: group.allreduce([one], op=MAX, timeout=minute),
            lambda one: group.allreduce(tensor=one, op=MAX),
            lambda one: group.allreduce(tensors=[one]),
            lambda one: group.allreduce(one),
            lambda one: group.broadcast(one, 1),
            lambda one: group.broadcast(one, root=1, timeout=minute),
            lambda one: group.reduce(one, 1, MAX, minute),
        ):
            work = call(one := mine())
            assert work.wait() and work.is_completed()
            assert rank == 0 or one.tolist() == [1] * 3, one
        group.broadcast([one := mine()]).wait()
        assert one.tolist() == [0] * 3
        outs = [torch.empty(3) for _ in range(size)]
        group.allgather(outs, mine()).wait()
        assert [out.tolist() for out in outs] == [[0] * 3, [1] * 3]
        group.gather(outs if rank == 1 else [], mine() + 5, 1).wait()
        assert [out.tolist() for out in outs] == ([[5] * 3, [6] * 3] if rank else [[0] * 3, [1] * 3])
        group.scatter(one, [mine(), mine() + 7] if rank == 0 else [], root=0).wait()
        assert one.tolist() == [7.0 * rank] * 3
        group.reduce_scatter(one, [mine(), mine() + 1], MAX).wait()
        assert one.tolist() == [1.0 + rank] * 3
        group.allgather(output_tensors=[outs], input_tensors=[mine()], opts=dist.distributed_c10d.AllgatherOptions()).wait()
        assert [out.tolist() for out in outs] == [[0] * 3, [1] * 3]
        for work in (group.barrier(), group.barrier(minute), group.barrier(timeout=minute)):
            work.wait()
        for wrong in (lambda: group.allreduce(), lambda: group.allreduce(one, root=1), lambda: group.broadcast(one, 0, minute, 3)):
            try:
                wrong()
            except TypeError as error:
                assert "argument" in str(error), error
            else:
                raise SystemExit("an argument that no form has")
        dist.destroy_process_group()
        """
    )


def test_all_calls_of_a_group_take_the_keywords_of_torch(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        from datetime import timedelta
        rank, size = start()
        group, minute = dist.group.WORLD, timedelta(minutes=1)
        mine, whole = torch.full((2,), float(rank)), torch.empty(4)
        group._allgather_base(output=whole, input=mine).wait()
        assert whole.tolist() == [0, 0, 1, 1]
        group.allgather_into_tensor_coalesced(outputs=[whole.zero_()], inputs=[mine]).wait()
        assert whole.tolist() == [0, 0, 1, 1]
        outs = [torch.empty(2) for _ in range(size)]
        group.allgather_coalesced(output_lists=[[out] for out in outs], input_list=[mine]).wait()
        assert [out.tolist() for out in outs] == [[0, 0], [1, 1]]
        group._reduce_scatter_base(outputTensor=(out := torch.empty(2)), inputTensor=whole).wait()
        assert out.tolist() == [2 * rank] * 2
        group.reduce_scatter_tensor_coalesced(outputs=[out.zero_()], inputs=[whole]).wait()
        assert out.tolist() == [2 * rank] * 2
        group.allreduce_coalesced(tensors=[one := torch.ones(3)]).wait()
        assert one.tolist() == [2] * 3
        group.alltoall(output_tensors=outs, input_tensors=[mine, mine + 5]).wait()
        assert [out.tolist() for out in outs] == [[5 * rank] * 2, [1 + 5 * rank] * 2]
        splits = {"output_split_sizes": [], "input_split_sizes": []}
        for call in (
            lambda: group.alltoall_base(output=whole, input=torch.arange(4.0), **splits),
            lambda: group.alltoall_base(whole, torch.arange(4.0), [], [], minute),
            lambda: group.alltoall_base(whole, torch.arange(4.0), **splits, timeout=minute),
        ):
            whole.zero_()
            call().wait()
            assert whole.tolist() == [2 * rank, 2 * rank + 1] * 2
        works = [group.send(tensors=[mine], dstRank=1 - rank, tag=3), group.recv(tensors=[out], srcRank=1 - rank, tag=3)]
        for work in works:
            work.wait()
        assert out.tolist() == [1 - rank] * 2
        dist.destroy_process_group()
        """
    )
