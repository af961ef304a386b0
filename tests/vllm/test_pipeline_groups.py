"""vLLM's groups of ranks of several vendors, without an engine: four processes, of which two present another vendor."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RANKS = 4
PROGRAM = Path(__file__).with_name("pipeline_ranks.py")


def run(what: str, vendors: list[str], tmp_path: Path) -> list[dict[str, Any]]:
    """What each rank found."""
    command = [sys.executable, str(PROGRAM), what, ",".join(vendors), str(tmp_path)]
    subprocess.run(command, timeout=240, check=True, cwd="/")
    return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS)]


def test_groups_that_cross_vendors_use_hmc_and_the_others_keep_theirs(tmp_path: Path) -> None:
    for rank, found in enumerate(run("send", ["amd", "amd", "nvidia", "nvidia"], tmp_path)):
        assert found["backends"] == {"world": "hmc", "tp": "gloo", "pp": "hmc"}
        assert found["error"] == "", rank


def test_ranks_of_one_vendor_are_left_alone(tmp_path: Path) -> None:
    for found in run("send", ["amd"] * RANKS, tmp_path):
        assert found["backends"] == {"world": "gloo", "tp": "gloo", "pp": "gloo"}
        assert found["error"] == ""


def test_a_split_group_across_vendors_sums_right(tmp_path: Path) -> None:
    """Tensor parallel ranks of two vendors: slow, and right."""
    for found in run("send", ["amd", "nvidia", "amd", "nvidia"], tmp_path):
        assert found["backends"] == {"world": "hmc", "tp": "hmc", "pp": "gloo"}
        assert found["error"] == ""


@pytest.mark.parametrize("vendors", [["amd", "amd", "nvidia", "nvidia"], ["amd"] * RANKS])
def test_another_release_of_vllm_is_refused_by_name_where_groups_cross(tmp_path: Path, vendors: list[str]) -> None:
    for found in run("refuse", vendors, tmp_path):
        if len(set(vendors)) == 1:
            assert found["error"] == ""
        else:
            assert "vLLM 99.1.0" in found["error"]
            assert "0.32.0" in found["error"]
            assert "amd, nvidia" in found["error"]


def test_a_vllm_that_makes_its_groups_otherwise_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.distributed import parallel_state

    from hmc.integrations.vllm import pipeline

    class Other:
        def __init__(self, groups: list[list[int]]) -> None:
            self.groups = groups

    made = Other.__init__
    monkeypatch.setattr(parallel_state, "GroupCoordinator", Other)
    pipeline.register()
    assert Other.__init__ is made
    monkeypatch.delattr(parallel_state, "GroupCoordinator")
    pipeline.register()


def test_a_group_that_crosses_vendors_may_be_destroyed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """As vLLM's own: the second call does nothing."""
    import torch
    from vllm.distributed.parallel_state import GroupCoordinator

    from hmc.integrations.vllm import pipeline

    group = object.__new__(GroupCoordinator)
    group.cpu_group, group.device_group = "gloo", "hmc"
    group.device_communicator = group.mq_broadcaster = None
    destroyed: list[str] = []
    monkeypatch.setattr(torch.distributed, "destroy_process_group", destroyed.append)
    pipeline._adapt(group, False, False, [])
    assert group.cpu_group == "hmc"
    group.destroy()
    group.destroy()
    assert sorted(destroyed) == ["gloo", "hmc"]
