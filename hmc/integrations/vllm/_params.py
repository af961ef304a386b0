"""``kv_transfer_params``: what the prefill engine returns with a request, and a proxy hands to the decode engine.

The keys are those of vLLM's NixlConnector, so that its proxies and routers pass them on unchanged. A proxy that sends a request to
both engines at once, for layered push, gives it one ``transfer_id`` for both.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hmc.errors import InvalidArgumentError

__all__ = ["MOST_CHARACTERS", "Remote", "asked", "digest_of", "params_of", "transfer_of"]

MOST_CHARACTERS = 1000  # of a name


def asked(params: Any, name: str) -> bool:
    """Whether the params of a request set a flag. Any type: clients send them, and ``vllm_xargs`` can put a text in their place."""
    return isinstance(params, dict) and bool(params.get(name))


def transfer_of(params: Any, request: str) -> str:
    """The name of a prefill request for the decode engine: its ``transfer_id``, or else its own. Raises InvalidArgumentError."""
    transfer = params.get("transfer_id") or request
    if not isinstance(transfer, str) or len(transfer) > MOST_CHARACTERS:
        raise InvalidArgumentError(f"kv_transfer_params: transfer_id is a text of at most {MOST_CHARACTERS} characters")
    return transfer


def digest_of(tokens: Sequence[int] | None) -> str:
    """Of the token ids of a prompt, which both engines have, so that a wrong name is noticed; "" where there are none."""
    return hashlib.blake2b(np.array(tokens, "<i8").tobytes(), digest_size=16).hexdigest() if tokens else ""


@dataclass(frozen=True)
class Remote:
    """A request of a prefill engine. ``engine`` "": whichever is at the address (push)."""

    engine: str
    request: str
    host: str
    port: int  # of its first worker; worker (pp, tp) listens at port + pp * tp_size + tp
    tp_size: int = 1
    pp_size: int = 1

    @staticmethod
    def of(params: Any, mode: str = "pull") -> Remote | None:
        """The remote request that the params name, or None where they ask for no remote prefill. Raises InvalidArgumentError."""
        if not asked(params, "do_remote_prefill"):
            return None
        if params.get("transfer_mode", mode) != mode:
            raise InvalidArgumentError(
                f"kv_transfer_params have transfer_mode {params['transfer_mode']!r:.50}, and this engine has mode {mode!r}: give "
                "both engines the same mode in kv_connector_extra_config"
            )
        if mode == "push":
            transfer = params.get("transfer_id") or params.get("remote_request_id")
            params = {**params, "remote_request_id": transfer, "remote_engine_id": params.get("remote_engine_id") or ""}
        names = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")
        missing = [name for name in names[mode == "push" :] if not params.get(name)]
        if missing:
            raise InvalidArgumentError(
                f"kv_transfer_params with do_remote_prefill lack {', '.join(missing)}: pass those that the prefill engine returned"
            )
        texts = [params[name] for name in names[:3]]
        if not all(isinstance(text, str) and len(text) <= MOST_CHARACTERS for text in texts):
            raise InvalidArgumentError(
                f"kv_transfer_params: {', '.join(names[:3])} are texts of at most {MOST_CHARACTERS} characters: pass those "
                "that the prefill engine returned"
            )
        try:
            port, tp_size, pp_size = (int(params.get(name) or 1) for name in ("remote_port", "tp_size", "pp_size"))
        except (OverflowError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"kv_transfer_params: remote_port, tp_size and pp_size are numbers: {error}") from error
        if not 0 < port < 65536 or tp_size < 1 or pp_size < 1 or port + tp_size * pp_size > 65536:
            raise InvalidArgumentError(
                f"kv_transfer_params: remote_port {port}, tp_size {tp_size}, pp_size {pp_size} is out of range"
            )
        engine, request, host = texts
        return Remote(engine, request, host, port, tp_size, pp_size)

    def address(self, pp: int, tp: int) -> str:
        """Where a worker listens."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port + pp * self.tp_size + tp}"

    @property
    def workers(self) -> Remote:
        """Its engine, as the params describe it: without the request."""
        return dataclasses.replace(self, request="")

    def has(self, address: str) -> bool:
        """Whether one of its workers listens at an address."""
        here, there = (one.rpartition(":") for one in (self.address(0, 0), address))
        return here[0] == there[0] and 0 <= int(there[2]) - self.port < self.tp_size * self.pp_size


def params_of(remote: Remote, blocks: list[int], tokens: int, mode: str = "pull") -> dict[str, Any]:
    """The params that a prefill engine returns for a request that it keeps: ``tokens`` tokens in its ``blocks``."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [blocks],
        "remote_engine_id": remote.engine,
        "remote_request_id": remote.request,
        "remote_host": remote.host,
        "remote_port": remote.port,
        "tp_size": remote.tp_size,
        "pp_size": remote.pp_size,
        "remote_num_tokens": tokens,
        "transfer_mode": mode,
    }
