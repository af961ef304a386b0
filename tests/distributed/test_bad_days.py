"""Ranks that die, never call, or call something else; tensors that cannot be; groups that go while calls are pending."""

from __future__ import annotations

from collections.abc import Callable

import pytest

KILLED = """
import os, signal, time
rank, size = start()
tensor = torch.ones(1_000_000)
dist.all_reduce(tensor)
store = dist.distributed_c10d._get_default_store()
store.add("past the first call", 1)
if rank == 1:
    while store.add("past the first call", 0) < size:  # its death would end the call of one that is still in it
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
began = time.monotonic()
try:
    for _ in range(1000):
        CALL
        time.sleep(0.001)
except (hmc.PeerLostError, RuntimeError) as error:
    assert "rank 1" in str(error), error
    assert time.monotonic() - began < 20
    print("lost", flush=True)
os._exit(0)
"""

CALLS = {
    "synchronous": "dist.all_reduce(tensor)",
    "work": "dist.all_reduce(tensor, async_op=True).wait()",
    "future": "dist.all_reduce(tensor, async_op=True).get_future().wait()",
    "coalesced": "dist.batch_isend_irecv([dist.P2POp(dist.irecv, tensor, 1)])[0].wait()",
    "object": "dist.all_gather_object([None] * size, rank)",
    "barrier": "dist.barrier()",
}


@pytest.mark.parametrize("call", CALLS)
def test_a_killed_rank_is_named(run_torch: Callable[..., list[str]], call: str) -> None:
    said = run_torch(KILLED.replace("CALL", CALLS[call]), ranks=3, expect={1: -9})
    assert ["lost" in text for text in said] == [True, False, True]


def test_ddp_raises_when_a_rank_is_killed(run_torch: Callable[..., list[str]]) -> None:
    said = run_torch(
        """
        import os, signal
        from torch.nn.parallel import DistributedDataParallel
        rank, size = start()
        model = DistributedDataParallel(torch.nn.Linear(1000, 1000))
        for step in range(200):
            if rank == 1 and step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                model(torch.ones(1, 1000)).sum().backward()
            except (RuntimeError, hmc.PeerLostError) as error:
                assert "rank 1" in str(error), error
                print("lost", flush=True)
                os._exit(0)
        """,
        expect={1: -9},
    )
    assert "lost" in said[0]


def test_a_rank_that_never_calls(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        import time
        from datetime import timedelta
        rank, size = start()
        short = dist.new_group([0, 1])
        short.set_timeout(timedelta(seconds=1))
        if rank == 0:
            began = time.monotonic()
            try:
                dist.all_reduce(torch.ones(3), group=short)
            except hmc.HmcTimeoutError:
                assert 0.9 < time.monotonic() - began < 20
            else:
                raise SystemExit("it came back")
            work = dist.irecv(torch.ones(3), 1)
            try:
                work.wait(timedelta(seconds=0.3))
            except hmc.HmcTimeoutError:
                pass
            else:
                raise SystemExit("it came back")
        dist.barrier()
        """
    )


def test_other_calls_are_errors_on_every_rank(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        rank, size = start()
        calls = [
            lambda: dist.all_reduce(torch.ones(3 + rank)),
            lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32 if rank else torch.float32)),
            lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM),
            lambda: dist.barrier() if rank else dist.all_reduce(torch.ones(3)),
        ]
        for at, call in enumerate(calls):
            group = dist.new_group([0, 1])
            dist.distributed_c10d._world.default_pg, world = group, dist.distributed_c10d._world.default_pg
            try:
                call()
            except (hmc.InvalidArgumentError, hmc.HmcError) as error:
                assert "rank" in str(error), (at, error)
            else:
                raise SystemExit(f"call {at} passed")
            finally:
                dist.distributed_c10d._world.default_pg = world
        """
    )


