"""Futures of torch: their deadlines and callbacks where threads are refused, after a fork, and with times beyond all clocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

GROUPS = """
import threading
from datetime import timedelta
from hmc.torch._group import HmcProcessGroup

def group_of_one(timeout=timedelta(seconds=60)):
    return HmcProcessGroup(hmc.init(0, 1), timeout, dist.HashStore())

def expect_timeout(group, tag):
    group.set_timeout(timedelta(seconds=0.1))
    try:
        group.recv([torch.ones(3)], 0, tag).get_future().wait()
    except RuntimeError as error:  # torch's, with the text of HMC's
        assert "HmcTimeoutError" in str(error), error
        return
    raise SystemExit("a receive of a message that nobody sends ended without an error")

start_thread = threading.Thread.start

def refuse(names, times):
    left = times
    def start(thread):
        nonlocal left
        if thread.name.startswith(names) and left > 0:
            left -= 1
            raise RuntimeError("can't start new thread")
        start_thread(thread)
    threading.Thread.start = start
"""


def test_deadlines_work_after_their_thread_was_refused(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        GROUPS
        + """
refuse("hmc-torch-deadlines", 1)
group = group_of_one()
try:
    group.recv([torch.ones(3)], 0, 1).get_future()
except RuntimeError as error:
    assert "new thread" in str(error), error
else:
    raise SystemExit("the thread was not refused")
expect_timeout(group, 2)
""",
        ranks=1,
        deadline=90,
    )


@pytest.mark.parametrize("times", [1, 1000])
def test_futures_complete_once_where_threads_are_refused(run_torch: Callable[..., list[str]], times: int) -> None:
    run_torch(
        GROUPS
        + f"""
refuse("hmc-torch-future", {times})
"""
        + """
group = group_of_one()
ran = []
def counted(future):
    ran.append(threading.current_thread().name)
    return future.value()[0].tolist()
opts = dist.AllreduceOptions()
opts.asyncOp = True
for calls in range(1, 4):
    assert group.allreduce([torch.ones(3)], opts).get_future().then(counted).wait() == [1, 1, 1]
    assert len(ran) == calls, ran
expect_timeout(group, 1)
""",
        ranks=1,
        deadline=90,
    )


def test_futures_of_a_group_of_a_forked_child(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        GROUPS
        + """
import signal
import hmc.torch._work
from hmc.torch._callbacks import deadlines
opts = dist.AllreduceOptions()
opts.asyncOp = True
def use():
    group = group_of_one()
    assert group.allreduce([torch.ones(3)], opts).get_future().wait()[0].tolist() == [1, 1, 1]
    expect_timeout(group, 1)
use()  # an idle thread, and that of the deadlines
with hmc.torch._work._making_futures, deadlines._changed:
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        outcome = 1
        try:
            use()
            outcome = 0
        finally:
            os._exit(outcome)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
use()
""",
        ranks=1,
        deadline=90,
    )


# torch's 64 bits do not hold the microseconds of timedelta.max. In the other, threading refuses to wait so long.
@pytest.mark.parametrize("timeout", ["timedelta.max", "timedelta(days=200_000)"])
def test_groups_with_timeouts_beyond_all_clocks(run_torch: Callable[..., list[str]], timeout: str) -> None:
    run_torch(
        GROUPS
        + f"""
timeout = {timeout}
"""
        + """
rank, size = start()
pair = dist.new_group([0, 1], timeout=timeout)
if rank == 0:
    future = dist.irecv(torch.zeros(3), 1, group=pair).get_future()
    alone = group_of_one()
    alone.set_timeout(timeout)
    unused = alone.recv([torch.ones(3)], 0, 1).get_future()
    expect_timeout(alone, 2)
dist.barrier(group=pair)
if rank == 1:
    dist.send(torch.ones(3), 0, group=pair)
else:
    assert future.wait()[0].tolist() == [1, 1, 1]
dist.destroy_process_group()
""",
        deadline=90,
    )


def test_closed_deadlines_behind_an_open_one_are_dropped(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        GROUPS
        + """
from hmc.torch._callbacks import deadlines
group = group_of_one()
first = group.recv([torch.ones(3)], 0, 1)
pending = first.get_future()
opts = dist.AllreduceOptions()
opts.asyncOp = True
for _ in range(1000):
    group.allreduce([torch.ones(3)], opts).get_future().wait()
assert sum(map(len, deadlines._queues.values())) < 200, deadlines._queues
group.send([torch.full((3,), 2.0)], 0, 1).wait()
assert pending.wait()[0].tolist() == [2, 2, 2]
""",
        ranks=1,
        deadline=90,
    )


def test_a_message_just_after_the_deadline_is_not_lost(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        GROUPS
        + """
import hmc.torch._work
import time
held, run_soon = [], hmc.torch._work.run_soon
hmc.torch._work.run_soon = lambda *task: held.append(task)
group = group_of_one(timedelta(seconds=0.1))
work = group.recv([torch.zeros(3)], 0, 1)
future = work.get_future()
while not held:
    time.sleep(0.001)
