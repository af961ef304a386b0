"""The launchers that people use, over two hosts as in test_two_hosts.py."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import Hosts, wait_all

import hmc

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "python" / "over_hosts.py"


def test_torchrun_over_two_hosts(hosts: Hosts) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    key = hmc.keygen()
    meet = ["--master-addr", hosts[0].address, "--master-port", "7500"]
    jobs = [
        host.start(
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "2",
            *meet, str(EXAMPLE), HMC_JOB_KEY=key,
        )
        for node, host in enumerate(hosts)
    ]  # fmt: skip
    expect_done(wait_all(jobs))


def test_mpirun_over_two_hosts(hosts: Hosts, tmp_path: Path) -> None:
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if mpirun is None:
        pytest.skip("mpirun is not installed")
    # In the place of ssh: `agent beta command...`, as mpirun calls it.
    agent = tmp_path / "agent"
    lines = [f'  {host.name}) exec {shlex.join(host.command("sh", "-c"))} "$*" ;;' for host in hosts]
    agent.write_text("\n".join(["#!/bin/sh", "host=$1; shift", "case $host in", *lines, "esac", ""]))
    agent.chmod(0o755)
    job = hosts[0].start(
        mpirun, "--host", "alpha:2,beta:2", "--map-by", "ppr:2:node:oversubscribe", "-np", "4",
        "-x", "HMC_JOB_KEY", "-x", "HMC_RENDEZVOUS", "-x", "PYTHONPATH",
        sys.executable, str(EXAMPLE),
        HMC_JOB_KEY=hmc.keygen(), HMC_RENDEZVOUS=f"tcp://{hosts[0].address}:7600",
        OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        OMPI_MCA_plm_rsh_agent=str(agent), PRTE_MCA_plm_ssh_agent=str(agent),
    )  # fmt: skip
    expect_done(wait_all([job]))


@pytest.fixture
def slurm(hosts: Hosts, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A cluster of the two hosts; what its commands find it by."""
    missing = [program for program in ("slurmctld", "slurmd", "srun") if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"{', '.join(missing)} not installed" if missing else "slurmd wants to be root")
    settings = tmp_path / "slurm.conf"
    lines = [
        "ClusterName=hmc", f"SlurmctldHost={hosts[0].name}", "SlurmUser=root", "AuthType=auth/none", "CredType=cred/none",
        "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "SelectType=select/linear", "MpiDefault=none",
        f"StateSaveLocation={tmp_path}", f"SlurmdSpoolDir={tmp_path}/%n",
        f"SlurmctldPidFile={tmp_path}/controller.pid", f"SlurmdPidFile={tmp_path}/%n.pid",
        *(f"NodeName={host.name} CPUs=2" for host in hosts),
        "PartitionName=all Nodes=ALL Default=YES",
    ]  # fmt: skip
    settings.write_text("\n".join([*lines, ""]))
    for host in hosts:
        (tmp_path / host.name).mkdir()
    environment = {"SLURM_CONF": str(settings)}
    daemons: list[subprocess.Popen[str]] = []
    try:
        daemons.append(hosts[0].start("slurmctld", "-D", "-c", **environment))
        daemons += [host.start("slurmd", "-D", **environment) for host in hosts]
        yield environment
    finally:
        for daemon in daemons:
            daemon.terminate()
        wait_all(daemons, timeout=20)


def test_srun_over_two_hosts(hosts: Hosts, slurm: dict[str, str]) -> None:
    # Waits for the nodes to have said that they are there.
    job = hosts[0].start(
        "srun", "--kill-on-bad-exit", "--nodes", "2", "--ntasks-per-node", "2", "--time", "2", sys.executable, str(EXAMPLE),
        HMC_JOB_KEY=hmc.keygen(), **slurm,
    )  # fmt: skip
    expect_done(wait_all([job]))


def expect_done(results: list[tuple[int, str]]) -> None:
    said = "".join(output for _, output in results)
    assert all(status == 0 for status, _ in results), said
    for rank in range(4):
        assert f"rank {rank} of 4: done" in said, said
    assert "by tcp" in said, said
