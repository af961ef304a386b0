"""vLLM: new weights for a running engine, moved by :mod:`hmc.weights` behind vLLM's weight-transfer interface.

vLLM loads :func:`register` in each of its processes (entry point group ``vllm.general_plugins``); an engine is then started with::

    python -m vllm.entrypoints.openai.api_server --model MODEL --weight-transfer-config '{"backend": "hmc"}'

docs/howto/vllm_weights.md shows both sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hmc.integrations.vllm._weight_calls import answer_all

if TYPE_CHECKING:
    from hmc.integrations.vllm._weight_engine import (
        HMCWeightTransferEngine,
        HMCWeightTransferInitInfo,
        HMCWeightTransferUpdateInfo,
    )
    from hmc.integrations.vllm._weight_trainer import HMCTrainerInitInfo, HMCTrainerWeightTransferEngine

__all__ = [
    "HMCTrainerInitInfo",
    "HMCTrainerWeightTransferEngine",
    "HMCWeightTransferEngine",
    "HMCWeightTransferInitInfo",
    "HMCWeightTransferUpdateInfo",
    "register",
]

_NAME = "hmc"
_ENGINE = "hmc.integrations.vllm._weight_engine"
_TRAINER = "hmc.integrations.vllm._weight_trainer"


def __getattr__(name: str) -> Any:
    """Imports a side, and with it vLLM, at the first use."""
    import importlib

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_TRAINER if "Trainer" in name else _ENGINE), name)


def register() -> None:
    """Makes the backend "hmc" known to vLLM's factories in this process: of the engine's workers, and of a trainer. Idempotent.

    Does nothing in a release of vLLM without the factories, so that engines start with any.
    """
    try:
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory
    except ImportError:
        return
    for factory, module, name in (
        (WeightTransferEngineFactory, _ENGINE, "HMCWeightTransferEngine"),
        (WeightTransferTrainerFactory, _TRAINER, "HMCTrainerWeightTransferEngine"),
    ):
        if _NAME not in factory._registry:  # register_engine() refuses a name that is taken
            factory.register_engine(_NAME, module, name)
    answer_all(_NAME)
