"""Transfers between real processes, every byte compared."""

from __future__ import annotations

from collections.abc import Callable

import pytest

SIZES = [0, 1, 7, 4095, 4096, 4097, 8191, 8192, 8193, 65537, (1 << 20) + 3, (16 << 20) + 1]
ENVIRONMENTS: list[dict[str, str]] = [{}, {"HMC_SHM_PTRACE": "0"}, {"HMC_TRANSPORTS": "tcp"}]


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=["default", "no-ptrace", "tcp"])
def test_send_recv(run_job: Callable[..., str], environment: dict[str, str]) -> None:
    run_job(
        f"""
        with hmc.init() as comm:
            for tag, size in enumerate({SIZES}):
                if comm.rank == 0:
                    comm.send(pattern(size, tag), dst=1, tag=tag, timeout=30)
                else:
                    guarded = np.full(size + 64, 0xA5, np.uint8)
                    info = comm.recv(guarded[32 : 32 + size], src=0, tag=tag, timeout=30)
                    assert info.bytes == size and info.source == 0 and info.tag == tag
                    assert np.array_equal(guarded[32 : 32 + size], pattern(size, tag)), size
                    assert (guarded[:32] == 0xA5).all() and (guarded[32 + size :] == 0xA5).all()
            comm.barrier(timeout=30)
        """,
        environment=environment,
    )


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=["default", "no-ptrace", "tcp"])
def test_put_get_and_notification(run_job: Callable[..., str], environment: dict[str, str]) -> None:
    run_job(
        f"""
        with hmc.init() as comm:
            room = 20 << 20
            own, array = comm.buffer(room), np.zeros(room, np.uint8)
            for target in (own, comm.register(array)):
                remote = comm.exchange(target, timeout=30)[1 - comm.rank]
                source = comm.buffer(room)
                for seed, size in enumerate({SIZES}):
                    target.numpy()[:] = 0x5A
                    source.numpy()[100 : 100 + size] = pattern(size, 10 * seed + comm.rank)
                    comm.barrier(timeout=30)
                    comm.put(source[100 : 100 + size], remote[33 : 33 + size], notify=seed).wait(timeout=30)
                    comm.wait_notify(1 - comm.rank, seed, timeout=30)
                    view = target.numpy()
                    assert np.array_equal(view[33 : 33 + size], pattern(size, 10 * seed + 1 - comm.rank)), size
                    assert (view[:33] == 0x5A).all() and (view[33 + size : 33 + size + 4096] == 0x5A).all()
                    back = comm.buffer(size)
                    comm.get(back, remote[33 : 33 + size]).wait(timeout=30)
                    assert np.array_equal(back.numpy(), pattern(size, 10 * seed + comm.rank))
                    comm.barrier(timeout=30)
        """,
        environment=environment,
        timeout=110,
    )


def test_blocks(run_job: Callable[..., str]) -> None:
    run_job(
        """
        with hmc.init() as comm:
            count, block = 300, 4096 + 8
            bufs = [comm.buffer(2 * count * block) for _ in range(3)]
            remotes = [comm.exchange(buf, timeout=30)[1 - comm.rank] for buf in bufs]
            order = np.random.default_rng(5)
            here = [order.permutation(2 * count)[:count] * block for _ in bufs]
            there = [order.permutation(2 * count)[:count] * block for _ in bufs]
            for index, buf in enumerate(bufs):
                buf.numpy()[:] = pattern(buf.nbytes, 2 * index + comm.rank)
            comm.barrier(timeout=30)
            if comm.rank == 0:
                batch = comm.prepare_blocks(list(zip(bufs, here, remotes, there)), block=block)
                assert batch.blocks == 900 and batch.nbytes == 900 * block
                for _ in range(3):
                    comm.put_blocks(batch, notify=1).wait(timeout=30)
            else:
                comm.wait_notify(0, 1, count=3, timeout=30)
                for index, buf in enumerate(bufs):
                    expected = pattern(buf.nbytes, 2 * index + 1)
                    source = pattern(buf.nbytes, 2 * index)
                    for s, t in zip(here[index], there[index]):
                        expected[t : t + block] = source[s : s + block]
                    assert np.array_equal(buf.numpy(), expected)
            comm.barrier(timeout=30)
        """
    )


def test_wildcards_order_and_truncation(run_job: Callable[..., str]) -> None:
    run_job(
        """
        with hmc.init() as comm:
            if comm.rank != 0:
                for i in range(50):
                    comm.send(np.array([comm.rank, i], np.int64), dst=0, tag=7)
                comm.send(np.zeros(100, np.uint8), dst=0, tag=8)
            else:
                seen = {1: 0, 2: 0}
                for _ in range(100):
                    x = np.zeros(2, np.int64)
                    info = comm.recv(x, src=hmc.ANY_SOURCE, tag=hmc.ANY_TAG if False else 7, timeout=30)
                    assert info.source == x[0] and x[1] == seen[info.source]
                    seen[info.source] += 1
                small = np.full(10, 9, np.uint8)
                for src in (1, 2):
                    try:
                        comm.recv(small, src=src, tag=8, timeout=30)
                    except hmc.InvalidArgumentError as error:
                        assert "100 bytes" in str(error)
                    else:
                        raise AssertionError("truncation went unnoticed")
                assert (small == 9).all()
            comm.barrier(timeout=30)
        """,
        ranks=3,
    )


def test_all_to_all_uneven(run_job: Callable[..., str]) -> None:
    run_job(
        """
        with hmc.init() as comm:
            for scale in (1, 1000, 300_000):
                counts = [[(s * 3 + d * 5) % 4 * scale for d in range(comm.size)] for s in range(comm.size)]
                mine = counts[comm.rank]
                theirs = [row[comm.rank] for row in counts]
                inp = np.concatenate([pattern(n, 100 * comm.rank + d) for d, n in enumerate(mine)])
                out = np.empty(sum(theirs), np.uint8)
                comm.all_to_all_v(out, theirs, inp, mine, timeout=60)
                expected = np.concatenate([pattern(n, 100 * s + comm.rank) for s, n in enumerate(theirs)])
                assert np.array_equal(out, expected)
            comm.barrier(timeout=30)
        """,
        ranks=4,
    )


def test_killed_rank(run_job: Callable[..., str]) -> None:
    run_job(
        """
        import os, signal, sys, time
        comm = hmc.init()
        comm.barrier(timeout=30)
        if comm.rank == 2:  # its death would end the barrier of one that is still in it
            for other in (0, 1):
                comm.recv(np.zeros(1), src=other, timeout=30)
            os.kill(os.getpid(), signal.SIGKILL)
        comm.send(np.zeros(1), dst=2, timeout=30)
        x = np.zeros(8, np.uint8)
        try:
            comm.recv(x, src=2, timeout=20)
        except hmc.PeerLostError as error:
            print("saw", error)
        # The survivors go on.
        if comm.rank == 0:
            comm.send(pattern(100_000, 1), dst=1, timeout=20)
        else:
            y = np.zeros(100_000, np.uint8)
            comm.recv(y, src=0, timeout=20)
            assert np.array_equal(y, pattern(100_000, 1))
            print("survived")
        time.sleep(0.5)
        """,
        ranks=3,
        expect=1,
    )
