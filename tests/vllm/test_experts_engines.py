"""Two data-parallel engines that share the experts of a model over HMC: the tokens of one engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engines import free_port, save_mixtral

PROGRAM = Path(__file__).with_name("data_parallel.py")
SHARED = {"enable_expert_parallel": True, "additional_config": {"all2all": "hmc"}}
# A plugin of vLLM beside HMC's: the results of one rank's experts are halved before they are summed.
PLUGIN = """
import os
from hmc.integrations.vllm._expert_group import ExpertGroup

def register():
    combine = ExpertGroup.combine
    if os.environ["HALVED"] == "1":
        ExpertGroup.combine = lambda self, results: combine(self, results / 2)
"""


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_mixtral(tmp_path_factory.mktemp("experts"), 3)


def tokens(model: Path, size: int, tmp_path: Path, half: int | None = None, **engine: Any) -> list[list[int]]:
    """By prompt, from so many engines."""
    options = json.dumps({"engine": {"model": str(model), **engine}, "half": half})
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
    }
    port = str(free_port())
    logs = [tmp_path / f"{rank}.log" for rank in range(size)]
    processes = []
    for rank, log in enumerate(logs):
        command = [sys.executable, str(PROGRAM), str(rank), str(size), port, options]
        with log.open("wb") as errors:
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, cwd="/", env=environment))
    try:
        printed = [process.communicate(timeout=280)[0].decode() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, log in zip(processes, logs, strict=True):
        assert process.returncode == 0, log.read_text(errors="replace")
    parts = [json.loads(text) for text in printed]
    return [parts[at % size][at // size] for at in range(sum(map(len, parts)))]


@pytest.mark.timeout(900)
def test_engines_answer_as_one_does(experts: Path, tmp_path: Path) -> None:
    (tmp_path / "halved.py").write_text(PLUGIN)
    info = tmp_path / "halved-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: halved\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nhalved = halved:register\n")
    wanted = tokens(experts, 1, tmp_path)
    assert tokens(experts, 2, tmp_path, **SHARED) == wanted
    assert tokens(experts, 2, tmp_path, half=1, **SHARED) != wanted
