"""Two pipeline stages that present themselves as cards of two vendors: the tokens of one engine, over torch's backend "hmc"."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from engines import Engine, random_prompt

COUNT = 12
# The second stage of vLLM's CPU runner has no buffers until the model was warmed up, which enforce_eager leaves out.
STAGES = {
    "pipeline_parallel_size": 2,
    "distributed_executor_backend": "mp",
    "enforce_eager": False,
    "compilation_config": {"mode": 1, "backend": "eager"},
}
# A plugin of vLLM beside HMC's: each rank says that its cards are of the vendor that the environment names for it.
PLUGIN = """
import os
import torch.distributed as dist
from hmc.integrations.vllm import pipeline

def register():
    pipeline.vendor = lambda: os.environ["PRESENTED_VENDORS"].split(",")[dist.get_rank()]
    pipeline.register()
"""


@pytest.fixture
def two(model: Path, tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """Starts an engine of two stages, whose cards are of these vendors."""
    (tmp_path / "presented_vendors.py").write_text(PLUGIN)
    info = tmp_path / "presented_vendors-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: presented-vendors\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\npresented_vendors = presented_vendors:register\n")
    engines: list[Engine] = []

    def start(vendors: list[str]) -> Engine:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
            patch.setenv("PRESENTED_VENDORS", ",".join(vendors))
            engines.append(Engine(model, tmp_path / "log", 32, **STAGES))
        engines[0].wait_ready()
        return engines[0]

    yield start
    for engine in engines:
        engine.close()


@pytest.fixture(scope="module")
def one(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = Engine(model, tmp_path_factory.mktemp("one") / "log", 32)
    engine.wait_ready()
    yield engine
    engine.close()


@pytest.mark.parametrize("vendors", [["nvidia", "amd"], ["amd", "amd"]])
def test_stages_answer_as_one_engine_does(two: Callable[..., Engine], one: Engine, vendors: list[str]) -> None:
    stages = two(vendors)
    crossing = "hmc" if len(set(vendors)) > 1 else "gloo"
    wanted = {"pp": crossing, "pp metadata": crossing, "world": crossing, "tp": "gloo"}
    assert stages.backends() == [wanted, wanted]
    begun = {tokens: stages.start(random_prompt(tokens, tokens), COUNT) for tokens in (1, 33, 100, 257)}
    for tokens, name in begun.items():
        assert stages.result(name)["tokens"] == one.generate(random_prompt(tokens, tokens), COUNT)["tokens"], tokens


def test_a_lost_stage_ends_the_engine(two: Callable[..., Engine]) -> None:
    """Long before any timeout of a collective."""
    stages = two(["nvidia", "amd"])
    stages.start(random_prompt(1, 200), 300)
    workers = [one for one in psutil.Process(stages.process.pid).children(recursive=True) if "Worker_PP1" in one.name()]
    assert workers
    workers[0].kill()
    stages.process.wait(60)
