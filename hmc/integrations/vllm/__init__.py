"""vLLM: prefill in one engine, decode in another, with the KV cache moved by :mod:`hmc.kv`.

vLLM loads :class:`HMCConnector` by name::

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "HMCConnector",
        "kv_connector_module_path": "hmc.integrations.vllm", "kv_role": "kv_producer"}'

docs/howto/vllm.md has the commands and the options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hmc.integrations.vllm._connector import HMCConnector

__all__ = ["HMCConnector"]


def __getattr__(name: str) -> Any:
    """Imports the connector, and with it vLLM, at the first use."""
    if name != "HMCConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hmc.integrations.vllm._connector import HMCConnector

    return HMCConnector
