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
                try:
                    threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT)).start()
                    {CALLS[call]}
                except KeyboardInterrupt:
                    comm.send(np.ones(1, np.uint8), dst=1, tag=1, timeout=20)
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
        from functools import partial
        from operator import length_hint

        with hmc.init() as comm:
            # Too large to be under way before the other side has arrived.
            out, inp = np.zeros(4 << 20, np.uint8), np.ones(4 << 20, np.uint8)
            outs = iter([out])

            def interrupt():
                while length_hint(outs):  # the call has not begun
                    time.sleep(0.01)
                time.sleep(0.4)
                os.kill(os.getpid(), signal.SIGINT)

            try:
                if comm.rank == 0:
                    threading.Thread(target=interrupt, daemon=True).start()
                else:
                    comm.recv(np.empty(1, np.uint8), src=0, tag=1, timeout=20)
                list(map(partial(comm.all_to_all, timeout=20), outs, [inp]))
            except KeyboardInterrupt:
                comm.send(np.ones(1, np.uint8), dst=1, tag=1, timeout=20)
                comm.recv(np.empty(1, np.uint8), src=1, tag=2, timeout=20)
            except hmc.HmcError as error:
                print("told:", error, flush=True)
                comm.send(np.ones(1, np.uint8), dst=0, tag=2, timeout=20)
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
            try:
                threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
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


# What a signal handler calls while its thread is inside a blocking call: calls of every kind, closes last.
HANDLER = """
from patterns import pattern
import signal, threading, time
with hmc.Context(transports="{transport}") as a, hmc.Context(transports="{transport}") as b:
    ab = a.connect(b.addresses[0], timeout=20)
    ba = b.accept(timeout=20)
    target = b.buffer(1 << 20)
    remote, source, done = ab.import_buffer(target.descriptor(), timeout=20), a.buffer(1 << 20), []

    def handler(*_):
        source.numpy()[:] = pattern(1 << 20, 3)
        ab.put(source, remote, notify=3).wait(20)
        ba.wait_notify(3, timeout=20)
        ab.isend(target, tag=7)
        ba.recv(source, tag=7, timeout=20)
        try:
            ab.recv(np.empty(1), tag=5, timeout=0.3)
        except hmc.HmcTimeoutError:
            target.close(timeout=20)
            a.close(timeout=20)
            done.append(1)

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        {call}
    except hmc.ClosedError:
        pass
    else:
        raise SystemExit("the call did not end with the Context")
    assert done == [1]
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(
    "call",
    [
        "ab.recv(np.empty(8), tag=9)",
        "ab.send(np.ones(8 << 20), tag=9)",
        "ab.irecv(np.empty(8), tag=9).wait()",
        "ab.wait_notify(9)",
        "ab.notifications(timeout=None)",
        "ab.lookup('never')",
        "a.accept()",
    ],
)
def test_signal_handlers_may_call_hmc(run_script: Callable[..., str], transport: str, call: str) -> None:
    run_script(HANDLER.format(transport=transport, call=call), {})


def test_signal_handlers_nest(run_script: Callable[..., str]) -> None:
    """A handler that blocks in HMC is itself interrupted, by one whose exception ends the outer calls one after another."""
    out = run_script(
        """
        import signal, time
        with hmc.Context() as a, hmc.Context() as b:
            ab = a.connect(b.addresses[0], timeout=20)
            ba = b.accept(timeout=20)
            got, ended = np.zeros(1 << 20, np.uint8), []

            def inner(*_):
                sending = ba.isend(pattern(1 << 20, 3), tag=1)
                ab.recv(got, tag=1, timeout=20)
                sending.wait(20)
                raise RuntimeError("inner")

            def outer(*_):
                signal.signal(signal.SIGALRM, inner)
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.2)
                    ab.recv(np.empty(8), tag=2)
                finally:
                    ended.append("outer")

            signal.signal(signal.SIGALRM, outer)
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                ab.recv(np.empty(8), tag=3)
            except RuntimeError as error:
                ended.append(str(error))
            assert np.array_equal(got, pattern(1 << 20, 3))
            # The thread's next calls are asked again.
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            started = time.monotonic()
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                ab.recv(np.empty(8), tag=3, timeout=45)
            except KeyboardInterrupt:
                ended.append("interrupted")
            assert time.monotonic() - started < 30
            print(ended)
        """,
        {},
    )
    assert out.split("\n")[0] == "['outer', 'inner', 'interrupted']"