def test_tensors_that_cannot_be(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        rank, size = start()
        grid = torch.ones(4, 4)
        calls = [
            (ValueError, lambda: dist.all_reduce(grid.t()[1:])),
            (ValueError, lambda: dist.broadcast(grid[:, 1], 0)),
            (hmc.UnsupportedError, lambda: dist.all_reduce(torch.ones(3, dtype=torch.bool), dist.ReduceOp.AVG)),
            (hmc.UnsupportedError, lambda: dist.broadcast(torch.eye(3).to_sparse(), 0)),
            (ValueError, lambda: dist.all_gather([torch.ones(3)], torch.ones(3))),
            (ValueError, lambda: dist.all_to_all([torch.ones(3)] * 3, [torch.ones(3)] * 3)),
            (ValueError, lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3))),
            (ValueError, lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [1, 2], [2, 2])),
        ]
        if rank == 0:
            calls.append((ValueError, lambda: dist.scatter(torch.ones(3), [torch.ones(2)] * 2, 0)))
        for at, (kind, call) in enumerate(calls):
            try:
                call()
            except kind:
                pass
            else:
                raise SystemExit(f"call {at} passed")
        for call in (dist.send, dist.recv):
            for tag in (-1, 1 << 40):  # the second is of monitored_barrier()
                try:
                    call(torch.ones(3), 1 - rank, tag=tag)
                except ValueError as error:
                    assert f"tag {tag}" in str(error), error
                else:
                    raise SystemExit(f"tag {tag} passed")
        parameter = torch.nn.Parameter(torch.full((3,), float(rank)))
        dist.broadcast(parameter, 1)
        assert parameter.tolist() == [1, 1, 1]
        dist.all_reduce(torch.ones(()))
        dist.destroy_process_group()
        """
    )


@pytest.mark.parametrize("end", ["dist.destroy_process_group()", "", "dist.group.WORLD.abort()", "sys.exit(0)", "os._exit(0)"])
def test_exit_with_work_pending(run_torch: Callable[..., list[str]], end: str) -> None:
    run_torch(
        f"""
        rank, size = start()
        dist.all_reduce(torch.ones(3))
        try:
            works = [dist.irecv(torch.empty(1000), 1 - rank, tag=tag) for tag in range(1, 9)]
            futures = [work.get_future() for work in works]
        except (hmc.ClosedError, hmc.PeerLostError):
            pass  # the other one has left
        {end}
        """
    )


def test_debug_detail(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        from torch.nn.parallel import DistributedDataParallel
        rank, size = start()
        model = DistributedDataParallel(torch.nn.Linear(10, 10))
        for _ in range(3):
            model(torch.ones(1, 10)).sum().backward()
        dist.barrier()
        dist.destroy_process_group()
        """,
        environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TORCH_CPP_LOG_LEVEL": "ERROR"},
    )


def test_groups_are_made_again_in_one_process(run_torch: Callable[..., list[str]]) -> None:
    # One store for all of them, as torchrun's.
    run_torch(
        """
        from datetime import timedelta
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), size, rank == 0, timedelta(seconds=30))
        for round in range(3):
            dist.init_process_group("hmc", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30))
            group = dist.new_group([0, 1])
            for _ in range(2):
                dist.all_reduce(tensor := torch.ones(3), group=group)
                assert tensor.tolist() == [2, 2, 2]
            dist.destroy_process_group()
            store.add("rounds over", 1)
            while store.add("rounds over", 0) < size * (round + 1):
                pass
        # The store ends with its process.
        if rank > 0:
            store.add("done with the store", 1)
        while rank == 0 and store.add("done with the store", 0) < size - 1:
            pass
        """
    )


def test_a_callback_of_a_future_may_wait(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        rank, size = start()
        def reduce_again(future):
            return dist.all_reduce(future.value()[0], async_op=True).get_future().then(reduce_last).wait()
        def reduce_last(future):
            tensor = future.value()[0]
            dist.all_reduce(tensor)
            return tensor
        for _ in range(5):
            future = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(reduce_again)
            assert future.wait().tolist() == [size**3] * 3
        def fails(future):
            raise ValueError("of the callback")
        failed = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(fails)
        try:
            failed.wait()
        except Exception as error:
            assert "of the callback" in str(error)
        else:
            raise SystemExit("the error is lost")
        dist.all_gather_object([None] * size, rank)
        """
    )


def test_results_are_there_once_a_work_is_completed(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        rank, size = start()
        for round in range(50):
            outs = [torch.zeros(100) for _ in range(size)]
            work = dist.all_gather(outs, torch.full((100,), rank + 1.0), async_op=True)
            while not work.is_completed():
                pass
            assert [out.unique().tolist() for out in outs] == [[r + 1.0] for r in range(size)]
        assert dist.group.WORLD.allreduce_coalesced([]).get_future().wait() == []
        """
    )


