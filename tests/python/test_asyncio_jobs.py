"""Coroutines in processes of their own: the ranks of a job, and one that Ctrl-C ends."""

from __future__ import annotations

from collections.abc import Callable


def test_barrier_is_awaited_and_cancelled(run_job: Callable[..., str]) -> None:
    run_job(
        """
        import asyncio, time

        async def job():
            with hmc.init() as comm:
                await comm.barrier_async(timeout=20)
                await comm.local[0].barrier_async(timeout=20)
                if comm.rank == 0:
                    start = time.monotonic()
                    task = asyncio.ensure_future(comm.barrier_async())
                    await asyncio.sleep(0.1)
                    task.cancel()
                    try:
                        await task
                    except asyncio.CancelledError:
                        print("cancelled")
                    assert time.monotonic() - start < 25
                    comm.notify(1, 1)
                else:
                    comm.wait_notify(0, 1, timeout=30)

        asyncio.run(job())
        """
    )


def test_keyboard_interrupt_leaves_nothing_behind(run_job: Callable[..., str]) -> None:
    out = run_job(
        """
        import asyncio, os, signal, threading

        async def serve(peer):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            await asyncio.gather(*(peer.wait_notify_async(i) for i in range(100)))

        with hmc.Context() as a, hmc.Context() as b:
            ab = a.connect(b.addresses[0], timeout=20)
            ba = b.accept(timeout=20)
            for _ in range(3):
                try:
                    asyncio.run(serve(ba))
                except KeyboardInterrupt:
                    print("ended")
            ab.notify(5)
            ba.wait_notify(5, timeout=20)
        """,
        ranks=1,
    )
    assert out.count("ended") == 3
