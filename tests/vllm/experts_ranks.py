"""The ranks of test_experts_groups.py: experts_ranks.py WHAT MODEL FOLDER PORT. They are forked, which imports vLLM once."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.forward_context import override_forward_context
from vllm.model_executor.layers.fused_moe.expert_map_manager import determine_expert_map

from hmc.errors import HmcError
from hmc.integrations.vllm import experts

DP = TP = 2
EXPERTS, HIDDEN, TOPK = 7, 48, 3
TURNS = ([5, 3], [1, 64], [0, 9], [2, 0], [33, 33])


def config_of(rank: int, what: str, model: str, port: int) -> VllmConfig:
    wanted = {} if what == "vllm" else {"all2all": "hmc", "all2all_timeout": 60}
    config = EngineArgs(
        model=model,
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=64,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        tensor_parallel_size=TP,
        data_parallel_size=DP,
        data_parallel_rank=rank // TP,
        enable_expert_parallel=what != "parts",
        additional_config=wanted,
    ).create_engine_config()
    config.parallel_config._data_parallel_master_port_list = [port]
    config.parallel_config.data_parallel_master_port = port
    config.parallel_config._coord_store_port = 0
    return config


def batch(turn: int, tokens: list[int]) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Of each data-parallel rank: rows, weights, and different experts of each token."""
    source = torch.Generator().manual_seed(turn)
    return [
        (
            torch.randn(count, HIDDEN, generator=source),
            torch.rand(count, TOPK, generator=source),
            torch.rand(count, EXPERTS, generator=source).argsort(dim=1)[:, :TOPK].to(torch.int32),
        )
        for count in tokens
    ]


def computed(rows: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
    """What the experts of ``here`` give for these rows: expert e is x -> (e + 1) x + e."""
    found = torch.zeros_like(rows)
    for choice in range(TOPK):
        expert = ids[:, choice : choice + 1].long()
        found += torch.where(here[expert], weights[:, choice : choice + 1] * ((expert + 1) * rows + expert), 0)
    return found


def check(turn: int, tokens: list[int], rank: int, sends: bool) -> None:
    """A layer's exchange equals the dense computation, and only what is needed travels."""
    ep, tp = parallel_state.get_ep_group(), parallel_state.get_tp_group()
    dp_rank = rank // TP
    of_all = batch(turn, tokens)
    _, table, _ = determine_expert_map(DP * TP, rank, EXPERTS)
    assert table is not None
    here = table >= 0 if sends else torch.ones(EXPERTS, dtype=torch.bool)
    rows, weights, ids = ep.dispatch(*of_all[dp_rank])
    if sends:  # kernels of the CPU take numbers among the rank's own experts
        ids = torch.nonzero(table >= 0).reshape(-1)[ids.long()]
    come = sum(int(here[one[2].long()].any(dim=1).sum()) for one in of_all) if sends else sum(tokens)
    assert len(rows) == max(come, 1), (len(rows), come)
    room = ep.allocate_combine_input(tuple(rows.shape), rows.dtype, rows.device)
    results = computed(rows, weights, ids, here) * (1 if sends else 1 / (DP * TP))
    if room is not None:
        results = room.copy_(results)
    output = torch.full((tokens[dp_rank], HIDDEN), torch.nan)
    ep.combine_into_output(results, output)
    summed = tp.all_reduce(output)
    torch.testing.assert_close(summed, computed(*of_all[dp_rank], torch.ones(EXPERTS, dtype=torch.bool)), rtol=1e-4, atol=1e-4)


def check_gathered(turn: int, tokens: list[int], rank: int) -> None:
    """Rows of other types, what is routed later, and what has scales go to all ranks."""
    ep = parallel_state.get_ep_group()
    dp_rank = rank // TP
    whole = [torch.cat(parts) for parts in zip(*batch(turn, tokens), strict=True)]
    x, weights, ids = batch(turn, tokens)[dp_rank]
    rows, logits = ep.dispatch_router_logits(x, weights)
    assert torch.equal(rows, whole[0])
    assert torch.equal(logits, whole[1])
    sums = ep.combine(rows * (rank + 1))
    ranks = [other for other in range(DP * TP) if other % TP == rank % TP]
    torch.testing.assert_close(sums, x * sum(other + 1 for other in ranks))
    scales = (x[:, :3] * 7).to(torch.float64)
    rows, _, all_ids, extra = ep.dispatch(x.to(torch.float8_e4m3fn), weights, ids, extra_tensors=[scales, ids[:, 0]])
    assert torch.equal(rows.view(torch.uint8), whole[0].to(torch.float8_e4m3fn).view(torch.uint8))
    assert all_ids.shape == whole[2].shape
    assert torch.equal(extra[0], (whole[0][:, :3] * 7).to(torch.float64))
    assert torch.equal(extra[1], whole[2][:, 0])
    assert torch.equal(ep.combine(rows.float()), sum(x.to(torch.float8_e4m3fn).float() for _ in ranks))


def check_loss(rank: int) -> str:
    """The last rank is killed between two calls: sums without its experts are no result."""
    if rank == DP * TP - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    ep = parallel_state.get_ep_group()
    started = time.monotonic()
    try:
        while True:
            rows, weights, ids = ep.dispatch(*batch(0, [5, 5])[rank // TP])
            ep.combine(computed(rows, weights, ids, torch.ones(EXPERTS, dtype=torch.bool)))
            if rank % TP == 0:
                return "none"  # whose group is complete
    except HmcError as error:
        assert time.monotonic() - started < 60
        return type(error).__name__


def run(rank: int, what: str, model: str, folder: Path, port: int) -> None:
    found: dict[str, Any] = {"error": ""}
    os.environ["VLLM_DIST_IDENT"] = str(port)  # as an executor does
    try:
        experts.register()
        experts.register()  # vLLM may load a plugin several times
        with set_current_vllm_config(config_of(rank, what, model, port)):
            parallel_state.init_distributed_environment(TP, rank % TP, f"tcp://127.0.0.1:{port}", rank % TP, "gloo")
            parallel_state.initialize_model_parallel(TP, 1)
            communicator = parallel_state.get_ep_group().device_communicator
            assert communicator is not None
            found["manager"] = type(communicator.all2all_manager).__name__
            for turn, tokens in enumerate(TURNS if what in ("send", "parts") else TURNS[:1] if what == "kill" else ()):
                metadata = SimpleNamespace(get_chunk_sizes_across_dp_rank=lambda tokens=tokens: tokens)
                with override_forward_context(SimpleNamespace(dp_metadata=metadata)):  # type: ignore[arg-type]
                    check(turn, tokens, rank, what != "parts")
                    check_gathered(turn, tokens, rank)
            if what == "kill":
                found["loss"] = check_loss(rank)
            communicator.all2all_manager.destroy()
    except Exception:
        found["error"] = traceback.format_exc()
    (folder / f"{rank}.json").write_text(json.dumps(found))


def main() -> None:
    what, model, folder, port = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    children = []
    for rank in range(DP * TP):
        child = os.fork()
        if child == 0:
            try:
                run(rank, what, model, folder, port)
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
