"""Calls of vLLM's weight-transfer interface to several workers, of which each may raise."""

from __future__ import annotations

import functools
import inspect
from typing import Any

__all__ = ["answer_all", "call_in_worker"]

_CALLS = {
    "init_weight_transfer_engine",
    "shutdown_weight_transfer_engine",
    "start_weight_update",
    "start_draft_weight_update",
    "update_weights",
    "finish_weight_update",
}
_PARAMETERS = {"method", "timeout", "args", "kwargs", "non_block", "unique_reply_rank"}


def call_in_worker(worker: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Calls a method. What it has raised, or an empty text."""
    try:
        getattr(worker, method)(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def answer_all(backend: str) -> None:
    """Lets an engine of this process go on after a failed weight update with ``backend``. Idempotent.

    vLLM's executor for several workers raises the first failure that it reads and leaves the answers of the workers behind it in
    their queues, where the next call takes them for its own. So the workers return their failures of these calls, and the executor
    raises once it has read all answers. Nothing changes for other backends, other calls and other releases of vLLM.
    """
    try:
        from vllm.v1.executor.multiproc_executor import MultiprocExecutor
    except ImportError:
        return
    original = MultiprocExecutor.collective_rpc
    signature = inspect.signature(original)
    if getattr(original, "of_hmc", False) or not set(signature.parameters) >= _PARAMETERS:
        return

    @functools.wraps(original)
    def collective_rpc(self: Any, *given: Any, **named: Any) -> Any:
        bound = signature.bind(self, *given, **named)
        bound.apply_defaults()
        arguments = bound.arguments
        method, config = arguments["method"], self.vllm_config.weight_transfer_config
        chosen = config is not None and config.backend == backend and isinstance(method, str) and method in _CALLS
        if not chosen or arguments["non_block"] or arguments["unique_reply_rank"] is not None:
            return original(self, *given, **named)
        arguments["method"] = call_in_worker
        arguments["args"], arguments["kwargs"] = (method, arguments["args"], arguments["kwargs"] or {}), None
        failures = [failure for failure in original(*bound.args, **bound.kwargs) if failure]
        if failures:
            raise RuntimeError(f"{method} has failed: {failures[0]}")
        return None

    collective_rpc.of_hmc = True  # type: ignore[attr-defined]
    MultiprocExecutor.collective_rpc = collective_rpc
