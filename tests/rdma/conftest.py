"""One virtual machine with Soft-RoCE for all tests of this folder; without one they are skipped, with the reason."""

from __future__ import annotations

import ctypes.util
import importlib.util
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
HMC = str(Path(sys.executable).with_name("hmc"))


# Starting a process in the guest takes seconds: nothing is imported that is not needed.
PRELUDE = """
import os, time
card = f"rxe{int(os.environ['HMC_RANK']) % 2}"
os.environ["HMC_NICS"], os.environ["UCX_NET_DEVICES"] = card, f"{card}:1"
import numpy as np
import hmc

def pattern(size, seed):
    return np.random.Generator(np.random.SFC64([seed, size])).integers(0, 256, size, dtype=np.uint8)
"""


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.xdist_group("rdma"))


def load_rdma_vm() -> Any:
    spec = importlib.util.spec_from_file_location("rdma_vm", ROOT / "tools" / "rdma_vm.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["rdma_vm"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def hmc_command() -> str:
    return shlex.quote(HMC)


@pytest.fixture(scope="package")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    rdma_vm = load_rdma_vm()
    try:
        rdma_vm.prepare()
    except rdma_vm.Unavailable as reason:
        pytest.skip(f"no virtual machine with Soft-RoCE: {reason}")
    with rdma_vm.Guest() as machine:
        yield machine


@pytest.fixture(scope="package")
def run_in_guest(guest: Any) -> Callable[..., str]:
    """A line of shell in the guest, which must end well; returns what it printed."""

    def run(line: str, timeout: float = 60, environment: dict[str, str] | None = None) -> str:
        outcome = guest.run(line, timeout, environment)
        assert outcome.status == 0, f"{line}\nstatus {outcome.status}\n{outcome.output}\n{guest.console()[-3000:]}"
        return str(outcome.output)

    return run


@pytest.fixture
def run_verbs_job(run_in_guest: Callable[..., str], tmp_path: Path) -> Callable[..., str]:
    """A script as a job of N processes over verbs alone. Even ranks use the device at one end of the cable, odd ones the other."""

    def run(source: str, ranks: int = 2, timeout: float = 90, status: int = 0, **environment: str) -> str:
        script = tmp_path / "job.py"
        script.write_text(PRELUDE + source)
        # Where a rank is to fail, the others have the time of the job to end by themselves.
        grace = f"--grace {timeout:g} " if status else ""
        job = f"{shlex.quote(HMC)} run -n {ranks} {grace}{shlex.quote(str(script))}"
        line = f"{job}; status=$?; [ $status = {status} ] || {{ echo status $status; exit 1; }}"
        return run_in_guest(line, timeout, {"HMC_TRANSPORTS": "verbs", "HMC_RENDEZVOUS": "", **environment})

    return run


@pytest.fixture
def ucx_rc() -> dict[str, str]:
    """Has UCX use its reliable connections, which over Soft-RoCE it gets to work between IPv6 addresses only."""
    library = ctypes.util.find_library("ucp")
    if library is None:
        pytest.skip("no libucp of the system's; that of the Python package has no InfiniBand")
    return {"UCX_TLS": "rc", "UCX_IB_GID_INDEX": "2", "HMC_UCX_LIBRARY": library}


@pytest.fixture
def run_ucx_job(run_verbs_job: Callable[..., str], ucx_rc: dict[str, str]) -> Callable[..., str]:
    """The same over ucx alone, which has the network cards move the bytes."""

    def run(source: str, **options: Any) -> str:
        return run_verbs_job(source, **{"HMC_TRANSPORTS": "ucx", **ucx_rc, **options})

    return run
