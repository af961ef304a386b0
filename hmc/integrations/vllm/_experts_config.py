"""What an engine's configuration says of its experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hmc.errors import InvalidArgumentError, UnsupportedError

_TIMEOUT_KEY = "all2all_timeout"  # of additional_config
_TIMEOUT = 300.0
_LONGEST = 1e9  # seconds; clocks of torch's store overflow at some thousand times as many
_ROWS = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class ExpertsConfig:
    """Of a model and its ranks.

    ``experts``: of a layer, with those that vLLM keeps several times; 0: each rank has a part of all. ``tokens``: most of a rank in
    one call. ``timeout``: seconds for the other ranks to come to a call. ``local_ids``: kernels take numbers among a rank's own
    experts, as vLLM's for the CPU do; others take numbers among all, and have a map.
    """

    experts: int
    tokens: int
    timeout: float
    local_ids: bool

    @classmethod
    def of(cls, config: Any) -> ExpertsConfig:
        """Raises UnsupportedError where graphs would capture the calls, and InvalidArgumentError for a bad timeout."""
        from vllm.platforms import current_platform

        if not current_platform.is_cpu() and not config.model_config.enforce_eager:
            raise UnsupportedError("all2all by HMC: no graph of a device captures its calls: start vLLM with --enforce-eager")
        parallel = config.parallel_config
        experts = config.model_config.get_num_experts() + parallel.eplb_config.num_redundant_experts
        timeout = config.additional_config.get(_TIMEOUT_KEY, _TIMEOUT)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= _LONGEST:
            raise InvalidArgumentError(f"additional_config: {_TIMEOUT_KEY} is {timeout!r}; pass seconds, at most {_LONGEST:.0e}")
        ranks = parallel.data_parallel_size * parallel.tensor_parallel_size
        if parallel.enable_expert_parallel and experts < ranks:
            raise UnsupportedError(f"all2all by HMC: {experts} experts for {ranks} ranks: start vLLM with fewer ranks")
        return cls(
            experts if parallel.enable_expert_parallel else 0,
            config.scheduler_config.max_num_batched_tokens,
            float(timeout),
            current_platform.is_cpu(),
        )

    def sends(self, rows: torch.Tensor) -> bool:
        """Whether such rows go to their experts alone."""
        return self.experts > 0 and rows.dtype in _ROWS
