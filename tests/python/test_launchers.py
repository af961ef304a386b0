"""hmc.init() finds its job in every launcher's environment, or by explicit arguments: real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ports import free_port

import hmc

Environment = dict[str, str]

# What launchers set; a job in which the tests themselves run must not be taken for the one under test.
LAUNCHERS = (
    "HMC_",
    "OMPI_",
    "PMI_",
    "PMIX_",
    "PRTE_",
    "MPI_",
    "SLURM_",
    "TORCHELASTIC_",
    "LOCAL_",
    "MASTER_",
    "RANK",
    "WORLD_SIZE",
)
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}

# Every rank sends to the next, then all compare notes: the job is whole, and its ranks are who they say.
JOB = """
import json, os, sys
import numpy as np
import hmc

arguments = json.loads(sys.argv[1])
with hmc.init(timeout=40, **arguments) as comm:
    size, rank = comm.size, comm.rank
    after, before = (rank + 1) % size, (rank - 1) % size
    out = np.random.default_rng(rank).integers(0, 256, 5001, dtype=np.uint8)
    into = np.empty_like(out)
    sent = comm.isend(out, dst=after, tag=3)
    comm.recv(into, src=before, tag=3, timeout=30)
    sent.wait(timeout=30)
    assert np.array_equal(into, np.random.default_rng(before).integers(0, 256, 5001, dtype=np.uint8))
    pids = [int(text) for text in comm.exchange_bytes(str(os.getpid()).encode(), timeout=30)]
    comm.barrier(timeout=30)
    launch = {} if "rank" in arguments else hmc.info()["launch"]
    print(json.dumps({"rank": rank, "size": size, "pids": pids, "pid": os.getpid(), "launch": launch}))
