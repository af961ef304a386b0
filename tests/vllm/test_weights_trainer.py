"""A trainer of two ranks with torch.distributed: shards in place, or vLLM's ModuleSource, which gathers. Every byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from engines import free_port

PROGRAM = Path(__file__).with_name("weights_ranks.py")


@pytest.mark.parametrize(("kind", "sources"), [("fsdp", 2), ("gathered", 1)])
def test_ranks_of_a_trainer_send_every_epoch(tmp_path: Path, kind: str, sources: int) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    ranks = [
        subprocess.Popen([sys.executable, str(PROGRAM), kind, str(rank), address, str(tmp_path)], cwd="/") for rank in range(2)
    ]
    try:
        assert [one.wait(200) for one in ranks] == [0, 0]
    finally:
        for one in ranks:
            one.kill()
            one.wait(20)
    assert (tmp_path / "0.txt").read_text() == f"[1, 2, 3] {sources}"
    assert (tmp_path / "1.txt").read_text() == "[] 0"