group.set_timeout(timedelta(seconds=60))
group.send([torch.full((3,), 2.0)], 0, 1).wait()
work._works[0].wait(60)
hmc.torch._work.run_soon = run_soon
for task in held:
    run_soon(*task)
assert future.wait()[0].tolist() == [2, 2, 2]
""",
        ranks=1,
        deadline=90,
    )


def test_a_signal_handler_may_make_a_future_while_one_is_made(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        GROUPS
        + """
import signal
from hmc.torch._callbacks import deadlines
group, found = group_of_one(), []
opts = dist.AllreduceOptions()
opts.asyncOp = True
reduced = lambda: group.allreduce([torch.ones(3)], opts).get_future().wait()[0].tolist()
signal.signal(signal.SIGUSR1, lambda *_: found.append(reduced()))
add = deadlines.add
def add_and_interrupt(*arguments):
    deadlines.add = add
    signal.raise_signal(signal.SIGUSR1)
    return add(*arguments)
deadlines.add = add_and_interrupt
assert reduced() == [1, 1, 1] and found == [[1, 1, 1]], found
""",
        ranks=1,
        deadline=90,
    )


def test_lengths_of_deadlines_are_dropped_with_the_last_one(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        import time
        from hmc.torch._callbacks import deadlines
        for at in range(1000):
            deadlines.add(3600 + at / 1000, lambda: None).stop()
        until = time.monotonic() + 60
        while len(deadlines._queues) > 1:
            assert time.monotonic() < until, len(deadlines._queues)
            deadlines.add(3600, lambda: None).stop()
            time.sleep(0.001)
        """,
        ranks=1,
    )


def test_an_exit_does_not_wait_for_a_callback_that_waits_for_others(run_torch: Callable[..., list[str]]) -> None:
    """Whose group's timeout is far away."""
    run_torch(
        """
        import threading
        rank, size = start()
        store, waits = dist.distributed_c10d._get_default_store(), threading.Event()
        def callback(future):
            waits.set()
            dist.recv(torch.empty(3), 1 - rank)
        if rank == 1:
            store.wait(["has its callback"])
            dist.send(torch.ones(3), 0, tag=1)
            try:
                dist.recv(torch.empty(3), 0)
            except (hmc.PeerLostError, hmc.ClosedError):
                sys.exit(0)
            raise SystemExit("rank 0 sent nothing")
        pending = dist.irecv(torch.empty(3), 1, tag=1).get_future().then(callback)
        store.set("has its callback", "yes")
        assert waits.wait(60)
        """,
        deadline=60,
    )


def test_a_callback_that_runs_at_the_exit_ends(run_torch: Callable[..., list[str]]) -> None:
    said = run_torch(
        GROUPS
        + """
import time
group, runs = group_of_one(), threading.Event()
def callback(future):
    runs.set()
    time.sleep(0.3)
    print("it ended", flush=True)
pending = group.recv([torch.empty(3)], 0, 1).get_future().then(callback)
group.send([torch.ones(3)], 0, 1).wait()
assert runs.wait(60)
""",
        ranks=1,
    )
    assert "it ended" in said[0]


@pytest.mark.parametrize("way", ["a deadline", "a task", "a task without a thread"])
def test_an_exit_waits_for_what_a_thread_frees(run_torch: Callable[..., list[str]], way: str) -> None:
    said = run_torch(
        GROUPS
        + f"way = {way!r}"
        + """
import os, time
from hmc.torch._callbacks import deadlines, run_soon

class Held:
    def __call__(self):
        called.set()

    def __del__(self):  # as a tensor's, which gives up the interpreter's lock and takes it again
        time.sleep(0.5)
        os.write(1, b"freed" + os.linesep.encode())

called = threading.Event()
if way == "a deadline":
    deadlines.add(0.01, Held())
elif way == "a task":
    run_soon(Held())
else:
    refuse("hmc-torch-future", 1000)
    deadlines.add(0.01, lambda held=Held(): run_soon(held))
assert called.wait(60)
""",
        ranks=1,
        deadline=90,
    )
    assert said[0].count("freed") == 1, said


def test_an_interrupted_exit_waits_for_what_a_deadline_frees(run_torch: Callable[..., list[str]]) -> None:
    said = run_torch(
        GROUPS
        + """
import os, signal, time
from hmc.torch._callbacks import deadlines, run_soon

class Held:
    def __call__(self):
        called.set()

    def __del__(self):
        time.sleep(0.5)
        os.write(1, b"freed" + os.linesep.encode())

def interrupt():
    assert ending.wait(60)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)

called, ending = threading.Event(), threading.Event()
deadlines.add(0.01, Held())
run_soon(interrupt)
assert called.wait(60)

import atexit
atexit.register(ending.set)  # runs before the exit waits
""",
        ranks=1,
    )
    assert said[0].count("freed") == 1, said


def test_a_deadline_that_raises_leaves_the_others(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        GROUPS
        + """
from hmc.torch._callbacks import deadlines
runs = threading.Event()
def fails():
    raise MemoryError("refused")
deadlines.add(0.01, fails)
deadlines.add(0.02, runs.set)
assert runs.wait(60)
""",
        ranks=1,
    )