"""


def start(script: Path, environments: Sequence[Environment], arguments: Sequence[dict[str, Any]]) -> list[tuple[int, str, str]]:
    """(status, stdout, stderr) of one process per environment, all started by this one."""
    script.write_text(JOB)
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), json.dumps(given)],
            env={**CLEAN, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for environment, given in zip(environments, arguments, strict=True)
    ]
    results = []
    try:
        for process in processes:
            out, errors = process.communicate(timeout=90)
            results.append((process.returncode, out, errors))
    finally:
        for process in processes:
            process.kill()
    return results


def forms(
    tmp_path: Path, environments: Sequence[Environment], *, launcher: str = "", arguments: Sequence[dict[str, Any]] = ()
) -> None:
    """Checks that the processes are one job, ranked as their order here."""
    results = start(tmp_path / "job.py", environments, arguments or [{}] * len(environments))
    for status, _, errors in results:
        assert status == 0, errors
    reports = [json.loads(out) for _, out, _ in results]
    pids = [report["pid"] for report in reports]
    assert [report["rank"] for report in reports] == list(range(len(environments)))
    assert all(report["size"] == len(environments) and report["pids"] == pids for report in reports)
    if launcher:
        assert {report["launch"]["launcher"] for report in reports} == {launcher}


def refusal(tmp_path: Path, environment: Environment, argument: dict[str, Any] | None = None) -> str:
    """The last line of what one process printed when init failed."""
    [(status, _, errors)] = start(tmp_path / "job.py", [environment], [argument or {}])
    assert status == 1, errors
    return errors.strip().splitlines()[-1]


def torchrun(size: int, rank: int, port: int, **more: str) -> Environment:
    return {
        "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **more,
    }  # fmt: skip


def openmpi(size: int, rank: int) -> Environment:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(size), "PMIX_NAMESPACE": f"prterun-test-{os.getpid()}@1", "PMIX_RANK": str(rank),
    }  # fmt: skip


def mpich(size: int, rank: int) -> Environment:
    return {
        "PMI_RANK": str(rank), "PMI_SIZE": str(size), "PMI_FD": "7", "MPI_LOCALRANKID": str(rank), "MPI_LOCALNRANKS": str(size),
    }  # fmt: skip


def slurm(size: int, rank: int, nodes: int = 1) -> Environment:
    """``srun`` of one step; with several nodes, an equal share on each, and this host in the role of all of them."""
    here = size // nodes
    return {
        "SLURM_PROCID": str(rank), "SLURM_NTASKS": str(size), "SLURM_STEP_NUM_TASKS": str(size), "SLURM_LOCALID": str(rank % here),
        "SLURM_NODEID": str(rank // here), "SLURM_NNODES": str(nodes), "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_TASKS_PER_NODE": f"{here}(x{nodes})" if nodes > 1 else str(here), "SLURM_STEP_ID": "0",
        "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "localhost",
    }  # fmt: skip


def test_torchrun_on_one_host(tmp_path: Path) -> None:
    port = free_port(2)
    environments = [torchrun(3, rank, port, LOCAL_WORLD_SIZE="3", TORCHELASTIC_RUN_ID="none") for rank in range(3)]
    forms(tmp_path, environments, launcher="torchrun")


def test_torch_variables_set_by_hand(tmp_path: Path) -> None:
    # As many job scripts do: no LOCAL_WORLD_SIZE, so the processes meet above MASTER_PORT.
    port = free_port(2)
    forms(tmp_path, [torchrun(3, rank, port) for rank in range(3)], launcher="torchrun")


def test_torchrun_over_hosts(tmp_path: Path) -> None:
    port = free_port(2)
    environments = [torchrun(4, rank, port, LOCAL_WORLD_SIZE="2") | {"LOCAL_RANK": str(rank % 2)} for rank in range(4)]
    forms(tmp_path, environments, launcher="torchrun")


def test_a_master_beyond_the_host_needs_a_key(tmp_path: Path) -> None:
    port = free_port(2)
    open_address = {"MASTER_ADDR": "0.0.0.0"}
    message = refusal(tmp_path, torchrun(2, 0, port) | open_address)
    assert "AuthenticationError" in message or "InvalidArgumentError" in message
    assert "hmc keygen" in message
    key = hmc.keygen()
    forms(tmp_path, [torchrun(2, rank, port, HMC_JOB_KEY=key) | open_address for rank in range(2)], launcher="torchrun")


def test_open_mpi(tmp_path: Path) -> None:
    forms(tmp_path, [openmpi(3, rank) for rank in range(3)], launcher="openmpi")


def test_mpich(tmp_path: Path) -> None:
    forms(tmp_path, [mpich(3, rank) for rank in range(3)], launcher="mpich")


def test_slurm_on_one_host(tmp_path: Path) -> None:
    forms(tmp_path, [slurm(3, rank) for rank in range(3)], launcher="slurm")


def test_slurm_over_hosts(tmp_path: Path) -> None:
    forms(tmp_path, [slurm(4, rank, nodes=2) for rank in range(4)], launcher="slurm")


def test_two_steps_of_one_slurm_job_do_not_meet(tmp_path: Path) -> None:
    environments = [slurm(2, rank) | {"SLURM_STEP_ID": step} for step in "01" for rank in range(2)]
    results = start(tmp_path / "job.py", environments, [{}] * 4)
    assert [status for status, _, _ in results] == [0] * 4, [errors for _, _, errors in results]
    pids = [json.loads(out)["pids"] for _, out, _ in results]
    assert pids[0] == pids[1]
    assert pids[2] == pids[3]
    assert not set(pids[0]) & set(pids[2])


@pytest.mark.parametrize("address", ["unix", "tcp://127.0.0.1:{port}", "tcp://[::1]:{port}", "tcp://localhost:{port}"])
def test_explicit_arguments(tmp_path: Path, address: str) -> None:
    if "::1" in address and not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    rendezvous = f"unix:{tmp_path}/meet" if address == "unix" else address.format(port=free_port())
    forms(tmp_path, [{}] * 3, arguments=[{"rank": rank, "size": 3, "rendezvous": rendezvous} for rank in range(3)])


def test_explicit_arguments_overrule_the_launcher(tmp_path: Path) -> None:
    # A group of two of a launched job's three processes, in another order.
    given = [{"rank": rank, "size": 2, "rendezvous": f"unix:{tmp_path}/meet"} for rank in range(2)]
    forms(tmp_path, [openmpi(3, 2), openmpi(3, 1)], arguments=given)


def test_explicit_ranks_meet_where_the_launcher_says(tmp_path: Path) -> None:
    # mpi4py and torch.distributed know rank and size; with the launcher's own numbers no rendezvous is needed.
    forms(tmp_path, [openmpi(2, rank) for rank in range(2)], arguments=[{"rank": rank, "size": 2} for rank in range(2)])


def test_no_launcher_is_a_job_of_one(tmp_path: Path) -> None:
    forms(tmp_path, [{}], launcher="none")


@pytest.mark.parametrize(
    ("environment", "argument", "words"),
    [
        ({"RANK": "0"}, {}, "WORLD_SIZE"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, {}, "RANK=2"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, {}, "MASTER_ADDR"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, {}, "HMC_RENDEZVOUS"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, {}, "SLURM_NTASKS"),
        ({}, {"rank": 0, "size": 2}, "rendezvous="),
        ({}, {"rank": 2, "size": 2, "rendezvous": "unix:/tmp/x"}, "rank 2"),
        ({}, {"rank": 0}, "size"),
        ({}, {"rank": 0, "size": 2, "rendezvous": "localhost:1234"}, "tcp://host:port"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else str(value),
)
def test_what_cannot_be_a_job_is_named(tmp_path: Path, environment: Environment, argument: dict[str, Any], words: str) -> None:
    message = refusal(tmp_path, environment, argument)
    assert "InvalidArgumentError" in message
    assert words in message
