"""The ranks of test_pipeline_groups.py: pipeline_ranks.py WHAT VENDORS FOLDER. They are forked, which imports vLLM once."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import vllm
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state

from hmc.integrations.vllm import pipeline

TP = PP = 2


def tensors(seed: int) -> dict[str, Any]:
    """What a stage sends: types, shapes and an empty one."""
    source = torch.Generator().manual_seed(seed)
    return {
        "hidden": torch.randn(7, 33, generator=source),
        "half": torch.randn(5, generator=source).to(torch.bfloat16),
        "none": torch.empty(0, 3),
        "ids": torch.randint(0, 1 << 40, (1025,), generator=source),
        "number": 5,
    }


def check_equal(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        assert torch.equal(found[name], value) if isinstance(value, torch.Tensor) else found[name] == value, name


def check(rank: int) -> None:
    """Messages along the pipeline, sums and objects among the ranks of a stage."""
    pp, tp = parallel_state.get_pp_group(), parallel_state.get_tp_group()
    for turn in range(3):
        if pp.is_first_rank:
            pp.send_tensor_dict(tensors(10 * turn + tp.rank_in_group))
        else:
            check_equal(pp.recv_tensor_dict(), tensors(10 * turn + tp.rank_in_group))
        mine = torch.arange(1001, dtype=torch.float32) * (rank + 1)
        factor = sum(one + 1 for one in tp.ranks)
        assert torch.equal(tp.all_reduce(mine), torch.arange(1001, dtype=torch.float32) * factor)
        assert pp.broadcast_object({"turn": turn} if pp.is_first_rank else None) == {"turn": turn}
        found = pp.broadcast_tensor_dict(tensors(turn) if pp.is_first_rank else None)
        check_equal(found, tensors(turn))
    pp.barrier()
    # A sender whose device has another name: its tensors are made on the device that is here.
    metadata = parallel_state.TensorMetadata("there", torch.float32, torch.Size([3]))
    if dist.get_backend(pp.device_group) == "hmc":
        kept = pipeline._here(
            [("a", metadata), ("b", 4)], pp, [pipeline._Place("x", "there")] * dist.get_world_size(), 1 - pp.rank_in_group
        )
        assert kept == [("a", metadata._replace(device="cpu")), ("b", 4)]


def run(rank: int, what: str, vendors: list[str], folder: Path) -> None:
    pipeline.vendor = lambda: vendors[rank]
    pipeline.register()
    pipeline.register()  # vLLM may load a plugin several times
    if what == "refuse":
        vllm.__version__ = "99.1.0"
    found: dict[str, Any] = {"error": ""}
    try:
        with set_current_vllm_config(VllmConfig()):
            parallel_state.init_distributed_environment(TP * PP, rank, f"file://{folder}/meet", rank, "gloo")
            parallel_state.initialize_model_parallel(TP, PP)
            groups = {
                "world": parallel_state.get_world_group(),
                "tp": parallel_state.get_tp_group(),
                "pp": parallel_state.get_pp_group(),
            }
            found["backends"] = {name: dist.get_backend(group.device_group) for name, group in groups.items()}
            check(rank)
            parallel_state.destroy_model_parallel()
            parallel_state.destroy_distributed_environment()
    except Exception:
        found["error"] = traceback.format_exc()
    (folder / f"{rank}.json").write_text(json.dumps(found))


def main() -> None:
    what, vendors, folder = sys.argv[1], sys.argv[2].split(","), Path(sys.argv[3])
    children = []
    for rank in range(len(vendors)):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                run(rank, what, vendors, folder)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(vendors)


if __name__ == "__main__":
    main()