def test_a_stopped_rank_ends_futures_and_ddp_at_the_timeout(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        import signal, time
        from datetime import timedelta
        from torch.nn.parallel import DistributedDataParallel
        rank, size = start()
        signal.signal(signal.SIGCONT, lambda *_: os._exit(0))
        other = [None] * size
        dist.all_gather_object(other, os.getpid())
        model = DistributedDataParallel(torch.nn.Linear(100, 100))
        for _ in range(2):  # the second one agrees on buckets, in a broadcast that its root waits for
            model(torch.ones(1, 100)).sum().backward()
        dist.group.WORLD.set_timeout(timedelta(seconds=3))
        if rank == 0:
            os.kill(other[1], signal.SIGSTOP)
            began = time.monotonic()
            try:
                model(torch.ones(1, 100)).sum().backward()
            except RuntimeError as error:
                # Or its heartbeat was missed before.
                assert "not complete after 3 s" in str(error) or "rank 1" in str(error), error
                assert 2.5 < time.monotonic() - began < 30
            else:
                raise SystemExit("it came back")
            finally:
                os.kill(other[1], signal.SIGCONT)
            os._exit(0)
        # In short sleeps: a signal that another thread takes does not end a sleep.
        for _ in range(600):
            time.sleep(0.1)
        raise SystemExit("was not stopped")
        """
    )


def test_a_group_whose_members_do_not_come(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        import time
        from datetime import timedelta
        rank, size = start()
        for first in (0, 1):
            if rank == first:
                began = time.monotonic()
                try:
                    dist.new_group([0, 1], timeout=timedelta(seconds=2), use_local_synchronization=True)
                except (RuntimeError, hmc.HmcTimeoutError):
                    assert 1.5 < time.monotonic() - began < 20
                else:
                    raise SystemExit("a group of one")
            dist.barrier()
        """
    )


def test_a_group_of_a_stopped_rank_can_be_left(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        import signal, time, warnings
        from datetime import timedelta
        rank, size = start()
        other = [None] * size
        dist.all_gather_object(other, os.getpid())
        dist.group.WORLD.set_timeout(timedelta(seconds=3))
        if rank == 0:
            os.kill(other[1], signal.SIGSTOP)
            dist.all_reduce(torch.ones(3), async_op=True)
            began = time.monotonic()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dist.destroy_process_group()
            assert time.monotonic() - began < 20
            assert not dist.is_initialized()
            os.kill(other[1], signal.SIGCONT)
        os._exit(0)
        """
    )


def test_splits_on_one_rank_only(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        rank, size = start()
        out = torch.empty(4)
        dist.all_to_all_single(out, torch.arange(4.0) + 10 * rank, *([[2, 2], [2, 2]] if rank else []))
        assert out.tolist() == [2 * rank, 2 * rank + 1, 10 + 2 * rank, 11 + 2 * rank]
        """
    )


def test_a_group_that_cannot_be_made_leaves_no_communicator(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        from hmc.torch import _meeting, _registration
        made, own = [], _registration.HmcProcessGroup
        def fails(communicator, *arguments):
            made.append(communicator)
            raise KeyboardInterrupt
        _registration.HmcProcessGroup = fails
        try:
            start()
        except KeyboardInterrupt:
            pass
        assert _meeting._home is None
        try:
            made[0].isend(b"1", 0)
        except hmc.ClosedError:
            pass
        else:
            raise SystemExit("it is open")
        """,
        ranks=1,
    )
