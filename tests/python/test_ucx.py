"""UCX, from the system or the package libucx: where it is named, and nowhere else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hmc
import hmc.testing


def info(**environment: str) -> dict[str, str]:
    """The row of ucx in hmc.info() of another process: this one loads no UCX."""
    source = (
        "import hmc; row = [t for t in hmc.info()['transports'] if t['name'] == 'ucx'][0]; print(row['available'], row['reason'])"
    )
    everything = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, env=everything, cwd="/", check=True
    )
    available, reason = done.stdout.strip().split(" ", 1)
    return {"available": available, "reason": reason}


@pytest.fixture(scope="module")
def ucx() -> str:
    row = info(HMC_TRANSPORTS="ucx")
    if row["available"] != "True":
        pytest.skip(row["reason"])
    return row["reason"]


# Over what UCX chooses (shared memory), and over TCP.
ways = pytest.mark.parametrize("tls", [None, "tcp"], ids=["chosen", "tcp"])


def over(tls: str | None) -> dict[str, str]:
    return {"HMC_TRANSPORTS": "ucx", **({"UCX_TLS": tls} if tls else {})}


def test_it_is_used_only_where_it_is_named() -> None:
    row = info(HMC_TRANSPORTS="")
    assert row["available"] == "False"
    assert "named" in row["reason"] or "built without" in row["reason"]
    source = "import hmc; context = hmc.Context(); assert context.addresses; print(open('/proc/self/maps').read())"
    environment = {name: value for name, value in os.environ.items() if name != "HMC_TRANSPORTS"}
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, env=environment, cwd="/", check=True
    )
    assert "libhmc" in done.stdout
    assert "libucp" not in done.stdout


def test_a_package_in_a_folder_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    package = os.fsencode(tmp_path) + b"/\xff/libucx"
    os.makedirs(package + b"/lib")
    for name in (b"/__init__.py", b"/lib/libucp.so.0"):
        Path(os.fsdecode(package + name)).touch()
    folders = os.pathsep.join([os.fsdecode(os.path.dirname(package)), os.environ.get("PYTHONPATH", "")])
    assert info(HMC_TRANSPORTS="ucx", PYTHONPATH=folders)["reason"]


def test_what_it_says_of_itself(ucx: str) -> None:
    assert re.match(r"UCX 1\.\d+\.\d+ \(.*libucp.*\): .*tcp", ucx), ucx
    assert "not encrypted" in ucx
    off = info(HMC_TRANSPORTS="ucx", HMC_UCX_LIBRARY="off")
    assert off == {"available": "False", "reason": "switched off by HMC_UCX_LIBRARY"}


@ways
def test_bytes(ucx: str, run_job: Callable[..., str], tls: str | None) -> None:
    run_job(
        """
        with hmc.init() as comm:
            other = 1 - comm.rank
            own = comm.buffer(6 << 20)
            remote = comm.exchange(own, timeout=30)[other]
            source = comm.buffer(6 << 20)
            for seed, size in enumerate([1, 4096, 7937, (31 << 10) + 1, 100_001, (5 << 20) + 3]):
                source.numpy()[5 : 5 + size] = pattern(size, 10 * seed + comm.rank)
                comm.put(source[5 : 5 + size], remote[33 : 33 + size], notify=seed).wait(timeout=30)
                comm.wait_notify(other, seed, timeout=30)
                assert np.array_equal(own.numpy()[33 : 33 + size], pattern(size, 10 * seed + other)), size
                comm.barrier(timeout=30)
                comm.get(source[:size], remote[33 : 33 + size]).wait(timeout=30)
                assert np.array_equal(source.numpy()[:size], pattern(size, 10 * seed + comm.rank)), size
                comm.barrier(timeout=30)
                received = np.zeros(size, np.uint8)
                work = comm.irecv(received, src=other, tag=seed)
                comm.send(pattern(size, 77 + seed + comm.rank), dst=other, tag=seed, timeout=30)
                work.wait(timeout=30)
                assert np.array_equal(received, pattern(size, 77 + seed + other)), size
            path = comm.path(other)
            assert path.transport == "ucx" and " of UCX 1." in path.detail, str(path)
            comm.barrier(timeout=30)
        """,
        environment=over(tls),
    )


@ways
def test_device_memory_is_staged_over_it(ucx: str, run_job: Callable[..., str], tls: str | None) -> None:
    run_job(
        """
        with hmc.init() as comm:
            other = 1 - comm.rank
            size = (9 << 20) + 5
            device = ("cuda:0", "mlu:0")[comm.rank]
            own = comm.buffer(size, device=device)
            remote = comm.exchange(own, timeout=30)[other]
            path = comm.path(other, source=device, target=("cuda:0", "mlu:0")[other])
            assert path.transport == "staging" and "ucx" in path.detail, str(path)
            source = comm.buffer(size, device=device)
            source.memory.copy_from(pattern(size, comm.rank))
            comm.put(source[3:-7], remote[3:-7], notify=1).wait(timeout=30)
            comm.wait_notify(other, 1, timeout=30)
            back = np.zeros(size, np.uint8)
            own.memory.copy_to(back)
            assert np.array_equal(back[3:-7], pattern(size, other)[3:-7]) and not back[:3].any() and not back[-7:].any()
            comm.send(source, other, timeout=30) if comm.rank == 0 else comm.recv(own, other, timeout=30)
            if comm.rank == 1:
                own.memory.copy_to(back)
                assert np.array_equal(back, pattern(size, other))
            comm.barrier(timeout=30)
        """,
        environment={
            **hmc.testing.environment(),
            **over(tls),
            "HMC_TRANSPORTS": "ucx,staging",
            "HMC_STAGING_SHARED": "0",  # as between hosts
        },
    )


@ways
def test_a_target_that_sleeps_is_woken(ucx: str, run_job: Callable[..., str], tls: str | None) -> None:
    run_job(
        """
        import time
        with hmc.init() as comm:
            other = 1 - comm.rank
            own = comm.buffer(200_000)
            own.numpy()[:] = pattern(200_000, comm.rank)
            remote = comm.exchange(own, timeout=30)[other]
            local = comm.buffer(200_000)
            for turn in range(6):
                # Long enough for the background threads of both to have gone to sleep. One rank posts, the other looks at nothing.
                time.sleep(0.15)
                if turn % 2 == comm.rank:
                    local.numpy()[:] = 0
                    comm.get(local, remote).wait(timeout=30)
                    assert np.array_equal(local.numpy(), pattern(200_000, other)), turn
                    comm.put(local[:9], remote[:9], notify=turn).wait(timeout=30)
                else:
                    comm.wait_notify(other, turn, timeout=30)
            comm.barrier(timeout=30)
        """,
        environment=over(tls),
    )


@ways
def test_a_killed_peer_ends_what_is_pending(ucx: str, run_job: Callable[..., str], tls: str | None) -> None:
    run_job(
        """
        import os, signal
        comm = hmc.init()
        own = comm.buffer(32 << 20)
        remote = comm.exchange(own, timeout=30)[1 - comm.rank]
        if comm.rank == 1:
            comm.notify(0, 1)
            comm.wait_notify(0, 2, timeout=30)
            os.kill(os.getpid(), signal.SIGKILL)
        comm.wait_notify(1, 1, timeout=30)
        comm.notify(1, 2)
        try:
            while True:  # it may be late to die; the job's deadline ends this
                comm.put(own, remote).wait(timeout=30)
        except hmc.PeerLostError:
            pass
        comm.close()
        """,
        environment=over(tls),
        expect=1,
    )


@ways
def test_closing_a_buffer_in_use(ucx: str, run_job: Callable[..., str], tls: str | None) -> None:
    run_job(
        """
        with hmc.init() as comm:
            buffers = [comm.buffer(8 << 20), comm.buffer(1 << 20)]
            remotes = [comm.exchange(each, timeout=30)[1 - comm.rank] for each in buffers]
            source = comm.buffer(8 << 20)
            source.numpy()[:] = pattern(8 << 20, comm.rank)
            if comm.rank == 0:
                comm.wait_notify(1, 1, timeout=30)
                buffers[0].close(timeout=30)
                comm.notify(1, 2)
            else:
                works = [comm.put(source, remotes[0]) for _ in range(8)]
                comm.notify(0, 1)
                for work in works:
                    try:
                        work.wait(timeout=30)
                    except hmc.StaleBufferError:
                        pass
                comm.wait_notify(0, 2, timeout=30)
                try:
                    comm.put(source, remotes[0]).wait(timeout=30)
                    raise AssertionError("put into a closed buffer")
                except hmc.StaleBufferError:
                    pass
                comm.put(source[: 1 << 20], remotes[1], notify=3).wait(timeout=30)
            if comm.rank == 0:
                comm.wait_notify(1, 3, timeout=30)
                assert np.array_equal(buffers[1].numpy(), pattern(8 << 20, 1)[: 1 << 20])
            comm.barrier(timeout=30)
        """,
        environment=over(tls),
    )


def test_signal_handlers_stay_the_programs(ucx: str) -> None:
    source = """
import faulthandler, signal, hmc
before = [line for line in open("/proc/self/status") if line.startswith(("SigCgt", "SigIgn"))]
with hmc.Context(transports="ucx") as a, hmc.Context(transports="ucx") as b:
    a.connect(b.addresses[0], timeout=20)
after = [line for line in open("/proc/self/status") if line.startswith(("SigCgt", "SigIgn"))]
names = [signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE]
mask = sum(1 << (n - 1) for n in names)
assert int(before[-1].split()[1], 16) & mask == int(after[-1].split()[1], 16) & mask, (before, after)
"""
    subprocess.run([sys.executable, "-c", source], timeout=60, check=True, cwd="/")
