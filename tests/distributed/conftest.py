"""Jobs of several processes that torch.distributed starts as users do: by its environment variables."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

PRELUDE = """
import faulthandler, os, sys
faulthandler.dump_traceback_later({deadline}, exit=True)
import torch
import torch.distributed as dist
import hmc
import hmc.torch

def start(backend="hmc", **options):
    dist.init_process_group(backend, **options)
    return dist.get_rank(), dist.get_world_size()
"""


@pytest.fixture
def run_torch(tmp_path: Path) -> Callable[..., list[str]]:
    """Runs a script in `ranks` processes. Fails the test, with all they printed, unless each ends with `expect` (default: 0)."""

    def run(
        source: str,
        ranks: int = 2,
        deadline: float = 90,
        expect: dict[int, int] | None = None,
        environment: dict[str, str] | None = None,
    ) -> list[str]:
        script = tmp_path / "job.py"
        script.write_text(PRELUDE.format(deadline=deadline) + textwrap.dedent(source))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        base = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(ranks),
            "OMP_NUM_THREADS": "1",
        }
        base.update(environment or {})
        jobs = []
        for rank in range(ranks):
            out = (tmp_path / f"out.{rank}").open("w+")
            mine = {**base, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [sys.executable, "-W", "ignore::FutureWarning", str(script)]
            jobs.append((subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=mine, cwd=tmp_path), out))
        said = []
        failed = False
        for rank, (process, out) in enumerate(jobs):
            try:
                failed = process.wait(deadline + 10) != (expect or {}).get(rank, 0) or failed
            except subprocess.TimeoutExpired:
                process.kill()
                failed = True
            out.seek(0)
            said.append(out.read())
            out.close()
        assert not failed, "\n".join(f"-- rank {rank}, status {jobs[rank][0].returncode}\n{text}" for rank, text in enumerate(said))
        return said

    return run
