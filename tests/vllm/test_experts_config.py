"""What an engine's configuration says of its experts, without an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hmc.errors import InvalidArgumentError
from hmc.integrations.vllm._experts_config import ExpertsConfig


def config_of(**more: Any) -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(enforce_eager=True, get_num_experts=lambda: 8),
        parallel_config=SimpleNamespace(
            eplb_config=SimpleNamespace(num_redundant_experts=0),
            data_parallel_size=2,
            tensor_parallel_size=1,
            enable_expert_parallel=True,
        ),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=64),
        additional_config=more,
    )


@pytest.mark.parametrize("timeout", [0, -1, True, "60", None, float("nan"), float("inf"), 1e300, 10**30])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(timeout: Any) -> None:
    """At the start, and not at the first exchange of rows."""
    with pytest.raises(InvalidArgumentError, match="all2all_timeout"):
        ExpertsConfig.of(config_of(all2all_timeout=timeout))


@pytest.mark.parametrize(("timeout", "seconds"), [({}, 300), ({"all2all_timeout": 5}, 5), ({"all2all_timeout": 1e9}, 1e9)])
def test_timeouts(timeout: dict[str, float], seconds: float) -> None:
    assert ExpertsConfig.of(config_of(**timeout)).timeout == seconds
