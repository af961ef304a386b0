"""What the scheduler's side of the connector tells the workers' in each step."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

from hmc.integrations.vllm._loading import Fetch
from hmc.integrations.vllm._outgoing import Chunk, Dropped
from hmc.integrations.vllm._params import Remote

__all__ = ["HMCConnectorMetadata", "Keep"]


@dataclass
class Keep:
    """A finished request whose blocks stay until they were read.

    ``transfer``: its name for the decode engine (push). ``prompt``: digest of its tokens, or "" (pull).
    """

    request: str
    blocks: list[int]
    tokens: int
    transfer: str = ""
    prompt: str = ""


@dataclass
class HMCConnectorMetadata(KVConnectorMetadata):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """The news of a step."""

    keep: list[Keep] = field(default_factory=list)
    fetch: list[Fetch] = field(default_factory=list)
    cancel: list[str] = field(default_factory=list)  # fetches of requests that were aborted
    release: list[Remote] = field(default_factory=list)  # remote requests that are not read
    renew: list[Remote] = field(default_factory=list)  # remote requests that are read later
    # Push: what this step computes, requests that lost their blocks before it, and requests that are not pushed any more.
    chunks: list[Chunk] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
