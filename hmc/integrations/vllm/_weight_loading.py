"""Tensors of a checkpoint into a running model, by vLLM's layerwise reload: vLLM maps names, fuses, cuts and quantises."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from hmc.errors import InvalidArgumentError

__all__ = ["Kept", "load"]


def load(model: Any, model_config: Any, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Replaces all weights of a model. ``tensors``: names of the checkpoint, and whole tensors; of other ranks' parts too.

    After an exception the model is partly replaced and not usable: Kept.restore().
    Raises what the model's load_weights() raises, and InvalidArgumentError where weights of the model are not among the tensors.
    """
    before = {name for name, _ in model.named_parameters()}  # of tied ones, one
    initialize_layerwise_reload(model)
    wanted = before & {name for name, _ in model.named_parameters()}  # without what vLLM makes of the weights
    with disable_mtp_completeness_check():
        loaded = model.load_weights(tensors)
    if model_config.quantization is None and loaded is not None:  # as vLLM checks a checkpoint
        missing = sorted(wanted - loaded)
        if missing:
            raise InvalidArgumentError(
                f"no source publishes what {len(missing)} weights of the model are loaded from: {missing[:4]}"
            )
    finalize_layerwise_reload(model, model_config)


class Kept:
    """A model's tensors and modules as they are now. Takes host memory as large as the worker's part of the model."""

    def __init__(self, model: Any) -> None:
        self._modules: list[tuple[Any, dict[str, Any]]] = []
        self._tensors: dict[int, tuple[Any, dict[str, Any], Any, Any]] = {}
        for module in model.modules():
            own = dict(module.__dict__)
            for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
                own[name] = own[name].copy()
            self._modules.append((module, own))
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None and id(tensor) not in self._tensors:
                    copy = tensor.detach().to("cpu", copy=True)
                    self._tensors[id(tensor)] = (tensor, dict(tensor.__dict__), tensor.data, copy)

    def restore(self) -> None:
        """Puts the model back, in the memory that it had. Once."""
        for module, own in self._modules:
            get_layerwise_info(module).reset()
            module.__dict__.clear()
            module.__dict__.update(own)
        with torch.no_grad():
            for tensor, own, data, copy in self._tensors.values():
                tensor.__dict__.clear()
                tensor.__dict__.update(own)
                tensor.data = data
                data.copy_(copy)
