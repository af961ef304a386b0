"""Jobs over two hosts, which two network namespaces stand for: every way of bytes, deaths, a pulled cable, cut connections."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import HMC
from hosts import Host, Hosts, wait_all

import hmc

PRELUDE = """
import os, signal, sys, time
import numpy as np
import hmc

def pattern(size, seed):
    return np.random.Generator(np.random.SFC64([seed, size])).integers(0, 256, size, dtype=np.uint8)
"""


def launch(hosts: Hosts, script: Path, port: int, each: int = 2, **environment: str) -> list[subprocess.Popen[str]]:
    """`hmc run` on both hosts, as a user types it there."""
    key = hmc.keygen()
    rendezvous = f"tcp://{hosts[0].address}:{port}"
    line = ["--nodes", "2", "-n", str(each), "--grace", "60", "--rendezvous", rendezvous]
    return [
        host.start(*HMC, "run", *line, "--node-rank", str(node), str(script), HMC_JOB_KEY=key, **environment)
        for node, host in enumerate(hosts)
    ]


def script_of(folder: Path, source: str) -> Path:
    script = folder / "job.py"
    script.write_text(PRELUDE + source)
    return script


def ucx_of_another_process() -> str:
    source = "import hmc; print([t['reason'] for t in hmc.info()['transports'] if t['name'] == 'ucx'][0])"
    environment = {**os.environ, "HMC_TRANSPORTS": "ucx"}
    line = [sys.executable, "-c", source]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, env=environment, cwd="/", check=True).stdout


WHOLE = """
# Both have one kernel, by which hosts are told apart unless they are written down.
cards = "".join(f"card c{r} host={'alpha' if r < 2 else 'beta'} process={r}\\n" for r in range(4))
topology = hmc.Topology.parse("hmc-topology 1\\nhost alpha\\nhost beta\\n" + cards)
with hmc.init(timeout=60, topology=topology) as comm:
    rank, size = comm.rank, comm.size
    for other in range(size):
        path = comm.path(other)
        near = rank // 2 == other // 2
        assert (path.transport == sys.argv[1]) == (not near), str(path)
        assert not path.encrypted or near
    # Messages of awkward sizes to everybody at once.
    for n in (0, 1, 8, 4097, 65537, 3_000_001):
        sends = [comm.isend(pattern(n, rank * 16 + other), dst=other, tag=n) for other in range(size) if other != rank]
        for other in range(size):
            if other != rank:
                into = np.zeros(n, np.uint8)
                comm.recv(into, src=other, tag=n, timeout=60)
                assert np.array_equal(into, pattern(n, other * 16 + rank)), (n, other)
        for work in sends:
            work.wait(timeout=60)
    # Blocks that are scattered on both sides, with one notification.
    buf = comm.buffer(1 << 20)
    view = np.asarray(buf)
    view[:] = pattern(1 << 20, rank)
    target = comm.buffer(1 << 20)
    remotes = comm.exchange(target, timeout=60)
    across = (rank + size // 2) % size
    order = np.random.default_rng(5).permutation(64)
    batch = comm.prepare_blocks([(buf, np.arange(64) * 16384, remotes[across], order * 16384)], block=9000)
    comm.put_blocks(batch, notify=3).wait(timeout=60)
    comm.wait_notify(across, 3, timeout=60)
    got, sent = np.asarray(target), pattern(1 << 20, across)
    for i, place in enumerate(order):
        assert np.array_equal(got[place * 16384:][:9000], sent[i * 16384:][:9000]), i
        assert not got[place * 16384 + 9000:][:16384 - 9000].any(), i
    # All to all.
    inp = np.concatenate([pattern(70_001, rank * 100 + other) for other in range(size)])
    out = np.zeros_like(inp)
    comm.all_to_all(out, inp, timeout=60)
    assert np.array_equal(out, np.concatenate([pattern(70_001, other * 100 + rank) for other in range(size)]))
    # Sums: each byte leaves its host once.
    assert [*comm.islands()] == [(0, 1), (2, 3)]
    flat = "reduce-scatter + all-gather"
    for n, algorithm in ((1_000_003, None), (4097, "hierarchical"), (1, "hierarchical"), (1_000_003, flat)):
        plan = comm.plan("all_reduce", 4 * n, algorithm=algorithm)
        across = sum(link.bytes for link in plan.links if link.source // 2 != link.target // 2)
        assert across == (16 * n if algorithm == flat else 8 * n), str(plan)
        inputs = [pattern(4 * n, 7 + other).view(np.int32) for other in range(size)]
        total = inputs[rank].copy()
        comm.all_reduce(total, algorithm=algorithm, timeout=60)
        assert np.array_equal(total, sum(inputs[1:], inputs[0].copy())), (n, algorithm)
    # Each byte of other calls enters or leaves the other host once.
    for n, root in ((1 << 20, 3), (4_000_004, 0)):
        data, sent = np.zeros(n, np.uint8), pattern(n, 50 + root)
        if rank == root:
            data[:] = sent
        comm.broadcast(data, root=root, timeout=60)
        assert np.array_equal(data, sent), (n, root)
        inputs = [pattern(n, 60 + other).view(np.int32) for other in range(size)]
        total = np.zeros(n // 4, np.int32)
        comm.reduce(total if rank == root else None, inputs[rank], root=root, timeout=60)
        assert rank != root or np.array_equal(total, sum(inputs[1:], inputs[0].copy())), (n, root)
        for call in ("broadcast", "reduce"):
            plan = comm.plan(call, n, root=root)
            assert plan.algorithm.startswith("hierarchical"), str(plan)
            assert sum(link.bytes for link in plan.links if link.source // 2 != link.target // 2) == n, str(plan)
    comm.barrier(timeout=60)
    print("whole", rank)
"""


@pytest.mark.parametrize("transport", ["tcp", "ucx"])
def test_every_way_of_bytes_between_two_hosts(hosts: Hosts, tmp_path: Path, transport: str) -> None:
    environment = {}
    if transport == "ucx":
        environment = {"HMC_TRANSPORTS": "shm,ucx", "UCX_TLS": "tcp"}
        if "libucp" not in ucx_of_another_process():
            pytest.skip("no UCX here")
        if hosts[0].interface not in hosts[0].run("ls", "/sys/class/net"):
            pytest.skip("UCX looks for interfaces in /sys, and a namespace's may not be mounted here")
    script = script_of(tmp_path, WHOLE.replace("sys.argv[1]", repr(transport)))
    results = wait_all(launch(hosts, script, 7100 if transport == "tcp" else 7150, **environment))
    said = "".join(output for _, output in results)
    assert [status for status, _ in results] == [0, 0], said
    assert all(f"whole {rank}" in said for rank in range(4)), said


KILLED = """
with hmc.init(timeout=60) as comm:
    into = np.zeros(10, np.uint8)
    comm.barrier(timeout=60)
    if comm.rank == 3:  # its death would end the barrier of one that is still in it
        for other in range(3):
            comm.recv(into, src=other, timeout=60)
        os.kill(os.getpid(), signal.SIGKILL)
    comm.send(into, dst=3, timeout=60)
    try:
        comm.recv(into, src=3, timeout=30)
        raise SystemExit("a dead process sent something")
    except hmc.PeerLostError:
        pass
    # The others go on, over the hosts.
    if comm.rank == 0:
        comm.send(pattern(200_000, 4), dst=2, timeout=30)
    if comm.rank == 2:
        big = np.zeros(200_000, np.uint8)
        comm.recv(big, src=0, timeout=30)
        assert np.array_equal(big, pattern(200_000, 4))
    print("survivor", comm.rank, flush=True)
    time.sleep(2)
    os._exit(0)
"""


def test_a_process_killed_on_one_host_is_lost_to_both(hosts: Hosts, tmp_path: Path) -> None:
    said = "".join(output for _, output in wait_all(launch(hosts, script_of(tmp_path, KILLED), 7200)))
    assert all(f"survivor {rank}" in said for rank in (0, 1, 2)), said


PULLED = """
with hmc.Context(listen="tcp://0.0.0.0:7300" if sys.argv[1] == "0" else "unix", key=sys.argv[2], heartbeat=5) as context:
    print("open", flush=True)
    peer = context.accept(timeout=60) if sys.argv[1] == "0" else context.connect("tcp://10.77.0.1:7300", timeout=60)
    print("together", flush=True)
    try:
        peer.recv(np.zeros(10, np.uint8), timeout=60)
    except hmc.PeerLostError as error:
        print("lost:", error, flush=True)
"""


def expect_line(job: subprocess.Popen[str], line: str) -> None:
    assert job.stdout is not None
    assert job.stdout.readline() == line + "\n", job.stdout.read()


def test_a_host_that_falls_silent_is_lost_within_its_heartbeat(hosts: Hosts, tmp_path: Path) -> None:
    script = script_of(tmp_path, PULLED)
    key = hmc.keygen()
    jobs: list[subprocess.Popen[str]] = []
    try:
        for index, host in enumerate(hosts):
            jobs.append(host.start(sys.executable, "-u", str(script), str(index), key))
            expect_line(jobs[-1], "open")
        for job in jobs:
            expect_line(job, "together")
        hosts[1].run("ip", "link", "set", hosts[1].interface, "down")
        results = wait_all(jobs)
    finally:
        hosts[1].run("ip", "link", "set", hosts[1].interface, "up")
        wait_all(jobs)
    assert all(status == 0 and "lost:" in output for status, output in results), results


CUT = """
with hmc.init(timeout=60) as comm:
    # The other host kills every data connection, whose port is that of the rendezvous, while messages go both ways: until "enough".
    other = 1 - comm.rank
    enough = os.path.join(os.path.dirname(__file__), "enough")
    count = 0
    while True:
        n = (8, 30_000, 400_000)[count % 3]
        sending = comm.isend(pattern(n, count * 2 + comm.rank), dst=other, tag=1)
        into = np.zeros(n, np.uint8)
        comm.recv(into, src=other, tag=1, timeout=60)
        assert np.array_equal(into, pattern(n, count * 2 + other)), count
        sending.wait(timeout=60)
        count += 1
        more = np.array([not os.path.exists(enough)], np.uint8)
        theirs = np.zeros_like(more)
        asking = comm.isend(more, dst=other, tag=2)
        comm.recv(theirs, src=other, tag=2, timeout=60)
        asking.wait(timeout=60)
        if not (more[0] or theirs[0]):
            break
    print("count", count, comm.context.counters().get("messages.moved", 0), flush=True)
    comm.barrier(timeout=60)
"""


def busiest(host: Host) -> list[tuple[str, str]]:
    """Ports here and there of the connections that have carried most: the streams of tcp, not control."""
    found = []
    for line in host.run("ss", "-HnitO", "state", "established").splitlines():
        words = line.split()
        moved = sum(int(word.partition(":")[2]) for word in words if word.startswith(("bytes_sent:", "bytes_received:")))
        if moved > 1_000_000:
            found.append((words[2].rpartition(":")[2], words[3].rpartition(":")[2]))
    return found


def test_connections_killed_by_the_kernel_are_made_anew(hosts: Hosts, tmp_path: Path) -> None:
    if shutil.which("ss") is None:
        pytest.skip("ss is not installed")
    jobs = launch(hosts, script_of(tmp_path, CUT), 7400, each=1)
    killed = 0
    try:
        deadline = time.monotonic() + 40
        while not busiest(hosts[1]) and time.monotonic() < deadline:
            time.sleep(0.05)
        for _ in range(4):
            for here, there in busiest(hosts[1]):
                killed += hosts[1].run("ss", "-HKnt", "sport", "=", here, "and", "dport", "=", there).count("\n")
            time.sleep(0.7)
    finally:
        (tmp_path / "enough").touch()
        results = wait_all(jobs)
    said = "".join(output for _, output in results)
    assert [status for status, _ in results] == [0, 0], said
    if not killed:
        pytest.skip("this kernel does not let `ss -K` end connections")
    moved = [int(line.split()[-1]) for line in said.splitlines() if "count" in line]
    assert len(moved) == 2, said
    assert min(moved) >= 1, said
