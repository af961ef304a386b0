"""Ctrl-C ends every blocking call, and the other ranks learn of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

CALLS = {
    "recv": "comm.recv(np.empty(8, np.uint8), src=1, tag=9)",
    "send": "comm.send(np.zeros(1 << 20, np.uint8), dst=1, tag=9)",
    "wait": "comm.irecv(np.empty(8, np.uint8), src=1, tag=9).wait()",
    "wait_any": "hmc.wait_any([comm.irecv(np.empty(8, np.uint8), src=1, tag=9)])",
    "wait_notify": "comm.wait_notify(1, 5)",
    "notifications": "comm.notifications(timeout=None)",
    "barrier": "comm.barrier()",
    "exchange": "comm.exchange(comm.buffer(64))",
    "exchange_bytes": "comm.exchange_bytes(b'one')",
    "all_to_all": "comm.all_to_all(np.empty(64, np.uint8), np.zeros(64, np.uint8))",
    "all_to_all_v": "comm.all_to_all_v(np.empty(64, np.uint8), [32, 32], np.zeros(64, np.uint8), [32, 32])",
    "split": "comm.split(0)",
}


@pytest.mark.parametrize("call", CALLS)
def test_blocking_calls_can_be_interrupted(run_job: Callable[..., str], call: str) -> None:
    run_job(
        f"""
        import os, signal, threading, time

        with hmc.init() as comm:
            if comm.rank == 0:
                threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT)).start()
                try:
                    {CALLS[call]}
                except KeyboardInterrupt:
                    comm.send(np.ones(1, np.uint8), dst=1, tag=1, timeout=10)
                else:
                    sys.exit("not interrupted")
            else:
                comm.recv(np.empty(1, np.uint8), src=0, tag=1, timeout=20)
        """
    )


def test_the_others_are_told_who_was_interrupted(run_job: Callable[..., str]) -> None:
    out = run_job(
        """
        import os, signal, threading, time

        with hmc.init() as comm:
            # Too large to be under way before the other side has arrived.
            out, inp = np.zeros(4 << 20, np.uint8), np.ones(4 << 20, np.uint8)
            if comm.rank == 0:
                threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT)).start()
            else:
                comm.recv(np.empty(1, np.uint8), src=0, tag=1, timeout=20)
            try:
                comm.all_to_all(out, inp, timeout=20)
            except KeyboardInterrupt:
                comm.send(np.ones(1, np.uint8), dst=1, tag=1, timeout=10)
                comm.recv(np.empty(1, np.uint8), src=1, tag=2, timeout=20)
            except hmc.HmcError as error:
                print("told:", error, flush=True)
                comm.send(np.ones(1, np.uint8), dst=0, tag=2, timeout=10)
        """
    )
    told = [line for line in out.splitlines() if "told:" in line]
    assert len(told) == 1, out
    assert "interrupted" in told[0]


def test_init_can_be_interrupted(run_job: Callable[..., str]) -> None:
    run_job(
        """
        import os, signal, threading, time

        if os.environ["HMC_RANK"] == "0":
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                hmc.init()
            except KeyboardInterrupt:
                sys.exit(0)
            sys.exit("not interrupted")
        time.sleep(2)
        """
    )


SERVERS = {
    "accept": "await ctx.accept_async()",
    "lookup": "await (await ctx.connect_async(other.addresses[0])).lookup_async('nothing')",
    "wait_notify": "await (await ctx.connect_async(other.addresses[0])).wait_notify_async(3)",
    "notifications": "await (await ctx.connect_async(other.addresses[0])).notifications_async(timeout=None)",
    "work": "await (await ctx.connect_async(other.addresses[0])).irecv(np.zeros(8, np.uint8))",
}


@pytest.mark.parametrize("call", SERVERS)
def test_asyncio_programs_end_at_once(run_job: Callable[..., str], call: str) -> None:
    out = run_job(
        f"""
        import asyncio, os, signal, threading, time

        async def serve():
            with hmc.Context() as ctx, hmc.Context() as other:
                threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT)).start()
                {SERVERS[call]}

        try:
            asyncio.run(serve())
        except KeyboardInterrupt:
            print("ended")
        """,
        ranks=1,
    )
    assert "ended" in out
