"""vLLM's groups of experts over HMC, without an engine: two data-parallel ranks of two tensor-parallel ranks each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engines import free_port, save_mixtral

RANKS = 4
PROGRAM = Path(__file__).with_name("experts_ranks.py")


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_mixtral(tmp_path_factory.mktemp("experts"), 5, num_local_experts=7)


def run(what: str, model: Path, tmp_path: Path) -> list[dict[str, Any]]:
    """What each rank found; nothing of one that was killed."""
    command = [sys.executable, str(PROGRAM), what, str(model), str(tmp_path), str(free_port())]
    subprocess.run(command, timeout=280, check=True, cwd="/")
    files = [tmp_path / f"{rank}.json" for rank in range(RANKS)]
    return [json.loads(file.read_text()) if file.exists() else {} for file in files]


@pytest.mark.parametrize("what", ["send", "parts"])
def test_the_sums_are_those_of_one_rank(what: str, experts: Path, tmp_path: Path) -> None:
    """Experts spread over the ranks, and experts of which each rank has a part."""
    for rank, found in enumerate(run(what, experts, tmp_path)):
        assert found["error"] == "", f"rank {rank}: {found['error']}"
        assert found["manager"] == "HMCAll2AllManager"


def test_a_killed_rank_ends_the_calls_of_its_group(experts: Path, tmp_path: Path) -> None:
    *living, killed = run("kill", experts, tmp_path)
    assert killed == {}
    assert [found["error"] for found in living] == [""] * 3
    assert [found["loss"] for found in living] == ["none", "PeerLostError", "none"]


def test_engines_that_do_not_ask_keep_vllms_manager(experts: Path, tmp_path: Path) -> None:
    for found in run("vllm", experts, tmp_path):
        assert found == {"error": "", "manager": "AgRsAll2AllManager"}
