"""vLLM: the experts' rows of data-parallel ranks, moved by :mod:`hmc.experts` behind vLLM's interface for its all-to-all.

vLLM loads :func:`register` in each of its processes (entry point group ``vllm.general_plugins``); an engine is then started with::

    python -m vllm.entrypoints.openai.api_server --model MODEL --data-parallel-size 2 --enable-expert-parallel \\
        --additional-config '{"all2all": "hmc"}'

docs/howto/vllm.md says what it does, and where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hmc.integrations.vllm._experts_manager import HMCAll2AllManager

__all__ = ["HMCAll2AllManager", "register"]

_KEY = "all2all"  # of additional_config
_NAME = "hmc"


def __getattr__(name: str) -> Any:
    """Imports the manager, and with it vLLM, at the first use."""
    if name != "HMCAll2AllManager":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hmc.integrations.vllm._experts_manager import HMCAll2AllManager

    return HMCAll2AllManager


def register() -> None:
    """Lets engines that ask for it, in this process, send rows of experts by HMC. Idempotent.

    It takes the place of vLLM's manager for ``allgather_reducescatter``, which is vLLM's default. Does nothing in a release of vLLM
    without that one, so that engines start with any.
    """
    try:
        from vllm.distributed.device_communicators.all2all import AgRsAll2AllManager
    except ImportError:
        return
    if getattr(AgRsAll2AllManager.__new__, "of_hmc", False):
        return

    def new(cls: type, *_: Any, **__: Any) -> Any:
        chosen = cls
        if cls is AgRsAll2AllManager and _is_wanted():
            from hmc.integrations.vllm._experts_manager import HMCAll2AllManager

            chosen = HMCAll2AllManager
        return object.__new__(chosen)

    new.of_hmc = True  # type: ignore[attr-defined]
    AgRsAll2AllManager.__new__ = staticmethod(new)


def _is_wanted() -> bool:
    from vllm.config import get_current_vllm_config

    more = get_current_vllm_config().additional_config
    return isinstance(more, dict) and more.get(_KEY) == _NAME
