"""Jobs of several processes that torch.distributed starts as users do: by its environment variables."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "python"))  # helpers that both folders' tests use

PRELUDE = """
import faulthandler, os, sys
import torch  # takes half a minute beside twenty busy processes
import torch.distributed as dist
faulthandler.dump_traceback_later({deadline}, exit=True)
import hmc
{imports}

def start(backend="hmc", **options):
    dist.init_process_group(backend, **options)
    return dist.get_rank(), dist.get_world_size()
"""


def free_port() -> int:
    """A port of this pytest worker's own range, below those of outgoing connections: nothing takes it before torch listens."""
    first = 20000 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8 * 1496
    while True:
        port = random.randrange(first, first + 1496, 2)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@pytest.fixture
def run_torch(tmp_path: Path) -> Callable[..., list[str]]:
    """Runs a script in `ranks` processes. Fails the test, with all they printed, unless each ends with `expect` (default: 0)."""

    def run(
        source: str,
        ranks: int = 2,
        deadline: float = 90,
        expect: dict[int, int] | None = None,
        environment: dict[str, str] | None = None,
        imports: str = "import hmc.torch",
    ) -> list[str]:
        script = tmp_path / "job.py"
        script.write_text(PRELUDE.format(deadline=deadline, imports=imports) + textwrap.dedent(source))
        base = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
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
                failed = process.wait(deadline + 25) != (expect or {}).get(rank, 0) or failed
            except subprocess.TimeoutExpired:
                process.kill()
                failed = True
            out.seek(0)
            said.append(out.read())
            out.close()
        assert not failed, "\n".join(f"-- rank {rank}, status {jobs[rank][0].returncode}\n{text}" for rank, text in enumerate(said))
        return said

    return run
